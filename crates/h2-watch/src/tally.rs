//! What was counted: by a watcher since it was last folded in, by a mapping since it began.

use std::time::Duration;

use crate::evidence::{Evidence, HintKind};
use crate::field::Implementation;
use crate::status::Status;

/// How often a duration fell between fixed bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; Self::BOUNDS_MS.len() + 1],
    sum: Duration,
}

impl Histogram {
    /// Upper bounds of the buckets, in milliseconds; one more bucket has none.
    pub const BOUNDS_MS: [u64; 15] =
        [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 300_000];

    pub(crate) fn record(&mut self, duration: Duration) {
        let bucket = Self::BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < duration);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(duration);
    }

    /// Counts of the buckets, each without those below it; the last has no upper bound.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many were recorded.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All durations together.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    fn absorb(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// Counters of calls. Whatever the traffic, this is all there is: no path, no value, no name of anybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// gRPC calls that began.
    pub calls: u64,
    /// HTTP/2 requests that were no gRPC calls.
    pub other_requests: u64,
    /// Calls that ended, by [`Status`].
    pub ended: [u64; Status::COUNT],
    /// How long they took, from the request's headers to the end.
    pub duration: Histogram,
    /// What was left of the deadline at the end, of calls that had one; 0 where it had passed.
    pub deadline_left: Histogram,
    /// Streams that were forgotten because there were more than the limit.
    pub streams_forgotten: u64,
    /// Calls whose `:authority` was a path, refused or not.
    pub calls_with_a_path: u64,
}

impl Counters {
    /// How many calls ended with this status.
    #[must_use]
    pub fn ended_with(&self, status: Status) -> u64 {
        self.ended[status.index()]
    }

    pub(crate) fn absorb(&mut self, other: &Self) {
        let Self {
            calls,
            other_requests,
            ended,
            duration,
            deadline_left,
            streams_forgotten,
            calls_with_a_path,
        } = other;
        self.calls += calls;
        self.other_requests += other_requests;
        for (count, more) in self.ended.iter_mut().zip(ended) {
            *count += more;
        }
        self.duration.absorb(duration);
        self.deadline_left.absorb(deadline_left);
        self.streams_forgotten += streams_forgotten;
        self.calls_with_a_path += calls_with_a_path;
    }
}

/// Counters, and the numbers that hints rest on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) counters: Counters,
    pub(crate) evidence: Evidence,
    /// Calls that the application itself began: all but health checks and reflection.
    pub(crate) calls: u64,
    /// Those of them that ended, and those that failed in a way that invites a repetition.
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    /// Calls that began right after one had failed.
    pub(crate) repeats: u64,
    pub(crate) agent: Implementation,
}

impl Tally {
    /// Adds what `other` counted.
    pub(crate) fn absorb(&mut self, other: &Self) {
        self.counters.absorb(&other.counters);
        self.evidence.absorb(&other.evidence);
        self.calls += other.calls;
        self.ended += other.ended;
        self.failed += other.failed;
        self.repeats += other.repeats;
        self.agent = other.agent;
    }

    /// Whether anything was counted since the last fold.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self { agent: self.agent, ..Self::default() }
    }

    pub(crate) fn bad(&mut self, kind: HintKind) {
        self.evidence.bad(kind);
    }

    pub(crate) fn good(&mut self, kind: HintKind) {
        self.evidence.good(kind);
    }
}
