//! Warnings and errors of one cause: at most [`MOST`] in a minute.
//!
//! What peers and strangers can bring about (a join that is refused, a link that dies again and again) must not fill a
//! disk. A cause is the place in the code that speaks. What was left out is counted, and said once a minute.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines of one cause in a [`WINDOW`].
const MOST: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Characters of a line that is spoken of.
const SAID: usize = 120;

/// Lets the lines through.
#[derive(Debug)]
pub(super) struct WarnLimiter(Arc<Causes>);

/// What was not let through.
#[derive(Debug)]
pub(super) struct LeftOut(Arc<Causes>);

/// As many entries as there are places in the code that warn.
#[derive(Debug, Default)]
struct Causes(Mutex<HashMap<Identifier, Cause>>);

#[derive(Debug)]
struct Cause {
    began: Instant,
    lines: u32,
    suppressed: u64,
    /// The last line that was left out.
    said: String,
}

impl WarnLimiter {
    pub(super) fn new() -> (Self, LeftOut) {
        let causes = Arc::new(Causes::default());
        (Self(Arc::clone(&causes)), LeftOut(causes))
    }
}

impl<S: Subscriber> Layer<S> for WarnLimiter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let level = *event.metadata().level();
        level > Level::WARN || self.0.allow(event.metadata().callsite(), Instant::now(), || said(event))
    }
}

impl LeftOut {
    /// Says each minute what was left out in it; never ends.
    pub(super) async fn report(self) {
        loop {
            tokio::time::sleep(WINDOW).await;
            for (lines, like) in self.0.take_suppressed() {
                tracing::warn!(like, "suppressed {lines} similar log lines");
            }
        }
    }
}

impl Causes {
    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Cause>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allow(&self, cause: Identifier, now: Instant, said: impl FnOnce() -> String) -> bool {
        let mut causes = self.lock();
        let cause = causes.entry(cause).or_insert_with(|| Cause {
            began: now,
            lines: 0,
            suppressed: 0,
            said: String::new(),
        });
        if now.saturating_duration_since(cause.began) >= WINDOW {
            cause.began = now;
            cause.lines = 0;
        }
        if cause.lines < MOST {
            cause.lines += 1;
            return true;
        }
        cause.suppressed += 1;
        cause.said = said();
        false
    }

    fn take_suppressed(&self) -> Vec<(u64, String)> {
        let mut causes = self.lock();
        let some = causes.values_mut().filter(|cause| cause.suppressed > 0);
        some.map(|cause| (std::mem::take(&mut cause.suppressed), std::mem::take(&mut cause.said))).collect()
    }
}

/// The words of an event, without its fields.
fn said(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}").chars().take(SAID).collect();
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
    fn of_one_cause_ten_lines_come_through_and_the_rest_is_counted() {
        let (limiter, suppressed) = WarnLimiter::new();
        let seen = Arc::<Mutex<Vec<Level>>>::default();
        let subscriber = tracing_subscriber::registry().with(limiter).with(Count(Arc::clone(&seen)));
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..25 {
                tracing::warn!(n, "join {n} was refused");
                tracing::info!(n, "link up");
            }
            tracing::error!("another cause");
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
        let causes = &suppressed.0;
        tracing::subscriber::with_default(subscriber, || tracing::warn!("makes a cause"));
        let cause = causes.lock().keys().next().unwrap().clone();
        let began = causes.lock()[&cause].began;
        let allowed = |after: Duration| {
            (0..30).filter(|_| causes.allow(cause.clone(), began + after, String::new)).count()
        };
        assert_eq!(allowed(Duration::from_secs(1)), 9);
        assert_eq!(allowed(WINDOW - Duration::from_millis(1)), 0);
        assert_eq!(allowed(WINDOW), 10);
    }
}
