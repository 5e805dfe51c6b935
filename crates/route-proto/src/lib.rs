//! What edges and relays say to each other on top of links: routing header and control messages, pure.
//!
//! # The main decision
//!
//! A link knows nothing of services. It carries sessions, and each open has a header that the link does not
//! read. Everything about *where to* stands in this crate, in two forms, because the two have different lives:
//!
//! - The [`RoutingHeader`] goes with one open and is read and written again by each relay on the way. It is a list
//!   of (type, length, value) fields. A relay must pass on what it does not understand, so that two new edges can
//!   use a new field through an old relay. Unknown fields are therefore kept, in their order.
//! - The control messages ([`EdgeToRelay`], [`RelayToEdge`]) go between one edge and one relay, on one session of
//!   their link that was opened with [`Target::Control`]. Nobody passes them on. They are protobuf messages, each
//!   behind its length, and a reader skips the fields and the messages that it does not know. The messages are
//!   written by hand with prost's derive; there is no `.proto` file to compile.
//!
//! Names and ids are the types of `hopline-names`: what has one holds a name that keeps the rule, so
//! encoding cannot fail on a name and nobody checks twice.
//!
//! The crate does no I/O and reads no clock. Bytes come in, values go out; no bytes make it panic, and everything
//! that it holds for a peer is bounded by a constant that stands beside the code.

mod control;
mod decoder;
mod header;

pub use control::{
    AgentFact, AgentState, Agents, Announce, Announced, Body, ControlMessage, Draining, EdgeToRelay,
    EncodeError, Interest, Leaving, MAX_AGENTS_TOLD, MAX_CONTROL_LEN, MAX_WHOLE_LEN, Part, Protocol, Refusal,
    RelayToEdge, Replaced, Restored, ServiceAd, ServiceAgents, ServiceState, Welcome,
};
pub use decoder::{ControlDecoder, ControlError};
pub use header::{
    HeaderError, MAX_HEADER_LEN, MAX_TRAIL, MAX_UNKNOWN_FIELDS, MAX_UNKNOWN_LEN, RoutingHeader, Target,
    UnknownField, VERSION,
};
