//! Log lines that this process could not write: for `/status` and `/metrics`.
//!
//! One number for the process, as there is one stderr; it outlives every role that runs in it.

use std::sync::atomic::{AtomicU64, Ordering};

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Counts lines that were dropped.
pub fn note_dropped(lines: u64) {
    DROPPED.fetch_add(lines, Ordering::Relaxed);
}

/// Lines dropped since the process started.
#[must_use]
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}
