//! What is not well, and which hop or process fails.
//!
//! One place decides it, from a status alone: the page, the terminal, `/status` and `/metrics` all say what is found
//! here. A finding is *bad* while something does not work, and then the process is not healthy. It is *doubtful* while
//! everything works by another way, or when something failed less than [`RECENT_S`] ago.

use hopline_link_proto::Reason;
use serde::{Deserialize, Serialize};

use super::{
    AgentState, EdgeLink, EdgeStatus, FarAgent, FarState, LastError, LinkState, Mapping, MappingState,
    RelayState, RelayStatus, Service, ServiceState, Status,
};

/// For so many seconds a fault is spoken of, though what failed works again.
pub const RECENT_S: f64 = 60.0;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something does not work now.
    Bad,
    /// It works, but not all of it, or not for long again.
    Doubtful,
}

impl Level {
    /// The word of the JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Doubtful => "doubtful",
        }
    }
}

/// What fails: a hop of the chain, or a process on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The local socket, or the application on it.
    ApplicationSidecar,
    /// The sidecar's process.
    Sidecar,
    /// The link between sidecar and relay.
    SidecarRelay,
    /// The relay's process, or what it was told to allow.
    Relay,
    /// The link between relay and agent.
    RelayAgent,
    /// The agent's process, or its absence.
    Agent,
    /// The way from the agent to the server, or the server.
    AgentServer,
}

impl Place {
    /// All of them, in the order of the chain.
    pub const ALL: [Self; 7] = [
        Self::ApplicationSidecar,
        Self::Sidecar,
        Self::SidecarRelay,
        Self::Relay,
        Self::RelayAgent,
        Self::Agent,
        Self::AgentServer,
    ];

    /// The word of the JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ApplicationSidecar => "application_sidecar",
            Self::Sidecar => "sidecar",
            Self::SidecarRelay => "sidecar_relay",
            Self::Relay => "relay",
            Self::RelayAgent => "relay_agent",
            Self::Agent => "agent",
            Self::AgentServer => "agent_server",
        }
    }

    /// The same for people, to be read after "failing".
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::ApplicationSidecar => "hop: application → sidecar",
            Self::Sidecar => "process: sidecar",
            Self::SidecarRelay => "hop: sidecar → relay",
            Self::Relay => "process: relay",
            Self::RelayAgent => "hop: relay → agent",
            Self::Agent => "process: agent",
            Self::AgentServer => "hop: agent → server",
        }
    }
}

/// What a finding speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The process itself.
    Process,
    /// A link; the name is its peer's.
    Link,
    /// A mapping.
    Mapping,
    /// A published service, or at a relay a served one.
    Service,
}

/// One thing that is not well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it speaks of.
    pub subject: Subject,
    /// The name of that.
    pub name: String,
    /// What fails.
    pub place: Place,
    /// The reason, if one was given: a word of the closed list.
    pub reason: Option<String>,
    /// The number of links that the reason had crossed; null without a reason.
    pub hop: Option<u64>,
    /// What is so, as a sentence without its end. May hold what a peer said.
    pub text: String,
}

impl Finding {
    fn new(level: Level, subject: Subject, name: &str, place: Place, text: String) -> Self {
        Self { level, subject, name: name.to_owned(), place, reason: None, hop: None, text }
    }

    /// With the reason for it, and the number of links that this has crossed.
    fn by(mut self, reason: Reason, hop: u64) -> Self {
        self.reason = Some(reason.name().to_owned());
        self.hop = Some(hop);
        self
    }

    /// With the reason of what failed, and its words.
    fn because(mut self, error: Option<&LastError>) -> Self {
        if let Some(error) = error {
            self.text = format!("{}: {} at hop {}: {}", self.text, error.reason, error.hop, error.message);
            self.reason = Some(error.reason.clone());
            self.hop = Some(error.hop);
        }
        self
    }
}

impl Status {
    /// What is not well, the worst first; nothing when all is well. There are at most as many as the status has links,
    /// mappings and services together, and one more.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Self::Edge(edge) => edge.findings(),
            Self::Relay(relay) => relay.findings(),
        }
    }
}

