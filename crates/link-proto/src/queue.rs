//! Bytes in order: large pieces by reference, small ones gathered.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

use crate::limits::SMALL_PIECE;

/// A gathered piece is closed at this size, so that one reader's chunk stays small enough to hand on.
const GATHER_UP_TO: usize = 16 << 10;
/// What a piece by reference may keep alive: the buffer that the driver reads into.
const READ_BUFFER: usize = 64 << 10;
/// Pieces may keep so many times their length alive before that is held against them: a frame of full size is a
/// quarter of a buffer.
const FREE_FACTOR: usize = 4;

/// What the pieces in all queues of a link keep alive beyond four times their length, with its limit.
#[derive(Debug)]
pub(crate) struct Pins {
    held: u64,
    most: u64,
    copied: u64,
    gathered: u64,
}

impl Pins {
    pub(crate) const fn new(most: u64) -> Self {
        Self { held: 0, most, copied: 0, gathered: 0 }
    }

    /// Bytes held now.
    #[cfg(any(test, feature = "testkit"))]
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    /// Pieces that were copied because of the limit.
    pub(crate) const fn copied(&self) -> u64 {
        self.copied
    }

    /// Pieces that were copied because they were small.
    pub(crate) const fn gathered(&self) -> u64 {
        self.gathered
    }

    const fn weight(len: usize) -> u64 {
        READ_BUFFER.saturating_sub(FREE_FACTOR.saturating_mul(len)) as u64
    }

    fn add(&mut self, len: usize) {
        self.held += Self::weight(len);
    }

    fn remove(&mut self, len: usize) {
        self.held -= Self::weight(len);
    }

    /// Whether a piece of this length is to be copied, and why.
    fn wants_copy(&mut self, len: usize) -> bool {
        if len < SMALL_PIECE {
            self.gathered += 1;
            return true;
        }
        let weight = Self::weight(len);
        let beyond = weight > 0 && self.held + weight > self.most;
        self.copied += u64::from(beyond);
        beyond
    }
}

/// A byte queue that copies no large pieces, as long as [`Pins`] allow it. Empty it owns nothing, and a message that
/// comes and goes alone is one allocation.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    content: Content,
}

#[derive(Debug, Default)]
enum Content {
    #[default]
    Empty,
    /// A piece by itself. One below [`SMALL_PIECE`] is a copy, and [`Pins`] do not count it.
    One(Bytes),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
struct Many {
    pieces: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        match &self.content {
            Content::Empty => 0,
            Content::One(piece) => piece.len(),
            Content::Many(many) => many.len,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a piece, by reference if it is large.
    pub(crate) fn push(&mut self, piece: Bytes, pins: &mut Pins) {
        if pins.wants_copy(piece.len()) {
            self.extend(&piece, pins);
            return;
        }
        pins.add(piece.len());
        if matches!(self.content, Content::Empty) {
            self.content = Content::One(piece);
            return;
        }
        let many = self.many();
        many.close_tail(pins);
        many.len += piece.len();
        many.pieces.push_back(piece);
    }

    /// Appends a copy.
    pub(crate) fn extend(&mut self, bytes: &[u8], pins: &mut Pins) {
        if bytes.is_empty() {
            return;
        }
        // Between the two sizes more may be gathered behind it.
        let alone = bytes.len() < SMALL_PIECE || bytes.len() >= GATHER_UP_TO;
        if alone && matches!(self.content, Content::Empty) {
            if bytes.len() >= SMALL_PIECE {
                pins.add(bytes.len());
            }
            self.content = Content::One(Bytes::copy_from_slice(bytes));
            return;
        }
        let many = self.many();
        many.len += bytes.len();
        many.tail.extend_from_slice(bytes);
        if many.tail.len() >= GATHER_UP_TO {
            many.close_tail(pins);
        }
    }

    /// Takes the next piece, at most `max` bytes of it; `None` if the queue is empty or `max` is 0.
    pub(crate) fn pop(&mut self, max: usize, pins: &mut Pins) -> Option<Bytes> {
        if max == 0 {
            return None;
        }
        if let Content::One(piece) = &mut self.content {
            let counted = piece.len() >= SMALL_PIECE;
            if piece.len() <= max {
                if counted {
                    pins.remove(piece.len());
                }
                let piece = std::mem::take(piece);
                self.content = Content::Empty;
                return Some(piece);
            }
            if !counted {
                return Some(piece.split_to(max));
            }
        }
        if matches!(self.content, Content::Empty) {
            return None;
        }
        let many = self.many();
        let piece = many.pop(max, pins);
        if many.len == 0 {
            // An idle session keeps no buffer.
            self.content = Content::Empty;
        }
        piece
    }

    /// Copies what is there into `out`, as much as fits; returns the count.
    pub(crate) fn copy_into(&mut self, mut out: &mut [u8], pins: &mut Pins) -> usize {
        let mut copied = 0;
        while !out.is_empty() {
            let Some(mut piece) = self.pop(out.len(), pins) else { break };
            let n = piece.len();
            piece.copy_to_slice(&mut out[..n]);
            out = &mut out[n..];
            copied += n;
        }
        copied
    }

    pub(crate) fn clear(&mut self, pins: &mut Pins) {
        match std::mem::take(&mut self.content) {
            Content::One(piece) if piece.len() >= SMALL_PIECE => pins.remove(piece.len()),
            Content::Empty | Content::One(_) => {}
            Content::Many(many) => many.pieces.iter().for_each(|piece| pins.remove(piece.len())),
        }
    }

    /// Room for more than one piece.
    fn many(&mut self) -> &mut Many {
        let many = match std::mem::take(&mut self.content) {
            Content::Many(many) => many,
            Content::Empty => Box::default(),
            Content::One(piece) if piece.len() < SMALL_PIECE => {
                Box::new(Many { len: piece.len(), pieces: VecDeque::new(), tail: BytesMut::from(piece) })
            }
            Content::One(piece) => {
                Box::new(Many { len: piece.len(), pieces: VecDeque::from([piece]), tail: BytesMut::new() })
            }
        };
        self.content = Content::Many(many);
        let Content::Many(many) = &mut self.content else { unreachable!("set above") };
        many
    }
}

impl Many {
    fn pop(&mut self, max: usize, pins: &mut Pins) -> Option<Bytes> {
        let piece = match self.pieces.front_mut() {
            Some(front) if front.len() > max => {
                pins.remove(front.len());
                let piece = front.split_to(max);
                // The rest keeps as much alive as the whole did.
                pins.add(front.len());
                piece
            }
            Some(_) => {
                let piece = self.pieces.pop_front()?;
                pins.remove(piece.len());
                piece
            }
            None if self.tail.is_empty() => return None,
            None => {
                let take = self.tail.len().min(max);
                self.tail.split_to(take).freeze()
            }
        };
        self.len -= piece.len();
        Some(piece)
    }

