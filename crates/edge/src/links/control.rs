//! The control session of one link, as the edge speaks it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link::{Code, Session};
use hopline_route_proto::{
    Announce, ControlDecoder, ControlMessage as _, EdgeToRelay, Interest, Leaving, RelayToEdge,
};
use tokio::sync::watch;

use super::{Uplink, Uplinks};

/// Says what this edge serves and dials, and takes what the relay says. True if the relay sent this process away.
pub(super) async fn speak(
    uplinks: &Uplinks,
    uplink: &Uplink,
    control: Session,
    retired: watch::Receiver<bool>,
) -> bool {
    let mut published = uplinks.published.subscribe();
    // Said in turn, and read meanwhile: else two ends that both have much to say would wait for each other.
    let mut queue = VecDeque::new();
    if !uplinks.serves_nothing() {
        announce(uplinks, &mut queue);
    }
    let mut interest = uplinks.interest.subscribe();
    interest.mark_changed();
    let mut decoder = ControlDecoder::new();
    let (mut leaving, mut retired) = (uplinks.leaving(), retired);
    let (mut told, mut sent_away) = (false, false);
    loop {
        let read = tokio::select! {
            read = control.read_bytes() => read,
            ready = control.writable(), if !queue.is_empty() => {
                let Some(frame) = queue.pop_front() else { continue };
                if ready.is_err() || control.write_bytes(frame).await.is_err() {
                    return sent_away;
                }
                continue;
            }
            Ok(()) = published.changed() => {
                announce(uplinks, &mut queue);
                continue;
            }
            Ok(()) = interest.changed() => {
                let wanted: Interest = interest.borrow_and_update().clone();
                say(&EdgeToRelay::Interest(wanted), &mut queue);
                continue;
            }
            deadline = wait_leaving(&mut leaving, &mut retired), if !told => {
                told = true;
                say(&EdgeToRelay::Leaving(Leaving { deadline_ms: deadline }), &mut queue);
                continue;
            }
        };
        let Ok(Some(bytes)) = read else { return sent_away };
        decoder.handle_data(&bytes);
        loop {
            match decoder.poll_message() {
                Ok(None) => break,
                Ok(Some(RelayToEdge::Replaced(replaced))) => {
                    sent_away = true;
                    if uplinks.yield_to(uplink, replaced.message) {
                        tracing::warn!(relay = %uplink.relay, "a newer process of this machine has taken over: this one stays away until it has gone");
                    }
                }
                Ok(Some(RelayToEdge::Restored(_))) => {
                    sent_away = false;
                    tracing::info!(relay = %uplink.relay, "the newer process of this machine has gone: this one serves again");
                    uplinks.change(uplink, |state| {
                        state.stands_by = None;
                        state.announced = uplinks.serves_nothing();
                    });
                    announce(uplinks, &mut queue);
                }
                Ok(Some(message)) => take_message(uplinks, uplink, message),
                Err(error) => {
                    control.abort(Code::PROTOCOL, error.to_string());
                    return sent_away;
                }
            }
        }
    }
}

fn take_message(uplinks: &Uplinks, uplink: &Uplink, message: RelayToEdge) {
    match message {
        RelayToEdge::Welcome(welcome) => uplinks.change(uplink, |state| state.peer = Some(welcome.relay)),
        RelayToEdge::Announced(announced) => {
            for refusal in &announced.refused {
                tracing::warn!(
                    service = refusal.name,
                    "the relay does not take this service: {}",
                    refusal.message
                );
            }
            uplinks.change(uplink, |state| {
                state.announced = true;
                state.stands_by = None;
                state.refused = announced.refused.into_iter().map(|refusal| refusal.name).collect();
            });
        }
        RelayToEdge::Agents(agents) => uplinks.change(uplink, |state| {
            state.agents_told = Some(Instant::now());
            state.agents.extend(agents.services.into_iter().map(|of| (of.service, of.agents)));
        }),
        // The link says that it drains, too.
        RelayToEdge::Draining(_) => {}
        // Taken before this.
        RelayToEdge::Replaced(_) | RelayToEdge::Restored(_) => {}
    }
}

/// Waits until this edge is on its way out, or this link has been succeeded: within how many milliseconds.
async fn wait_leaving(
    leaving: &mut watch::Receiver<Option<Duration>>,
    retired: &mut watch::Receiver<bool>,
) -> u64 {
    let leaves = async { leaving.wait_for(Option::is_some).await.ok().and_then(|deadline| *deadline) };
    let retires = async { retired.wait_for(|retired| *retired).await.is_ok().then_some(Duration::MAX) };
    let deadline = tokio::select! {
        Some(deadline) = leaves => deadline,
        Some(deadline) = retires => deadline,
        // The edge is gone, and this task with it in a moment.
        else => return std::future::pending().await,
    };
    u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)
}

fn announce(uplinks: &Uplinks, queue: &mut VecDeque<Bytes>) {
    let published = uplinks.published.borrow();
    let announce = Announce {
        revision: published.revision,
        instance: Bytes::copy_from_slice(uplinks.instance.as_bytes()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        services: published.services.clone(),
        yields: uplinks.yields(),
    };
    say(&EdgeToRelay::Announce(announce), queue);
}

fn say(message: &EdgeToRelay, queue: &mut VecDeque<Bytes>) {
    match message.to_frame() {
        Ok(frame) => queue.push_back(frame),
        Err(error) => tracing::error!(%error, "the relay can't be told"),
    }
}
