//! Two sessions joined, run by the drivers of their links.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use hopline_link_proto::{Abort, Code, SendState, SessionId, Sides, Splice, SpliceEnd};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::session::Session;
use crate::shared::{After, Guard, LinkState, Shared, Slot, Waiters, now};
use crate::sync::{Mutex, MutexGuard};

/// How a splice ended, and what it carried.
#[derive(Clone, Debug)]
pub struct SpliceOutcome {
    /// How it ended.
    pub end: SpliceEnd,
    /// Bytes from the side that opened to the side that was opened.
    pub forth: u64,
    /// Bytes the other way.
    pub back: u64,
}

/// One of the two sessions of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpliceSide {
    /// The session that was opened by its peer.
    Left,
    /// The session that was opened to carry it on.
    Right,
}

/// Resolves when a splice is over. Dropping it leaves the splice running.
#[derive(Debug)]
pub struct Spliced {
    outcome: oneshot::Receiver<SpliceOutcome>,
    handle: Arc<SpliceHandle>,
}

impl Spliced {
    /// Whether the far side has answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.handle.lock().splice.is_answered()
    }

    /// Gives up: both sides read this reason as coming from here.
    pub fn abort(&self, code: Code, message: &str) {
        self.handle.abort(code, message);
    }

    /// Bytes passed on so far: from left to right, and from right to left.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        self.handle.lock().splice.moved()
    }

    /// If what goes to the peer of `side` has not ended and been read by `deadline`, both sides are aborted with
    /// `timeout`. A write deadline that the session had before it was spliced stays in force; `None` takes it away.
    /// Costs one task while it waits.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn set_write_deadline(&self, side: SpliceSide, deadline: impl Into<Option<Instant>>) {
        self.handle.set_write_deadline(side, deadline.into());
    }
}

impl Future for Spliced {
    type Output = SpliceOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SpliceOutcome> {
        Pin::new(&mut self.outcome).poll(cx).map(|outcome| {
            outcome.unwrap_or_else(|_| SpliceOutcome {
                end: SpliceEnd::Aborted(Abort::new(Code::INTERNAL, "a link of the splice is gone")),
                forth: 0,
                back: 0,
            })
        })
    }
}

/// A splice's place in the slots of both its sessions.
#[derive(Debug)]
pub(crate) struct SpliceHandle {
    left: End,
    right: End,
    state: Mutex<SpliceState>,
}

/// One of the two sessions. It keeps its link in use, as a session's handle does.
type End = (Arc<Guard>, SessionId);

#[derive(Debug)]
struct SpliceState {
    splice: Splice,
    done: Option<oneshot::Sender<SpliceOutcome>>,
    /// Who waits for the write deadlines of left and right.
    deadlines: [Option<AbortHandle>; 2],
}

/// Joins `left`, which its peer opened and nobody has answered, read or written yet, with `right`, which was just
/// opened to carry it on. Answer, bytes, credit, ends, acknowledgements and aborts pass from one to the other,
/// without a task and without copying what passes.
#[must_use = "the outcome says how it ended; drop it on purpose if nobody asks"]
pub fn splice(left: Session, right: Session) -> Spliced {
    let (done, outcome) = oneshot::channel();
    let handle = Arc::new(SpliceHandle {
        left: (Arc::clone(left.guard()), left.id()),
        right: (Arc::clone(right.guard()), right.id()),
        state: Mutex::new(SpliceState {
            splice: Splice::new(left.id(), right.id()),
            done: Some(done),
            deadlines: [None, None],
        }),
    });
    for side in [SpliceSide::Left, SpliceSide::Right] {
        let (shared, id) = handle.side(side);
        let mut slot = shared.peek(|state| {
            let slot = state.link.tag(id)?;
            Some(std::mem::replace(slot, Slot::Spliced(Arc::clone(&handle))))
        });
        let rare = slot.as_mut().and_then(Slot::waiters).and_then(Waiters::rare_if_any);
        let deadline = rare.and_then(|rare| rare.deadlines.write_at());
        if deadline.is_some() {
            handle.set_write_deadline(side, deadline);
        }
    }
    let mut after = After::default();
    handle.run(&mut after);
    after.run();
    Spliced { outcome, handle }
}

