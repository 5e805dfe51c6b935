//! From a carrier to a link: accept, prove who it is, or let it join.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_identity::{ALPN_JOIN, ALPN_LINK, serve_join};
use hopline_link::{Code, Config, Mux, Side, reset_if_dead, tune_tcp};
use hopline_route_proto::{Glob, Name};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::core::{Grants, LinkId};
use crate::hub::{Hub, LinkEntry};
use crate::{control, routing};

/// Carriers whose handshake is under way. One more waits in the kernel's queue.
const HANDSHAKES: usize = 256;
/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After an accept that failed for want of descriptors or memory: the loop must not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two lines of log about failing accepts.
const ACCEPT_LOG_EVERY: Duration = Duration::from_secs(5);

/// Accepts carriers until `closing` turns true; the links live on until the task is ended.
pub(crate) async fn run(hub: Arc<Hub>, listener: TcpListener, mut closing: watch::Receiver<bool>) {
    let acceptor = TlsAcceptor::from(hub.identity.server_config());
    let room = Arc::new(Semaphore::new(HANDSHAKES));
    let mut tasks = JoinSet::new();
    let mut complained: Option<Instant> = None;
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let (hub, acceptor) = (Arc::clone(&hub), acceptor.clone());
                tasks.spawn(async move {
                    let handshake = handshake(stream, &acceptor);
                    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
                    match done {
                        Ok(Ok(tls)) => serve(&hub, tls, address, place).await,
                        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake failed"),
                        Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
                    }
                });
            }
            Err(error) => {
                if complained.is_none_or(|at| at.elapsed() >= ACCEPT_LOG_EVERY) {
                    complained = Some(Instant::now());
                    tracing::warn!(%error, "can't accept connections now");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    // The address is free for the next process at once.
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn handshake(stream: TcpStream, acceptor: &TlsAcceptor) -> std::io::Result<TlsStream<TcpStream>> {
    tune_tcp(&stream)?;
    acceptor.accept(stream).await
}

/// What the client asked for in its handshake decides what it gets.
async fn serve(
    hub: &Arc<Hub>,
    tls: TlsStream<TcpStream>,
    address: SocketAddr,
    handshaking: tokio::sync::OwnedSemaphorePermit,
) {
    match tls.get_ref().1.alpn_protocol() {
        Some(ALPN_JOIN) => match serve_join(tls, &hub.identity).await {
            Ok(joined) => {
                tracing::info!(machine = joined.name, token = joined.token, %address, "machine joined")
            }
            Err(error) => tracing::warn!(%address, %error, "join refused"),
        },
        Some(ALPN_LINK) => {
            let Some((machine, grants)) = authenticate(hub, &tls, address).await else { return };
            let config = Config {
                liveness: hub.liveness,
                limits: hub.limits,
                ..Config::new(Side::Listener, hub.instance, hub.name.clone())
            };
            let (mux, driver) = match Mux::new(tls, config) {
                Ok(link) => link,
                Err(error) => return tracing::error!(%error, "the relay's link settings can't work"),
            };
            tokio::spawn(driver.when_over(|end, tls| reset_if_dead(end, tls.get_ref().0)));
            drop(handshaking);
            serve_link(hub, mux, machine, grants, address).await;
        }
        _ => tracing::debug!(%address, "a client of another protocol"),
    }
}

async fn authenticate(
    hub: &Arc<Hub>,
    tls: &TlsStream<TcpStream>,
    address: SocketAddr,
) -> Option<(Name, Grants)> {
    let chain: Vec<_> = tls.get_ref().1.peer_certificates()?.iter().map(|c| c.clone().into_owned()).collect();
    let identity = hub.identity.clone();
    // The machine's record is a file.
    let found = tokio::task::spawn_blocking(move || identity.authenticate(&chain)).await;
    let identity = match found {
        Ok(Ok(identity)) => identity,
        Ok(Err(error)) => {
            tracing::warn!(%address, %error, "link refused");
            return None;
        }
        Err(error) => {
            tracing::error!(%address, %error, "link refused");
            return None;
        }
    };
    let globs =
        |patterns: &[String]| patterns.iter().map(|text| Glob::new(text)).collect::<Result<Vec<_>, _>>();
    match (Name::new(&identity.name), globs(&identity.publish), globs(&identity.dial)) {
        (Ok(machine), Ok(publish), Ok(dial)) => Some((machine, Grants { publish, dial })),
        (name, publish, dial) => {
            tracing::error!(
                machine = identity.name,
                ?name,
                ?publish,
                ?dial,
                "the machine's record is damaged"
            );
            None
        }
    }
}

/// One link, from its hello to its end.
async fn serve_link(hub: &Arc<Hub>, mux: Mux, machine: Name, grants: Grants, address: SocketAddr) {
    if let Err(error) = mux.up().await {
        return tracing::debug!(%machine, %address, %error, "no link came of this connection");
    }
    let id = hub.new_link_id();
    let entry = LinkEntry {
        mux: mux.clone(),
        machine: machine.clone(),
        address,
        control: None,
        agents_changed: Arc::default(),
    };
    let taken = hub.with(|state| {
        state.router.link_up(id, machine.clone(), grants, Instant::now())?;
        state.links.insert(id, entry);
        Ok::<_, crate::core::LinkUpError>(())
    });
    if let Err(error) = taken {
        tracing::warn!(%machine, %address, %error, "link refused");
        return mux.close(error.code(), error.to_string());
    }
    tracing::info!(%machine, %address, link = id.0, "link up");
    tokio::select! {
        () = accept_sessions(hub, &mux, id) => {}
        () = watch_suspicion(hub, &mux, id) => {}
    }
    let end = mux.closed().await;
    hub.link_ended(id, &end);
    tracing::info!(%machine, %address, link = id.0, %end, "link down");
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
        match hopline_route_proto::RoutingHeader::decode(session.header()) {
            Err(error) => session.abort(Code::PROTOCOL, error.to_string()),
            Ok(header) if header.service().is_none() => {
                tasks.spawn(control::serve(Arc::clone(hub), id, session));
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
