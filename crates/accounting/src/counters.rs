//! Counters that only grow, by words of closed lists: what `/status` and `/metrics` say of opens, aborts and bytes.
//!
//! Whatever the traffic, each of them is a fixed number of integers: a reason that is not in [`REASONS`] counts as
//! `application` or `other`, a hop beyond the second as the third.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reasons, in the order of their numbers on the wire, then what an application's own code and a code of a newer
/// version count as.
pub const REASONS: [&str; 17] = [
    "conn_lost",
    "drain_deadline",
    "timeout",
    "refused",
    "not_found",
    "offline",
    "unauthorized",
    "dial_failed",
    "forward_dead",
    "peer_reset",
    "overload",
    "shutdown",
    "draining",
    "protocol",
    "internal",
    "application",
    "other",
];

/// The hops as they are counted: the last stands for all further ones.
pub const HOPS: [&str; 4] = ["0", "1", "2", "3+"];

/// The word of [`REASONS`] that a reason counts as.
#[must_use]
pub fn reason(word: &str) -> &'static str {
    REASONS[index(word)]
}

/// The word of [`HOPS`] that a hop counts as.
#[must_use]
pub fn hop(hop: u64) -> &'static str {
    HOPS[hop_index(hop)]
}

fn index(word: &str) -> usize {
    let other = REASONS.len() - 1;
    match REASONS.iter().position(|known| *known == word) {
        Some(index) => index,
        None if word.starts_with("app_") => other - 1,
        None => other,
    }
}

fn hop_index(hop: u64) -> usize {
    usize::try_from(hop).unwrap_or(usize::MAX).min(HOPS.len() - 1)
}

/// Ends by a fault, by reason and hop.
#[derive(Debug, Default)]
pub struct AbortCounter([[AtomicU64; HOPS.len()]; REASONS.len()]);

impl AbortCounter {
    /// Counts one.
    pub fn note(&self, reason: &str, hop: u64) {
        self.0[index(reason)][hop_index(hop)].fetch_add(1, Ordering::Relaxed);
    }

    /// Reason, hop and count of those that there were.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let of_reason = |(reason, hops): (&'static &'static str, &[AtomicU64; HOPS.len()])| {
            let counts = hops.each_ref().map(|count| count.load(Ordering::Relaxed));
            (0..).zip(counts).map(|(hop, count)| (*reason, hop, count))
        };
        REASONS.iter().zip(&self.0).flat_map(of_reason).filter(|(_, _, count)| *count > 0)
    }
}

/// Opens by how they ended.
#[derive(Debug, Default)]
pub struct OpenCounter {
    accepted: AtomicU64,
    refused: [AtomicU64; REASONS.len()],
}

impl OpenCounter {
    /// Counts one that became a session.
    pub fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that did not.
    pub fn refuse(&self, reason: &str) {
        self.refused[index(reason)].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that became a session.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Those that did not: reason and count of each that there was.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        present(&REASONS, &self.refused)
    }
}

/// The words whose counts are not 0.
fn present(
    words: &'static [&'static str],
    counts: &[AtomicU64],
) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
    words.iter().copied().zip(counts).filter(|(_, count)| *count > 0)
}

/// Bytes both ways.
#[derive(Debug, Default)]
pub struct ByteCounter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl ByteCounter {
    /// Counts bytes that went out on a link.
    pub fn send(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that came by a link.
    pub fn receive(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that went out.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes that came.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Links that ended, by how; the words are [`CAUSES`].
#[derive(Debug, Default)]
pub struct EndCounter([AtomicU64; CAUSES.len()]);

/// How a link can end: its peer fell silent, its connection broke, the peer said goodbye, this process did, the peer
/// broke a rule of the wire, no hello came, a newer process of the machine took over.
pub const CAUSES: [&str; 7] =
    ["dead_peer", "carrier_lost", "goodbye", "closed", "protocol", "no_hello", "replaced"];

impl EndCounter {
    /// Counts one. A word that is not in [`CAUSES`] counts for nothing.
    pub fn note(&self, cause: &str) {
        if let Some(index) = CAUSES.iter().position(|known| *known == cause) {
            self.0[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Cause and count of those that there were.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        present(&CAUSES, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_the_lists_count_in_a_place_of_their_own() {
        let (opens, aborts, bytes) = <(OpenCounter, AbortCounter, ByteCounter)>::default();
        for (reason, hop) in
            [("conn_lost", 1), ("conn_lost", 1), ("app_7", 0), ("unknown_99", 3), ("", u64::MAX)]
        {
            aborts.note(reason, hop);
            opens.refuse(reason);
        }
        opens.accept();
        bytes.send(3);
        bytes.receive(4);
        let aborts: Vec<_> = aborts.counts().collect();
        assert_eq!(aborts, [("conn_lost", 1, 2), ("application", 0, 1), ("other", 3, 2)]);
        assert_eq!(opens.accepted(), 1);
        let refused: Vec<_> = opens.refused().collect();
        assert_eq!(refused, [("conn_lost", 2), ("application", 1), ("other", 2)]);
        assert_eq!((bytes.sent(), bytes.received()), (3, 4));
    }

    #[test]
    fn causes_are_counted_by_their_word() {
        let ends = EndCounter::default();
        for cause in ["dead_peer", "goodbye", "goodbye", "nonsense"] {
            ends.note(cause);
        }
        assert_eq!(ends.counts().collect::<Vec<_>>(), [("dead_peer", 1), ("goodbye", 2)]);
    }
}
