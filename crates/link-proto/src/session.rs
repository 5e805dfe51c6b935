//! One session's state at one end: two directions, each with its own end, and the credit of both.
//!
//! ```text
//! opening    Queued ──OPEN sent──► Unanswered ──ANSWER──► Answered                              (ours)
//!            Unanswered ──answer()──► AnswerQueued ──ANSWER sent──► Answered                    (the peer's)
//! sending    Open ──end()──► Ending ──END sent──► Ended ──END_ACK──► Acked
//! receiving  Open ──END──► Ended ──reader took all──► Taken ──► (END_ACK goes out)
//! both       ──abort, ours or theirs──► ended: Some(reason); what was received stays readable
//! ```
//!
//! The three phases are private: each arrow is a method, which refuses with [`IllegalChange`] from anywhere else.

use std::fmt;
use std::time::Instant;

use bytes::Bytes;

use crate::flow::{RecvCredit, SendCredit};
use crate::frame::Abort;
use crate::queue::ByteQueue;

/// A session of one link. Ids are given by the link, odd ones to the dialer's opens, and never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) u64);

impl SessionId {
    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A change of phase that the diagram does not have. Whoever asked for it knows whose fault that is: the peer's, the
/// owner's, or nobody's, where asking is how one finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IllegalChange;

/// Takes an arrow of the diagram.
fn change<P: PartialEq>(phase: &mut P, from: P, to: P) -> Result<(), IllegalChange> {
    if *phase != from {
        return Err(IllegalChange);
    }
    *phase = to;
    Ok(())
}

/// Where the open stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Ours, still to be sent.
    Queued,
    /// Waits for the answer of the acceptor: the peer's, or our own user's.
    Unanswered,
    /// Our answer is still to be sent.
    AnswerQueued,
    /// Answered.
    Answered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendPhase {
    Open,
    Ending,
    Ended,
    Acked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvPhase {
    Open,
    Ended,
    Taken,
}

/// The sending direction.
#[derive(Debug)]
pub(crate) struct SendHalf {
    pub(crate) queue: ByteQueue,
    phase: SendPhase,
    pub(crate) credit: SendCredit,
}

impl SendHalf {
    pub(crate) fn phase(&self) -> SendPhase {
        self.phase
    }

    /// The owner ends this direction.
    pub(crate) fn end(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.phase, SendPhase::Open, SendPhase::Ending)
    }

    /// The end goes out.
    pub(crate) fn end_sent(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.phase, SendPhase::Ending, SendPhase::Ended)
    }

    /// The far reader has taken everything.
    pub(crate) fn end_acknowledged(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.phase, SendPhase::Ended, SendPhase::Acked)
    }

    /// Bytes that may go now.
    pub(crate) fn sendable(&self) -> usize {
        usize::try_from(self.credit.remaining()).unwrap_or(usize::MAX).min(self.queue.len())
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct RecvHalf {
    pub(crate) queue: ByteQueue,
    phase: RecvPhase,
    pub(crate) credit: RecvCredit,
}

impl RecvHalf {
    pub(crate) fn phase(&self) -> RecvPhase {
        self.phase
    }

    /// The peer's end has come.
    pub(crate) fn end(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.phase, RecvPhase::Open, RecvPhase::Ended)
    }

    /// The reader has everything up to the end.
    pub(crate) fn taken(&mut self) -> Result<(), IllegalChange> {
        if !self.queue.is_empty() {
            return Err(IllegalChange);
        }
        change(&mut self.phase, RecvPhase::Ended, RecvPhase::Taken)
    }
}

/// Who waits for what: an event goes out once, when the waiting is over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) answer: bool,
}

#[derive(Debug)]
pub(crate) struct Session<T> {
    pub(crate) ours: bool,
    opening: Opening,
    /// Of the open or answer that is still to be sent; then the acceptor's answer's. None when it is empty.
    header: Option<Box<Bytes>>,
    pub(crate) send: SendHalf,
    pub(crate) recv: RecvHalf,
    /// An abort of ours that is still to be sent.
    pub(crate) abort_out: Option<Box<Abort>>,
    /// Why both directions are over.
    pub(crate) ended: Option<Box<Abort>>,
    pub(crate) end_ack_due: bool,
    /// In the queue of sessions with something to say in their turn.
    pub(crate) in_turn: bool,
    /// In the queue of sessions with credit or an acknowledgement to send.
    pub(crate) in_control: bool,
    /// Nothing is left to exchange with the peer.
    pub(crate) wire_done: bool,
    /// The handle is gone.
    pub(crate) released: bool,
    /// When the peer last took something, or gave credit for it.
    pub(crate) progress: Instant,
    /// By when its wait for the peer is given up, once it was let go of.
    pub(crate) linger: Option<Box<Instant>>,
    pub(crate) waiting: Waiting,
    /// The owner's.
    pub(crate) tag: T,
}

impl<T: Default> Session<T> {
    /// Our open with this header, or the peer's.
    pub(crate) fn new(ours: Option<Bytes>, early_out: u64, early_in: u64, now: Instant) -> Self {
        let mut session = Self {
            ours: ours.is_some(),
            opening: if ours.is_some() { Opening::Queued } else { Opening::Unanswered },
            header: None,
            send: SendHalf {
                queue: ByteQueue::default(),
                phase: SendPhase::Open,
                credit: SendCredit::new(early_out),
            },
            recv: RecvHalf {
                queue: ByteQueue::default(),
                phase: RecvPhase::Open,
                credit: RecvCredit::new(early_in),
            },
            abort_out: None,
            ended: None,
            end_ack_due: false,
            in_turn: false,
            in_control: false,
            wire_done: false,
            released: false,
            progress: now,
            linger: None,
            waiting: Waiting::default(),
            tag: T::default(),
        };
        session.keep_header(ours.unwrap_or_default());
        session
    }
}

