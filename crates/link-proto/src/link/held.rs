//! What a link holds, for tests that must see it bounded, and nothing at the end.

use super::Link;
use crate::session::SessionId;

/// Counts of everything in a link that could grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Sessions that are not forgotten.
    pub sessions: usize,
    /// Bytes that sessions have received and nobody has taken.
    pub received: usize,
    /// Bytes that wait in sessions to be sent.
    pub unsent: usize,
    /// Entries in the queues of what has something to send.
    pub queued: usize,
    /// Events that nobody has taken.
    pub events: usize,
    /// Opens of the peer that count as unanswered.
    pub unanswered: u32,
    /// Bytes of read buffers that pieces keep alive beyond four times their length.
    pub pinned: u64,
    /// Sessions that were let go of and wait for the peer.
    pub lingering: usize,
}

impl<T: Default> Link<T> {
    /// What this link holds now.
    #[must_use]
    pub fn held(&self) -> Held {
        let sessions = self.sessions.values();
        Held {
            sessions: self.sessions.len(),
            received: sessions.clone().map(|session| session.recv.queue.len()).sum(),
            unsent: sessions.map(|session| session.send.queue.len()).sum(),
            queued: self.turn.len() + self.control.len() + self.out.last_words.len(),
            events: self.events.len(),
            unanswered: self.unanswered_theirs,
            pinned: self.pins.held(),
            lingering: self.lingering.len(),
        }
    }

    /// The session with this number on the wire, if it is not forgotten.
    #[must_use]
    pub fn session(&self, number: u64) -> Option<SessionId> {
        self.sessions.contains_key(&number).then_some(SessionId(number))
    }
}
