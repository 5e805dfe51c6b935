//! When to dial a peer again.

use std::time::Duration;

use tokio::time::Instant;

/// For so long after the link was lost a dial begins at least every second.
const EAGER: Duration = Duration::from_secs(60);
/// Between two dials of the eager minute: at most, and at least. With the time that a dial takes to fail it stays
/// below a second; the spread keeps a thousand processes from coming in one moment.
const EAGER_PAUSE: (f64, f64) = (0.9, 0.3);
/// Between two dials after that minute.
const PATIENT_PAUSE: (f64, f64) = (5.0, 2.5);
/// A link that lived shorter than this was not worth having.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// The longest pause after links that are accepted and lost.
const LONGEST: f64 = 30.0;

/// Paces the dials to one peer: a fresh one at least every second for a minute, then every 5 s, and for links that
/// are accepted and lost within 10 s ever more seldom, up to 30 s. Pure: time and chance come in.
#[derive(Clone, Debug)]
pub struct Backoff {
    lost: Instant,
    short_lives: u32,
}

impl Backoff {
    /// For a peer to which no link has been up yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { lost: now, short_lives: 0 }
    }

    /// A link that came up at `up` was lost at `now`.
    pub fn lost(&mut self, up: Instant, now: Instant) {
        self.lost = now;
        let short = now.saturating_duration_since(up) < SHORT_LIFE;
        self.short_lives = if short { self.short_lives.saturating_add(1) } else { 0 };
    }

    /// The peer sent this side away, and would again: the next dials are as seldom as they get.
    pub fn sent_away(&mut self) {
        self.short_lives = u32::MAX;
    }

    /// How long to wait before the next dial; `chance` is from 0 to 1.
    #[must_use]
    pub fn pause(&self, now: Instant, chance: f64) -> Duration {
        let (most, least) = if self.short_lives > 1 {
            // The first short life may be a peer that restarts; the second is a pattern.
            let doubled = 2f64.powi(i32::try_from(self.short_lives.min(6)).unwrap_or(6)).min(LONGEST);
            (doubled, doubled * 0.7)
        } else if now.saturating_duration_since(self.lost) < EAGER {
            EAGER_PAUSE
        } else {
            PATIENT_PAUSE
        };
        Duration::from_secs_f64(least + (most - least) * chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eager_for_a_minute_then_patient() {
        let start = Instant::now();
        let backoff = Backoff::new(start);
        for chance in [0.0, 0.5, 1.0] {
            assert!(backoff.pause(start, chance) < Duration::from_secs(1));
            let later = backoff.pause(start + Duration::from_secs(61), chance);
            assert!((Duration::from_millis(2_500)..=Duration::from_secs(5)).contains(&later));
        }
    }

    #[test]
    fn links_that_die_at_once_are_dialled_ever_less_often() {
        let start = Instant::now();
        let mut backoff = Backoff::new(start);
        let mut now = start;
        let mut dials = 0;
        while now < start + Duration::from_secs(600) {
            now += backoff.pause(now, 0.0);
            dials += 1;
            backoff.lost(now, now + Duration::from_secs(1));
            now += Duration::from_secs(1);
        }
        assert!(dials < 40, "{dials} dials in 10 min");
        // A long life forgives.
        backoff.lost(now, now + Duration::from_secs(60));
        assert!(backoff.pause(now + Duration::from_secs(60), 1.0) < Duration::from_secs(1));
    }

    #[test]
    fn a_peer_that_sends_us_away_is_not_asked_again_soon() {
        let start = Instant::now();
        let mut backoff = Backoff::new(start);
        let lost = start + Duration::from_secs(60);
        backoff.lost(start, lost);
        backoff.sent_away();
        assert!(backoff.pause(lost, 0.0) >= Duration::from_secs(20));
        backoff.lost(lost, lost + Duration::from_secs(1));
        assert!(backoff.pause(lost + Duration::from_secs(1), 0.0) >= Duration::from_secs(20));
    }
}
