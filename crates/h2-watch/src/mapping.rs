//! All connections of one mapping together.

use std::time::{Duration, Instant};

use crate::evidence::{ConnectionPerCall, Evidence, HintKind, RetryStorm, Sum};
use crate::field::Implementation;
use crate::hints::{Hint, Standing};
use crate::limits::{Limits, REPEAT};
use crate::tally::{Counters, Tally};
use crate::watcher::{EndedBy, GaveUp, Inspect, Watcher};

/// Failed calls and their repetitions are counted for this long, then judged.
const STORM_WINDOW: Duration = Duration::from_secs(10);
/// From so many repetitions in a window on it is a storm, if at least half of all calls failed.
const STORM_REPEATS: u64 = 20;
/// Connections that ended are counted for this long, then judged.
const CONNECTIONS_WINDOW: Duration = Duration::from_secs(60);
/// A connection that lived for longer was not made for its one call alone, or its call was a long stream.
const SHORT_CONNECTION: Duration = Duration::from_secs(10);
/// From so many connections of one call in a window on there is a hint, if they are four fifths of all.
const ONE_CALL_CONNECTIONS: u64 = 5;

/// Connections by what they turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inspected {
    /// HTTP/2 without TLS.
    pub h2c: u64,
    /// TLS.
    pub tls: u64,
    /// Anything else.
    pub other: u64,
    /// Of `h2c`, those that are no longer followed, by reason.
    pub gave_up: [u64; GaveUp::ALL.len()],
}

/// Numbers of a window of time.
#[derive(Clone, Copy, Debug)]
struct Recent<T> {
    began: Instant,
    counts: T,
}

#[derive(Clone, Copy, Debug, Default)]
struct Storm {
    ended: u64,
    failed: u64,
    repeats: u64,
    connections: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    connections: u64,
    with_one_call: u64,
}

/// Watches a mapping: makes its watchers, takes what they counted, says what is left to change.
#[derive(Debug)]
pub struct MappingWatch {
    on: bool,
    limits: Limits,
    inspect: Inspect,
    inspected: Inspected,
    counters: Counters,
    evidence: Evidence,
    standing: [Standing; HintKind::ALL.len()],
    raised: [u64; HintKind::ALL.len()],
    path_round_trip: Option<Duration>,
    storm: Recent<Storm>,
    ended: Recent<Ended>,
    /// Connections that failed and that no other has followed yet, and when the last did.
    failures: (u64, Option<Instant>),
    agent: Implementation,
    /// Bytes that its watchers held when they were folded last.
    held: usize,
}

impl MappingWatch {
    /// Begins `now`. `on` is false where the mapping says `inspect: false`.
    #[must_use]
    pub fn new(on: bool, limits: Limits, now: Instant) -> Self {
        Self {
            on,
            limits,
            inspect: if on { Inspect::Unknown } else { Inspect::Off },
            inspected: Inspected::default(),
            counters: Counters::default(),
            evidence: Evidence::default(),
            standing: Default::default(),
            raised: Default::default(),
            path_round_trip: None,
            storm: Recent { began: now, counts: Storm::default() },
            ended: Recent { began: now, counts: Ended::default() },
            failures: (0, None),
            agent: Implementation::Other,
            held: 0,
        }
    }

    /// The path's round trip as the caller knows it, for connections from now on: see
    /// [`Watcher::set_path_round_trip`].
    pub fn set_path_round_trip(&mut self, round_trip: Option<Duration>) {
        self.path_round_trip = round_trip;
    }

    /// A connection was accepted: its watcher.
    pub fn connect(&mut self, now: Instant) -> Watcher {
        if !self.on {
            return Watcher::off();
        }
        let (waiting, last) = &mut self.failures;
        if *waiting > 0 && last.is_some_and(|last| now.saturating_duration_since(last) <= REPEAT) {
            *waiting -= 1;
            self.roll_storm(now).repeats += 1;
        }
        let mut watcher = Watcher::new(&self.limits, now);
        watcher.set_path_round_trip(self.path_round_trip);
        watcher
    }

    /// Takes what a watcher has counted since the last time. Once a second is often enough, and once after
    /// [`Watcher::close`]; [`Watcher::has_news`] tells whether it is worth it. A watcher that is dropped without the last
    /// of them counts as held for ever.
    pub fn fold(&mut self, watcher: &mut Watcher, now: Instant) {
        self.fold_memory(watcher);
        self.fold_inspect(watcher);
        let mut tally = watcher.take_tally(now);
        self.counters.absorb(&tally.counters);
        if tally.agent != Implementation::Other {
            self.agent = tally.agent;
        }
        self.fold_storm(&tally, now);
        let evidence = std::mem::take(&mut tally.evidence);
        self.fold_evidence(&evidence, tally.agent, &mut watcher.folded.shown, now);
        if let Some(ended_by) = watcher.ended_by
            && !std::mem::replace(&mut watcher.folded.closed, true)
        {
            self.fold_end(watcher, ended_by, now);
        }
    }

    fn fold_memory(&mut self, watcher: &mut Watcher) {
        let mut held = if watcher.ended_by.is_some() { 0 } else { watcher.held_bytes() };
        self.held = self.held.saturating_sub(watcher.folded.held);
        if self.held + held > self.limits.mapping_bytes && watcher.inspect() == Inspect::H2c {
            watcher.give_up(GaveUp::Memory);
            held = watcher.held_bytes();
        }
        self.held += held;
        watcher.folded.held = held;
    }

