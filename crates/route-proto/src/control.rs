//! The messages of the control session of a link.
//!
//! Each message is a length (LEB128 varint, at most [`MAX_CONTROL_LEN`]) and that many bytes of protobuf: a `oneof`
//! of the messages below, [`EdgeToRelay`] one way and [`RelayToEdge`] the other. Numbers of fields and of messages are
//! never used again for something else.
//!
//! One that is longer goes in parts, each a message of its own (field 15, beside the `oneof`: `bytes data = 1; bool last =
//! 2`), with nothing between them. Their data together are the message, at most [`MAX_WHOLE_LEN`]. A peer that
//! does not know parts skips them, as it skips every message that it does not know.

use bytes::Bytes;
use hopline_names::{IdError, InstanceId};
use hopline_varint as varint;
use prost::Message as _;

/// The longest control message, in bytes, without its length.
pub const MAX_CONTROL_LEN: usize = 64 * 1_024;
/// The longest control message that goes in parts, in bytes: more than the longest list of services or mappings has.
pub const MAX_WHOLE_LEN: usize = 512 * 1_024;
/// Bytes of a message in one part.
const PART_LEN: usize = 48 * 1_024;
/// How many agents of one service an edge is told of: enough to choose from.
pub const MAX_AGENTS_TOLD: usize = 32;

/// What an edge says to its relay.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum EdgeToRelay {
    /// All that the edge serves.
    #[prost(message, tag = "1")]
    Announce(Announce),
    /// The edge is on its way out.
    #[prost(message, tag = "2")]
    Leaving(Leaving),
    /// The services that the edge dials.
    #[prost(message, tag = "3")]
    Interest(Interest),
}

/// What a relay says to an edge.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum RelayToEdge {
    /// The first message: who the relay is, and whom it takes the edge for.
    #[prost(message, tag = "1")]
    Welcome(Welcome),
    /// The answer to an [`Announce`].
    #[prost(message, tag = "2")]
    Announced(Announced),
    /// A newer process of the same machine has taken over; the link ends.
    #[prost(message, tag = "3")]
    Replaced(Replaced),
    /// The relay is on its way out.
    #[prost(message, tag = "4")]
    Draining(Draining),
    /// Who serves what the edge dials.
    #[prost(message, tag = "5")]
    Agents(Agents),
    /// The newer process of the machine has gone: an edge that stood by is to announce again.
    #[prost(message, tag = "6")]
    Restored(Restored),
}

/// All services of an edge. Always the full list: what is not in it is withdrawn, and sending it twice does nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Announce {
    /// Grows with each list that differs; never smaller than an earlier one of the same link.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// This start of the edge process: 16 random bytes. Read it with [`Announce::instance_id`].
    #[prost(bytes = "bytes", tag = "2")]
    pub instance: Bytes,
    /// The edge's version, for people.
    #[prost(string, tag = "3")]
    pub version: String,
    /// The services.
    #[prost(message, repeated, tag = "4")]
    pub services: Vec<ServiceAd>,
    /// A newer process of the machine has once taken over from this one. It takes over from nobody: while another is here it
    /// stands by, on a link that may neither publish nor dial, until [`RelayToEdge::Restored`].
    #[prost(bool, tag = "5")]
    pub yields: bool,
}

impl Announce {
    /// The instance that announces.
    ///
    /// # Errors
    ///
    /// [`IdError`] if the field is not 16 bytes.
    pub fn instance_id(&self) -> Result<InstanceId, IdError> {
        InstanceId::try_from(&self.instance[..])
    }
}

/// One service of an edge.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServiceAd {
    /// The name; the relay checks the rule.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What the service speaks: a [`Protocol`]. One that is unknown counts as [`Protocol::Tcp`].
    #[prost(enumeration = "Protocol", tag = "2")]
    pub protocol: i32,
    /// Whether sessions may come: a [`ServiceState`]. Only [`ServiceState::Up`] takes sessions, so a state that a later
    /// version adds counts as down.
    #[prost(enumeration = "ServiceState", tag = "3")]
    pub state: i32,
}

/// What a service speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Protocol {
    /// Any bytes.
    Tcp = 0,
    /// gRPC.
    Grpc = 1,
}

