//! Read and write deadlines of a session.
//!
//! They are local: no frame carries one. A session without a deadline pays one pointer for them, one with a deadline
//! that never had to wait a small box; a timer exists only once a call has waited.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use hopline_link_proto::SessionId;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::shared::{LinkState, Waiters};

/// A direction of a session, as its handle sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Both deadlines of one session.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    read: Option<Deadline>,
    write: Option<Deadline>,
}

#[derive(Debug)]
struct Deadline {
    at: Instant,
    /// Made when a call first waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadlines {
    fn of(&mut self, direction: Direction) -> &mut Option<Deadline> {
        match direction {
            Direction::Read => &mut self.read,
            Direction::Write => &mut self.write,
        }
    }

    /// Sets or clears one deadline.
    pub(crate) fn set(waiters: &mut Waiters, direction: Direction, at: Option<Instant>) {
        match at {
            Some(at) => *waiters.rare().deadlines.of(direction) = Some(Deadline { at, timer: None }),
            None => {
                if let Some(rare) = waiters.rare_if_any() {
                    *rare.deadlines.of(direction) = None;
                    waiters.shrink();
                }
            }
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.read.is_none() && self.write.is_none()
    }

    /// The write deadline, for a splice that takes the session over.
    pub(crate) fn write_at(&self) -> Option<Instant> {
        self.write.as_ref().map(|deadline| deadline.at)
    }
}

/// Whether this deadline of the session has passed.
pub(crate) fn has_passed(state: &mut LinkState, id: SessionId, direction: Direction) -> bool {
    find(state, id, direction).is_some_and(|deadline| deadline.at <= Instant::now())
}

/// Waits for this deadline of the session, if there is one.
pub(crate) fn poll_passed(
    state: &mut LinkState,
    id: SessionId,
    direction: Direction,
    waker: &Waker,
) -> Poll<()> {
    let Some(deadline) = find(state, id, direction) else { return Poll::Pending };
    let at = deadline.at;
    let timer = deadline.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
    timer.as_mut().poll(&mut Context::from_waker(waker))
}

fn find(state: &mut LinkState, id: SessionId, direction: Direction) -> Option<&mut Deadline> {
    state.link.tag(id)?.waiters()?.rare_if_any()?.deadlines.of(direction).as_mut()
}
