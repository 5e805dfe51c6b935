//! The receiving direction: bytes taken, credit given back, ends acknowledged.

use std::time::{Duration, Instant};

use super::Link;
use super::sessions::{Read, forgotten};
use crate::flow::Change;
use crate::frame::Abort;
use crate::session::{RecvPhase, SessionId};

/// The round trip that windows assume at least: scheduling delays are of this order even where the wire has none.
/// Four streams beside each other at 300 MB/s get 150 KB each for it; at 1 ms what they had queued in the sockets held
/// up a fifth by milliseconds.
const LEAST_ROUND_TRIP: Duration = Duration::from_micros(125);

impl<T: Default> Link<T> {
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
            let copied = session.recv.queue.copy_into(out, &mut self.pins);
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
        if let Some(bytes) = session.recv.queue.pop(max, &mut self.pins) {
            return Ok(Read::Data(bytes));
        }
        if !session.recv.queue.is_empty() {
            return Ok(Read::Pending);
        }
        match (session.recv.phase(), &session.ended) {
            // An end that was whole stays an end, whatever came after it.
            (RecvPhase::Taken | RecvPhase::Ended, _) => Ok(Read::End),
            (RecvPhase::Open, Some(abort)) => Err(Abort::clone(abort)),
            (RecvPhase::Open, None) => {
                session.waiting.read = true;
                Ok(Read::Pending)
            }
        }
    }

    /// Gives the peer credit for `bytes` that were taken. May widen the window of a reader that keeps up, and
    /// narrow that of one that does not.
    pub fn credit(&mut self, now: Instant, id: SessionId, bytes: u64) {
        // Not the smoothed one: windows that follow the queue that they make themselves grow to the largest.
        let round_trip = self.watch.least_round_trip().unwrap_or_default().max(LEAST_ROUND_TRIP);
        self.now = now;
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        let is_over = session.recv.phase() != RecvPhase::Open || session.ended.is_some();
        let credit = &mut session.recv.credit;
        credit.consume(bytes);
        if is_over {
            self.budget.settle(credit);
            return;
        }
        let before = credit.window();
        let change = self.budget.follow(credit, now, round_trip);
        self.counters.limits.budget += u64::from(change == Change::Short);
        self.counters.windows_narrowed += u64::from(credit.window() < before);
        if credit.is_due() {
            self.queue_control(id);
        }
    }

    /// Tells the peer that everything up to its end was taken, here or further on.
    pub fn acknowledge_end(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        if session.recv.taken().is_ok() && session.ended.is_none() {
            session.end_ack_due = true;
            self.queue_control(id);
        }
    }
}
