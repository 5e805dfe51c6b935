//! Limits warnings and errors from one call site to [`BURST`] per minute.
//!
//! Events that peers and strangers can cause (a refused join, a link that dies again and again) must not fill a disk.
//! Suppressed lines are counted per call site; the count is logged once a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines per call site and [`WINDOW`].
const BURST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Characters of a suppressed line that its report quotes.
const QUOTED: usize = 120;

/// Layer that drops warnings and errors beyond the limit.
#[derive(Debug)]
pub(super) struct WarnLimiter(Arc<CallSites>);

/// Reports what the limiter dropped.
#[derive(Debug)]
pub(super) struct Suppressed(Arc<CallSites>);

/// At most one entry per call site in the code.
#[derive(Debug, Default)]
struct CallSites(Mutex<HashMap<Identifier, CallSite>>);

#[derive(Debug)]
struct CallSite {
    began: Instant,
    lines: u32,
    suppressed: u64,
    /// The last suppressed line.
    last: String,
}

impl WarnLimiter {
    pub(super) fn new() -> (Self, Suppressed) {
        let sites = Arc::new(CallSites::default());
        (Self(Arc::clone(&sites)), Suppressed(sites))
    }
}

impl<S: Subscriber> Layer<S> for WarnLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let level = *event.metadata().level();
        level > Level::WARN || self.0.allow(event.metadata().callsite(), Instant::now(), || message(event))
    }
}

impl Suppressed {
    /// Logs once a minute what was suppressed; never returns.
    pub(super) async fn report(self) {
        loop {
            tokio::time::sleep(WINDOW).await;
            for (lines, like) in self.0.take_suppressed() {
                tracing::warn!(like, "suppressed {lines} similar log lines");
            }
        }
    }
}

impl CallSites {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, CallSite>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allow(&self, site: Identifier, now: Instant, line: impl FnOnce() -> String) -> bool {
        let mut sites = self.lock();
        let site = sites.entry(site).or_insert_with(|| CallSite {
            began: now,
            lines: 0,
            suppressed: 0,
            last: String::new(),
        });
        if now.saturating_duration_since(site.began) >= WINDOW {
            site.began = now;
            site.lines = 0;
        }
        if site.lines < BURST {
            site.lines += 1;
            return true;
        }
        site.suppressed += 1;
        site.last = line();
        false
    }

    fn take_suppressed(&self) -> Vec<(u64, String)> {
        let mut sites = self.lock();
        let some = sites.values_mut().filter(|site| site.suppressed > 0);
        some.map(|site| (std::mem::take(&mut site.suppressed), std::mem::take(&mut site.last))).collect()
    }
}

/// The message of an event, without its fields.
fn message(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}").chars().take(QUOTED).collect();
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Counts the events that come through.
    struct Count(Arc<Mutex<Vec<Level>>>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(*event.metadata().level());
        }
    }

    #[test]
    fn ten_lines_of_one_call_site_pass_and_the_rest_is_counted() {
        let (limiter, suppressed) = WarnLimiter::new();
        let seen = Arc::<Mutex<Vec<Level>>>::default();
        let subscriber = tracing_subscriber::registry().with(limiter).with(Count(Arc::clone(&seen)));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..25 {
                tracing::warn!(n, "join {n} was refused");
                tracing::info!(n, "link up");
            }
            tracing::error!("another call site");
        });
        let count = |level| seen.lock().unwrap().iter().filter(|seen| **seen == level).count();
        assert_eq!((count(Level::WARN), count(Level::INFO), count(Level::ERROR)), (10, 25, 1));
        assert_eq!(suppressed.0.take_suppressed(), [(15, "join 24 was refused".to_owned())]);
        assert_eq!(suppressed.0.take_suppressed(), []);
    }

    #[test]
    fn a_minute_later_there_is_room_again() {
        let (limiter, suppressed) = WarnLimiter::new();
        let subscriber = tracing_subscriber::registry().with(limiter);
        let sites = &suppressed.0;
        tracing::subscriber::with_default(subscriber, || tracing::warn!("adds a call site"));
        let site = sites.lock().keys().next().unwrap().clone();
        let began = sites.lock()[&site].began;
        let allowed = |after: Duration| {
            (0..30).filter(|_| sites.allow(site.clone(), began + after, String::new)).count()
        };
        assert_eq!(allowed(Duration::from_secs(1)), 9);
        assert_eq!(allowed(WINDOW - Duration::from_millis(1)), 0);
        assert_eq!(allowed(WINDOW), 10);
    }
}
