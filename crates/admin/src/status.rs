//! The JSON of `/status`: one type per object, used to write and to read it.
//!
//! Fields are only ever added. A reader ignores fields that it does not know, and takes a state word that it does
//! not know as `unknown`, so that an older `hopline status` can read a newer process.

use std::collections::BTreeMap;
use std::time::Duration;

use hopline_link_proto::Abort;
use serde::{Deserialize, Serialize};

mod figures;
mod findings;
mod words;

pub use figures::{
    AbortCount, Budget, Bytes, Counts, Dials, EdgeBudgets, LinkHistory, Opens, RelayBudgets, link_ends,
};
pub use findings::{Finding, Level, Place, RECENT_S, Subject, seen_by_agent, seen_by_sidecar};

/// The status of a process: of an edge or of a relay, told apart by `role`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Status {
    /// The process is an edge (`hopline up`).
    Edge(EdgeStatus),
    /// The process is a relay (`hopline relay`).
    Relay(RelayStatus),
}

impl Status {
    /// Reads a status that was fetched. A missing `role` means edge.
    ///
    /// # Errors
    ///
    /// When the JSON is no status, or is that of a role which this version does not know.
    pub fn from_value(value: serde_json::Value) -> Result<Self, StatusError> {
        let role = match value.get("role") {
            None => "edge".to_owned(),
            Some(serde_json::Value::String(role)) => role.clone(),
            Some(other) => return Err(StatusError::Role(other.to_string())),
        };
        match role.as_str() {
            "edge" => Ok(Self::Edge(serde_json::from_value(value)?)),
            "relay" => Ok(Self::Relay(serde_json::from_value(value)?)),
            _ => Err(StatusError::Role(role)),
        }
    }

    /// Whether all is well, for an exit code: see [`EdgeStatus::healthy`] and [`RelayStatus::healthy`].
    #[must_use]
    pub fn healthy(&self) -> bool {
        match self {
            Self::Edge(edge) => edge.healthy(),
            Self::Relay(relay) => relay.healthy(),
        }
    }
}

/// Why JSON is not a status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// `role` is a word that this version does not know.
    #[error("this is the status of a {0:?}, which this version of hopline does not know")]
    Role(String),
    /// A field is missing or of the wrong type.
    #[error("this is not a hopline status: {0}")]
    Shape(#[from] serde_json::Error),
}

/// What kind of process a status speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sidecar, agent or both.
    #[default]
    Edge,
    /// The process on which links meet.
    Relay,
}

/// `/status` of an edge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeStatus {
    /// Always [`Role::Edge`].
    #[serde(default)]
    pub role: Role,
    /// The name under which this machine is known to the relay.
    pub machine: String,
    /// The version of the running program.
    pub version: String,
    /// Seconds since the process started.
    pub uptime_s: f64,
    /// The links to relays, one entry each, those being dialled included.
    #[serde(default)]
    pub links: Vec<EdgeLink>,
    /// The sidecar's mappings.
    #[serde(default)]
    pub mappings: Vec<Mapping>,
    /// The agent's services.
    #[serde(default)]
    pub services: Vec<Service>,
    /// What is in use of what is bounded.
    #[serde(default)]
    pub budgets: EdgeBudgets,
    /// How often each limit of the links was met since the start; only those that were.
    #[serde(default)]
    pub limits_reached: BTreeMap<String, u64>,
}

impl EdgeStatus {
    /// Whether all is well: at least one link is up, every mapping is ready and every service up, and for no mapping is it
    /// known that none of its agents can serve it. Past errors and hints don't count.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.links.iter().any(|link| link.state == LinkState::Up)
            && self.mappings.iter().all(|mapping| mapping.state == MappingState::Ready)
            && self.services.iter().all(|service| service.state == ServiceState::Up)
            && self.findings().iter().all(|finding| finding.level != Level::Bad)
    }
}

/// One link of an edge to a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgeLink {
    /// The relay's name; its address as configured while no link has come up yet.
    pub peer: String,
    /// The socket address of the other end, or the name being dialled.
    pub address: String,
    /// How the link is.
    pub state: LinkState,
    /// The last round trip measured, in microseconds; null before the first.
    #[serde(default)]
    pub rtt_us: Option<u64>,
    /// The liveness setting in force, such as `default` or `nat,timeout=40s`.
    #[serde(default)]
    pub liveness: String,
    /// Milliseconds since the last byte arrived; null before the first.
    #[serde(default)]
    pub last_heard_ms: Option<u64>,
    /// Open sessions on this link.
    #[serde(default)]
    pub sessions: u64,
    /// What unread data of its sessions may come to hold, in bytes; a limit of 0 while there is no link.
    #[serde(default)]
    pub window_bytes: Budget,
    /// Why the link last failed, or could not be made; null when it never did.
    #[serde(default)]
    pub last_error: Option<LastError>,
    /// The relay as the config names it.
    #[serde(default)]
    pub relay: String,
    /// What became of all links to it since the start.
    #[serde(default, flatten)]
    pub history: LinkHistory,
}

