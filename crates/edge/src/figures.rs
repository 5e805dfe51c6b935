//! What went wrong last, and how often sessions came: the figures of one mapping or service.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hopline_accounting::{AbortCounter, ByteCounter, OpenCounter};
use hopline_admin::status::{AbortCount, Counts, LastError, SessionCounts};
use hopline_link::Abort;
use tokio::sync::watch;

/// The last fault of something, and how often there was each.
#[derive(Debug, Default)]
pub(crate) struct LastFault {
    last: Mutex<Option<(Abort, Instant)>>,
    counter: AbortCounter,
}

impl LastFault {
    pub(crate) fn note(&self, abort: &Abort) {
        self.counter.note(abort);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((abort.clone(), Instant::now()));
    }

    pub(crate) fn status(&self) -> Option<LastError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|(abort, at)| LastError::new(abort, at.elapsed()))
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
    pub(crate) opens: OpenCounter,
    pub(crate) bytes: Arc<ByteCounter>,
}

impl Figures {
    /// What was counted, for the status.
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            opens: (&self.opens).into(),
            aborts: AbortCount::all(&self.fault.counter),
            bytes: (&*self.bytes).into(),
        }
    }
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
