//! A link of a machine, from its hello to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hopline_identity::MachineIdentity;
use hopline_link::{Code, Mux};
use hopline_route_proto::RoutingHeader;
use tokio::task::JoinSet;

use crate::core::{LinkId, LinkUpError};
use crate::hub::{Hub, LinkEntry};
use crate::{control, records, routing};

/// A link that has just come up, and whose it is.
#[derive(Debug)]
pub(crate) struct NewLink {
    pub(crate) mux: Mux,
    pub(crate) identity: MachineIdentity,
    pub(crate) address: SocketAddr,
}

/// Serves a link until it is over.
pub(crate) async fn serve(hub: &Arc<Hub>, link: NewLink) {
    let NewLink { mux, identity, address } = link;
    let machine = identity.name.clone();
    let grants = identity.grants.clone();
    let id = hub.new_link_id();
    let entry =
        LinkEntry { mux: mux.clone(), identity, address, control: None, agents_changed: Arc::default() };
    let taken = hub.with(|state| {
        state.router.link_up(id, machine.clone(), grants, Instant::now())?;
        state.links.insert(id, entry);
        Ok::<_, LinkUpError>(())
    });
    if let Err(error) = taken {
        tracing::warn!(%machine, %address, %error, "link refused");
        return mux.close(error.code(), error.to_string());
    }
    tracing::info!(%machine, %address, link = id.0, "link up");
    // The machine may have been removed while its handshake was under way.
    records::look_at(hub, vec![id]).await;
    // Both end with the link. Neither may cut the other short: who accepts sessions owns the tasks that carry them.
    tokio::join!(accept_sessions(hub, &mux, id), watch_suspicion(hub, &mux, id));
    let end = mux.closed().await;
    hub.link_ended(id, &mux, &end);
    tracing::info!(%machine, %address, link = id.0, %end, "link down");
}

/// Ends a link, with a reason that its sessions read too.
pub(crate) fn end(hub: &Hub, id: LinkId, code: Code, message: &str) {
    if let Some(mux) = hub.peek(|state| state.links.get(&id).map(|link| link.mux.clone())) {
        mux.close(code, message);
    }
}

/// Tells the router when the link falls silent and when it is heard again; ends with the link.
async fn watch_suspicion(hub: &Hub, mux: &Mux, id: LinkId) {
    let mut status = mux.watch();
    let mut suspect = false;
    loop {
        let now = {
            let status = status.borrow_and_update();
            if status.down.is_some() {
                return;
            }
            status.suspect
        };
        if now != suspect {
            suspect = now;
            hub.with(|state| state.router.set_suspect(id, suspect));
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

async fn accept_sessions(hub: &Arc<Hub>, mux: &Mux, id: LinkId) {
    let mut tasks = JoinSet::new();
    while let Some(session) = mux.accept().await {
        match RoutingHeader::decode(session.header()) {
            Err(error) => session.abort(Code::PROTOCOL, error.to_string()),
            Ok(header) if header.service().is_none() => {
                tasks.spawn(control::serve(Arc::clone(hub), id, session, header.passing));
            }
            Ok(header) => {
                if let Some(waiting) = routing::route(hub, id, session, header) {
                    tasks.spawn(waiting);
                }
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    // Sessions are over with their link; what still runs here only counts them.
    tasks.detach_all();
}
