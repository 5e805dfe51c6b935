//! The application's windows, as they look from beside it: who waits for them, and for how long.

use std::time::{Duration, Instant};

/// Updates on their way to the server that are told apart. Further ones count as sent with the last, which makes the
/// wait for them look shorter than it is.
const UNDERWAY: usize = 2;

/// Where there was no wait, a period is worth judging from twice this on.
const LEAST_WINDOW: i64 = 32 << 10;

/// One window of the application, of a stream or of the connection, without its first size: that is the connection's
/// to know, and a setting may change it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// Granted less used.
    balance: i64,
    /// The same as the server knows it: updates reach it half a round trip later, and what it sends then takes as
    /// long to come here. So an update counts a round trip after it was seen.
    known: i64,
    underway: [Option<(Instant, i64)>; UNDERWAY],
    /// Since when the server has had nothing left, as far as it knows.
    spent_since: Option<Instant>,
    /// Since when nothing is left at all: the application has not read.
    pub(crate) stalled_since: Option<Instant>,
}

/// A time for which the server waited for an update that the application had sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl Window {
    /// What is left of it when its first size is `first`.
    pub(crate) fn left(&self, first: i64) -> i64 {
        first.saturating_add(self.balance)
    }

    /// The application grants more.
    pub(crate) fn grant(&mut self, bytes: u32, now: Instant) {
        let bytes = i64::from(bytes);
        self.balance = self.balance.saturating_add(bytes);
        match self.underway.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some((now, bytes)),
            None => {
                if let Some((_, last)) = &mut self.underway[UNDERWAY - 1] {
                    *last = last.saturating_add(bytes);
                }
            }
        }
    }

    /// Data arrives from the server. Gives the wait that ended with it, if there was one.
    pub(crate) fn spend(
        &mut self,
        bytes: u32,
        first: i64,
        round_trip: Duration,
        now: Instant,
    ) -> Option<Wait> {
        let wait = self.arrive(first, round_trip, now);
        let bytes = i64::from(bytes);
        self.balance = self.balance.saturating_sub(bytes);
        self.known = self.known.saturating_sub(bytes);
        if first.saturating_add(self.known) <= 0 {
            self.spent_since.get_or_insert(now);
        }
        wait
    }

    /// Updates that the server knows of by now.
    fn arrive(&mut self, first: i64, round_trip: Duration, now: Instant) -> Option<Wait> {
        let mut wait = None;
        while let Some((sent, bytes)) = self.underway[0]
            && now.saturating_duration_since(sent) >= round_trip
        {
            self.underway.rotate_left(1);
            self.underway[UNDERWAY - 1] = None;
            self.known = self.known.saturating_add(bytes);
            if first.saturating_add(self.known) > 0
                && let Some(spent) = self.spent_since.take()
            {
                wait = Some(Wait { from: spent.max(sent), until: sent + round_trip });
            }
        }
        wait.filter(|wait| wait.until > wait.from)
    }
}

/// How much of its time a connection's server has waited for updates on their way.
#[derive(Clone, Debug)]
pub(crate) struct Throughput {
    began: Instant,
    bytes: u64,
    held: Duration,
    held_until: Option<Instant>,
    /// The window that was waited for last.
    window: i64,
}

/// What a period of watching showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) window: u64,
    pub(crate) bytes_per_s: u64,
    pub(crate) length: Duration,
    /// More than half of it was waiting.
    pub(crate) held: bool,
}

impl Throughput {
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, bytes: 0, held: Duration::ZERO, held_until: None, window: 0 }
    }

    /// Waits overlap where several streams wait; time counts once.
    pub(crate) fn wait(&mut self, wait: Wait, window: i64) {
        let from = self.held_until.map_or(wait.from, |until| until.max(wait.from)).max(self.began);
        self.held += wait.until.saturating_duration_since(from);
        self.held_until = Some(wait.until);
        self.window = window;
    }

    /// Counts bytes. When the period is over, gives it, if enough went by to judge: at least twice the window.
    pub(crate) fn count(&mut self, bytes: u32, period: Duration, now: Instant) -> Option<Period> {
        self.bytes = self.bytes.saturating_add(u64::from(bytes));
        let length = now.saturating_duration_since(self.began);
        if length < period {
            return None;
        }
        let done = std::mem::replace(self, Self { held_until: self.held_until, ..Self::new(now) });
        let window = done.window.max(LEAST_WINDOW) as u64;
        let judged = Period {
            window,
            bytes_per_s: (u128::from(done.bytes) * 1_000_000 / length.as_micros().max(1)) as u64,
            length,
            held: done.held * 2 > length,
        };
        (done.bytes >= 2 * window).then_some(judged)
    }
}
