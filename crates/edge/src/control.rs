//! The control session of one link, as the edge speaks it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link::{Code, Session};
use hopline_route_proto::{Announce, ControlDecoder, ControlMessage as _, EdgeToRelay, Leaving, RelayToEdge};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::sidecar::Sidecar;
use crate::uplinks::{Uplink, Uplinks};

/// Says what this edge serves and dials, and takes what the relay says. True if the relay sent this process away.
pub(crate) async fn speak(
    uplinks: &Uplinks,
    uplink: &Uplink,
    sidecar: &Sidecar,
    agent: &Agent,
    control: Session,
    retired: watch::Receiver<bool>,
) -> bool {
    let mut lists = agent.revision();
    lists.mark_unchanged();
    if !agent.is_empty() && !announce(uplinks, agent, &control).await {
        return false;
    }
    let mut mappings = sidecar.revision();
    mappings.mark_changed();
    let mut asked = uplinks.asked();
    let mut decoder = ControlDecoder::new();
    let (mut leaving, mut retired) = (uplinks.leaving(), retired);
    let mut told = false;
    loop {
        let read = tokio::select! {
            read = control.read_bytes() => read,
            Ok(()) = lists.changed() => {
                if !announce(uplinks, agent, &control).await {
                    return false;
                }
                continue;
            }
            Ok(()) = async { tokio::select! { changed = mappings.changed() => changed, asked = asked.changed() => asked } } => {
                if !say(&control, &EdgeToRelay::Interest(sidecar.interest())).await {
                    return false;
                }
                continue;
            }
            deadline = wait_leaving(&mut leaving, &mut retired), if !told => {
                told = true;
                if !say(&control, &EdgeToRelay::Leaving(Leaving { deadline_ms: deadline })).await {
                    return false;
                }
                continue;
            }
        };
        let Ok(Some(bytes)) = read else { return false };
        decoder.handle_data(&bytes);
        loop {
            match decoder.poll_message() {
                Ok(None) => break,
                Ok(Some(RelayToEdge::Replaced(replaced))) => {
                    tracing::warn!("{}", replaced.message);
                    return true;
                }
                Ok(Some(message)) => take_message(uplinks, uplink, message),
                Err(error) => {
                    control.abort(Code::PROTOCOL, error.to_string());
                    return false;
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
                state.refused = announced.refused.into_iter().map(|refusal| refusal.name).collect();
            });
        }
        RelayToEdge::Agents(agents) => uplinks.change(uplink, |state| {
            state.agents_told = Some(Instant::now());
            state.agents.extend(agents.services.into_iter().map(|of| (of.service, of.agents)));
        }),
        // The link says that it drains, too.
        RelayToEdge::Draining(_) => {}
        // It ends the link, before this.
        RelayToEdge::Replaced(_) => {}
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

async fn announce(uplinks: &Uplinks, agent: &Agent, control: &Session) -> bool {
    let lists = agent.revision();
    let revision = *lists.borrow();
    say(
        control,
        &EdgeToRelay::Announce(Announce {
            revision,
            instance: Bytes::copy_from_slice(uplinks.instance.as_bytes()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            services: agent.ads(),
        }),
    )
    .await
}

/// False if the link is over, or the message can't be sent.
async fn say(control: &Session, message: &EdgeToRelay) -> bool {
    match message.to_frame() {
        Ok(frame) => control.write_bytes(frame).await.is_ok(),
        Err(error) => {
            tracing::error!(%error, "the relay can't be told");
            false
        }
    }
}
