//! The control session of one link: what the edge serves, and what the relay has to say.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link::{Code, Mux, Session};
use hopline_names::ServiceName;
use hopline_route_proto::{
    AgentFact, Agents, Announce, ControlDecoder, ControlMessage as _, EdgeToRelay, RelayToEdge, Replaced,
    ServiceAgents, Welcome,
};

use crate::core::{Agent, AgentsOf, AnnounceError, LinkId};
use crate::hub::Hub;
use crate::links;

/// Services in one message: with the most agents each, it fits.
const SERVICES_AT_ONCE: usize = 16;
/// How long an older process has to take the word that a newer one has taken over, before its link ends.
const LAST_WORD: Duration = Duration::from_millis(300);
const REPLACED: &str = "a newer process of the same machine has taken over";

/// Serves the control session until the link is over. `passing`: its process dials and goes.
pub(crate) async fn serve(hub: Arc<Hub>, id: LinkId, session: Session, passing: bool) {
    let (sender, mut messages) = Hub::control_channel();
    if passing && let Err(error) = hub.with(|state| state.router.set_passing(id)) {
        tracing::warn!(link = id.0, %error, "link refused");
        return links::end(&hub, id, error.code(), &error.to_string());
    }
    let machine = hub.with(|state| {
        let link = state.links.get_mut(&id)?;
        if link.control.is_some() {
            return None;
        }
        link.control = Some(sender);
        Some((link.identity.name.to_string(), Arc::clone(&link.agents_changed)))
    });
    let Some((machine, agents_changed)) = machine else {
        return session.abort(Code::PROTOCOL, "a link has one control session");
    };
    session.answer(Bytes::new());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    hub.tell(id, RelayToEdge::Welcome(Welcome { relay: hub.name.to_string(), version, machine }));
    let mut decoder = ControlDecoder::new();
    loop {
        tokio::select! {
            message = messages.recv() => {
                let Some(message) = message else { return };
                let is_last = matches!(message, RelayToEdge::Replaced(_));
                if !send(&session, &message).await {
                    return;
                }
                if is_last && hub.peek(|state| state.router.is_sent_away(id)) {
                    // Once it has left: a link's goodbye goes before what waits in its sessions.
                    while session.sending().await.is_ok_and(|waiting| waiting > 0) {}
                    return links::end(&hub, id, Code::SHUTDOWN, REPLACED);
                }
            }
            () = agents_changed.notified() => {
                if !tell_agents(&hub, id, &session).await {
                    return;
                }
            }
            // Cancel safe: what was not taken is read in the next turn.
            read = session.read_bytes() => {
                let Ok(Some(bytes)) = read else { return };
                decoder.handle_data(&bytes);
                loop {
                    match decoder.poll_message() {
                        Ok(None) => break,
                        Ok(Some(message)) => handle(&hub, id, message),
                        Err(error) => return links::end(&hub, id, Code::PROTOCOL, &error.to_string()),
                    }
                }
            }
        }
    }
}

/// Tells the edge who serves what it dials, as far as it was not told yet. False if the session is over.
async fn tell_agents(hub: &Hub, id: LinkId, session: &Session) -> bool {
    loop {
        let services: Vec<_> = hub.with(|state| {
            let mux = |agent: &Agent| Some(state.links.get(&agent.link?)?.mux.clone());
            let with_links = |of: AgentsOf| {
                let agents = of.agents.into_iter().map(|agent| (mux(&agent), agent));
                (of.service, agents.collect::<Vec<_>>())
            };
            state.router.take_agents(id, SERVICES_AT_ONCE).into_iter().map(with_links).collect()
        });
        if services.is_empty() {
            return true;
        }
        let message = |(service, agents): (ServiceName, Vec<_>)| ServiceAgents {
            service: service.to_string(),
            agents: agents.into_iter().map(agent_fact).collect(),
        };
        let services = services.into_iter().map(message).collect();
        if !send(session, &RelayToEdge::Agents(Agents { services })).await {
            return false;
        }
    }
}

