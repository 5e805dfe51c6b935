//! Two sessions joined, run by the drivers of their links.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hopline_link_proto::{Abort, Code, Sides, Splice, SpliceEnd};
use tokio::sync::oneshot;

use crate::session::Session;
use crate::shared::{After, Shared, State, now};

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

/// Resolves when a splice is over. Dropping it leaves the splice running.
#[derive(Debug)]
pub struct Spliced {
    outcome: oneshot::Receiver<SpliceOutcome>,
    joint: Arc<Joint>,
}

impl Spliced {
    /// Whether the far side has answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.joint.machine.lock().unwrap_or_else(PoisonError::into_inner).splice.is_answered()
    }

    /// Gives up: both sides read this reason as coming from here.
    pub fn abort(&self, code: Code, message: &str) {
        for (shared, id) in [&self.joint.left, &self.joint.right] {
            shared.with(|state| state.link.abort(*id, Abort::new(code, message)));
        }
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
pub(crate) struct Joint {
    left: (Arc<Shared>, hopline_link_proto::SessionId),
    right: (Arc<Shared>, hopline_link_proto::SessionId),
    machine: Mutex<Machine>,
}

#[derive(Debug)]
struct Machine {
    splice: Splice,
    done: Option<oneshot::Sender<SpliceOutcome>>,
}

/// Joins `left`, which its peer opened and nobody has answered, read or written yet, with `right`, which was just
/// opened to carry it on. Answer, bytes, credit, ends, acknowledgements and aborts pass from one to the other,
/// without a task and without copying what passes.
#[must_use = "the outcome says how it ended; drop it on purpose if nobody asks"]
pub fn splice(left: Session, right: Session) -> Spliced {
    let (done, outcome) = oneshot::channel();
    let joint = Arc::new(Joint {
        left: (Arc::clone(left.shared()), left.id()),
        right: (Arc::clone(right.shared()), right.id()),
        machine: Mutex::new(Machine { splice: Splice::new(left.id(), right.id()), done: Some(done) }),
    });
    for (shared, id) in [&joint.left, &joint.right] {
        shared.peek(|state| {
            if let Some(slot) = state.slots.get_mut(id) {
                slot.joint = Some(Arc::clone(&joint));
            }
        });
    }
    let mut after = After::default();
    joint.run(&mut after);
    after.run();
    Spliced { outcome, joint }
}

impl Joint {
    /// With no lock held: moves what can be moved.
    pub(crate) fn run(self: &Arc<Self>, after: &mut After) {
        let (left, right) = (&self.left.0, &self.right.0);
        if Arc::ptr_eq(left, right) {
            let mut state = left.lock();
            if let Some(outcome) = self.step(Sides::One(&mut state.link)) {
                self.leave(&mut state, None, outcome);
            }
            left.collect(&mut state, after);
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
            if let Some(outcome) = self.step(Sides::Two(&mut left_state.link, &mut right_state.link)) {
                self.leave(&mut left_state, Some(&mut right_state), outcome);
            }
            left.collect(&mut left_state, after);
            right.collect(&mut right_state, after);
        }
        left.driver.wake();
        right.driver.wake();
    }

    fn step(&self, sides: Sides<'_>) -> Option<SpliceOutcome> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let end = machine.splice.run(now(), sides)?;
        let (forth, back) = machine.splice.moved();
        Some(SpliceOutcome { end, forth, back })
    }

    /// The splice is over and has released both sessions: their slots go too.
    fn leave(&self, left: &mut State, right: Option<&mut State>, outcome: SpliceOutcome) {
        left.slots.remove(&self.left.1);
        right.unwrap_or(left).slots.remove(&self.right.1);
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(done) = machine.done.take() {
            // Nobody may be waiting for it.
            let _ = done.send(outcome);
        }
    }
}
