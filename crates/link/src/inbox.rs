//! What a link's driver reads into.

use bytes::BytesMut;

/// Bytes read at once where there are many.
const MANY: usize = 64 << 10;
/// Bytes read at once on a link that has little to say: a carrier can only be asked with a buffer in hand.
const FEW: usize = 4 << 10;
/// Buffers kept for later. Those that a slow reader holds are its session's matter, and freed.
const SPARES: usize = 2;

/// The bytes that wait to be understood, and buffers that are used again once everything that was cut out of them is
/// gone: fresh memory costs a page fault for each 4 KiB.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: BytesMut,
    /// What the buffer of `bytes` has room for in all: nothing at first.
    size: usize,
    /// What the next one is to have room for.
    wanted: usize,
    /// Each of [`MANY`].
    spares: Vec<BytesMut>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { bytes: BytesMut::new(), size: 0, wanted: FEW, spares: Vec::new() }
    }

    /// What was read and not taken yet.
    pub(crate) fn bytes(&mut self) -> &mut BytesMut {
        if !self.bytes.is_empty() && self.bytes.len() == self.bytes.capacity() {
            // The carrier may have had more.
            self.wanted = MANY;
        }
        &mut self.bytes
    }

    /// The same, with room for more behind it.
    pub(crate) fn with_room(&mut self) -> &mut BytesMut {
        let room = self.bytes.capacity() - self.bytes.len();
        let fits = room >= self.size / 2 || self.bytes.try_reclaim(self.size - self.bytes.len());
        if self.size < self.wanted || !fits {
            self.next();
        }
        &mut self.bytes
    }

    /// Nothing has come for a while: an idle link keeps a small buffer.
    pub(crate) fn shrink(&mut self) {
        if self.bytes.is_empty() && self.size > FEW {
            *self = Self::new();
        }
    }

    /// Goes on in another buffer, with the beginning of a frame that has not come whole.
    fn next(&mut self) {
        let free = self.spares.iter_mut().position(|spare| spare.try_reclaim(MANY));
        let mut next = match free {
            Some(index) => self.spares.swap_remove(index),
            None => BytesMut::with_capacity(self.wanted),
        };
        next.extend_from_slice(&self.bytes);
        let mut used = std::mem::replace(&mut self.bytes, next);
        if self.size == MANY && self.spares.len() < SPARES {
            used.clear();
            self.spares.push(used);
        }
        self.size = self.wanted;
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes};

    use super::*;

    /// A carrier that has so many bytes more to give, each its place in the stream. Gives how many it gave.
    fn read(inbox: &mut Inbox, from: usize, has: usize) -> usize {
        let buf = inbox.with_room();
        let n = (buf.capacity() - buf.len()).min(has);
        assert!(n > 0, "no room");
        buf.put_slice(&(from..from + n).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        n
    }

    /// Every order of what is read, left for later, kept by a slow reader and let go, by a fixed sequence.
    #[test]
    fn nothing_is_lost_doubled_or_overwritten() {
        let mut inbox = Inbox::new();
        let (mut came, mut taken) = (0, 0);
        let mut kept: Vec<(usize, Bytes)> = Vec::new();
        for step in 0..2_000usize {
            came += read(&mut inbox, came, 1 + step * 7_919 % 100_000);
            let bytes = inbox.bytes();
            // The beginning of a frame stays.
            let take = bytes.len().saturating_sub(step % 3 * 1_000);
            kept.push((taken, bytes.split_to(take).freeze()));
            taken += take;
            if step % 11 > 7 {
                kept.drain(..kept.len() / 2);
            }
            if step % 97 == 0 {
                inbox.shrink();
            }
        }
        assert_eq!(taken + inbox.bytes().len(), came);
        for (at, piece) in kept {
            assert!(piece.iter().enumerate().all(|(i, byte)| *byte == ((at + i) % 251) as u8), "at {at}");
        }
    }

    #[test]
    fn a_busy_link_reads_into_the_same_buffers_and_an_idle_one_has_a_small_one() {
        let mut inbox = Inbox::new();
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..100 {
            read(&mut inbox, 0, usize::MAX >> 1);
            // The reader is one buffer behind.
            let piece = inbox.bytes().split().freeze();
            places.insert(piece.as_ptr() as usize);
            read(&mut inbox, 0, 1);
            inbox.bytes().clear();
        }
        assert_eq!(inbox.size, MANY);
        assert!(places.len() <= 2 + SPARES, "{} buffers", places.len());
        inbox.shrink();
        assert!(inbox.spares.is_empty());
        assert_eq!(inbox.with_room().capacity(), FEW);
    }
}
