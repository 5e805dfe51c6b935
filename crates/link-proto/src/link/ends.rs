//! How a session ends: aborts, releases, and when it is counted out and forgotten.

use super::{Event, Link};
use crate::code::Code;
use crate::frame::Abort;
use crate::session::{Opening, SessionId};

impl<T: Default> Link<T> {
    /// Gives up: both ends read this reason, behind what was sent. Data that has no credit is dropped. An abort
    /// of a session that is already over, or of which both readers have everything, changes nothing.
    pub fn abort(&mut self, id: SessionId, abort: Abort) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.ended.is_some() || session.wire_done || session.is_complete() {
            return;
        }
        let abort = abort.bounded();
        session.abort_out = Some(Box::new(abort.clone()));
        self.end_session(id, abort);
        self.queue_turn(id);
    }

    /// How the session ended, if by an abort.
    #[must_use]
    pub fn abort_reason(&self, id: SessionId) -> Option<&Abort> {
        self.sessions.get(&id.0)?.ended.as_deref()
    }

    /// The handle is gone. A session whose ends were both called, and whose input was read, is left to finish by
    /// itself, as long as the peer goes on taking it ([`Limits::linger_timeout`](crate::Limits::linger_timeout));
    /// any other is aborted with `peer_reset`.
    pub fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if std::mem::replace(&mut session.released, true) {
            return;
        }
        if !session.ours {
            count_out(&mut self.held_theirs);
        }
        // Asked before the queue is cleared: unread input makes a drop an abort.
        let clean = session.drop_is_clean();
        session.recv.queue.clear(&mut self.pins);
        if clean {
            self.acknowledge_end(id);
            self.linger(id);
        } else {
            self.abort(id, Abort::new(Code::PEER_RESET, "dropped before its end"));
        }
        if let Some(session) = self.sessions.get_mut(&id.0) {
            session.recv.credit.discard();
            self.budget.settle(&mut session.recv.credit);
        }
        self.forget_if_over(id);
    }

    /// Nobody here waits any more for the peer to take what is left: that has an end.
    fn linger(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        session.progress = self.now;
        let until = session.progress.checked_add(self.config.limits.linger_timeout);
        if let Some(until) = until.filter(|_| session.is_live()) {
            session.linger = Some(Box::new(until));
            self.lingering.insert((until, id));
        }
    }

    /// Gives up sessions whose peer has taken nothing for too long.
    pub(super) fn run_linger(&mut self) {
        while let Some((until, id)) = self.lingering.first().copied().filter(|(until, _)| *until <= self.now)
        {
            self.lingering.remove(&(until, id));
            let timeout = self.config.limits.linger_timeout;
            let Some(session) = self.sessions.get_mut(&id.0) else { continue };
            let until = session.progress.checked_add(timeout).filter(|until| *until > self.now);
            session.linger = until.map(Box::new);
            if let Some(until) = until {
                self.lingering.insert((until, id));
            } else {
                self.counters.limits.linger_timeout += 1;
                let message = format!("the end was not acknowledged, and nothing moved for {timeout:?}");
                self.abort(id, Abort::new(Code::TIMEOUT, message));
            }
        }
    }

    /// The peer has given up a session that we have given up too: nobody waits for what is left to send.
    pub(super) fn withdraw_abort(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.abort_out.take().is_some() {
            session.send.queue.clear(&mut self.pins);
            self.note_wire(id);
        }
    }

    /// Ends both directions at this side; what was received stays readable.
    pub(super) fn end_session(&mut self, id: SessionId, abort: Abort) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.ended.is_some() || session.wire_done {
            return;
        }
        session.ended = Some(Box::new(abort));
        session.end_ack_due = false;
        if session.abort_out.is_none() {
            session.send.queue.clear(&mut self.pins);
        }
        // Nothing more will be taken in: what is left to charge is what was received.
        session.recv.credit.close();
        self.budget.settle(&mut session.recv.credit);
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
        if let Some(until) = session.linger.take() {
            self.lingering.remove(&(*until, id));
        }
        if session.ours {
            count_out(&mut self.open_ours);
        } else {
            count_out(&mut self.open_theirs);
            if session.opening() == Opening::Unanswered {
                count_out(&mut self.unanswered_theirs);
            }
        }
        self.note_drained();
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: SessionId) {
        if self.sessions.get(&id.0).is_some_and(|session| session.wire_done && session.released)
            && let Some(mut session) = self.sessions.remove(&id.0)
        {
            assert!(session.linger.is_none(), "a session is forgotten whose wait for the peer goes on");
            session.recv.queue.clear(&mut self.pins);
            session.send.queue.clear(&mut self.pins);
        }
    }
}

/// One session less of those that are counted: each is counted in once and out once.
pub(super) fn count_out(count: &mut u32) {
    assert!(*count > 0, "a session is counted out that was not counted in");
    *count -= 1;
}
