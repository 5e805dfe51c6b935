//! The records of machines, looked at again while their links are up: a machine that is removed loses its links, and
//! one whose grants have changed goes by the new ones.
//!
//! Whoever changes a record replaces or removes its file, so the time of the folder's last change says that there is
//! something to look at. One look at it every [`LOOK`] is all that it costs; no message of another process is needed, and
//! a change that was made while the relay did not run is one like any other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_identity::{AuthError, MachineIdentity};
use hopline_link::Code;

use crate::core::LinkId;
use crate::hub::Hub;
use crate::links;

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How often the records are read though the folder's time says nothing: some file systems keep it badly.
const READ_ANYWAY: Duration = Duration::from_secs(60);

/// Watches the folder; never ends.
pub(crate) async fn watch(hub: Arc<Hub>) {
    let mut seen = None;
    let mut read = Instant::now();
    loop {
        tokio::time::sleep(LOOK).await;
        let identity = hub.identity.clone();
        // A folder that can't be seen now says nothing of its machines: their links stay.
        let Ok(Some(changed)) = tokio::task::spawn_blocking(move || identity.machines_changed()).await else {
            continue;
        };
        let is_new = seen != Some(changed);
        if is_new || read.elapsed() >= READ_ANYWAY {
            look_at(&hub, hub.peek(|state| state.links.keys().copied().collect())).await;
            read = Instant::now();
        }
        // Two changes within one tick of the folder's clock look like one: after a change it is read twice.
        seen = if is_new && changed.elapsed().is_ok_and(|age| age < LOOK) { None } else { Some(changed) };
    }
}

/// Reads the records of these links' machines, and does what they say.
pub(crate) async fn look_at(hub: &Arc<Hub>, links: Vec<LinkId>) {
    let identities: Vec<(LinkId, MachineIdentity)> = hub.peek(|state| {
        let of = |id| Some((id, state.links.get(&id)?.identity.clone()));
        links.into_iter().filter_map(of).collect()
    });
    let identity = hub.identity.clone();
    let read = tokio::task::spawn_blocking(move || {
        let look = |(id, known): (LinkId, MachineIdentity)| {
            let found = identity.look_again(&known);
            (id, known, found)
        };
        identities.into_iter().map(look).collect::<Vec<_>>()
    });
    // It fails only with the runtime.
    for (id, known, found) in read.await.unwrap_or_default() {
        match found {
            Ok(now) if now == known => {}
            Ok(now) => change_grants(hub, id, now),
            Err(error @ (AuthError::UnknownMachine { .. } | AuthError::OtherKey { .. })) => {
                tracing::warn!(
                    machine = %known.name,
                    link = id.0,
                    "link ended: the machine was removed ({error})"
                );
                let text = format!("machine {} was removed from this relay", known.name);
                links::end(hub, id, Code::UNAUTHORIZED, &text);
            }
            Err(error) => {
                let text = error.to_string();
                if hub.is_news(known.name.as_str(), &text) {
                    tracing::warn!(
                        machine = %known.name,
                        error = text,
                        "can't read the machine's record again: it goes on with what it may do"
                    );
                }
            }
        }
    }
}

fn change_grants(hub: &Hub, id: LinkId, now: MachineIdentity) {
    let (machine, grants) = (now.name.clone(), now.grants.clone());
    let withdrawn = hub.with(|state| {
        if let Some(link) = state.links.get_mut(&id) {
            link.identity = now;
        }
        state.router.set_grants(id, grants)
    });
    let withdrawn = withdrawn.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    tracing::info!(%machine, link = id.0, withdrawn, "what the machine may do has changed");
}
