//! What a link tells its owner.

use bytes::Bytes;

use super::LinkEnd;
use crate::liveness::Liveness;
use crate::session::SessionId;

/// What the link tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's hello came: sessions may be opened.
    Up(Peer),
    /// The peer opened a session; answer it, or abort it to refuse.
    Opened {
        /// The new session.
        id: SessionId,
        /// Its opaque header.
        header: Bytes,
    },
    /// One of our opens was answered, or failed, after [`Link::answered`](super::Link::answered) said pending.
    Answered(SessionId),
    /// A read that found nothing may now find something.
    Readable(SessionId),
    /// A write, or a wait for the far reader, that could not go on may now go on.
    Writable(SessionId),
    /// A ping has waited 2 s for its answer.
    Suspect,
    /// The peer was heard again.
    Recovered,
    /// The peer drains: it takes no new sessions, and cuts what is open in so many milliseconds.
    PeerDrains {
        /// From now on.
        deadline_ms: u64,
    },
    /// Our own drain is over: no session is left, or its deadline cut them.
    Drained,
    /// The link is over. Its sessions have been told; what they received stays readable.
    Down(LinkEnd),
}

/// What the peer's hello said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Random per process start of the peer.
    pub instance: [u8; 16],
    /// What it calls itself.
    pub name: String,
    /// The liveness that this side now keeps.
    pub liveness: Liveness,
}