/// Whether a service takes sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServiceState {
    /// It does.
    Up = 0,
    /// Its agent says that the server does not serve now.
    Down = 1,
}

/// The edge takes no new sessions; open ones run on to the deadline.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Leaving {
    /// Milliseconds from now.
    #[prost(uint64, tag = "1")]
    pub deadline_ms: u64,
}

/// The services that the edge dials: always the full list. The relay answers with an [`Agents`] of all of them, and
/// with another one whenever the agents of one change. An edge that wants to know the figures says it again.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Interest {
    /// The names.
    #[prost(string, repeated, tag = "1")]
    pub services: Vec<String>,
}

/// Who serves what the edge dials now. A service that is not in it is as it was.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Agents {
    /// The services that have changed.
    #[prost(message, repeated, tag = "1")]
    pub services: Vec<ServiceAgents>,
}

/// The agents of one service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ServiceAgents {
    /// The service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Its agents, at most [`MAX_AGENTS_TOLD`]; none: nobody serves it, or the edge may not dial it.
    #[prost(message, repeated, tag = "2")]
    pub agents: Vec<AgentFact>,
}

/// One agent process.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AgentFact {
    /// This start of the agent's process: 16 random bytes. Read it with [`AgentFact::instance_id`].
    #[prost(bytes = "bytes", tag = "1")]
    pub instance: Bytes,
    /// The name that its machine has proved.
    #[prost(string, tag = "2")]
    pub machine: String,
    /// Whether sessions may go to it: an [`AgentState`]. One that is unknown counts as [`AgentState::Down`].
    #[prost(enumeration = "AgentState", tag = "3")]
    pub state: i32,
    /// The round trip between relay and agent, in microseconds, when this was sent; absent before the first.
    #[prost(uint64, optional, tag = "4")]
    pub rtt_us: Option<u64>,
    /// For how many milliseconds the relay had heard nothing from the agent when this was sent; absent without a link.
    #[prost(uint64, optional, tag = "5")]
    pub heard_ms: Option<u64>,
}

/// How an agent is, and the link between it and the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AgentState {
    /// It takes sessions.
    Up = 0,
    /// Its link is suspect: sessions for it wait.
    Suspect = 1,
    /// It says that its server does not serve now.
    Down = 2,
    /// It was lost without a goodbye, and may come back.
    Lost = 3,
}

impl AgentFact {
    /// The agent's process.
    ///
    /// # Errors
    ///
    /// [`IdError`] if the field is not 16 bytes.
    pub fn instance_id(&self) -> Result<InstanceId, IdError> {
        InstanceId::try_from(&self.instance[..])
    }

    /// How it is.
    #[must_use]
    pub fn agent_state(&self) -> AgentState {
        AgentState::try_from(self.state).unwrap_or(AgentState::Down)
    }
}

/// Who the relay is, and whom it takes the edge for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Welcome {
    /// The relay's name.
    #[prost(string, tag = "1")]
    pub relay: String,
    /// The relay's version, for people.
    #[prost(string, tag = "2")]
    pub version: String,
    /// The machine name that the edge's certificate proves.
    #[prost(string, tag = "3")]
    pub machine: String,
}

/// What became of an [`Announce`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Announced {
    /// The revision that this answers.
    #[prost(uint64, tag = "1")]
    pub revision: u64,
    /// The services that the relay does not take; all others are registered. May leave some out, so that the answer
    /// stays short: see `refused_total`.
    #[prost(message, repeated, tag = "2")]
    pub refused: Vec<Refusal>,
    /// How many services were refused in all.
    #[prost(uint32, tag = "3")]
    pub refused_total: u32,
}

/// A service that the relay does not take.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Refusal {
    /// The name as it was announced, cut to the length of the longest name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Why: the number of a reason of the closed list.
    #[prost(uint32, tag = "2")]
    pub reason: u32,
    /// Why, in words.
    #[prost(string, tag = "3")]
    pub message: String,
}

/// The edge that stood by is its machine's process again.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Restored {}

/// A newer process of the same machine has taken over: the link ends, unless its edge has said that it
/// [yields](Announce::yields) and so stands by.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Replaced {
    /// What to tell a person.
    #[prost(string, tag = "1")]
    pub message: String,
}