impl SpliceHandle {
    fn lock(&self) -> MutexGuard<'_, SpliceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn side(&self, side: SpliceSide) -> (&Shared, SessionId) {
        let (guard, id) = match side {
            SpliceSide::Left => &self.left,
            SpliceSide::Right => &self.right,
        };
        (&guard.0, *id)
    }

    fn abort(&self, code: Code, message: &str) {
        for side in [SpliceSide::Left, SpliceSide::Right] {
            let (shared, id) = self.side(side);
            shared.with(|state| state.link.abort(id, Abort::new(code, message)));
        }
    }

    fn set_write_deadline(self: &Arc<Self>, side: SpliceSide, deadline: Option<Instant>) {
        let waiting = deadline.map(|at| {
            let handle = Arc::downgrade(self);
            let wait = async move {
                sleep_until(at).await;
                if let Some(handle) = handle.upgrade() {
                    handle.write_deadline_passed(side);
                }
            };
            tokio::spawn(wait).abort_handle()
        });
        let mut splice_state = self.lock();
        let before = std::mem::replace(&mut splice_state.deadlines[side as usize], waiting);
        let over = splice_state.done.is_none();
        for useless in before.iter().chain(splice_state.deadlines.iter().flatten().filter(|_| over)) {
            useless.abort();
        }
    }

    fn write_deadline_passed(&self, side: SpliceSide) {
        let (shared, id) = self.side(side);
        // The far reader has everything, or the session is over: the deadline was met, or came too late.
        let in_time = shared.peek(|state| match state.link.send_state(id) {
            Ok(SendState::Open | SendState::Ending) => false,
            Ok(SendState::Acknowledged) | Err(_) => true,
        });
        if !in_time {
            self.abort(Code::TIMEOUT, "the write deadline of a spliced session has passed");
        }
    }

    /// With no lock held: moves what can be moved.
    pub(crate) fn run(self: &Arc<Self>, after: &mut After) {
        let (left, right) = (&self.left.0.0, &self.right.0.0);
        let (drive_left, drive_right);
        if Arc::ptr_eq(left, right) {
            let mut state = left.lock();
            let outcome = self.step(Sides::One(&mut state.link));
            // What was released may have left a deadline to its link.
            let over = outcome.is_some();
            if let Some(outcome) = outcome {
                self.leave(&mut state, None, outcome);
            }
            left.collect(&mut state, after);
            drive_left = state.wants_driver() || over;
            drive_right = false;
        } else {
            // Always the older link first, so that two splices never wait for each other.
            let (mut left_state, mut right_state);
            if left.order < right.order {
                left_state = left.lock();
                right_state = right.lock();
            } else {
                right_state = right.lock();
                left_state = left.lock();
            }
            let outcome = self.step(Sides::Two(&mut left_state.link, &mut right_state.link));
            let over = outcome.is_some();
            if let Some(outcome) = outcome {
                self.leave(&mut left_state, Some(&mut right_state), outcome);
            }
            left.collect(&mut left_state, after);
            right.collect(&mut right_state, after);
            drive_left = left_state.wants_driver() || over;
            drive_right = right_state.wants_driver() || over;
        }
        for (drive, shared) in [(drive_left, left), (drive_right, right)] {
            if drive {
                after.drive(shared);
            }
        }
    }

    fn step(&self, sides: Sides<'_, Slot>) -> Option<SpliceOutcome> {
        let mut splice_state = self.lock();
        let end = splice_state.splice.run(now(), sides)?;
        let (forth, back) = splice_state.splice.moved();
        Some(SpliceOutcome { end, forth, back })
    }

    /// The splice is over and has released both sessions: their slots go too.
    fn leave(&self, left: &mut LinkState, right: Option<&mut LinkState>, outcome: SpliceOutcome) {
        // One that lingers is still there. The splice is not dropped with its slot: whoever runs it holds it.
        let clear = |state: &mut LinkState, id| state.link.tag(id).map(std::mem::take);
        clear(left, self.left.1);
        clear(right.unwrap_or(left), self.right.1);
        let mut splice_state = self.lock();
        for waits in splice_state.deadlines.iter().flatten() {
            waits.abort();
        }
        if let Some(done) = splice_state.done.take() {
            // Nobody may be waiting for it.
            let _ = done.send(outcome);
        }
    }
}
