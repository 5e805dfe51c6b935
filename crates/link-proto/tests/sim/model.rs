//! What an application at each end of a session may see, kept beside the real thing.
//!
//! - Bytes come in order, once, and are a prefix of what the other end wrote.
//! - A clean end comes only if the other end ended, and behind every byte that it wrote.
//! - An abort comes only for a cause: the reader's own, the other end's (with its code, and as many hops as the
//!   chain has links), or a fault of the chain (with the code and the hops that belong to it).
//! - An end is acknowledged only when the other end was given every byte.

use hopline_link_proto::{Abort, Code, SessionId};

/// What may go wrong in a chain, and what a reader may then be told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// This link died, or lost its carrier.
    Lost(usize),
    /// An end of it said goodbye with this code, or drains.
    Left(Code),
}

/// One end of a session.
#[derive(Debug)]
pub(crate) struct Side {
    /// The chain's end where it lives.
    pub(crate) end: usize,
    pub(crate) id: Option<SessionId>,
    /// How much it means to write.
    pub(crate) goal: u64,
    pub(crate) written: u64,
    pub(crate) ended: bool,
    pub(crate) read: u64,
    pub(crate) outcome: Option<Result<(), Abort>>,
    /// It aborted with this, or was dropped too early.
    pub(crate) gave_up: Option<Code>,
    pub(crate) released: bool,
    /// The acceptor has answered; the opener was answered.
    pub(crate) answered: bool,
    pub(crate) acknowledged: bool,
    /// It says nothing more before it has read the other end's end, like the server of a request.
    pub(crate) waits: bool,
    pub(crate) read_ready: bool,
    pub(crate) write_ready: bool,
    pub(crate) answer_ready: bool,
}

impl Side {
    pub(crate) fn new(end: usize, goal: u64) -> Self {
        Self {
            end,
            id: None,
            goal,
            written: 0,
            ended: false,
            read: 0,
            outcome: None,
            gave_up: None,
            released: false,
            answered: false,
            acknowledged: false,
            waits: false,
            read_ready: true,
            write_ready: true,
            answer_ready: true,
        }
    }

    /// Nothing more can happen here.
    pub(crate) fn is_over(&self) -> bool {
        let done = self.answered && self.ended && self.acknowledged;
        self.released || matches!(&self.outcome, Some(Err(_))) || (done && self.outcome.is_some())
    }
}

/// A session: its opener and its acceptor.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) number: u64,
    pub(crate) sides: [Side; 2],
    /// Opened when some link was already going or gone, or under limits that may refuse it.
    pub(crate) may_be_refused: bool,
}

impl Pair {
    /// Byte `at` of what `side` writes.
    pub(crate) fn byte(number: u64, side: usize, at: u64) -> u8 {
        let mixed = (at ^ (number << 20) ^ ((side as u64) << 50)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 56) as u8
    }

    pub(crate) fn bytes(&self, side: usize, from: u64, len: usize) -> Vec<u8> {
        (from..from + len as u64).map(|at| Self::byte(self.number, side, at)).collect()
    }

    /// `side` has read these bytes.
    pub(crate) fn check_read(&mut self, side: usize, bytes: &[u8]) {
        let other = &self.sides[1 - side];
        let from = self.sides[side].read;
        assert!(self.sides[side].outcome.is_none(), "bytes behind the end: {self:?}");
        assert!(from + bytes.len() as u64 <= other.written, "bytes that nobody wrote: {self:?}");
        assert!(bytes == self.bytes(1 - side, from, bytes.len()), "wrong bytes from {from}: {self:?}");
        self.sides[side].read += bytes.len() as u64;
    }

    /// `side` has read a clean end.
    pub(crate) fn check_end(&mut self, side: usize) {
        let other = &self.sides[1 - side];
        assert!(other.ended, "an end that nobody sent: {self:?}");
        assert_eq!(self.sides[side].read, other.written, "an end before the last byte: {self:?}");
        self.sides[side].outcome.get_or_insert(Ok(()));
    }

    /// `side` was told that the far reader has everything.
    pub(crate) fn check_acknowledged(&mut self, side: usize) {
        let other = &self.sides[1 - side];
        assert!(self.sides[side].ended, "an acknowledgement of no end: {self:?}");
        assert_eq!(other.read, self.sides[side].written, "not everything was read: {self:?}");
        self.sides[side].acknowledged = true;
    }

    /// `side` reads an abort in a chain of so many links.
    pub(crate) fn check_abort(&mut self, side: usize, abort: &Abort, links: usize, faults: &[Fault]) {
        let own = self.sides[side].gave_up == Some(abort.code) && abort.hops == 0;
        let theirs = self.sides[1 - side].gave_up == Some(abort.code) && abort.hops as usize == links;
        let refused = self.may_be_refused
            && side == 0
            && [Code::OFFLINE, Code::OVERLOAD, Code::DRAINING].contains(&abort.code);
        let fault = faults.iter().any(|fault| match *fault {
            Fault::Left(code) => code == abort.code,
            Fault::Lost(link) => {
                let near = if self.sides[side].end == 0 { link } else { links - 1 - link };
                abort.code == Code::CONN_LOST && abort.hops as usize == near
            }
        });
        assert!(
            own || theirs || refused || fault,
            "side {side} reads {abort:?} of {links} links: {self:?}, {faults:?}"
        );
        self.sides[side].outcome.get_or_insert_with(|| Err(abort.clone()));
    }

    /// Both sides did all that they meant to, and nothing else was in the way: then both must read a clean end.
    pub(crate) fn check_over(&self, faults: &[Fault]) {
        let gave_up = self.sides.iter().any(|side| side.gave_up.is_some());
        if gave_up || !faults.is_empty() || self.may_be_refused {
            return;
        }
        for side in &self.sides {
            assert_eq!(side.outcome, Some(Ok(())), "{self:?}");
            assert!(side.acknowledged || side.released, "{self:?}");
        }
    }
}