/// The relay takes no new sessions; open ones run on to the deadline.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Draining {
    /// Milliseconds from now.
    #[prost(uint64, tag = "1")]
    pub deadline_ms: u64,
}

/// Why a message cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Over [`MAX_WHOLE_LEN`].
    #[error("a control message has at most {MAX_WHOLE_LEN} bytes, not {0}")]
    TooLong(usize),
}

/// A direction of the control session: [`EdgeToRelay`] or [`RelayToEdge`].
pub trait ControlMessage: sealed::Sealed + Sized {
    /// The message with its length before it, as it goes into the control session; a long one in parts.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLong`] if the message is longer than the peer would take.
    fn to_frame(&self) -> Result<Bytes, EncodeError>;

    /// What `body` is, without its length.
    ///
    /// # Errors
    ///
    /// The fault that prost finds in bytes that are not such a message.
    fn from_body(body: &[u8]) -> Result<Body<Self>, prost::DecodeError>;
}

/// What stands behind one length.
#[derive(Debug, Clone, PartialEq)]
pub enum Body<M> {
    /// A message.
    Message(M),
    /// A part of a long one.
    Part(Part),
    /// One that this version does not know.
    Unknown,
}

/// A part of a long message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Part {
    /// The next bytes of the message.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// The message is whole with them.
    #[prost(bool, tag = "2")]
    pub last: bool,
}

mod sealed {
    #[expect(unnameable_types, reason = "so nobody else can say what a control message is")]
    pub trait Sealed {}
}

/// The message around the `oneof`. Fields beside it are skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct FromEdge {
    #[prost(oneof = "EdgeToRelay", tags = "1, 2, 3")]
    body: Option<EdgeToRelay>,
    #[prost(message, optional, tag = "15")]
    part: Option<Part>,
}

/// The message around the `oneof`. Fields beside it are skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct FromRelay {
    #[prost(oneof = "RelayToEdge", tags = "1, 2, 3, 4, 5, 6")]
    body: Option<RelayToEdge>,
    #[prost(message, optional, tag = "15")]
    part: Option<Part>,
}

impl sealed::Sealed for EdgeToRelay {}

impl ControlMessage for EdgeToRelay {
    fn to_frame(&self) -> Result<Bytes, EncodeError> {
        let whole = FromEdge { body: Some(self.clone()), part: None };
        frames(&whole, |part| FromEdge { body: None, part: Some(part) })
    }

    fn from_body(body: &[u8]) -> Result<Body<Self>, prost::DecodeError> {
        FromEdge::decode(body).map(|read| body_of(read.body, read.part))
    }
}

impl sealed::Sealed for RelayToEdge {}

impl ControlMessage for RelayToEdge {
    fn to_frame(&self) -> Result<Bytes, EncodeError> {
        let whole = FromRelay { body: Some(self.clone()), part: None };
        frames(&whole, |part| FromRelay { body: None, part: Some(part) })
    }

    fn from_body(body: &[u8]) -> Result<Body<Self>, prost::DecodeError> {
        FromRelay::decode(body).map(|read| body_of(read.body, read.part))
    }
}

fn body_of<M>(message: Option<M>, part: Option<Part>) -> Body<M> {
    match (message, part) {
        (Some(message), _) => Body::Message(message),
        (None, Some(part)) => Body::Part(part),
        (None, None) => Body::Unknown,
    }
}

fn frames<W: prost::Message>(whole: &W, around: impl Fn(Part) -> W) -> Result<Bytes, EncodeError> {
    let body = whole.encode_to_vec();
    if body.len() > MAX_WHOLE_LEN {
        return Err(EncodeError::TooLong(body.len()));
    }
    let mut out = Vec::with_capacity(body.len() + 3);
    if body.len() <= MAX_CONTROL_LEN {
        frame(&body, &mut out);
        return Ok(out.into());
    }
    let body = Bytes::from(body);
    for from in (0..body.len()).step_by(PART_LEN) {
        let to = body.len().min(from + PART_LEN);
        let part = Part { data: body.slice(from..to), last: to == body.len() };
        frame(&around(part).encode_to_vec(), &mut out);
    }
    Ok(out.into())
}

fn frame(body: &[u8], out: &mut Vec<u8>) {
    varint::write(body.len() as u64, out);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests;
