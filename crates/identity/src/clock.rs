//! The time of day, and what to think of it.
//!
//! A machine may start with a clock that is years off, and be set right later. So nothing that lives for longer than
//! one connection may hang on what the clock said once: dates are looked at again at each handshake.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use time::OffsetDateTime;

/// 2026-01-01: this program is younger. A clock that stands before it is wrong.
const EARLIEST_S: u64 = 1_767_225_600;

/// Where the time of day comes from: the system's clock, or a test's.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// The system's.
    #[must_use]
    pub fn system() -> Self {
        Self::new(SystemTime::now)
    }

    /// One that says what `now` says, for tests.
    #[must_use]
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix_time(self.now()))
    }
}

/// The earliest moment at which this program can run.
pub(crate) fn earliest() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(EARLIEST_S)
}

/// Whether a clock that says this is certainly wrong.
pub(crate) fn is_impossible(now: SystemTime) -> bool {
    now < earliest()
}

/// 0 before 1970.
pub(crate) fn unix_time(time: SystemTime) -> UnixTime {
    UnixTime::since_unix_epoch(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// The date, UTC: `2026-01-31`.
pub(crate) fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).date().to_string()
}