/// How a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Being dialled for the first time, or again.
    Connecting,
    /// In use.
    Up,
    /// No data for longer than its interval allows, but not declared dead.
    Suspect,
    /// On its way out: takes no new sessions.
    Draining,
    /// A newer process of the machine has taken over: the link takes nothing, and waits until that one has gone.
    Standby,
    /// Lost; the next dial waits for its time.
    Down,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// One `connect:` entry of a sidecar.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mapping {
    /// The remote service's name.
    pub name: String,
    /// Where applications connect: `unix:PATH` or `HOST:PORT`.
    pub listen: String,
    /// How the mapping is.
    pub state: MappingState,
    /// Sessions of applications.
    pub sessions: SessionCounts,
    /// What is known of the application's protocol.
    #[serde(default)]
    pub inspect: Inspect,
    /// What the application would better change.
    #[serde(default)]
    pub hints: Vec<Hint>,
    /// The last session or open that ended by a fault; null when none did.
    #[serde(default)]
    pub last_error: Option<LastError>,
    /// The agents that serve the name, as the relays say: the hops that are not this process's own.
    #[serde(default)]
    pub agents: Vec<FarAgent>,
    /// A relay has said who serves the name: then an empty list means that nobody does.
    #[serde(default)]
    pub agents_known: bool,
    /// What was counted since the start.
    #[serde(default, flatten)]
    pub counts: Counts,
}

/// An agent of a mapping's service, and the hop between the relay and it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FarAgent {
    /// The agent's machine.
    pub machine: String,
    /// The relay that says so.
    pub relay: String,
    /// How that hop is.
    pub state: FarState,
    /// Its round trip as the relay measured it, in microseconds; null before the first.
    #[serde(default)]
    pub rtt_us: Option<u64>,
    /// Milliseconds for which the relay had heard nothing from the agent; null if there is no link.
    #[serde(default)]
    pub last_heard_ms: Option<u64>,
    /// How old this is, in milliseconds.
    #[serde(default)]
    pub age_ms: u64,
}

/// How the hop between relay and agent is, and what is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FarState {
    /// Sessions go over it.
    Up,
    /// No data for longer than its interval allows, but not declared dead: sessions wait, or go elsewhere.
    Suspect,
    /// The hop is well, but the agent says that its server does not serve.
    Down,
    /// The agent was lost without a goodbye, and its return is awaited.
    Lost,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// How a mapping is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingState {
    /// Its socket is not open yet.
    Starting,
    /// Listening, and the link is there.
    Ready,
    /// Listening; opens are held until the link is back.
    Held,
    /// Listening, but something is wrong that needs a person: see `last_error`.
    Degraded,
    /// Its socket could not be opened.
    Failed,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// What a mapping knows of the application's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inspect {
    /// Not looked at: `inspect: false`.
    Off,
    /// Plaintext HTTP/2 was seen.
    H2c,
    /// Something else, such as the application's own TLS.
    Opaque,
    /// It was plaintext HTTP/2, and could not be followed any more.
    GaveUp,
    /// Nothing seen yet (or a word that the reader does not know).
    #[default]
    #[serde(other)]
    Unknown,
}

/// What the application would better change, with the numbers that say so.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hint {
    /// The kind, such as `client_keepalive`.
    pub kind: String,
    /// What to do, as a sentence.
    pub message: String,
    /// The numbers, by name.
    #[serde(default)]
    pub evidence: BTreeMap<String, u64>,
    /// How often it was seen.
    #[serde(default)]
    pub count: u64,
    /// Seconds since its evidence began.
    #[serde(default)]
    pub first_seen_s: f64,
    /// Seconds since its evidence last grew.
    #[serde(default)]
    pub last_seen_s: f64,
}

/// One service that an agent publishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// The name under which it is published.
    pub name: String,
    /// Where the agent dials, `HOST:PORT`.
    pub target: String,
    /// How the server is.
    pub state: ServiceState,
    /// Sessions that came in for it.
    pub sessions: SessionCounts,
    /// The last session or dial that ended by a fault; null when none did.
    #[serde(default)]
    pub last_error: Option<LastError>,
    /// What was counted since the start.
    #[serde(default, flatten)]
    pub counts: Counts,
}

