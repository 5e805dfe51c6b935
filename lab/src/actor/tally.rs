//! What became of connections: of one, and of many together.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// What one connection's script did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The step that failed and how: `recv: reset`. None when all were done.
    pub(super) fault: Option<String>,
    /// How reading ended, where it did: `fin`, `reset`, ...
    pub(super) end: Option<String>,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// From before the dial to the end of the script.
    pub(super) ms: f64,
    /// From before the dial to the first byte that was read.
    pub(super) first_ms: Option<f64>,
    /// The longest time between two reads of a `recv`, and before its first.
    pub(super) gap_ms: f64,
    /// One for each round of a ping-pong.
    pub(super) rounds_ms: Vec<f64>,
    /// Each step that was done, and when.
    pub(super) marks: Vec<(&'static str, f64)>,
}

impl Outcome {
    /// Takes in what a thread beside it did on the same connection.
    pub(super) fn join(&mut self, other: Self) {
        self.fault = self.fault.take().or(other.fault);
        self.end = self.end.take().or(other.end);
        self.sent += other.sent;
        self.received += other.received;
        self.first_ms = [self.first_ms, other.first_ms].into_iter().flatten().min_by(f64::total_cmp);
        self.gap_ms = self.gap_ms.max(other.gap_ms);
        self.rounds_ms.extend(other.rounds_ms);
        self.marks.extend(other.marks);
    }
}

/// Many connections together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) begun: u64,
    pub(super) done: u64,
    ok: u64,
    faults: BTreeMap<String, u64>,
    ends: BTreeMap<String, u64>,
    sent: u64,
    received: u64,
    ms: Vec<f64>,
    first_ms: Vec<f64>,
    gap_ms: Vec<f64>,
    rounds_ms: Vec<f64>,
    /// Of the last one that ended.
    marks: Vec<(&'static str, f64)>,
}

impl Tally {
    /// Counts one that has ended.
    pub(super) fn add(&mut self, outcome: Outcome) {
        self.done += 1;
        match outcome.fault {
            None => self.ok += 1,
            Some(fault) => *self.faults.entry(fault).or_default() += 1,
        }
        if let Some(end) = outcome.end {
            *self.ends.entry(end).or_default() += 1;
        }
        self.sent += outcome.sent;
        self.received += outcome.received;
        self.ms.push(outcome.ms);
        self.first_ms.extend(outcome.first_ms);
        self.gap_ms.push(outcome.gap_ms);
        self.rounds_ms.extend(outcome.rounds_ms);
        self.marks = outcome.marks;
    }

    /// As an event's body.
    pub(super) fn body(&self, event: &str, call: &str) -> Value {
        json!({
            "event": event,
            "call": call,
            "begun": self.begun,
            "open": self.begun - self.done,
            "ok": self.ok,
            "faults": self.faults,
            "ends": self.ends,
            "sent": self.sent,
            "received": self.received,
            "ms": spread(&self.ms),
            "first_ms": spread(&self.first_ms),
            "gap_ms": spread(&self.gap_ms),
            "rounds_ms": spread(&self.rounds_ms),
            "marks": self.marks,
        })
    }
}

/// Count, median, 99th percentile and maximum.
fn spread(numbers: &[f64]) -> Value {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)));
    json!({"count": sorted.len(), "p50": at(50), "p99": at(99), "max": sorted.last()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_by_what_became_of_them() {
        let mut tally = Tally { begun: 4, ..Tally::default() };
        for fault in [None, None, Some("recv: reset".to_owned())] {
            tally.add(Outcome { fault, received: 10, ms: 1.0, ..Outcome::default() });
        }
        let body = tally.body("ran", "x");
        assert_eq!((&body["ok"], &body["open"], &body["received"]), (&json!(2), &json!(1), &json!(30)));
        assert_eq!(body["faults"], json!({"recv: reset": 1}));
    }

    #[test]
    fn a_spread_names_rank_and_maximum() {
        let numbers: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(spread(&numbers), json!({"count": 100, "p50": 50.0, "p99": 99.0, "max": 99.0}));
        assert_eq!(spread(&[]), json!({"count": 0, "p50": null, "p99": null, "max": null}));
    }
}
