//! What goes into the router and what comes out of it.

use std::fmt;
use std::time::Instant;

use hopline_link_proto::Code;
use hopline_names::{IdError, InstanceId, MAX_LEN, MachineName, ServiceName};
use hopline_route_proto::{self as route_proto, AgentState, Protocol};
use hopline_route_proto::{RoutingHeader, ServiceState};

/// A link of the relay, by a number that the server never gives twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

impl fmt::Debug for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link-{}", self.0)
    }
}

/// A held open, by a number that the router never gives twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub(super) u64);

impl fmt::Debug for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hold-{}", self.0)
    }
}

/// How a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// The edge said that it goes, or the relay sent it away: its services are not waited for.
    Goodbye,
    /// It died: its services may come back.
    Lost,
}

/// What is to happen with an open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Open it on that link, with that header.
    Forward {
        /// The agent's link.
        to: LinkId,
        /// The header to send: the source machine is the one that the dialler's link proved.
        header: RoutingHeader,
    },
    /// Refuse it.
    Refuse {
        /// The reason.
        code: Code,
        /// The reason in words, for the dialler.
        message: String,
    },
    /// Keep it: its agent may come (back). It counts as held from now on, until [`Router::route_held`] gives another
    /// answer or [`Router::hold_ended`] is called.
    ///
    /// [`Router::route_held`]: super::Router::route_held
    /// [`Router::hold_ended`]: super::Router::hold_ended
    Hold {
        /// The name of the held open.
        id: HoldId,
        /// When waiting is over. [`Event::RouteAgain`] comes then, or earlier.
        until: Instant,
    },
}

/// What the router tells the server of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Something has changed for this held open, or its time is over: give it to
    /// [`Router::route_held`](super::Router::route_held).
    RouteAgain(HoldId),
    /// The newer process of its machine has gone: this link, which stood by, may announce and dial again. Its edge is to be
    /// told ([`route_proto::Restored`]), and announces.
    Restored(LinkId),
    /// There is something to tell this link: see [`Router::take_agents`](super::Router::take_agents).
    AgentsChanged(LinkId),
}

/// The agents of a service, for an edge that dials it: the best ones first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentsOf {
    /// The service.
    pub service: ServiceName,
    /// At most [`MAX_AGENTS_TOLD`](hopline_route_proto::MAX_AGENTS_TOLD).
    pub agents: Vec<Agent>,
}

/// One agent process of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// This start of the process.
    pub instance: InstanceId,
    /// Its machine.
    pub machine: MachineName,
    /// How it is.
    pub state: AgentState,
    /// Its link, if it has one.
    pub link: Option<LinkId>,
}

/// Why the router does not take a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkUpError {
    /// The machine has `max_links_per_machine`.
    #[error("the machine has {0} links, and may have no more")]
    TooManyOfMachine(usize),
    /// The machine has `max_passing_links_per_machine` that dial and go.
    #[error("{0} commands of this machine dial at once, and no more may")]
    TooManyPassing(usize),
    /// The relay has `max_links`.
    #[error("the relay has {0} links, and takes no more")]
    TooMany(usize),
    /// The server gave the id twice.
    #[error("{0:?} is up already")]
    Duplicate(LinkId),
}

impl LinkUpError {
    /// The reason to end the link with.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::TooManyOfMachine(_) | Self::TooManyPassing(_) | Self::TooMany(_) => Code::OVERLOAD,
            Self::Duplicate(_) => Code::INTERNAL,
        }
    }
}

/// Why an announce as a whole is not taken. After any of these the link is to be ended with [`AnnounceError::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// The instance is not 16 bytes.
    #[error("the instance of an announce: {0}")]
    Instance(#[from] IdError),
    /// Another instance than the link's earlier announces.
    #[error("a link belongs to one instance")]
    InstanceChanged,
    /// A revision below that of an earlier announce of the link.
    #[error("revision {revision} after revision {last}")]
    Stale {
        /// The revision of this announce.
        revision: u64,
        /// The revision of the one before it.
        last: u64,
    },
    /// The edge had said that it leaves.
    #[error("an edge that leaves announces nothing")]
    Leaving,
    /// A newer instance of the same machine has taken over.
    #[error("a newer process of the same machine has taken over")]
    Replaced,
    /// The link is not up (any more).
    #[error("{0:?} is not up")]
    UnknownLink(LinkId),
}

