//! What the relay's status address shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use hopline_admin::status::{
    AbortCount, AgentState, Budget, LinkState, Opens, RelayAgent, RelayLink, RelayService, RelayState,
    RelayStatus, Role, SessionCounts, Status, link_ends, seconds,
};
use hopline_route_proto::ServiceState;

use crate::core::{AgentStatus, LinkPhase, LinkStatus};
use crate::hub::{Hub, LinkEntry};
use crate::metrics;

#[derive(Debug)]
pub(crate) struct Source(pub(crate) Arc<Hub>);

impl hopline_admin::Source for Source {
    async fn status(&self) -> Status {
        let hub = &self.0;
        let listens = hub.listens();
        hub.peek(|state| {
            let mut carried = hub.counted.carried();
            let mut window_bytes = Budget::default();
            for link in state.links.values() {
                let info = link.mux.info();
                carried.add(&info.counters);
                let window = Budget { used: info.window_bytes, limit: info.window_budget };
                window_bytes = window_bytes.plus(window);
            }
            for (limit, count) in state.router.counters().by_limit() {
                carried.add_limit(limit, count);
            }
            carried.add_limit("max_handshakes", hub.handshakes.evicted());
            let links = state.router.links();
            let phases: BTreeMap<_, _> = links.iter().map(|link| (link.link, link.phase)).collect();
            let agent = |agent: &AgentStatus| RelayAgent {
                machine: agent.machine.to_string(),
                state: match (phases.get(&agent.link), agent.state) {
                    (Some(LinkPhase::Leaving | LinkPhase::Replaced), _) => AgentState::Draining,
                    (_, ServiceState::Up) => AgentState::Up,
                    (_, ServiceState::Down) => AgentState::Down,
                },
                sessions: agent.sessions,
            };
            let services = state.router.services();
            Status::Relay(RelayStatus {
                role: Role::Relay,
                name: hub.name.to_string(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                uptime_s: seconds(hub.started.elapsed()),
                state: if hub.is_draining() { RelayState::Draining } else { RelayState::Up },
                listen: listens
                    .as_ref()
                    .map_or_else(|_| Vec::new(), |all| all.iter().map(ToString::to_string).collect()),
                listen_error: listens.err(),
                links: links.iter().filter_map(|l| Some(link_status(l, state.links.get(&l.link)?))).collect(),
                services: services
                    .iter()
                    .map(|service| RelayService {
                        name: service.name.to_string(),
                        agents: service.agents.iter().map(agent).collect(),
                    })
                    .collect(),
                sessions: SessionCounts {
                    open: state.opens.sessions_open,
                    total: state.opens.sessions_total,
                },
                opens: Opens {
                    accepted: state.opens.accepted,
                    refused: state
                        .opens
                        .refused
                        .iter()
                        .map(|(code, n)| (code.name().into_owned(), *n))
                        .collect(),
                },
                aborts: AbortCount::all(&hub.counted.aborts),
                bytes: carried.bytes,
                link_ends: link_ends(&hub.counted.ends),
                budgets: metrics::budgets(&state.router, &hub.handshakes, window_bytes),
                limits_reached: carried.limits,
            })
        })
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.is_draining() {
            return Err("the relay is on its way out".to_owned());
        }
        self.0.listens().map(drop)
    }
}

fn link_status(link: &LinkStatus, entry: &LinkEntry) -> RelayLink {
    let info = entry.mux.info();
    let suspect = entry.mux.watch().borrow().suspect;
    RelayLink {
        machine: link.machine.to_string(),
        address: entry.address.to_string(),
        state: match link.phase {
            LinkPhase::Leaving => LinkState::Draining,
            LinkPhase::Replaced => LinkState::Standby,
            LinkPhase::Active if suspect => LinkState::Suspect,
            LinkPhase::Active => LinkState::Up,
        },
        rtt_us: info.round_trip.and_then(|trip| u64::try_from(trip.as_micros()).ok()),
        liveness: info.liveness.to_string(),
        last_heard_ms: u64::try_from(info.last_heard.as_millis()).ok(),
        sessions: u64::from(info.sessions),
        window_bytes: Budget { used: info.window_bytes, limit: info.window_budget },
        instance: link.instance.map(|instance| format!("{instance}")).unwrap_or_default(),
    }
}
