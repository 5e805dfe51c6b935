//! The links of a pool: which take sessions, and who waits for one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::error::OpenFailed;
use crate::mux::Mux;

/// One link, and whether this side dialled it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) mux: Mux,
    pub(crate) since: Instant,
    pub(crate) dialled: bool,
    /// Somebody looks after it.
    tended: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    fault: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Links {
    state: Mutex<State>,
    waiting: Arc<Semaphore>,
    max_waiting: usize,
    changed: watch::Sender<()>,
}

impl Links {
    pub(crate) fn new(max_waiting: usize) -> Self {
        let max_waiting = max_waiting.min(Semaphore::MAX_PERMITS);
        Self {
            state: Mutex::default(),
            waiting: Arc::new(Semaphore::new(max_waiting)),
            max_waiting,
            changed: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever waits looks again.
    pub(crate) fn touch(&self) {
        self.changed.send_replace(());
    }

    pub(crate) fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(crate) fn add(&self, mux: Mux, dialled: bool) {
        {
            let mut state = self.lock();
            state.fault = None;
            state.entries.push(Entry { mux, since: Instant::now(), dialled, tended: false });
        }
        self.touch();
    }

    /// Links that nobody looks after yet: who asks does from now on.
    pub(crate) fn take_untended(&self) -> Vec<Entry> {
        let mut state = self.lock();
        let fresh = state.entries.iter_mut().filter(|entry| !entry.tended);
        fresh
            .map(|entry| {
                entry.tended = true;
                entry.clone()
            })
            .collect()
    }

    pub(crate) fn remove(&self, mux: &Mux) {
        self.lock().entries.retain(|entry| !entry.mux.is_same(mux));
        self.touch();
    }

    pub(crate) fn all(&self) -> Vec<Mux> {
        self.lock().entries.iter().map(|entry| entry.mux.clone()).collect()
    }

    pub(crate) fn failed(&self, why: String) {
        self.lock().fault = Some(why);
    }

    pub(crate) fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// Those that take sessions, with the number each has.
    pub(crate) fn usable(&self) -> Vec<(Mux, usize)> {
        let all = self.all();
        let usable = all.into_iter().filter(Mux::takes_sessions);
        usable
            .map(|mux| {
                let sessions = mux.info().sessions as usize;
                (mux, sessions)
            })
            .collect()
    }

    /// The least busy one that takes sessions.
    fn pick(&self) -> Option<(Mux, usize)> {
        self.usable().into_iter().min_by_key(|(_, sessions)| *sessions)
    }

    /// The same, waiting for one until `deadline`.
    pub(crate) async fn wait(
        &self,
        deadline: Instant,
        within: Duration,
        mut leaving: watch::Receiver<Option<Duration>>,
    ) -> Result<(Mux, usize), OpenFailed> {
        let mut changed = self.changed.subscribe();
        // Counted only once it has to wait.
        let mut waits = None;
        loop {
            changed.mark_unchanged();
            if leaving.borrow_and_update().is_some() {
                return Err(OpenFailed::Leaving);
            }
            if let Some(picked) = self.pick() {
                return Ok(picked);
            }
            if waits.is_none() {
                let permit = Arc::clone(&self.waiting).try_acquire_owned();
                waits = Some(permit.map_err(|_| OpenFailed::TooManyWaiting(self.max_waiting))?);
                // A pool without links dials when somebody wants one.
                self.touch();
            }
            let woken = async {
                tokio::select! {
                    _ = changed.changed() => {}
                    _ = leaving.changed() => {}
                }
            };
            if timeout_at(deadline, woken).await.is_err() {
                let why = self.fault().unwrap_or_else(|| "none has come up yet".to_owned());
                return Err(OpenFailed::NoLink { within, why });
            }
        }
    }

    /// Somebody waits for a link.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.available_permits() < self.max_waiting
    }
}
