//! What the edge's status address shows.

mod address;
mod metrics;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_admin::metrics::Metrics;
use hopline_admin::status::{
    EdgeLink, EdgeStatus, FarAgent, FarState, Hint, Inspect, LastError, LinkState, Mapping, MappingState,
    Role, Service, ServiceState, Status, seconds,
};
use hopline_h2_watch as h2_watch;
use hopline_link::{Abort, Code};
use hopline_route_proto::AgentState;

use crate::agent::{self, Agent};
use crate::links::{Uplink, Uplinks};
use crate::sidecar::{self, Sidecar, SocketState};
pub(crate) use address::serve;

#[derive(Debug)]
pub(crate) struct StatusSource {
    uplinks: Arc<Uplinks>,
    sidecar: Arc<Sidecar>,
    agent: Arc<Agent>,
}

impl StatusSource {
    pub(crate) fn new(uplinks: Arc<Uplinks>, sidecar: Arc<Sidecar>, agent: Arc<Agent>) -> Self {
        Self { uplinks, sidecar, agent }
    }

    fn mapping(&self, mapping: &sidecar::Mapping) -> Mapping {
        let SocketState { socket, trouble } = mapping.socket.borrow().clone();
        let state = match &socket {
            None if trouble.is_none() => MappingState::Starting,
            None => MappingState::Failed,
            // Nobody finds a socket whose file is gone.
            Some(socket) if trouble.is_some() && socket.listens == mapping.config.listen.to_string() => {
                MappingState::Failed
            }
            Some(socket) if trouble.is_some() || socket.health.trouble().is_some() => MappingState::Degraded,
            Some(_) if self.uplinks.given_up() => MappingState::Degraded,
            Some(_) if self.uplinks.best().is_none() => MappingState::Held,
            Some(_) => MappingState::Ready,
        };
        mapping.inspection.tick(self.uplinks.round_trip(mapping.config.service.as_str()));
        let (inspect, hints) = mapping.inspection.with(|watch, now| {
            (inspect(watch.inspect()), watch.hints(now).iter().map(|of| hint(of, now)).collect())
        });
        Mapping {
            name: mapping.config.service.to_string(),
            listen: socket.map_or_else(|| mapping.config.listen.to_string(), |socket| socket.listens),
            state,
            sessions: mapping.figures.sessions.status(),
            inspect,
            hints,
            last_error: trouble.map(told).or_else(|| mapping.figures.fault.status()),
            agents: self.agents(mapping.config.service.as_str()),
            agents_known: self.are_agents_known(mapping.config.service.as_str()),
            counts: mapping.figures.counts(),
        }
    }

    /// Who serves a name, by what each relay said last.
    fn agents(&self, service: &str) -> Vec<FarAgent> {
        let mut agents = Vec::new();
        for uplink in self.uplinks.all() {
            uplink.peek(|state| {
                let age_ms = millis(state.agents_told.map(|told| told.elapsed()).unwrap_or_default());
                let relay = state.peer.clone().unwrap_or_else(|| uplink.relay.to_string());
                agents.extend(state.agents.get(service).into_iter().flatten().map(|fact| FarAgent {
                    machine: fact.machine.clone(),
                    relay: relay.clone(),
                    state: match fact.agent_state() {
                        AgentState::Up => FarState::Up,
                        AgentState::Suspect => FarState::Suspect,
                        AgentState::Down => FarState::Down,
                        AgentState::Lost => FarState::Lost,
                    },
                    rtt_us: fact.rtt_us,
                    last_heard_ms: fact.heard_ms,
                    age_ms,
                }));
            });
        }
        agents
    }

    fn are_agents_known(&self, service: &str) -> bool {
        self.uplinks.all().iter().any(|uplink| uplink.peek(|state| state.agents.contains_key(service)))
    }

    fn service(&self, service: &agent::Service) -> Service {
        let name = service.config.name.to_string();
        let is_refused = |uplink: &Arc<Uplink>| {
            uplink.peek(|state| state.announced.then(|| state.refused.contains(&name)))
        };
        let answers: Vec<_> = self.uplinks.all().iter().filter_map(is_refused).collect();
        let state = if answers.contains(&false) {
            ServiceState::Up
        } else if !answers.is_empty() {
            ServiceState::Unauthorized
        } else {
            ServiceState::Starting
        };
        Service {
            name,
            target: service.config.target.to_string(),
            state,
            sessions: service.figures.sessions.status(),
            last_error: service.figures.fault.status(),
            counts: service.figures.counts(),
        }
    }
}

