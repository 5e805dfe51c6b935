//! What the owner of a link does with its sessions.

use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

use super::ends::count_out;
use super::{Link, Phase};
use crate::code::Code;
use crate::flow::Change;
use crate::frame::Abort;
use crate::limits::SEND_QUEUE;
use crate::queue::Pins;
use crate::session::{Opening, SendPhase, Session, SessionId};

/// Why no session could be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The peer's hello has not come yet.
    #[error("the link is not up yet")]
    NotUp,
    /// The link is over.
    #[error("the link is down: {0}")]
    Down(Abort),
    /// The peer, or this side, drains.
    #[error("the link drains")]
    Draining,
    /// The peer allows no more sessions at once.
    #[error("the link has {0} sessions open, as many as the peer allows")]
    TooManySessions(u32),
    /// The header is longer than the peer allows.
    #[error("a header of {len} bytes; the peer allows {max}")]
    Header {
        /// Its length.
        len: usize,
        /// The peer's limit.
        max: u32,
    },
    /// Session ids are used up: open a new link.
    #[error("the link has used up its session ids")]
    Exhausted,
}

/// What a read found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Bytes, at least one.
    Data(Bytes),
    /// The peer's end, behind everything it sent.
    End,
    /// Nothing yet: [`Event::Readable`](super::Event::Readable) will follow.
    Pending,
}

/// What one session has carried, and what it holds at this end. All in bytes of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Handed to the carrier so far.
    pub sent: u64,
    /// Written here and not sent yet.
    pub unsent: u64,
    /// What the peer would take now. 0 with `unsent` above 0: the far reader holds up this session.
    pub send_credit: u64,
    /// Received from the peer so far.
    pub received: u64,
    /// Received and not read here yet.
    pub unread: u64,
    /// The most that may be under way to this end or unread here.
    pub window: u64,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// So many bytes were taken, at least one.
    Taken(usize),
    /// None can be taken now: [`Event::Writable`](super::Event::Writable) will follow.
    Pending,
}

/// How far the sending direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// The end was not called.
    Open,
    /// The end was called; the far reader has not taken everything yet. [`Event::Writable`](super::Event::Writable) will follow.
    Ending,
    /// The far reader has taken everything.
    Acknowledged,
}

impl<T: Default> Link<T> {
    /// Opens a session. Its header goes out with the next transmit; data may be written at once, within the
    /// peer's early credit.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has gone out then.
    pub fn open(&mut self, header: Bytes) -> Result<SessionId, OpenError> {
        match &self.phase {
            Phase::Hello(_) => return Err(OpenError::NotUp),
            Phase::Down(end) => return Err(OpenError::Down(end.abort())),
            Phase::Up => {}
        }
        if self.peer_drains || self.drain.is_some() {
            return Err(OpenError::Draining);
        }
        if self.open_ours >= self.peer.sessions {
            return Err(OpenError::TooManySessions(self.peer.sessions));
        }
        if header.len() > self.peer.header_bytes as usize {
            return Err(OpenError::Header { len: header.len(), max: self.peer.header_bytes });
        }
        let number = self.next_ours;
        if number > crate::varint::MAX {
            return Err(OpenError::Exhausted);
        }
        self.next_ours += 2;
        self.open_ours += 1;
        let early_in = u64::from(self.config.limits.early_credit);
        let session = Session::new(Some(header), self.peer.early_credit, early_in, self.now);
        self.sessions.insert(number, Box::new(session));
        self.queue_turn(SessionId(number));
        Ok(SessionId(number))
    }

