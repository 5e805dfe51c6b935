//! Counters that only grow: what `/status` and `/metrics` say of opens, aborts, links and bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use hopline_link_proto::{Abort, Code, EndCause, Reason};

/// The hops as they are counted: the last stands for all further ones.
pub const HOPS: [&str; 4] = ["0", "1", "2", "3+"];

const REASONS: usize = Reason::ALL.len();
const CAUSES: usize = EndCause::ALL.len();

/// The word of [`HOPS`] that a hop counts as.
#[must_use]
pub fn hop(hop: u64) -> &'static str {
    HOPS[hop_index(hop)]
}

fn hop_index(hop: u64) -> usize {
    usize::try_from(hop).unwrap_or(usize::MAX).min(HOPS.len() - 1)
}

/// Those of a list whose counts are not 0.
fn present<T: Copy + 'static>(list: &'static [T], counts: &[AtomicU64]) -> impl Iterator<Item = (T, u64)> {
    let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
    list.iter().copied().zip(counts).filter(|(_, count)| *count > 0)
}

/// Ends by a fault, by reason and hop.
#[derive(Debug, Default)]
pub struct AbortCounter([[AtomicU64; HOPS.len()]; REASONS]);

impl AbortCounter {
    /// Counts one.
    pub fn note(&self, abort: &Abort) {
        let hops = &self.0[abort.code.reason() as usize];
        hops[hop_index(abort.hops.into())].fetch_add(1, Ordering::Relaxed);
    }

    /// Reason, hop and count of those that there were.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64, u64)> {
        let of_reason = |(reason, hops): (&Reason, &[AtomicU64; HOPS.len()])| {
            let (reason, counts) = (*reason, hops.each_ref().map(|count| count.load(Ordering::Relaxed)));
            (0..).zip(counts).map(move |(hop, count)| (reason, hop, count))
        };
        Reason::ALL.iter().zip(&self.0).flat_map(of_reason).filter(|(_, _, count)| *count > 0)
    }
}

/// Opens by how they ended.
#[derive(Debug, Default)]
pub struct OpenCounter {
    accepted: AtomicU64,
    refused: [AtomicU64; REASONS],
}

impl OpenCounter {
    /// Counts one that became a session.
    pub fn accept(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that did not.
    pub fn refuse(&self, code: Code) {
        self.refused[code.reason() as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that became a session.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Those that did not: reason and count of each that there was.
    pub fn refused(&self) -> impl Iterator<Item = (Reason, u64)> {
        present(Reason::ALL, &self.refused)
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

/// Links that ended, by how.
#[derive(Debug, Default)]
pub struct EndCounter {
    ended: [AtomicU64; CAUSES],
    replaced: AtomicU64,
}

impl EndCounter {
    /// Counts one.
    pub fn note(&self, cause: EndCause) {
        self.ended[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one that ended because a newer process of the machine took over.
    pub fn note_replaced(&self) {
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// Word and count of those that there were: that of the [`EndCause`], or `replaced`.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let ended = present(EndCause::ALL, &self.ended).map(|(cause, count)| (cause.name(), count));
        ended.chain(present(&["replaced"], std::slice::from_ref(&self.replaced)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_ends_is_counted_in_a_place_of_its_own() {
        let (opens, aborts, ends) = <(OpenCounter, AbortCounter, EndCounter)>::default();
        let codes = Code::ALL.iter().copied().chain([Code::app(7).unwrap(), Code::from_number(99).unwrap()]);
        for code in codes {
            for hops in [0, 1, 2, 3, u32::MAX] {
                aborts.note(&Abort { hops, ..Abort::new(code, "") });
            }
            opens.refuse(code);
        }
        opens.accept();
        assert_eq!((opens.accepted(), opens.refused().count()), (1, REASONS));
        let counted: Vec<_> = aborts.counts().collect();
        assert_eq!(counted.len(), REASONS * HOPS.len());
        assert_eq!(
            counted[..4].iter().map(|(_, hop, n)| (*hop, *n)).collect::<Vec<_>>(),
            [(0, 1), (1, 1), (2, 1), (3, 2)]
        );
        for cause in EndCause::ALL {
            ends.note(*cause);
        }
        ends.note_replaced();
        assert_eq!(ends.counts().count(), CAUSES + 1);
    }
}
