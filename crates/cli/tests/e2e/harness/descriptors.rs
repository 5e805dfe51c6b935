//! The descriptors of the test process. All tests of this program run in one process, at once, and an ordinary user's
//! limit is 1,024.

use std::sync::{Condvar, Mutex, PoisonError};

/// What tests that hold many may hold together. The rest is for those that hold a few, on as many threads as there are.
const MANY: usize = 640;

static LEFT: Mutex<usize> = Mutex::new(MANY);
static GIVEN_BACK: Condvar = Condvar::new();

/// A part of what tests may hold together; given back when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Share(usize);

/// Waits until this many descriptors are there to be held. For a test that holds more than fifty at once; it takes one
/// share, before it opens the first.
pub(crate) fn descriptors(count: usize) -> Share {
    assert!(count <= MANY, "{count} descriptors in one test: put them into a process of their own");
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    while *left < count {
        left = GIVEN_BACK.wait(left).unwrap_or_else(PoisonError::into_inner);
    }
    *left -= count;
    Share(count)
}

impl Drop for Share {
    fn drop(&mut self) {
        *LEFT.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        GIVEN_BACK.notify_all();
    }
}