impl<T> Session<T> {
    pub(crate) fn opening(&self) -> Opening {
        self.opening
    }

    /// Our open goes out.
    pub(crate) fn open_sent(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.opening, Opening::Queued, Opening::Unanswered)
    }

    /// The peer answers our open.
    pub(crate) fn answer_received(&mut self) -> Result<(), IllegalChange> {
        if !self.ours {
            return Err(IllegalChange);
        }
        change(&mut self.opening, Opening::Unanswered, Opening::Answered)
    }

    /// The owner may answer the peer's open now.
    pub(crate) fn may_answer(&self) -> bool {
        !self.ours && self.ended.is_none() && self.opening == Opening::Unanswered
    }

    /// The owner answers the peer's open.
    pub(crate) fn queue_answer(&mut self) -> Result<(), IllegalChange> {
        if !self.may_answer() {
            return Err(IllegalChange);
        }
        change(&mut self.opening, Opening::Unanswered, Opening::AnswerQueued)
    }

    /// Our answer goes out.
    pub(crate) fn answer_sent(&mut self) -> Result<(), IllegalChange> {
        change(&mut self.opening, Opening::AnswerQueued, Opening::Answered)
    }

    /// Keeps a header that is to be sent, or was received.
    pub(crate) fn keep_header(&mut self, header: Bytes) {
        self.header = (!header.is_empty()).then(|| Box::new(header));
    }

    /// The header that is kept.
    pub(crate) fn header(&self) -> Bytes {
        self.header.as_deref().cloned().unwrap_or_default()
    }

    /// The same, which is no longer needed.
    pub(crate) fn take_header(&mut self) -> Bytes {
        self.header.take().map_or_else(Bytes::new, |header| *header)
    }

    /// The peer's part is over: both directions ended and were acknowledged, or an abort has gone either way.
    pub(crate) fn update_wire_done(&mut self) {
        let both_ended = self.is_complete() && !self.end_ack_due && self.ended.is_none();
        if both_ended || (self.ended.is_some() && self.abort_out.is_none()) {
            self.wire_done = true;
        }
    }

    /// Both readers have everything: at most an acknowledgement of ours is still to be sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.send.phase == SendPhase::Acked && self.recv.phase == RecvPhase::Taken
    }

    /// Frames of the peer still mean something here.
    pub(crate) fn is_live(&self) -> bool {
        self.ended.is_none() && !self.wire_done
    }

    /// Whether the session has something to send in its turn.
    pub(crate) fn has_turn(&self) -> bool {
        if self.wire_done {
            return false;
        }
        self.abort_out.is_some()
            || matches!(self.opening, Opening::Queued | Opening::AnswerQueued)
            || self.send.sendable() > 0
            || self.end_may_go()
    }

    /// The end goes behind all data, and an acceptor's behind its answer: an opener learns whether it was
    /// answered before it can be done.
    pub(crate) fn end_may_go(&self) -> bool {
        self.send.phase == SendPhase::Ending && self.send.queue.is_empty() && self.is_answered_by_us()
    }

    /// No answer of ours is still owed.
    fn is_answered_by_us(&self) -> bool {
        self.ours || !matches!(self.opening, Opening::Unanswered)
    }

    /// A drop now loses nothing: our end was called, the peer's was read or has nothing before it, and the peer
    /// does not wait for an answer.
    pub(crate) fn drop_is_clean(&self) -> bool {
        let input_read = match self.recv.phase {
            RecvPhase::Taken => true,
            RecvPhase::Ended => self.recv.queue.is_empty(),
            RecvPhase::Open => false,
        };
        self.send.phase != SendPhase::Open && input_read && self.is_answered_by_us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each arrow of the diagram once, in order; before its time and a second time it is refused.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a session needs some time; none passes here")]
    fn what_the_diagram_does_not_have_is_refused() {
        type Arrow = fn(&mut Session<()>) -> Result<(), IllegalChange>;
        let end_of_send: [Arrow; 3] =
            [|s| s.send.end(), |s| s.send.end_sent(), |s| s.send.end_acknowledged()];
        let end_of_recv: [Arrow; 2] = [|s| s.recv.end(), |s| s.recv.taken()];
        let ours: [Arrow; 2] = [Session::open_sent, Session::answer_received];
        let theirs: [Arrow; 2] = [Session::queue_answer, Session::answer_sent];
        let all = [&end_of_send[..], &end_of_recv, &ours, &theirs];
        for (header, paths, refused) in [(Some(Bytes::new()), [0, 1, 2], 3), (None, [0, 1, 3], 2)] {
            let mut session = Session::<()>::new(header, 0, 0, Instant::now());
            for path in paths {
                for next in 0..=all[path].len() {
                    for (at, arrow) in all[path].iter().enumerate().filter(|(at, _)| *at != next) {
                        assert_eq!(arrow(&mut session), Err(IllegalChange), "arrow {at} of {path} at {next}");
                    }
                    if let Some(arrow) = all[path].get(next) {
                        assert_eq!(arrow(&mut session), Ok(()), "arrow {next} of {path}");
                    }
                }
            }
            for arrow in all[refused] {
                assert_eq!(arrow(&mut session), Err(IllegalChange), "of the other side's opens");
            }
        }
    }

    /// Thousands may be idle: what a session needs only now and then is behind a pointer.
    #[test]
    fn an_idle_session_is_small() {
        assert!(size_of::<Session<()>>() <= 240, "{} bytes", size_of::<Session<()>>());
    }
}
