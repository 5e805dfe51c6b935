//! Two sessions of two links joined: what a forwarder does, as a state machine without I/O.
//!
//! ```text
//!  left link                                           right link
//!  ───────►  received ──take──► queue ──transmit──►
//!  credit ◄──────────── as bytes leave ──────────┘
//!  end acknowledged ◄── when the far reader has all ── end acknowledged
//! ```
//!
//! Each direction holds at most what the sending side's peer was granted: credit goes back only as bytes leave.

use std::time::Instant;

use crate::frame::Abort;
use crate::link::{Link, Read, SendState};
use crate::session::SessionId;

/// Most bytes that one step moves by one take.
const PIECE: usize = 64 << 10;

/// How a splice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpliceEnd {
    /// Both directions ended, and both far readers have everything.
    Clean,
    /// One side ended the session with this; the other was told.
    Aborted(Abort),
}

/// How far one direction has come.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    /// Bytes for which credit went back.
    credited: u64,
    /// The end was passed on.
    ended: bool,
    /// Its acknowledgement was passed back.
    acknowledged: bool,
}

/// Two joined sessions. `left` was opened by its peer, `right` was opened by this side to carry it on.
#[derive(Debug)]
pub struct Splice {
    left: SessionId,
    right: SessionId,
    answered: bool,
    forth: Direction,
    back: Direction,
    over: bool,
}

impl Splice {
    /// Joins `left`, which nobody has read from or written to yet, with `right`, which was just opened for it.
    #[must_use]
    pub fn new(left: SessionId, right: SessionId) -> Self {
        let fresh = Direction::default();
        Self { left, right, answered: false, forth: fresh, back: fresh, over: false }
    }

    /// Bytes passed on so far: from left to right, and from right to left.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        (self.forth.credited, self.back.credited)
    }

    /// Does all that can be done now. Call it after any event of either session; `Some` once, at the end, when
    /// both sessions have been released.
    pub fn run(&mut self, now: Instant, left: &mut Link, right: &mut Link) -> Option<SpliceEnd> {
        if self.over {
            return None;
        }
        self.pass_answer(left, right);
        let (l, r) = (self.left, self.right);
        pass(&mut self.forth, now, (left, l), (right, r));
        pass(&mut self.back, now, (right, r), (left, l));
        let end = if let Some(abort) = left.abort_reason(l).cloned() {
            right.abort(r, abort.clone());
            SpliceEnd::Aborted(abort)
        } else if let Some(abort) = right.abort_reason(r).cloned() {
            left.abort(l, abort.clone());
            SpliceEnd::Aborted(abort)
        } else if self.forth.acknowledged && self.back.acknowledged {
            SpliceEnd::Clean
        } else {
            return None;
        };
        self.over = true;
        left.release(l);
        right.release(r);
        Some(end)
    }

    fn pass_answer(&mut self, left: &mut Link, right: &mut Link) {
        if !self.answered
            && let Ok(Some(header)) = right.answered(self.right)
        {
            self.answered = true;
            left.answer(self.left, header);
        }
    }
}

fn pass(state: &mut Direction, now: Instant, from: (&mut Link, SessionId), to: (&mut Link, SessionId)) {
    let ((from, from_id), (to, to_id)) = (from, to);
    let sender_gave_up = from.abort_reason(from_id).is_some();
    while !state.ended {
        // An abort waits for no credit: what came before it is handed over whole, and what has no credit there
        // is dropped by the link.
        if !sender_gave_up && !matches!(to.ready_to_write(to_id), Ok(true)) {
            break;
        }
        match from.take(from_id, PIECE) {
            Ok(Read::Data(bytes)) => to.push_bytes(to_id, bytes),
            Ok(Read::End) => {
                state.ended = true;
                to.end(to_id);
            }
            Ok(Read::Pending) | Err(_) => break,
        }
    }
    let gone = to.bytes_sent(to_id);
    if gone > state.credited {
        from.credit(now, from_id, gone - state.credited);
        state.credited = gone;
    }
    if to.bytes_queued(to_id) > 0 {
        to.notify_when_sent(to_id);
    }
    if state.ended && !state.acknowledged && matches!(to.send_state(to_id), Ok(SendState::Acknowledged)) {
        state.acknowledged = true;
        from.acknowledge_end(from_id);
    }
}