impl EdgeStatus {
    /// See [`Status::findings`].
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let usable = self.links.iter().any(|link| link.state == LinkState::Up);
        let links = self.links.iter().filter_map(|link| self.of_link(link, usable));
        let none = self.links.is_empty().then(|| {
            let text = "there is no link to a relay".to_owned();
            Finding::new(Level::Bad, Subject::Process, &self.machine, self.own_hop(), text)
        });
        let mappings = self.mappings.iter().filter_map(|mapping| of_mapping(mapping, usable));
        let services = self.services.iter().filter_map(|service| of_service(service, usable));
        let mut findings: Vec<_> = none.into_iter().chain(links).chain(mappings).chain(services).collect();
        findings.sort_by_key(|finding| finding.level);
        findings
    }

    /// This process, as a place of the chain.
    fn own_process(&self) -> Place {
        if self.mappings.is_empty() && !self.services.is_empty() { Place::Agent } else { Place::Sidecar }
    }

    /// The hop that this edge's links are.
    fn own_hop(&self) -> Place {
        if self.mappings.is_empty() && !self.services.is_empty() {
            Place::RelayAgent
        } else {
            Place::SidecarRelay
        }
    }

    fn of_link(&self, link: &EdgeLink, usable: bool) -> Option<Finding> {
        let level = if usable { Level::Doubtful } else { Level::Bad };
        let error = link.last_error.as_ref();
        let waiting = self.mappings.iter().filter(|mapping| mapping.state == MappingState::Held).count();
        let effect = if waiting > 0 && !usable {
            format!("; opens of {waiting} mapping{} wait for it", if waiting == 1 { "" } else { "s" })
        } else {
            String::new()
        };
        let is = |what: &str| {
            let text = format!("the link to {} {what}{effect}", link.peer);
            Finding::new(level, Subject::Link, &link.peer, self.own_hop(), text)
        };
        match link.state {
            LinkState::Up => {
                let error = recent(error)?;
                let text =
                    format!("the link to {} is back after it was lost {:.0} s ago", link.peer, error.age_s);
                let finding = Finding::new(Level::Doubtful, Subject::Link, &link.peer, self.own_hop(), text);
                Some(finding.because(Some(error)))
            }
            LinkState::Connecting => Some(is("is not up yet").because(error)),
            LinkState::Suspect => Some(is(&suspect(link.last_heard_ms))),
            LinkState::Draining => Some(is("is on its way out, as its relay says")),
            LinkState::Standby => {
                let text = format!(
                    "a newer process of {} has taken over at {}: this one stands by until it has gone; stop one of the two, \
                     or give each a state folder of its own",
                    self.machine, link.peer
                );
                Some(Finding::new(level, Subject::Link, &link.peer, self.own_process(), text))
            }
            LinkState::Down => Some(is("is lost").because(error)),
            LinkState::Unknown => Some(is("is in a state that this version does not know")),
        }
    }
}

/// What is said of a suspect link, as the time since its last byte is known.
fn suspect(last_heard_ms: Option<u64>) -> String {
    let silence = last_heard_ms.map(|silent| format!(": no data for {} s", silent / 1_000));
    format!("is suspect{}", silence.unwrap_or_default())
}

fn of_mapping(mapping: &Mapping, usable: bool) -> Option<Finding> {
    let name = mapping.name.as_str();
    let error = mapping.last_error.as_ref();
    let bad = |place, text: &str| {
        Finding::new(Level::Bad, Subject::Mapping, name, place, format!("{name}: {text}"))
    };
    match mapping.state {
        // What the link's own finding says, without one for each mapping.
        MappingState::Held | MappingState::Degraded if !usable => None,
        MappingState::Held => Some(bad(Place::SidecarRelay, "opens are held until a link can take them")),
        MappingState::Starting => Some(bad(Place::ApplicationSidecar, "its socket is not open yet")),
        MappingState::Degraded => {
            let text = "its socket listens, but something is wrong with it";
            Some(bad(Place::ApplicationSidecar, text).because(error))
        }
        MappingState::Failed => {
            Some(bad(Place::ApplicationSidecar, "its socket could not be opened").because(error))
        }
        MappingState::Unknown => Some(bad(Place::Sidecar, "is in a state that this version does not know")),
        MappingState::Ready => of_agents(mapping).or_else(|| {
            let error = recent(error)?;
            let text = format!("{name}: a session or an open failed {:.0} s ago", error.age_s);
            let place = seen_by_sidecar(Reason::from_name(&error.reason), error.hop);
            let finding = Finding::new(Level::Doubtful, Subject::Mapping, name, place, text);
            Some(finding.because(Some(error)))
        }),
    }
}