impl AnnounceError {
    /// The reason to end the link with.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Instance(_) | Self::InstanceChanged | Self::Stale { .. } | Self::Leaving => Code::PROTOCOL,
            Self::Replaced => Code::UNAUTHORIZED,
            Self::UnknownLink(_) => Code::INTERNAL,
        }
    }
}

/// What became of an announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// The announce's revision.
    pub revision: u64,
    /// The services that were not taken, at most `max_refusals_per_announce`; all others are registered.
    pub refused: Vec<Refused>,
    /// How many services were not taken in all.
    pub refused_total: u32,
    /// The links of the machine's older instance. They have no registrations any more and may not dial; the server is
    /// to end them, and to tell them why ([`route_proto::Replaced`]).
    pub replaced: Vec<LinkId>,
    /// Nothing was registered: the announce [yields](route_proto::Announce::yields), and a newer process of the machine is
    /// here. The edge is to be told ([`route_proto::Replaced`]); its link stays.
    pub stands_by: bool,
}

impl Announced {
    /// The answer for the edge. It always fits a control message.
    #[must_use]
    pub fn to_message(&self) -> route_proto::Announced {
        let refused = self.refused.iter().map(|refused| route_proto::Refusal {
            name: refused.name.clone(),
            reason: refused.code.number(),
            message: refused.message.to_owned(),
        });
        route_proto::Announced {
            revision: self.revision,
            refused: refused.collect(),
            refused_total: self.refused_total,
        }
    }
}

/// A service that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The name as announced, cut to the length of the longest name.
    pub name: String,
    /// The reason.
    pub code: Code,
    /// The reason in words.
    pub message: &'static str,
}

impl Refused {
    pub(super) fn new(name: &str, code: Code, message: &'static str) -> Self {
        Self { name: cut(name, MAX_LEN).to_owned(), code, message }
    }
}

/// The start of `text` that has at most `max` bytes and whole characters.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

/// A service and who serves it, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The service.
    pub name: ServiceName,
    /// The links that it is registered on, down ones included.
    pub agents: Vec<AgentStatus>,
}

/// One registration of a service, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentStatus {
    /// The link.
    pub link: LinkId,
    /// The machine at its other end.
    pub machine: MachineName,
    /// The start of the edge process there.
    pub instance: InstanceId,
    /// What the service speaks.
    pub protocol: Protocol,
    /// Whether it takes sessions.
    pub state: ServiceState,
    /// Where its link stands.
    pub phase: LinkPhase,
    /// Open sessions of the link, of all its services.
    pub sessions: u64,
}

/// Where a link stands in the router's eyes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPhase {
    /// It may announce and dial.
    Active,
    /// Its edge takes no new sessions.
    Leaving,
    /// A newer instance of its machine has taken over; it may neither announce nor dial. It ends, or stands by.
    Replaced,
}

/// A link, for `/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The link.
    pub link: LinkId,
    /// The machine at its other end.
    pub machine: MachineName,
    /// Where it stands.
    pub phase: LinkPhase,
    /// The start of the edge process; `None` until it has announced.
    pub instance: Option<InstanceId>,
    /// The edge's version; empty until it has announced.
    pub version: String,
    /// How many services are registered on it.
    pub services: usize,
    /// Open sessions that were routed to it.
    pub sessions: u64,
    /// When it came up.
    pub since: Instant,
}

/// How much the router holds now, for `/metrics`; the most that each may be is the limit of that name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Links (`max_links`).
    pub links: usize,
    /// Registrations of all links (`max_registrations`).
    pub registrations: usize,
    /// Lost agents that are waited for, one for each of their services (`max_lost`).
    pub lost: usize,
    /// Agents seen since the start, while that matters (`max_seen`).
    pub seen: usize,
    /// Held opens (`max_held`).
    pub held: usize,
}
