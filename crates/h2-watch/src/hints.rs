//! When a hint shows, what it says, and when it goes away again.

use std::time::{Duration, Instant};

use crate::advice;
use crate::evidence::{Evidence, HintKind};
use crate::field::Implementation;

/// Evidence older than this is forgotten, and its hint goes away.
pub const QUIET: Duration = Duration::from_secs(3_600);

/// A hint as it stands now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which one.
    pub kind: HintKind,
    /// What is so, and what to do about it, with the setting of each implementation that was seen doing it.
    pub message: String,
    /// The numbers that it rests on, with their names.
    pub evidence: Vec<(&'static str, u64)>,
    /// On how many connections it was seen; of `connection_per_call` and `retry_storm`, in how many windows of time.
    pub count: u64,
    /// When its evidence began.
    pub first_seen: Instant,
    /// When its evidence last grew.
    pub last_seen: Instant,
}

/// What is known about one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    agents: Vec<Implementation>,
    count: u64,
    seen: Option<(Instant, Instant)>,
    shown: bool,
}

impl Standing {
    /// More numbers, for `all` that are known. True: the hint shows from now on, and did not before.
    pub(crate) fn absorb(
        &mut self,
        kind: HintKind,
        all: &mut Evidence,
        more: &Evidence,
        agent: Implementation,
        counts: bool,
        now: Instant,
    ) -> bool {
        self.expire(kind, all, now);
        all.absorb_kind(kind, more);
        if more.is_bad(kind) {
            self.seen = Some((self.seen.map_or(now, |(first, _)| first), now));
            if !self.agents.contains(&agent) {
                self.agents.push(agent);
                self.agents.sort();
            }
            self.count += u64::from(counts);
        }
        let shown = self.seen.is_some() && shows(kind, all);
        let fresh = shown && !self.shown;
        self.shown = shown;
        self.expire(kind, all, now);
        fresh
    }

    /// Forgets what is over: a whole hour without anything new, or the application does it right by now.
    fn expire(&mut self, kind: HintKind, all: &mut Evidence, now: Instant) {
        let Some((_, last)) = self.seen else { return };
        let quiet = now.saturating_duration_since(last) >= QUIET;
        let cured = cured_after(kind).is_some_and(|good| all.good_in_a_row(kind) >= good);
        if quiet || cured {
            *self = Self::default();
            all.forget(kind);
        }
    }

    pub(crate) fn hint(&mut self, kind: HintKind, all: &mut Evidence, now: Instant) -> Option<Hint> {
        self.expire(kind, all, now);
        let (first_seen, last_seen) = self.seen.filter(|_| self.shown)?;
        Some(Hint {
            kind,
            message: advice::message(kind, all, &self.agents),
            evidence: all.numbers(kind),
            count: self.count,
            first_seen,
            last_seen,
        })
    }
}

/// From which evidence on a hint shows.
fn shows(kind: HintKind, all: &Evidence) -> bool {
    match kind {
        HintKind::ClientKeepalive => {
            let numbers = &all.client_keepalive;
            numbers.idle_pings_under_15s.0 >= 1 || numbers.too_many_pings_goaway.0 >= 1
        }
        HintKind::NoDeadline => all.no_deadline.calls_without_deadline.0 >= 1,
        HintKind::MessageTooLarge => all.message_too_large.calls_refused.0 >= 1,
        HintKind::GoawayIgnored => all.goaway_ignored.streams_after_goaway.0 >= 1,
        // The rule is that of the window in which it was counted.
        HintKind::ConnectionPerCall | HintKind::RetryStorm => true,
        HintKind::AppNotReading => all.app_not_reading.stalls_over_5s.0 >= 1,
        HintKind::AuthorityIsPath => all.authority_is_path.calls_refused.0 >= 1,
        HintKind::StreamLimit => {
            all.stream_limit.calls_that_waited.0 >= 3 && all.stream_limit.at_limit_ms.0 >= 1_000
        }
        HintKind::SmallWindow => all.small_window.held_up_ms.0 >= 3_000,
        HintKind::DeadlineTooShort => all.deadline_too_short.calls_below_round_trip.0 >= 3,
    }
}

/// How much that is right makes a hint go away before its hour: calls, connections or seconds in a row.
fn cured_after(kind: HintKind) -> Option<u64> {
    match kind {
        HintKind::NoDeadline | HintKind::AuthorityIsPath | HintKind::DeadlineTooShort => Some(100),
        HintKind::ConnectionPerCall | HintKind::SmallWindow => Some(10),
        HintKind::ClientKeepalive
        | HintKind::AppNotReading
        | HintKind::StreamLimit
        | HintKind::RetryStorm
        | HintKind::MessageTooLarge
        | HintKind::GoawayIgnored => None,
    }
}
