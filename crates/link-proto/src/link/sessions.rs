//! What the owner of a link does with its sessions.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Event, Link, Phase};
use crate::code::Code;
use crate::frame::Abort;
use crate::session::{Opening, RecvPhase, SendPhase, Session, SessionId};

/// Bytes that may wait in a session for the link: enough that one turn never finds it empty, and little enough
/// that a thousand stalled writers cost 64 MiB.
const SEND_QUEUE: usize = 64 << 10;
/// The round trip that windows assume at least: scheduling delays are of this order even where the wire has none.
const LEAST_ROUND_TRIP: Duration = Duration::from_millis(1);

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
    /// Nothing yet: [`Event::Readable`] will follow.
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
    /// None can be taken now: [`Event::Writable`] will follow.
    Pending,
}

/// How far the sending direction has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// The end was not called.
    Open,
    /// The end was called; the far reader has not taken everything yet. [`Event::Writable`] will follow.
    Ending,
    /// The far reader has taken everything.
    Acknowledged,
}

impl Link {
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
        let session = Session::new(true, Opening::Queued(header), self.peer.early_credit, early_in);
        self.sessions.insert(number, session);
        self.queue_turn(SessionId(number));
        Ok(SessionId(number))
    }

    /// Answers a session that the peer opened: it gets its first window. No effect on any other. A header longer
    /// than the peer allows aborts the session with `internal`.
    pub fn answer(&mut self, id: SessionId, header: Bytes) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.ours || session.ended.is_some() || session.opening != Opening::Unanswered {
            return;
        }
        let allowed = self.peer.header_bytes;
        if header.len() > allowed as usize {
            let message = format!("an answer's header of {} bytes; the peer allows {allowed}", header.len());
            self.abort(id, Abort::new(Code::INTERNAL, message));
            return;
        }
        session.opening = Opening::AnswerQueued(header);
        self.unanswered_theirs -= 1;
        self.widen(id, u64::from(self.config.limits.first_window));
        self.queue_turn(id);
    }

    /// Whether one of our opens was answered: its answer's header, or `None` while nobody has spoken
    /// ([`Event::Answered`] will follow).
    ///
    /// # Errors
    /// How it was refused, or how the session ended before its answer.
    pub fn answered(&mut self, id: SessionId) -> Result<Option<Bytes>, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        match (&session.opening, &session.ended) {
            (Opening::Answered, _) => Ok(Some(session.answer_header.clone())),
            (_, Some(abort)) => Err(abort.clone()),
            (Opening::Queued(_) | Opening::Unanswered | Opening::AnswerQueued(_), None) => {
                session.waiting.answer = true;
                Ok(None)
            }
        }
    }

    /// Whether a write would be taken now; if not, [`Event::Writable`] will follow.
    ///
    /// # Errors
    /// How the session ended.
    pub fn ready_to_write(&mut self, id: SessionId) -> Result<bool, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if let Some(abort) = &session.ended {
            return Err(abort.clone());
        }
        let ready = session.send.queue.len() < SEND_QUEUE;
        session.waiting.write |= !ready;
        Ok(ready)
    }

    /// Writes a copy of `bytes`, as much as the session takes now.
    ///
    /// # Errors
    /// How the session ended; also after [`Link::end`], with `internal`.
    pub fn write(&mut self, id: SessionId, bytes: &[u8]) -> Result<Write, Abort> {
        self.write_with(id, bytes.len(), |session, room| {
            let n = room.min(bytes.len());
            session.send.queue.extend(&bytes[..n]);
            n
        })
    }

    /// Writes `bytes` whole, by reference, as soon as the session takes any: its queue may pass its size by
    /// this one piece.
    ///
    /// # Errors
    /// As for [`Link::write`].
    pub fn write_bytes(&mut self, id: SessionId, bytes: Bytes) -> Result<Write, Abort> {
        self.write_with(id, bytes.len(), |session, _| {
            let n = bytes.len();
            session.send.queue.push(bytes);
            n
        })
    }

    fn write_with(
        &mut self,
        id: SessionId,
        len: usize,
        put: impl FnOnce(&mut Session, usize) -> usize,
    ) -> Result<Write, Abort> {
        if !self.ready_to_write(id)? {
            return Ok(Write::Pending);
        }
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if session.send.phase != SendPhase::Open {
            return Err(Abort::new(Code::INTERNAL, "write after the end"));
        }
        if len == 0 {
            return Ok(Write::Taken(0));
        }
        let room = SEND_QUEUE - session.send.queue.len();
        let taken = put(session, room);
        if session.has_turn() {
            self.queue_turn(id);
        }
        Ok(Write::Taken(taken))
    }

    /// Writes by reference, whatever waits already. For a forwarder, whose bytes are bounded by what it granted.
    pub(crate) fn push_bytes(&mut self, id: SessionId, bytes: Bytes) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && session.ended.is_none()
            && session.send.phase == SendPhase::Open
        {
            session.send.queue.push(bytes);
            if session.has_turn() {
                self.queue_turn(id);
            }
        }
    }

    /// Wants [`Event::Writable`] when bytes of this session leave.
    pub fn notify_when_sent(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0) {
            session.waiting.write = true;
        }
    }

    /// Ends the sending direction: the peer reads everything, then the end. A second call changes nothing.
    pub fn end(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && session.send.phase == SendPhase::Open
            && session.ended.is_none()
        {
            session.send.phase = SendPhase::Ending;
            if session.has_turn() {
                self.queue_turn(id);
            }
        }
    }

    /// How far the sending direction has come.
    ///
    /// # Errors
    /// How the session ended, unless the far reader has taken everything before.
    pub fn send_state(&mut self, id: SessionId) -> Result<SendState, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        match (session.send.phase, &session.ended) {
            (SendPhase::Acked, _) => Ok(SendState::Acknowledged),
            (_, Some(abort)) => Err(abort.clone()),
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
        self.sessions.get(&id.0).map_or(0, |session| session.send.sent)
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
            sent: session.send.sent,
            unsent: session.send.queue.len() as u64,
            send_credit: session.send.limit - session.send.sent,
            received: session.recv.received,
            unread: session.recv.queue.len() as u64,
            window: session.recv.window,
        })
    }

    /// Takes up to `max` bytes and gives the peer credit for them. The end, once read, is acknowledged.
    ///
    /// # Errors
    /// How the session ended, behind everything that came before.
    pub fn read(&mut self, now: Instant, id: SessionId, max: usize) -> Result<Read, Abort> {
        let found = self.take(id, max)?;
        match &found {
            Read::Data(bytes) => self.credit(now, id, bytes.len() as u64),
            Read::End => self.acknowledge_end(id),
            Read::Pending => {}
        }
        Ok(found)
    }

    /// Like [`Link::read`], into `out`, in one copy; `None` is the end, 0 is pending.
    ///
    /// # Errors
    /// As for [`Link::read`].
    pub fn read_into(&mut self, now: Instant, id: SessionId, out: &mut [u8]) -> Result<Option<usize>, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if !session.recv.queue.is_empty() {
            let copied = session.recv.queue.copy_into(out);
            self.credit(now, id, copied as u64);
            return Ok(Some(copied));
        }
        match self.read(now, id, out.len())? {
            // The queue is empty: only the end or nothing is left.
            Read::Data(_) | Read::Pending => Ok(Some(0)),
            Read::End => Ok(None),
        }
    }

    /// Takes up to `max` bytes and gives no credit for them: the forwarder gives it with [`Link::credit`] when
    /// they have left. Nor does it acknowledge the end: see [`Link::acknowledge_end`].
    ///
    /// # Errors
    /// As for [`Link::read`].
    pub fn take(&mut self, id: SessionId, max: usize) -> Result<Read, Abort> {
        let session = self.sessions.get_mut(&id.0).ok_or_else(forgotten)?;
        if let Some(bytes) = session.recv.queue.pop(max) {
            return Ok(Read::Data(bytes));
        }
        if !session.recv.queue.is_empty() {
            return Ok(Read::Pending);
        }
        match (session.recv.phase, &session.ended) {
            // An end that was whole stays an end, whatever came after it.
            (RecvPhase::Taken | RecvPhase::Ended, _) => Ok(Read::End),
            (RecvPhase::Open, Some(abort)) => Err(abort.clone()),
            (RecvPhase::Open, None) => {
                session.waiting.read = true;
                Ok(Read::Pending)
            }
        }
    }

    /// Gives the peer credit for `bytes` that were taken. May widen the window of a reader that keeps up.
    pub fn credit(&mut self, now: Instant, id: SessionId, bytes: u64) {
        let round_trip = self.watch.round_trip().unwrap_or_default().max(LEAST_ROUND_TRIP);
        let most = u64::from(self.config.limits.max_window);
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        session.recv.consumed = (session.recv.consumed + bytes).min(session.recv.received);
        if session.recv.phase != RecvPhase::Open || session.ended.is_some() {
            return;
        }
        if let Some(wanted) = session.recv.wanted_window(now, round_trip) {
            self.widen(id, wanted.min(most));
        }
        self.queue_credit_if_due(id);
    }

    /// Tells the peer that everything up to its end was taken, here or further on.
    pub fn acknowledge_end(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.recv.phase == RecvPhase::Ended && session.recv.queue.is_empty() {
            session.recv.phase = RecvPhase::Taken;
            // Nothing more will come: the window is free for others.
            let early = u64::from(self.config.limits.early_credit);
            self.budget_used -= session.recv.window.saturating_sub(early);
            session.recv.window = session.recv.window.min(early);
            if session.ended.is_none() {
                session.end_ack_due = true;
                self.queue_control(id);
            }
        }
    }

    /// Gives up: both ends read this reason, behind what was sent. Data that has no credit is dropped. An abort
    /// of a session that is already over, or of which both readers have everything, changes nothing.
    pub fn abort(&mut self, id: SessionId, abort: Abort) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.ended.is_some() || session.wire_done || session.is_complete() {
            return;
        }
        let abort = abort.bounded();
        session.abort_out = Some(abort.clone());
        self.end_session(id, abort);
        self.queue_turn(id);
    }

    /// How the session ended, if by an abort.
    #[must_use]
    pub fn abort_reason(&self, id: SessionId) -> Option<&Abort> {
        self.sessions.get(&id.0)?.ended.as_ref()
    }

    /// The handle is gone. A session whose ends were both called, and whose input was read, is left to finish by
    /// itself; any other is aborted with `peer_reset`.
    pub fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        session.released = true;
        // Asked before the queue is cleared: unread input makes a drop an abort.
        let clean = session.drop_is_clean();
        session.recv.queue.clear();
        if clean {
            self.acknowledge_end(id);
        } else {
            self.abort(id, Abort::new(Code::PEER_RESET, "dropped before its end"));
        }
        self.forget_if_over(id);
    }

    /// The peer has given up a session that we have given up too: nobody waits for what is left to send.
    pub(super) fn withdraw_abort(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.abort_out.take().is_some() {
            session.send.queue.clear();
            self.note_wire(id);
        }
    }

    /// Ends both directions at this side; what was received stays readable.
    pub(super) fn end_session(&mut self, id: SessionId, abort: Abort) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.ended.is_some() || session.wire_done {
            return;
        }
        session.ended = Some(abort);
        session.end_ack_due = false;
        if session.abort_out.is_none() {
            session.send.queue.clear();
        }
        let waiting = std::mem::take(&mut session.waiting);
        let released = session.released;
        // Whoever waits for something else of this session must hear of an abort too, as a forwarder does.
        for (is, event) in [
            (!released, Event::Readable(id)),
            (waiting.write, Event::Writable(id)),
            (waiting.answer, Event::Answered(id)),
        ] {
            if is {
                self.events.push_back(event);
            }
        }
        self.note_wire(id);
    }

    /// Counts a session out when the peer's part in it is over, and forgets it when the handle is gone too.
    pub(super) fn note_wire(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        let was = session.wire_done;
        session.update_wire_done();
        if was || !session.wire_done {
            return;
        }
        if session.ours {
            self.open_ours -= 1;
        } else {
            self.open_theirs -= 1;
            if session.opening == Opening::Unanswered {
                self.unanswered_theirs -= 1;
            }
        }
        self.note_drained();
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: SessionId) {
        if self.sessions.get(&id.0).is_some_and(|session| session.wire_done && session.released)
            && let Some(session) = self.sessions.remove(&id.0)
        {
            let early = u64::from(self.config.limits.early_credit);
            self.budget_used -= session.recv.window.saturating_sub(early);
        }
    }

    /// Raises a session's window, as far as the link's budget goes.
    pub(super) fn widen(&mut self, id: SessionId, wanted: u64) {
        let left = self.config.limits.budget.saturating_sub(self.budget_used);
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        let more = wanted.saturating_sub(session.recv.window).min(left);
        session.recv.window += more;
        self.budget_used += more;
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
        if self.sessions.get(&id.0).is_some_and(|session| session.recv.credit_is_due()) {
            self.queue_control(id);
        }
    }

    fn queue_control(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id.0)
            && !session.in_control
        {
            session.in_control = true;
            self.control.push_back(id);
            prune(&mut self.control, &self.sessions);
        }
    }
}

/// Drops forgotten sessions from a queue that consists mostly of them: nothing else shortens it while the carrier
/// takes nothing.
fn prune(queue: &mut VecDeque<SessionId>, sessions: &BTreeMap<u64, Session>) {
    if queue.len() > 2 * sessions.len() + 64 {
        queue.retain(|id| sessions.contains_key(&id.0));
    }
}

/// A session that this side has already let go of.
fn forgotten() -> Abort {
    Abort::new(Code::INTERNAL, "no such session")
}
