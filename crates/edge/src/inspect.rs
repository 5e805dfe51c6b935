//! What the connections of a mapping say, read in passing: their watchers, and what these add up to.
//!
//! A watcher sees references to bytes that go on whatever it makes of them: those of the application when they were
//! read from it, those of the server when they were written to it. So what it knows of the server's direction is what
//! the application has got, and a last word can follow it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hopline_h2_watch::{Cause, EndedBy, Limits, MappingWatch, Watcher};
use tokio::sync::Notify;

/// How often what was counted is added up.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// The looking of one mapping.
#[derive(Debug)]
pub(crate) struct Inspection {
    mapping: Mutex<MappingWatch>,
    /// Connections that are open now, by number.
    open: Mutex<BTreeMap<u64, Weak<Inspected>>>,
    next: AtomicU64,
    on: bool,
    /// The first of them has come.
    woken: Notify,
}

/// One connection that is looked at.
#[derive(Debug)]
pub(crate) struct Inspected {
    inspection: Arc<Inspection>,
    number: u64,
    watcher: Mutex<Watcher>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Inspection {
    pub(crate) fn new(on: bool) -> Arc<Self> {
        Arc::new(Self {
            mapping: Mutex::new(MappingWatch::new(on, Limits::default(), now())),
            open: Mutex::default(),
            next: AtomicU64::new(0),
            on,
            woken: Notify::new(),
        })
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// There are connections to look at.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.open).is_empty()
    }

    /// Waits until a first connection has come to look at. Cancel safe.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// A connection was accepted; `None` where nothing is looked at.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Arc<Inspected>> {
        if !self.on {
            return None;
        }
        let watcher = Mutex::new(lock(&self.mapping).connect(now()));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let inspected = Arc::new(Inspected { inspection: Arc::clone(self), number, watcher });
        let mut open = lock(&self.open);
        open.insert(number, Arc::downgrade(&inspected));
        if open.len() == 1 {
            self.woken.notify_one();
        }
        drop(open);
        Some(inspected)
    }

    /// Adds up what was counted since the last time, and tells the watchers the time and the path's round trip.
    pub(crate) fn tick(&self, round_trip: Option<Duration>) {
        let open: Vec<_> = lock(&self.open).values().filter_map(Weak::upgrade).collect();
        let now = now();
        let mut mapping = lock(&self.mapping);
        mapping.set_path_round_trip(round_trip);
        for inspected in open {
            let mut watcher = lock(&inspected.watcher);
            watcher.set_path_round_trip(round_trip);
            if watcher.poll_timeout().is_some_and(|at| at <= now) {
                watcher.handle_timeout(now);
            }
            if watcher.has_news() {
                mapping.fold(&mut watcher, now);
            }
        }
    }

    /// Looks at what was added up.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut MappingWatch, Instant) -> T) -> T {
        look(&mut lock(&self.mapping), now())
    }
}

impl Inspected {
    /// Bytes that were read from the application.
    pub(crate) fn handle_from_application(&self, bytes: &[u8]) {
        lock(&self.watcher).handle_from_client(bytes, now());
    }

    /// Bytes of the server that were written to the application.
    pub(crate) fn handle_from_server(&self, bytes: &[u8]) {
        lock(&self.watcher).handle_from_server(bytes, now());
    }

    /// The application's socket takes no bytes of the server for now.
    pub(crate) fn handle_held_up(&self) {
        lock(&self.watcher).handle_held_up(now());
    }

    /// What to say to the application before a connection ends by a fault; see [`Watcher::explain`].
    pub(crate) fn explain(&self, cause: &Cause<'_>) -> Option<Vec<u8>> {
        lock(&self.watcher).explain(cause)
    }

    /// The connection is over.
    pub(crate) fn close(&self, ended_by: EndedBy) {
        let now = now();
        let mut mapping = lock(&self.inspection.mapping);
        let mut watcher = lock(&self.watcher);
        watcher.close(ended_by, now);
        mapping.fold(&mut watcher, now);
    }
}

impl Drop for Inspected {
    fn drop(&mut self) {
        lock(&self.inspection.open).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_connection_wakes_who_ticks() {
        let inspection = Inspection::new(true);
        assert!(!inspection.is_busy());
        for _ in 0..2 {
            let first = inspection.connect().unwrap();
            let _second = inspection.connect().unwrap();
            inspection.woken().await;
            assert!(inspection.is_busy());
            drop(first);
        }
        assert!(!inspection.is_busy());
    }
}
