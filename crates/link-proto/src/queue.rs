//! Bytes in order: large pieces by reference, small ones gathered.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// Pieces below this many bytes are copied: a slice of a read buffer keeps all of that buffer alive, and a
/// queue of one-byte slices would cost sixty times its content.
const GATHER_BELOW: usize = 4 << 10;
/// A gathered piece is closed at this size, so that one reader's chunk stays small enough to hand on.
const GATHER_UP_TO: usize = 16 << 10;

/// A byte queue that never copies large pieces.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    pieces: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a piece, by reference if it is large.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if piece.len() < GATHER_BELOW {
            self.extend(&piece);
            return;
        }
        self.close_tail();
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// Appends a copy.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        self.tail.extend_from_slice(bytes);
        if self.tail.len() >= GATHER_UP_TO {
            self.close_tail();
        }
    }

    /// Takes the next piece, at most `max` bytes of it; `None` if the queue is empty or `max` is 0.
    pub(crate) fn pop(&mut self, max: usize) -> Option<Bytes> {
        if max == 0 {
            return None;
        }
        let piece = match self.pieces.front_mut() {
            Some(front) if front.len() > max => front.split_to(max),
            Some(_) => self.pieces.pop_front()?,
            None if self.tail.is_empty() => return None,
            None => {
                let take = self.tail.len().min(max);
                let piece = self.tail.split_to(take).freeze();
                if self.tail.is_empty() {
                    // An idle session keeps no buffer.
                    self.tail = BytesMut::new();
                }
                piece
            }
        };
        self.len -= piece.len();
        Some(piece)
    }

    /// Copies what is there into `out`, as much as fits; returns the count.
    pub(crate) fn copy_into(&mut self, mut out: &mut [u8]) -> usize {
        let mut copied = 0;
        while !out.is_empty() {
            let Some(mut piece) = self.pop(out.len()) else { break };
            let n = piece.len();
            piece.copy_to_slice(&mut out[..n]);
            out = &mut out[n..];
            copied += n;
        }
        copied
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
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
        fn keeps_order_and_count(pieces in prop::collection::vec((0usize..9000, any::<bool>()), 0..40), max in 1usize..20_000) {
            let mut queue = ByteQueue::default();
            let mut want = Vec::new();
            for (index, (len, copy)) in pieces.into_iter().enumerate() {
                let piece: Vec<u8> = (0..len).map(|i| (i * 7 + index) as u8).collect();
                want.extend_from_slice(&piece);
                if copy { queue.extend(&piece) } else { queue.push(piece.into()) }
            }
            prop_assert_eq!(queue.len(), want.len());
            let mut got = Vec::new();
            while let Some(piece) = queue.pop(max) {
                prop_assert!(!piece.is_empty() && piece.len() <= max);
                got.extend_from_slice(&piece);
                prop_assert_eq!(queue.len(), want.len() - got.len());
            }
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn tiny_pieces_cost_about_their_size() {
        let mut queue = ByteQueue::default();
        for _ in 0..65_536 {
            queue.push(Bytes::from_static(b"x"));
        }
        assert!(queue.pieces.len() <= 4, "{} pieces", queue.pieces.len());
    }
}
