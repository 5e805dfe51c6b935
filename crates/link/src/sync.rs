//! The primitives that guard what a link's driver and its handles share.
//!
//! In unit tests they are loom's, which tries every order of what happens between them: see `models.rs`. So whoever
//! shares something more takes it from here, and unit tests of this crate run inside a loom model; all other tests
//! stand in `tests/`, over the real ones.

#[cfg(not(test))]
pub(crate) use futures_util::task::AtomicWaker;
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// loom's, with the face of the real one.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

#[cfg(test)]
impl AtomicWaker {
    pub(crate) fn new() -> Self {
        Self(loom::future::AtomicWaker::new())
    }

    pub(crate) fn register(&self, waker: &std::task::Waker) {
        self.0.register_by_ref(waker);
    }

    pub(crate) fn wake(&self) {
        self.0.wake();
    }
}