    /// Answers a session that the peer opened: it gets its first window. No effect on any other. A header longer
    /// than the peer allows aborts the session with `internal`.
    pub fn answer(&mut self, id: SessionId, header: Bytes) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if !session.may_answer() {
            return;
        }
        let allowed = self.peer.header_bytes;
        if header.len() > allowed as usize {
            let message = format!("an answer's header of {} bytes; the peer allows {allowed}", header.len());
            self.abort(id, Abort::new(Code::INTERNAL, message));
            return;
        }
        if session.queue_answer().is_err() {
            return;
        }
        session.keep_header(header);
        count_out(&mut self.unanswered_theirs);
        self.widen_to_first(id);
        self.queue_turn(id);
    }

    /// Whether one of our opens was answered: its answer's header, or `None` while nobody has spoken
    /// ([`Event::Answered`](super::Event::Answered) will follow).
    ///
    /// # Errors
    /// How it was refused, or how the session ended before its answer.
    pub fn answered(&mut self, id: SessionId) -> Result<Option<Bytes>, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        match (session.opening(), &session.ended) {
            (Opening::Answered, _) => Ok(Some(session.header())),
            (_, Some(abort)) => Err(Abort::clone(abort)),
            (Opening::Queued | Opening::Unanswered | Opening::AnswerQueued, None) => {
                session.waiting.answer = true;
                Ok(None)
            }
        }
    }

    /// Whether a write would be taken now; if not, [`Event::Writable`](super::Event::Writable) will follow.
    ///
    /// # Errors
    /// How the session ended.
    pub fn ready_to_write(&mut self, id: SessionId) -> Result<bool, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if let Some(abort) = &session.ended {
            return Err(Abort::clone(abort));
        }
        let ready = session.send.queue.len() < SEND_QUEUE;
        session.waiting.write |= !ready;
        self.counters.limits.send_queue += u64::from(!ready);
        Ok(ready)
    }

    /// Writes a copy of `bytes`, as much as the session takes now.
    ///
    /// # Errors
    /// How the session ended; also after [`Link::end`], with `internal`.
    pub fn write(&mut self, id: SessionId, bytes: &[u8]) -> Result<Write, Abort> {
        self.write_with(id, bytes.len(), |session, room, pins| {
            let n = room.min(bytes.len());
            session.send.queue.extend(&bytes[..n], pins);
            n
        })
    }

    /// Writes `bytes` whole, by reference, as soon as the session takes any: its queue may pass its size by
    /// this one piece.
    ///
    /// # Errors
    /// As for [`Link::write`].
    pub fn write_bytes(&mut self, id: SessionId, bytes: Bytes) -> Result<Write, Abort> {
        self.write_with(id, bytes.len(), |session, _, pins| {
            let n = bytes.len();
            session.send.queue.push(bytes, pins);
            n
        })
    }

    fn write_with(
        &mut self,
        id: SessionId,
        len: usize,
        put: impl FnOnce(&mut Session<T>, usize, &mut Pins) -> usize,
    ) -> Result<Write, Abort> {
        if !self.ready_to_write(id)? {
            return Ok(Write::Pending);
        }
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if session.send.phase() != SendPhase::Open {
            return Err(Abort::new(Code::INTERNAL, "write after the end"));
        }
        if len == 0 {
            return Ok(Write::Taken(0));
        }
        let room = SEND_QUEUE - session.send.queue.len();
        let taken = put(session, room, &mut self.pins);
        if session.has_turn() {
            self.queue_turn(id);
        }
        Ok(Write::Taken(taken))
    }

    /// Writes by reference, whatever waits already. For a forwarder, whose bytes are bounded by what it granted.
    pub(crate) fn push_bytes(&mut self, id: SessionId, bytes: Bytes) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && session.ended.is_none()
            && session.send.phase() == SendPhase::Open
        {
            session.send.queue.push(bytes, &mut self.pins);
            if session.has_turn() {
                self.queue_turn(id);
            }
        }
    }

    /// Wants [`Event::Writable`](super::Event::Writable) when bytes of this session leave.
    pub fn notify_when_sent(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0) {
            session.waiting.write = true;
        }
    }

    /// Ends the sending direction: the peer reads everything, then the end. A second call changes nothing.
    pub fn end(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && session.ended.is_none()
            && session.send.end().is_ok()
            && session.has_turn()
        {
            self.queue_turn(id);
        }
    }

    /// How far the sending direction has come.
    ///
    /// # Errors
    /// How the session ended, unless the far reader has taken everything before.
    pub fn send_state(&mut self, id: SessionId) -> Result<SendState, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        match (session.send.phase(), &session.ended) {
            (SendPhase::Acked, _) => Ok(SendState::Acknowledged),
            (_, Some(abort)) => Err(Abort::clone(abort)),
            (SendPhase::Open, None) => Ok(SendState::Open),
            (SendPhase::Ending | SendPhase::Ended, None) => {
                session.waiting.write = true;
                Ok(SendState::Ending)
            }
        }
    }

    /// Bytes handed to the carrier so far, in the sending direction.
    #[must_use]
    pub fn bytes_sent(&self, id: SessionId) -> u64 {
        self.sessions.get(&id.0).map_or(0, |session| session.send.credit.sent())
    }

    /// Bytes that wait in the sending direction.
    #[must_use]
    pub fn bytes_queued(&self, id: SessionId) -> usize {
        self.sessions.get(&id.0).map_or(0, |session| session.send.queue.len())
    }

    /// What the session has carried and what it holds now; `None` once it is forgotten.
    #[must_use]
    pub fn session_counters(&self, id: SessionId) -> Option<SessionCounters> {
        self.sessions.get(&id.0).map(|session| SessionCounters {
            sent: session.send.credit.sent(),
            unsent: session.send.queue.len() as u64,
            send_credit: session.send.credit.remaining(),
            received: session.recv.credit.received(),
            unread: session.recv.queue.len() as u64,
            window: session.recv.credit.window(),
        })
    }

    /// A session that is answered gets its first window.
    pub(super) fn widen_to_first(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        let change = self.budget.widen_to_first(&mut session.recv.credit);
        self.counters.limits.first_window += u64::from(change == Change::Short);
    }

    pub(super) fn queue_turn(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && !session.in_turn
            && session.has_turn()
        {
            session.in_turn = true;
            self.turn.push_back(id);
            prune(&mut self.turn, &self.sessions);
        }
    }

    pub(super) fn queue_credit_if_due(&mut self, id: SessionId) {
        if self.sessions.get(&id.0).is_some_and(|session| session.recv.credit.is_due()) {
            self.queue_control(id);
        }
    }

    pub(super) fn queue_control(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.in_control {
            self.counters.limits.control_entries += 1;
            return;
        }
        session.in_control = true;
        self.control.push_back(id);
        prune(&mut self.control, &self.sessions);
    }
}

/// Drops forgotten sessions from a queue that consists mostly of them: nothing else shortens it while the carrier
/// takes nothing.
fn prune<T>(queue: &mut VecDeque<SessionId>, sessions: &BTreeMap<u64, Box<Session<T>>>) {
    if queue.len() > 2 * sessions.len() + 64 {
        queue.retain(|id| sessions.contains_key(&id.0));
    }
}

/// A session that this side has already let go of.
pub(super) fn forgotten() -> Abort {
    Abort::new(Code::INTERNAL, "no such session")
}