impl hopline_admin::Source for StatusSource {
    async fn status(&self) -> Status {
        self.uplinks.refresh_agents().await;
        Status::Edge(EdgeStatus {
            role: Role::Edge,
            machine: self.uplinks.machine.name().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: seconds(self.uplinks.started.elapsed()),
            links: self.uplinks.all().iter().map(|uplink| link(uplink, &self.uplinks)).collect(),
            mappings: self.sidecar.mappings().iter().map(|mapping| self.mapping(mapping)).collect(),
            services: self.agent.services().iter().map(|service| self.service(service)).collect(),
            budgets: metrics::budgets(&self.uplinks, &self.sidecar, &self.agent),
            limits_reached: self.uplinks.limits_reached(),
        })
    }

    fn metrics(&self, metrics: &mut Metrics) {
        for mapping in self.sidecar.mappings().iter().filter(|mapping| mapping.inspection.is_on()) {
            let name = mapping.config.service.as_str();
            mapping.inspection.with(|watch, _| metrics::calls(metrics, name, watch));
        }
    }

    fn ready(&self) -> Result<(), String> {
        if !self.uplinks.is_ready() {
            let all = self.uplinks.all().iter();
            if let Some(message) =
                all.filter_map(|uplink| uplink.peek(|state| state.stands_by.clone())).next()
            {
                return Err(message);
            }
            return Err("no link to a relay".to_owned());
        }
        let mappings = self.sidecar.mappings();
        let trouble = mappings.iter().find_map(|mapping| mapping.socket.borrow().trouble.clone());
        if let Some((message, _)) = trouble {
            return Err(message);
        }
        match mappings.iter().find(|mapping| mapping.socket.borrow().socket.is_none()) {
            Some(mapping) => Err(format!("the socket of mapping {} is not open", mapping.config.service)),
            None => Ok(()),
        }
    }
}

/// What is wrong with a socket, and since when.
fn told((message, since): (String, Instant)) -> LastError {
    LastError::new(&Abort::new(Code::INTERNAL, message), since.elapsed())
}

fn link(uplink: &Uplink, uplinks: &Uplinks) -> EdgeLink {
    let state = uplink.state();
    let relay = uplink.relay.to_string();
    let info = state.mux.as_ref().map(hopline_link::Mux::info);
    let carried = state.carried();
    let phase = match &state.mux {
        None if state.was_up => LinkState::Down,
        None => LinkState::Connecting,
        Some(mux) => {
            let watch = mux.watch();
            let status = watch.borrow();
            if state.stands_by.is_some() {
                LinkState::Standby
            } else if status.peer_drains_ms.is_some() {
                LinkState::Draining
            } else if status.suspect {
                LinkState::Suspect
            } else {
                LinkState::Up
            }
        }
    };
    EdgeLink {
        peer: state.peer.unwrap_or_else(|| relay.clone()),
        address: state.address.unwrap_or(relay),
        state: phase,
        rtt_us: info
            .as_ref()
            .and_then(|i| i.round_trip)
            .and_then(|trip| u64::try_from(trip.as_micros()).ok()),
        liveness: info.as_ref().map_or(uplinks.liveness, |info| info.liveness).to_string(),
        last_heard_ms: info.as_ref().and_then(|info| u64::try_from(info.last_heard.as_millis()).ok()),
        sessions: info.as_ref().map_or(0, |info| u64::from(info.sessions)),
        window_bytes: info.as_ref().map(metrics::window).unwrap_or_default(),
        last_error: uplink.fault.status(),
        relay: uplink.relay.to_string(),
        history: uplink.counts.history(&carried),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn inspect(inspect: h2_watch::Inspect) -> Inspect {
    match inspect {
        h2_watch::Inspect::Unknown => Inspect::Unknown,
        h2_watch::Inspect::H2c => Inspect::H2c,
        h2_watch::Inspect::Tls | h2_watch::Inspect::Other => Inspect::Opaque,
        h2_watch::Inspect::Off => Inspect::Off,
        h2_watch::Inspect::GaveUp(_) => Inspect::GaveUp,
    }
}

fn hint(hint: &h2_watch::Hint, now: Instant) -> Hint {
    let age = |at| seconds(now.saturating_duration_since(at));
    Hint {
        kind: hint.kind.name().to_owned(),
        message: hint.message.clone(),
        evidence: hint.evidence.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        count: hint.count,
        first_seen_s: age(hint.first_seen),
        last_seen_s: age(hint.last_seen),
    }
}
