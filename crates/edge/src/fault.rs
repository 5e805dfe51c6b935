//! What went wrong last, and how often sessions came: the figures of one mapping or service.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hopline_admin::status::{LastError, SessionCounts};
use hopline_link::Abort;
use tokio::sync::watch;

/// The last fault of something.
#[derive(Debug, Default)]
pub(crate) struct LastFault(Mutex<Option<(Abort, Instant)>>);

impl LastFault {
    pub(crate) fn note(&self, abort: &Abort) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((abort.clone(), Instant::now()));
    }

    pub(crate) fn status(&self) -> Option<LastError> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(abort, at)| LastError {
            reason: abort.code.name().into_owned(),
            hop: u64::from(abort.hops),
            message: abort.message.clone(),
            age_s: hopline_admin::status::seconds(at.elapsed()),
        })
    }
}

/// Sessions now and in all.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: watch::Sender<u64>,
    total: AtomicU64,
}

/// The figures of a mapping or a service: kept when its entry in the config file changes.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) sessions: Sessions,
    pub(crate) fault: LastFault,
}

/// Counts one session as open for as long as it lives.
#[derive(Debug)]
pub(crate) struct OpenSession<'a>(&'a Sessions);

impl Sessions {
    pub(crate) fn begin(&self) -> OpenSession<'_> {
        self.open.send_modify(|open| *open += 1);
        self.total.fetch_add(1, Ordering::Relaxed);
        OpenSession(self)
    }

    /// Waits until none is open.
    pub(crate) async fn none_open(&self) {
        // The sender lives in `self`.
        drop(self.open.subscribe().wait_for(|open| *open == 0).await);
    }

    pub(crate) fn status(&self) -> SessionCounts {
        SessionCounts { open: *self.open.borrow(), total: self.total.load(Ordering::Relaxed) }
    }
}

impl Drop for OpenSession<'_> {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}