/// An agent with the figures of its link.
fn agent_fact((mux, agent): (Option<Mux>, Agent)) -> AgentFact {
    let info = mux.map(|mux| mux.info());
    AgentFact {
        instance: Bytes::copy_from_slice(agent.instance.as_bytes()),
        machine: agent.machine.to_string(),
        state: agent.state.into(),
        rtt_us: info.as_ref().and_then(|info| u64::try_from(info.round_trip?.as_micros()).ok()),
        heard_ms: info.and_then(|info| u64::try_from(info.last_heard.as_millis()).ok()),
    }
}

/// False if the session is over.
async fn send(session: &Session, message: &RelayToEdge) -> bool {
    match message.to_frame() {
        Ok(frame) => session.write_bytes(frame).await.is_ok(),
        Err(error) => {
            tracing::error!(%error, "a control message was not sent");
            true
        }
    }
}

fn handle(hub: &Arc<Hub>, id: LinkId, message: EdgeToRelay) {
    match message {
        EdgeToRelay::Announce(announce) => on_announce(hub, id, &announce),
        EdgeToRelay::Leaving(_) => hub.with(|state| state.router.link_leaving(id)),
        EdgeToRelay::Interest(interest) => {
            hub.with(|state| state.router.set_interest(id, &interest.services));
        }
    }
}

fn on_announce(hub: &Arc<Hub>, id: LinkId, announce: &Announce) {
    let announced = match hub.with(|state| state.router.announce(id, announce, Instant::now())) {
        Ok(announced) => announced,
        Err(AnnounceError::Replaced) => return send_away(hub, id),
        Err(error) => return links::end(hub, id, error.code(), &error.to_string()),
    };
    if announced.stands_by {
        return stand_by(hub, id);
    }
    for refused in &announced.refused {
        tracing::warn!(link = id.0, service = refused.name, reason = %refused.code, "registration refused: {}", refused.message);
    }
    hub.tell(id, RelayToEdge::Announced(announced.to_message()));
    for older in announced.replaced {
        replace(hub, older, id);
    }
}

/// A process that was sent away is back, and a newer one is here: its link stays, and may do nothing.
fn stand_by(hub: &Hub, id: LinkId) {
    let machine = hub.peek(|state| state.links.get(&id).map(|link| link.identity.name.clone()));
    if let Some(machine) = machine
        && hub.is_news(machine.as_str(), "stands by")
    {
        tracing::info!(%machine, link = id.0, "an older process of this machine stands by");
    }
    hub.tell(id, RelayToEdge::Replaced(Replaced { message: REPLACED.to_owned() }));
}

/// A machine's newer process has taken over from this link's.
fn replace(hub: &Arc<Hub>, older: LinkId, newer: LinkId) {
    let address =
        |id| hub.peek(|state| state.links.get(&id).map(|link| (link.identity.name.clone(), link.address)));
    if let (Some((machine, old)), Some((_, new))) = (address(older), address(newer)) {
        tracing::warn!(%machine, %old, %new, "a newer process of this machine takes over; the older one stands by until it has gone");
    }
    send_away(hub, older);
}

/// Tells an edge that a newer process of its machine is here, and ends its link as when a process leaves: what has said
/// nothing yet may go to the newer one. One that does not listen gets no time.
fn send_away(hub: &Arc<Hub>, id: LinkId) {
    hub.tell(id, RelayToEdge::Replaced(Replaced { message: REPLACED.to_owned() }));
    let hub = Arc::clone(hub);
    tokio::spawn(async move {
        tokio::time::sleep(LAST_WORD).await;
        if hub.peek(|state| state.router.is_sent_away(id)) {
            links::end(&hub, id, Code::SHUTDOWN, REPLACED);
        }
    });
}

#[cfg(test)]
mod tests {
    use hopline_names::MAX_LEN;
    use hopline_route_proto::MAX_AGENTS_TOLD;

    use super::*;

    #[test]
    fn the_longest_news_fit_in_one_message() {
        let name = "x".repeat(MAX_LEN);
        let agent = AgentFact {
            instance: Bytes::from_static(&[255; 16]),
            machine: name.clone(),
            state: 3,
            rtt_us: Some(u64::MAX),
            heard_ms: Some(u64::MAX),
        };
        let service = ServiceAgents { service: name, agents: vec![agent; MAX_AGENTS_TOLD] };
        let news = RelayToEdge::Agents(Agents { services: vec![service; SERVICES_AT_ONCE] });
        assert!(news.to_frame().is_ok());
    }
}
