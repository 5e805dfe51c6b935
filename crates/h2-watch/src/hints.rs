//! When a hint shows, what it says, and when it goes away again.

use std::time::{Duration, Instant};

use crate::advice;
use crate::evidence::{HintKind, NUMBERS, Numbers};
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
    numbers: Numbers,
    agents: Vec<Implementation>,
    count: u64,
    seen: Option<(Instant, Instant)>,
    shown: bool,
}

impl Standing {
    /// More numbers. True: the hint shows from now on, and did not before.
    pub(crate) fn absorb(
        &mut self,
        kind: HintKind,
        more: &Numbers,
        agent: Implementation,
        counts: bool,
        now: Instant,
    ) -> bool {
        self.expire(kind, now);
        self.numbers.absorb(kind, more);
        if more.bad {
            self.seen = Some((self.seen.map_or(now, |(first, _)| first), now));
            if !self.agents.contains(&agent) {
                self.agents.push(agent);
                self.agents.sort();
            }
            self.count += u64::from(counts);
        }
        let shown = self.seen.is_some() && shows(kind, &self.numbers.values);
        let fresh = shown && !self.shown;
        self.shown = shown;
        self.expire(kind, now);
        fresh
    }

    /// Forgets what is over: a whole hour without anything new, or the application does it right by now.
    fn expire(&mut self, kind: HintKind, now: Instant) {
        let Some((_, last)) = self.seen else { return };
        let quiet = now.saturating_duration_since(last) >= QUIET;
        let cured = cured_after(kind).is_some_and(|good| self.numbers.good >= good);
        if quiet || cured {
            *self = Self::default();
        }
    }

    pub(crate) fn hint(&mut self, kind: HintKind, now: Instant) -> Option<Hint> {
        self.expire(kind, now);
        let (first_seen, last_seen) = self.seen.filter(|_| self.shown)?;
        Some(Hint {
            kind,
            message: advice::message(kind, &self.numbers.values, &self.agents),
            evidence: kind.numbers().zip(self.numbers.values).collect(),
            count: self.count,
            first_seen,
            last_seen,
        })
    }
}

/// From which evidence on a hint shows.
fn shows(kind: HintKind, [a, b, c, d]: &[u64; NUMBERS]) -> bool {
    match kind {
        HintKind::ClientKeepalive => *a >= 1 || *b >= 1,
        HintKind::NoDeadline | HintKind::MessageTooLarge | HintKind::GoawayIgnored => *b >= 1,
        // The rule is that of the window in which it was counted.
        HintKind::ConnectionPerCall | HintKind::RetryStorm => true,
        HintKind::AppNotReading => *a >= 1,
        HintKind::AuthorityIsPath => *c >= 1,
        HintKind::StreamLimit => *b >= 3 && *c >= 1_000,
        HintKind::SmallWindow => *d >= 3_000,
        HintKind::DeadlineTooShort => *b >= 3,
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
