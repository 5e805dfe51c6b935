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
//!
//! An abort on one side is passed to the other, unless its sender had ended and had taken everything before: then all
//! that it gives up is to be told of the last acknowledgement, and the other side still reads everything and the end.

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

/// The links of both sides: two, or one and the same where a machine reaches itself through the relay.
#[derive(Debug)]
pub enum Sides<'a, T = ()> {
    /// Left and right are different links.
    Two(&'a mut Link<T>, &'a mut Link<T>),
    /// Both sessions are of one link.
    One(&'a mut Link<T>),
}

#[derive(Clone, Copy, Debug)]
enum Hand {
    Left,
    Right,
}

impl<T: Default> Sides<'_, T> {
    fn at(&mut self, hand: Hand) -> &mut Link<T> {
        match (self, hand) {
            (Self::Two(left, _), Hand::Left) => left,
            (Self::Two(_, right), Hand::Right) => right,
            (Self::One(link), _) => link,
        }
    }
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

    /// Whether the far side's answer was passed on.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Bytes passed on so far: from left to right, and from right to left.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        (self.forth.credited, self.back.credited)
    }

    /// Does all that can be done now. Call it after any event of either session; `Some` once, at the end, when
    /// both sessions have been released.
    pub fn run<T: Default>(&mut self, now: Instant, mut sides: Sides<'_, T>) -> Option<SpliceEnd> {
        if self.over {
            return None;
        }
        let (left, right) = (self.left, self.right);
        if !self.answered
            && let Ok(Some(header)) = sides.at(Hand::Right).answered(right)
        {
            self.answered = true;
            sides.at(Hand::Left).answer(left, header);
        }
        pass(&mut self.forth, now, &mut sides, (Hand::Left, left), (Hand::Right, right));
        pass(&mut self.back, now, &mut sides, (Hand::Right, right), (Hand::Left, left));
        // Whoever has said everything and taken everything gives up the acknowledgement only.
        let left_may = !(self.forth.ended && self.back.acknowledged);
        let right_may = !(self.back.ended && self.forth.acknowledged);
        let end = if left_may && let Some(abort) = sides.at(Hand::Left).abort_reason(left).cloned() {
            sides.at(Hand::Right).abort(right, abort.clone());
            SpliceEnd::Aborted(abort)
        } else if right_may && let Some(abort) = sides.at(Hand::Right).abort_reason(right).cloned() {
            sides.at(Hand::Left).abort(left, abort.clone());
            SpliceEnd::Aborted(abort)
        } else if self.forth.acknowledged && self.back.acknowledged {
            SpliceEnd::Clean
        } else {
            return None;
        };
        self.over = true;
        sides.at(Hand::Left).release(left);
        sides.at(Hand::Right).release(right);
        Some(end)
    }
}

fn pass<T: Default>(
    state: &mut Direction,
    now: Instant,
    sides: &mut Sides<'_, T>,
    (from, from_id): (Hand, SessionId),
    (to, to_id): (Hand, SessionId),
) {
    let sender_gave_up = sides.at(from).abort_reason(from_id).is_some();
    while !state.ended {
        // An abort waits for no credit: what came before it is handed over whole, and what has no credit there
        // is dropped by the link.
        if !sender_gave_up && !matches!(sides.at(to).ready_to_write(to_id), Ok(true)) {
            break;
        }
        match sides.at(from).take(from_id, PIECE) {
            Ok(Read::Data(bytes)) => sides.at(to).push_bytes(to_id, bytes),
            Ok(Read::End) => {
                state.ended = true;
                sides.at(to).end(to_id);
            }
            Ok(Read::Pending) | Err(_) => break,
        }
    }
    let gone = sides.at(to).bytes_sent(to_id);
    if gone > state.credited {
        sides.at(from).credit(now, from_id, gone - state.credited);
        state.credited = gone;
    }
    if sides.at(to).bytes_queued(to_id) > 0 {
        sides.at(to).notify_when_sent(to_id);
    }
    if state.ended
        && !state.acknowledged
        && matches!(sides.at(to).send_state(to_id), Ok(SendState::Acknowledged))
    {
        state.acknowledged = true;
        sides.at(from).acknowledge_end(from_id);
    }
}