    fn fold_inspect(&mut self, watcher: &mut Watcher) {
        let inspect = watcher.inspect();
        let before = std::mem::replace(&mut watcher.folded.inspect, inspect);
        if inspect == before {
            return;
        }
        self.inspect = inspect;
        match inspect {
            Inspect::H2c => self.inspected.h2c += 1,
            Inspect::Tls => self.inspected.tls += 1,
            Inspect::Other => self.inspected.other += 1,
            Inspect::GaveUp(reason) => {
                self.inspected.h2c += u64::from(before != Inspect::H2c);
                self.inspected.gave_up[reason as usize] += 1;
            }
            Inspect::Unknown | Inspect::Off => {}
        }
    }

    fn fold_evidence(
        &mut self,
        evidence: &Evidence,
        agent: Implementation,
        shown: &mut [bool; HintKind::ALL.len()],
        now: Instant,
    ) {
        for kind in HintKind::ALL {
            let bad = evidence.is_bad(kind);
            let counts = bad && !shown[kind.index()];
            shown[kind.index()] |= bad;
            let standing = &mut self.standing[kind.index()];
            let fresh = standing.absorb(kind, &mut self.evidence, evidence, agent, counts, now);
            self.raised[kind.index()] += u64::from(fresh);
        }
    }

    /// What the mapping as a whole shows: a window of time has gone beyond a rule.
    fn show(&mut self, kind: HintKind, count: impl FnOnce(&mut Evidence), now: Instant) {
        let mut evidence = Evidence::default();
        evidence.bad(kind);
        count(&mut evidence);
        self.fold_evidence(&evidence, self.agent, &mut [false; HintKind::ALL.len()], now);
    }

    fn roll_storm(&mut self, now: Instant) -> &mut Storm {
        if now.saturating_duration_since(self.storm.began) >= STORM_WINDOW {
            let Storm { ended, failed, repeats, connections } = self.storm.counts;
            if repeats >= STORM_REPEATS && (failed + connections) * 2 >= ended + connections {
                let numbers = RetryStorm {
                    calls_failed: Sum(failed),
                    repeats_within_100ms: Sum(repeats),
                    connections_failed: Sum(connections),
                };
                self.show(HintKind::RetryStorm, |evidence| evidence.retry_storm = numbers, now);
            }
            self.storm = Recent { began: now, counts: Storm::default() };
        }
        &mut self.storm.counts
    }

    fn fold_storm(&mut self, tally: &Tally, now: Instant) {
        let storm = self.roll_storm(now);
        storm.ended += tally.ended;
        storm.failed += tally.failed;
        storm.repeats += tally.repeats;
    }

    fn roll_ended(&mut self, now: Instant) -> &mut Ended {
        if now.saturating_duration_since(self.ended.began) >= CONNECTIONS_WINDOW {
            let Ended { connections, with_one_call } = self.ended.counts;
            if with_one_call >= ONE_CALL_CONNECTIONS && with_one_call * 5 >= connections * 4 {
                let numbers = ConnectionPerCall {
                    connections: Sum(connections),
                    connections_with_one_call: Sum(with_one_call),
                };
                self.show(
                    HintKind::ConnectionPerCall,
                    |evidence| evidence.connection_per_call = numbers,
                    now,
                );
            }
            self.ended = Recent { began: now, counts: Ended::default() };
        }
        &mut self.ended.counts
    }

    fn fold_end(&mut self, watcher: &Watcher, ended_by: EndedBy, now: Instant) {
        // One that a fault or the server has ended might have carried more.
        if watcher.calls > 0 && ended_by == EndedBy::Application {
            let age = watcher.began.map(|began| now.saturating_duration_since(began)).unwrap_or_default();
            let ended = self.roll_ended(now);
            ended.connections += 1;
            ended.with_one_call += u64::from(watcher.calls == 1 && age <= SHORT_CONNECTION);
        }
        if watcher.calls > 1 {
            let mut evidence = Evidence::default();
            evidence.good(HintKind::ConnectionPerCall);
            self.fold_evidence(&evidence, self.agent, &mut [true; HintKind::ALL.len()], now);
        }
        if ended_by != EndedBy::Application && !watcher.server_spoke && self.on {
            self.roll_storm(now).connections += 1;
            let (waiting, last) = &mut self.failures;
            if last.is_none_or(|last| now.saturating_duration_since(last) > REPEAT) {
                *waiting = 0;
            }
            *waiting += 1;
            *last = Some(now);
        }
    }

    /// The hints that stand now; none for an application that does everything right.
    #[must_use]
    pub fn hints(&mut self, now: Instant) -> Vec<Hint> {
        self.roll_storm(now);
        self.roll_ended(now);
        let standing = self.standing.iter_mut().zip(HintKind::ALL);
        standing.filter_map(|(standing, kind)| standing.hint(kind, &mut self.evidence, now)).collect()
    }

    /// How often each hint has appeared since the mapping began: a number that only grows, for `/metrics`.
    pub fn raised(&self) -> impl Iterator<Item = (HintKind, u64)> {
        HintKind::ALL.into_iter().zip(self.raised)
    }

    /// Counters of calls since the mapping began.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections by what they turned out to be.
    #[must_use]
    pub fn inspected(&self) -> Inspected {
        self.inspected
    }

    /// What the mapping's newest connection turned out to be: the `inspect` of `/status`.
    #[must_use]
    pub fn inspect(&self) -> Inspect {
        self.inspect
    }
}