/// The hops behind the relay, as far as a relay has said who serves the mapping.
fn of_agents(mapping: &Mapping) -> Option<Finding> {
    if mapping.agents_known && mapping.agents.is_empty() {
        let text = format!("{}: nobody serves it", mapping.name);
        let finding = Finding::new(Level::Bad, Subject::Mapping, &mapping.name, Place::Agent, text);
        return Some(finding.by(Reason::Offline, 1));
    }
    let rank = |agent: &&FarAgent| match agent.state {
        FarState::Up | FarState::Unknown => 0,
        FarState::Down => 1,
        FarState::Suspect => 2,
        FarState::Lost => 3,
    };
    let works = mapping.agents.iter().any(|agent| rank(&agent) == 0);
    // The one that is nearest to working says most about what is wrong.
    let agent = mapping.agents.iter().filter(|agent| rank(agent) > 0).min_by_key(rank)?;
    let (place, reason, text) = match agent.state {
        FarState::Down => {
            (Place::AgentServer, Some((Reason::DialFailed, 2)), "says that its server does not serve")
        }
        FarState::Suspect => (Place::RelayAgent, None, "is suspect: its relay has no data from it"),
        FarState::Lost => {
            (Place::RelayAgent, Some((Reason::ConnLost, 1)), "was lost, and its return is awaited")
        }
        FarState::Up | FarState::Unknown => return None,
    };
    let level = if works { Level::Doubtful } else { Level::Bad };
    let text = format!("{}: its agent {} behind {} {text}", mapping.name, agent.machine, agent.relay);
    let finding = Finding::new(level, Subject::Mapping, &mapping.name, place, text);
    Some(match reason {
        Some((reason, hop)) => finding.by(reason, hop),
        None => finding,
    })
}

fn of_service(service: &Service, usable: bool) -> Option<Finding> {
    let name = service.name.as_str();
    let error = service.last_error.as_ref();
    let bad = |place, text: &str| {
        Finding::new(Level::Bad, Subject::Service, name, place, format!("{name}: {text}"))
    };
    match service.state {
        ServiceState::Starting if !usable => None,
        ServiceState::Starting => Some(bad(Place::RelayAgent, "no relay has taken it yet")),
        ServiceState::Unauthorized => {
            let finding = bad(Place::Relay, "the relay does not let this machine publish it");
            Some(finding.by(Reason::Unauthorized, 1))
        }
        ServiceState::Down => Some(
            bad(Place::AgentServer, &format!("its server {} does not serve", service.target)).because(error),
        ),
        ServiceState::Frozen => {
            let text = format!("the host of its server {} answers, the server does not", service.target);
            Some(bad(Place::AgentServer, &text).because(error))
        }
        ServiceState::Unknown => Some(bad(Place::Agent, "is in a state that this version does not know")),
        ServiceState::Up => {
            let error = recent(error)?;
            let text = format!("{name}: a session or a dial failed {:.0} s ago", error.age_s);
            let place = seen_by_agent(Reason::from_name(&error.reason), error.hop);
            let finding = Finding::new(Level::Doubtful, Subject::Service, name, place, text);
            Some(finding.because(Some(error)))
        }
    }
}

