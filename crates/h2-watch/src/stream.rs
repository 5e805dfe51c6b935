//! One stream, from the request's headers to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::flow::Window;

/// Where a response stands among its messages: five bytes of framing, then as many as they say.
///
/// It is followed for one purpose: inside a message, grpc-go reads the trailers of a cut as INTERNAL, where a plain
/// reset is UNAVAILABLE.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Bytes of the framing that have passed, below five.
    framing: u8,
    /// Bytes of the message that are still to come; before the framing is complete, the length read so far.
    left: u32,
}

const FRAMING: u8 = 5;

impl Position {
    pub(crate) fn is_between(self) -> bool {
        self.framing == 0
    }

    pub(crate) fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.framing < FRAMING {
                let byte = bytes[0];
                bytes = &bytes[1..];
                // The first is the flag for compression, the others the length.
                if self.framing > 0 {
                    self.left = self.left << 8 | u32::from(byte);
                }
                self.framing += 1;
            } else {
                let count = bytes.len().min(self.left as usize);
                bytes = &bytes[count..];
                self.left -= count as u32;
            }
            if self.framing == FRAMING && self.left == 0 {
                self.framing = 0;
            }
        }
    }
}

/// What is known of a stream that neither side has ended.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) opened: Instant,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grpc: bool,
    /// A health check or reflection: nothing that the application does.
    pub(crate) tool: bool,
    pub(crate) authority_is_path: bool,
    /// The status of the response's headers, once they came.
    pub(crate) http_status: Option<u16>,
    pub(crate) position: Position,
    pub(crate) window: Window,
}

/// The streams that are followed, by number: the oldest is the lowest.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: BTreeMap<u32, Stream>,
    limit: usize,
}

impl Streams {
    pub(crate) fn new(limit: usize) -> Self {
        Self { open: BTreeMap::new(), limit: limit.max(1) }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// The oldest, when there is no room for one more: it is forgotten.
    pub(crate) fn make_room(&mut self) -> Option<(u32, Stream)> {
        if self.open.len() < self.limit { None } else { self.open.pop_first() }
    }

    pub(crate) fn insert(&mut self, id: u32, stream: Stream) {
        self.open.insert(id, stream);
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        self.open.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Stream> {
        self.open.remove(&id)
    }

    pub(crate) fn pop(&mut self) -> Option<(u32, Stream)> {
        self.open.pop_first()
    }

    /// Whether one is open that the application itself has begun.
    pub(crate) fn any_of_application(&self) -> bool {
        self.open.values().any(|stream| !stream.tool)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Stream)> {
        self.open.iter().map(|(id, stream)| (*id, stream))
    }

    /// An estimate: entries of the map are in nodes that may be half empty.
    pub(crate) fn held_bytes(&self) -> usize {
        self.open.len() * (size_of::<Stream>() + 16) * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::Position;

    #[test]
    fn between_messages_and_inside_whatever_the_cuts() {
        // An empty message, one of three bytes, the framing and one byte of another.
        let bytes = [0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 7, 7, 7, 0, 0, 0, 1, 0, 9];
        let expected = [5, 13];
        for cut in 1..bytes.len() {
            let mut position = Position::default();
            let mut passed = 0;
            for piece in bytes.chunks(cut) {
                position.pass(piece);
                passed += piece.len();
                assert_eq!(position.is_between(), expected.contains(&passed), "{passed} in pieces of {cut}");
            }
        }
    }
}