/// How a published service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceState {
    /// Not registered at a relay yet.
    Starting,
    /// Registered, and not known to be down.
    Up,
    /// The server refuses or fails its probe: the registration is withdrawn.
    Down,
    /// The server's host answers, the server does not.
    Frozen,
    /// The relay does not let this machine publish the name.
    Unauthorized,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// Sessions, now and since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionCounts {
    /// Open now.
    pub open: u64,
    /// Since the start, the open ones included.
    pub total: u64,
}

/// The last fault of something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastError {
    /// One word of the closed list of reasons.
    pub reason: String,
    /// The number of links that it crossed on its way here: 0 is this process's own.
    pub hop: u64,
    /// What happened, in words; may come from a peer.
    pub message: String,
    /// Seconds since it happened.
    pub age_s: f64,
}

impl LastError {
    /// That this abort was the last, so long ago.
    #[must_use]
    pub fn new(abort: &Abort, age: Duration) -> Self {
        Self {
            reason: abort.code.name().into_owned(),
            hop: abort.hops.into(),
            message: abort.message.clone(),
            age_s: seconds(age),
        }
    }
}

/// `/status` of a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayStatus {
    /// Always [`Role::Relay`].
    pub role: Role,
    /// The relay's name.
    pub name: String,
    /// The version of the running program.
    pub version: String,
    /// Seconds since the process started.
    pub uptime_s: f64,
    /// Whether it takes new sessions.
    #[serde(default)]
    pub state: RelayState,
    /// Where edges connect; nothing while it can't be had.
    #[serde(default)]
    pub listen: Vec<String>,
    /// Why edges can't connect; it is tried again.
    #[serde(default)]
    pub listen_error: Option<String>,
    /// The links of machines (and of other relays).
    #[serde(default)]
    pub links: Vec<RelayLink>,
    /// The names that are served, or were until a moment ago.
    #[serde(default)]
    pub services: Vec<RelayService>,
    /// Sessions through this relay.
    #[serde(default)]
    pub sessions: SessionCounts,
    /// Opens that have ended, by how.
    #[serde(default)]
    pub opens: Opens,
    /// Sessions that were aborted, as this relay read it; only what there was.
    #[serde(default)]
    pub aborts: Vec<AbortCount>,
    /// What all links carried.
    #[serde(default)]
    pub bytes: Bytes,
    /// How links ended, by the words of [`EndCounter`](hopline_accounting::EndCounter); only those that there were.
    #[serde(default)]
    pub link_ends: BTreeMap<String, u64>,
    /// What is in use of what is bounded.
    #[serde(default)]
    pub budgets: RelayBudgets,
    /// How often each limit of the links and of the router was met since the start; only those that were.
    #[serde(default)]
    pub limits_reached: BTreeMap<String, u64>,
}

impl RelayStatus {
    /// Whether all is well: the relay takes new links and sessions. What its machines do is their own health.
    #[must_use]
    pub fn healthy(&self) -> bool {
        self.listen_error.is_none() && self.state == RelayState::Up
    }
}

/// Whether a relay takes new sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayState {
    /// It does.
    #[default]
    Up,
    /// It is on its way out.
    Draining,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// One link at a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayLink {
    /// The authenticated name of the machine at the other end.
    pub machine: String,
    /// Its socket address as the relay sees it.
    pub address: String,
    /// How the link is.
    pub state: LinkState,
    /// The last round trip measured, in microseconds; null before the first.
    #[serde(default)]
    pub rtt_us: Option<u64>,
    /// The liveness setting in force.
    #[serde(default)]
    pub liveness: String,
    /// Milliseconds since the last byte arrived; null before the first.
    #[serde(default)]
    pub last_heard_ms: Option<u64>,
    /// Open sessions on this link.
    #[serde(default)]
    pub sessions: u64,
    /// What unread data of its sessions may come to hold, in bytes.
    #[serde(default)]
    pub window_bytes: Budget,
    /// The instance id of the machine's process, in hex.
    #[serde(default)]
    pub instance: String,
}

/// One name that is served through a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayService {
    /// The name.
    pub name: String,
    /// The agents that publish it; empty while the last one's return is awaited.
    #[serde(default)]
    pub agents: Vec<RelayAgent>,
}

/// One agent of a served name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayAgent {
    /// The agent's machine.
    pub machine: String,
    /// How its server is.
    pub state: AgentState,
    /// Open sessions to it.
    #[serde(default)]
    pub sessions: u64,
}

/// How an agent's server is, as the relay was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// Sessions go to it.
    Up,
    /// The agent says that its server is down.
    Down,
    /// The agent is on its way out.
    Draining,
    /// A word that the reader does not know.
    #[serde(other)]
    Unknown,
}

/// A duration as the seconds of `/status`: to a tenth, which is as exact as a reader needs.
#[must_use]
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