impl RelayStatus {
    /// See [`Status::findings`].
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let deaf = self
            .listen_error
            .as_ref()
            .map(|error| Finding::new(Level::Bad, Subject::Process, &self.name, Place::Relay, error.clone()));
        let standing_by = self.links.iter().filter(|link| link.state == LinkState::Standby).map(|link| {
            let text = format!(
                "an older process of {} stands by, at {}: two run under that name, and the newer one serves",
                link.machine, link.address
            );
            Finding::new(Level::Doubtful, Subject::Link, &link.machine, Place::Agent, text)
        });
        let draining = (self.state != RelayState::Up).then(|| {
            let text = format!("{} takes no new sessions: it is on its way out", self.name);
            let finding = Finding::new(Level::Bad, Subject::Process, &self.name, Place::Relay, text);
            finding.by(Reason::Draining, 0)
        });
        let links = self.links.iter().filter(|link| link.state == LinkState::Suspect).map(|link| {
            // What the machine is to this relay shows by its registrations.
            let publishes = self.services.iter().flat_map(|service| &service.agents);
            let is_agent = publishes.into_iter().any(|agent| agent.machine == link.machine);
            let place = if is_agent { Place::RelayAgent } else { Place::SidecarRelay };
            let text = format!("the link of {} {}", link.machine, suspect(link.last_heard_ms));
            Finding::new(Level::Doubtful, Subject::Link, &link.machine, place, text)
        });
        let services = self.services.iter().filter_map(|service| {
            let name = service.name.as_str();
            if service.agents.iter().any(|agent| agent.state == AgentState::Up) {
                return None;
            }
            let (place, reason, text) = match service.agents.first() {
                None => (
                    Place::RelayAgent,
                    Reason::ConnLost,
                    "its last agent was lost, and its return is awaited".into(),
                ),
                Some(agent) if agent.state == AgentState::Draining => {
                    (Place::Agent, Reason::Draining, format!("its agent {} is on its way out", agent.machine))
                }
                Some(agent) => {
                    let text = format!("its agent {} says that its server does not serve", agent.machine);
                    (Place::AgentServer, Reason::DialFailed, text)
                }
            };
            let text = format!("{name}: {text}");
            let finding = Finding::new(Level::Doubtful, Subject::Service, name, place, text);
            Some(finding.by(reason, if place == Place::RelayAgent { 0 } else { 1 }))
        });
        let process = deaf.into_iter().chain(draining);
        process.chain(links).chain(standing_by).chain(services).collect()
    }
}

fn recent(error: Option<&LastError>) -> Option<&LastError> {
    error.filter(|error| error.age_s <= RECENT_S)
}

/// Where a reason comes from that a sidecar read, in a chain of sidecar, relay and agent.
#[must_use]
pub fn seen_by_sidecar(reason: Reason, hop: u64) -> Place {
    use Reason::{
        ConnLost, DialFailed, DrainDeadline, ForwardDead, Internal, Offline, PeerReset, Protocol, Shutdown,
    };
    match (hop, reason) {
        (0, Internal | PeerReset) => Place::ApplicationSidecar,
        (0, ConnLost | Shutdown | DrainDeadline | Protocol) => Place::SidecarRelay,
        (0, _) => Place::Sidecar,
        (1, ConnLost) => Place::RelayAgent,
        (1, Offline) => Place::Agent,
        (1, _) => Place::Relay,
        (_, DialFailed | ForwardDead | PeerReset) => Place::AgentServer,
        (_, ConnLost) => Place::RelayAgent,
        _ => Place::Agent,
    }
}

/// Where a reason comes from that an agent read.
#[must_use]
pub fn seen_by_agent(reason: Reason, hop: u64) -> Place {
    use Reason::{ConnLost, DialFailed, DrainDeadline, ForwardDead, PeerReset, Protocol, Shutdown};
    match (hop, reason) {
        (0, DialFailed | ForwardDead | PeerReset) => Place::AgentServer,
        (0, ConnLost | Shutdown | DrainDeadline | Protocol) => Place::RelayAgent,
        (0, _) => Place::Agent,
        (1, ConnLost) => Place::SidecarRelay,
        (1, _) => Place::Relay,
        (_, PeerReset) => Place::ApplicationSidecar,
        _ => Place::Sidecar,
    }
}

#[cfg(test)]
mod tests;
