//! One link, pure: what two processes say to each other over one ordered byte carrier, without the carrier.
//!
//! A *link* carries many *sessions*, each a two-way byte stream, and knows within a stated bound that its peer is
//! gone. This crate is its whole logic: frames, session states, credit, liveness, drain, aborts. It does no I/O,
//! reads no clock, spawns no task, takes no lock and wakes nobody. Bytes and `now` go in; bytes, events and the
//! next timeout come out. So a chain of links runs in virtual time from a seed, and every rule of `WIRE.md` can
//! be tried at every cut of its input.
//!
//! # The main decision: who holds memory decides who may send
//!
//! There is no window for the link as a whole, only one for each session. A link-wide window can be used up by
//! sessions that nobody reads, and then everything stalls. Instead each session starts with a small window, which
//! grows for a reader that keeps up and shrinks for one that does not, and the sum of what unread data can come to
//! hold is bounded by a budget: when it is short, new windows are small, but they are never nothing, and what was
//! granted is never taken back (`flow.rs` has the arithmetic). What a peer can make this side hold is listed in
//! [`LIMITS`]; nothing is held that isn't there.
//!
//! What leaves goes in this order: link control (ping, pong, presence, credit) before data, sessions in turn by
//! bytes, and a session's answer, end and abort behind its own data. See [`Link::poll_transmit`].
//!
//! # A link
//!
//! [`Link`] is one end; its documentation states the order of calls. [`Splice`] joins two sessions of two links,
//! which is what a relay does. [`Liveness`] is how long a link may be silent, [`Code`] why something ended.

mod code;
mod counters;
mod flow;
mod frame;
mod hello;
mod limits;
mod link;
mod liveness;
mod queue;
mod session;
mod splice;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod varint;
mod watch;

pub use code::{Code, Reason};
pub use counters::Counters;
pub use frame::{Abort, FrameError};
pub use hello::HelloError;
pub use limits::{LIMITS, LimitCounters, Limits};
pub use link::{
    Config, ConfigError, EndCause, Event, Link, LinkEnd, OpenError, Peer, ProtocolError, Read, SendState,
    SessionCounters, Side, Transmit, Write,
};
pub use liveness::{Liveness, LivenessError, MAX_BOUND, MIN_BOUND};
pub use session::SessionId;
pub use splice::{Sides, Splice, SpliceEnd};