    fn close_tail(&mut self, pins: &mut Pins) {
        if !self.tail.is_empty() {
            pins.add(self.tail.len());
            self.pieces.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keeps_order_and_count(pieces in prop::collection::vec((0usize..9000, any::<bool>()), 0..40), max in 1usize..20_000, most in 0u64..2_000_000) {
            let mut queue = ByteQueue::default();
            let mut pins = Pins::new(most);
            let mut want = Vec::new();
            for (index, (len, copy)) in pieces.into_iter().enumerate() {
                let piece: Vec<u8> = (0..len).map(|i| (i * 7 + index) as u8).collect();
                want.extend_from_slice(&piece);
                if copy { queue.extend(&piece, &mut pins) } else { queue.push(piece.into(), &mut pins) }
            }
            prop_assert_eq!(queue.len(), want.len());
            let mut got = Vec::new();
            while let Some(piece) = queue.pop(max, &mut pins) {
                prop_assert!(!piece.is_empty() && piece.len() <= max);
                got.extend_from_slice(&piece);
                prop_assert_eq!(queue.len(), want.len() - got.len());
            }
            prop_assert_eq!(got, want);
            prop_assert_eq!(pins.held(), 0);
        }
    }

    #[test]
    fn tiny_pieces_cost_about_their_size() {
        let mut queue = ByteQueue::default();
        let mut pins = Pins::new(0);
        for _ in 0..65_536 {
            queue.push(Bytes::from_static(b"x"), &mut pins);
        }
        let pieces = queue.many().pieces.len();
        assert!(pieces <= 4, "{pieces} pieces");
        assert_eq!((pins.gathered(), pins.copied(), pins.held()), (65_536, 0, 0));
    }

    #[test]
    fn a_queue_that_was_emptied_owns_nothing() {
        assert!(size_of::<ByteQueue>() <= 40, "{} bytes", size_of::<ByteQueue>());
        let mut queue = ByteQueue::default();
        let mut pins = Pins::new(1 << 20);
        for len in [1, SMALL_PIECE, GATHER_UP_TO] {
            for _ in 0..3 {
                queue.extend(&vec![7; len], &mut pins);
                queue.push(vec![7; len].into(), &mut pins);
            }
            while queue.pop(usize::MAX, &mut pins).is_some() {}
            assert!(matches!(queue.content, Content::Empty), "after pieces of {len}");
        }
    }

    /// Slices of a quarter of a page's worth of buffers each: by reference until the limit, then by copy.
    #[test]
    fn pieces_that_keep_more_alive_than_allowed_are_copied() {
        let mut queue = ByteQueue::default();
        let mut pins = Pins::new(1 << 20);
        for _ in 0..100 {
            let buffer = Bytes::from(vec![7; READ_BUFFER]);
            queue.push(buffer.slice(..SMALL_PIECE), &mut pins);
            assert!(pins.held() <= 1 << 20);
        }
        // Each keeps 64 KiB for 4 KiB: 48 KiB more than four times its length.
        assert_eq!(pins.copied(), 100 - (1 << 20) / (48 << 10));
        assert_eq!(queue.len(), 100 * SMALL_PIECE);
        let whole = Bytes::from(vec![7; GATHER_UP_TO]);
        queue.push(whole.clone(), &mut pins);
        let last = queue.many().pieces.back().map(|piece| piece.as_ptr());
        assert_eq!(last, Some(whole.as_ptr()), "no copy");
        // What is left of a piece keeps as much alive as the whole did.
        let before = pins.held();
        queue.pop(1, &mut pins);
        assert_eq!(pins.held(), before + FREE_FACTOR as u64);
        queue.clear(&mut pins);
        assert_eq!((pins.held(), queue.len()), (0, 0));
    }
}
