//! Counters that only grow, by words of closed lists: what `/status` and `/metrics` say of opens, aborts and bytes.
//!
//! Whatever the traffic, each of them is a fixed number of integers: a reason that is not in [`REASONS`] counts as
//! `application` or `other`, a hop beyond the second as the third.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::status::{AbortCount, Bytes, Opens};

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

    /// Those that there were.
    #[must_use]
    pub fn counts(&self) -> Vec<AbortCount> {
        let of_reason = |(reason, hops): (&&'static str, &[AtomicU64; HOPS.len()])| {
            let counts = hops.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
            (0..).zip(counts).filter(|(_, count)| *count > 0).map(|(hop, count)| AbortCount {
                reason: (*reason).to_owned(),
                hop,
                count,
            })
        };
        REASONS.iter().zip(&self.0).flat_map(of_reason).collect()
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

    /// Those that there were.
    #[must_use]
    pub fn counts(&self) -> Opens {
        let refused =
            REASONS.iter().zip(&self.refused).map(|(reason, n)| (*reason, n.load(Ordering::Relaxed)));
        Opens {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: refused.filter(|(_, n)| *n > 0).map(|(reason, n)| (reason.to_owned(), n)).collect(),
        }
    }
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

    /// Those that there were.
    #[must_use]
    pub fn counts(&self) -> Bytes {
        Bytes { sent: self.sent.load(Ordering::Relaxed), received: self.received.load(Ordering::Relaxed) }
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

    /// Those that there were, by cause.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let counts = CAUSES.iter().zip(&self.0).map(|(cause, n)| (*cause, n.load(Ordering::Relaxed)));
        counts.filter(|(_, n)| *n > 0).map(|(cause, n)| (cause.to_owned(), n)).collect()
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
        let aborts = aborts.counts();
        let aborts: Vec<_> =
            aborts.iter().map(|abort| (abort.reason.as_str(), abort.hop, abort.count)).collect();
        assert_eq!(aborts, [("conn_lost", 1, 2), ("application", 0, 1), ("other", 3, 2)]);
        let expected = [("application", 1), ("conn_lost", 2), ("other", 2)];
        let refused = expected.map(|(reason, n)| (reason.to_owned(), n)).into();
        assert_eq!(opens.counts(), Opens { accepted: 1, refused });
        assert_eq!(bytes.counts(), Bytes { sent: 3, received: 4 });
    }

    #[test]
    fn causes_are_counted_by_their_word() {
        let ends = EndCounter::default();
        for cause in ["dead_peer", "goodbye", "goodbye", "nonsense"] {
            ends.note(cause);
        }
        assert_eq!(
            ends.counts().into_iter().collect::<Vec<_>>(),
            [("dead_peer".to_owned(), 1), ("goodbye".to_owned(), 2)]
        );
    }
}
