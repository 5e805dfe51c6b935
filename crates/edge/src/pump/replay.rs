//! The replay buffer: the first bytes that a connection wrote to its session, kept by reference.
//!
//! When a path is lost, everything in flight on it is lost too. Within its *replay window* a session outlives that: the
//! sidecar opens it again over another path, under the same id and at the same agent process (a *resume attempt*), and
//! replays its buffer; the agent knows the id, skips the bytes that it already has, and replays what the sidecar lacks.
//! So an open survives the death of a relay, and no request runs twice. The window ends [`REPLAY_WINDOW`] after the
//! answer, or when a direction has carried more than [`MAX_REPLAY`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};

/// How long after its answer a session can be resumed. On a healthy path the answer arrives sooner, and so does the first
/// response of most servers.
pub(crate) const REPLAY_WINDOW: Duration = Duration::from_secs(1);
/// Bytes in the replay buffer of one direction of one session.
pub(crate) const MAX_REPLAY: usize = 64 << 10;
/// Bytes in the replay buffers of all sessions of a role. Before its answer, a session reads no more than fits; after it, a
/// session that does not fit gives up its buffer.
pub(crate) const REPLAY_MEMORY: usize = 32 << 20;

/// How a client of HTTP/2 begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The memory that all [`ReplayBuffer`]s of a role share.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReplayMemory(Arc<AtomicUsize>);

impl ReplayMemory {
    /// Bytes that are buffered or reserved.
    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes as much of what is left as is wanted.
    fn take(&self, wanted: usize) -> usize {
        let taken = |used: usize| REPLAY_MEMORY.saturating_sub(used).min(wanted);
        let add = |used: usize| Some(used + taken(used));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_or(0, taken)
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes in the order in which the connection wrote them, by reference.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    pieces: Vec<Bytes>,
    len: usize,
    /// Bytes of the memory that are held for what is read next.
    reserved: usize,
    memory: ReplayMemory,
}

impl ReplayBuffer {
    pub(crate) fn new(memory: &ReplayMemory) -> Self {
        Self { pieces: Vec::new(), len: 0, reserved: 0, memory: memory.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// No server acts on these bytes, so they may go to any number of servers: there are none, or they are how an HTTP/2 client
    /// begins, its preface and connection frames, without a request. A gRPC channel sends no more before it hears from the
    /// server.
    pub(crate) fn is_safe_to_replay(&self) -> bool {
        let mut bytes = self.pieces.iter().flatten().copied();
        let mut begun = false;
        for expected in PREFACE {
            match bytes.next() {
                Some(byte) if byte == *expected => begun = true,
                Some(_) => return false,
                // A preface that is cut short is none yet, and may be the start of something else.
                None => return !begun,
            }
        }
        loop {
            let mut header = [0; 9];
            for (index, place) in header.iter_mut().enumerate() {
                match bytes.next() {
                    Some(byte) => *place = byte,
                    None => return index == 0 || (index > 3 && is_of_connection(header[3])),
                }
            }
            let [a, b, c, kind, ..] = header;
            if !is_of_connection(kind) {
                return false;
            }
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > 0 && bytes.nth(length - 1).is_none() {
                return true;
            }
        }
    }

    /// Bytes that still fit, as far as this session goes and the others leave some.
    pub(crate) fn room(&self) -> usize {
        MAX_REPLAY
            .saturating_sub(self.len)
            .min(self.reserved + REPLAY_MEMORY.saturating_sub(self.memory.used()))
    }

    /// Reserves room for the next bytes, at most `wanted`: other sessions can no longer take it.
    pub(crate) fn reserve(&mut self, wanted: usize) -> usize {
        let wanted = wanted.min(MAX_REPLAY.saturating_sub(self.len));
        self.reserved += self.memory.take(wanted.saturating_sub(self.reserved));
        self.reserved.min(wanted)
    }

    /// Nothing was read into what was reserved.
    pub(crate) fn release(&mut self) {
        self.memory.give_back(std::mem::take(&mut self.reserved));
    }

    /// Appends these bytes and releases the rest of the reservation. False if they do not fit: the buffer is then incomplete.
    pub(crate) fn push(&mut self, bytes: &Bytes) -> bool {
        if self.reserve(bytes.len()) < bytes.len() {
            return false;
        }
        self.reserved -= bytes.len();
        self.release();
        self.len += bytes.len();
        self.pieces.push(bytes.clone());
        true
    }

    /// Everything but the first `from` bytes; `None` if there are not so many.
    pub(crate) fn tail(&self, from: u64) -> Option<Vec<Bytes>> {
        let mut skip = usize::try_from(from).ok().filter(|from| *from <= self.len)?;
        let mut pieces = self.pieces.clone();
        for piece in &mut pieces {
            let known = skip.min(piece.len());
            piece.advance(known);
            skip -= known;
        }
        pieces.retain(|piece| !piece.is_empty());
        Some(pieces)
    }
}

/// Frames that carry nothing of a stream's: PRIORITY, SETTINGS, PING, WINDOW_UPDATE.
fn is_of_connection(kind: u8) -> bool {
    matches!(kind, 2 | 4 | 6 | 8)
}

impl Drop for ReplayBuffer {
    fn drop(&mut self) {
        self.memory.give_back(self.len + self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(buffer: &ReplayBuffer, from: u64) -> Option<String> {
        let pieces = buffer.tail(from)?;
        Some(pieces.iter().map(|piece| std::str::from_utf8(piece).unwrap()).collect())
    }

    #[test]
    fn a_buffer_is_replayed_from_any_offset() {
        let mut buffer = ReplayBuffer::new(&ReplayMemory::default());
        assert_eq!(text(&buffer, 0).as_deref(), Some(""));
        for piece in ["he", "llo", " you"] {
            assert!(buffer.push(&Bytes::from_static(piece.as_bytes())));
        }
        for from in 0..=9 {
            assert_eq!(text(&buffer, from as u64).as_deref(), Some(&"hello you"[from..]), "from {from}");
        }
        assert_eq!(text(&buffer, 10), None);
        assert_eq!(text(&buffer, u64::MAX), None);
    }

    #[test]
    fn the_beginning_of_http2_is_safe_to_replay_up_to_its_first_request() {
        fn frame(kind: u8, length: u8) -> Vec<u8> {
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 0];
            frame.extend(std::iter::repeat_n(7, length.into()));
            frame
        }
        // In two pieces, cut wherever it can be.
        fn safe(bytes: &[u8]) -> bool {
            let verdicts = (0..=bytes.len()).map(|cut| {
                let mut buffer = ReplayBuffer::new(&ReplayMemory::default());
                for piece in [&bytes[..cut], &bytes[cut..]] {
                    assert!(buffer.push(&Bytes::copy_from_slice(piece)));
                }
                buffer.is_safe_to_replay()
            });
            let verdicts: Vec<bool> = verdicts.collect();
            assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:?}");
            verdicts[0]
        }
        assert!(safe(b""));
        assert!(!safe(b"P") && !safe(b"GET / HTTP/1.1\r\n") && !safe(&PREFACE[..23]));
        let start = [PREFACE, &frame(4, 18), &frame(8, 4), &frame(6, 8), &frame(2, 5), &frame(4, 0)].concat();
        assert!(safe(PREFACE) && safe(&start));
        for request in [frame(1, 30), frame(0, 0), frame(9, 1), frame(200, 3)] {
            let whole = [&start[..], &request].concat();
            for len in 0..=whole.len() {
                let known = len >= start.len() + 4 || (start.len() + 1..start.len() + 4).contains(&len);
                let expected = len == 0 || (len >= PREFACE.len() && !known);
                if len < PREFACE.len() || len >= start.len() {
                    assert_eq!(safe(&whole[..len]), expected, "{len} of {}", whole.len());
                }
            }
        }
        // A frame whose kind is known, and known to be safe, may be cut.
        for len in start.len() + 4..start.len() + 17 {
            assert!(safe(&[&start[..], &frame(6, 8)].concat()[..len]), "{len}");
        }
    }

    #[test]
    fn one_session_keeps_so_much_and_all_together_so_much() {
        let memory = ReplayMemory::default();
        let piece = Bytes::from(vec![0; MAX_REPLAY]);
        let mut many = Vec::new();
        for _ in 0..REPLAY_MEMORY / MAX_REPLAY {
            let mut buffer = ReplayBuffer::new(&memory);
            assert!(buffer.push(&piece));
            assert_eq!(buffer.room(), 0);
            assert!(!buffer.push(&Bytes::from_static(b"x")));
            many.push(buffer);
        }
        assert!(!ReplayBuffer::new(&memory).push(&piece), "all memory is taken");
        many.pop();
        assert!(ReplayBuffer::new(&memory).push(&piece));
        drop(many);
        assert_eq!(memory.used(), 0);
    }

    /// What was promised to one session is not given to another, and what is not used of it is.
    #[test]
    fn what_is_reserved_is_kept() {
        let memory = ReplayMemory::default();
        let mut rest: Vec<ReplayBuffer> =
            (1..REPLAY_MEMORY / MAX_REPLAY).map(|_| ReplayBuffer::new(&memory)).collect();
        for buffer in &mut rest {
            assert!(buffer.push(&Bytes::from(vec![0; MAX_REPLAY])));
        }
        let (mut first, mut second) = (ReplayBuffer::new(&memory), ReplayBuffer::new(&memory));
        assert_eq!(first.reserve(MAX_REPLAY - 10), MAX_REPLAY - 10);
        assert_eq!(second.reserve(MAX_REPLAY), 10);
        assert_eq!((first.room(), second.room()), (MAX_REPLAY - 10, 10));
        assert_eq!(first.reserve(MAX_REPLAY), MAX_REPLAY - 10, "no more is left");
        assert!(!second.push(&Bytes::from_static(b"eleven byte")));
        assert!(second.push(&Bytes::from_static(b"ten bytes.")));
        assert!(first.push(&Bytes::from_static(b"few")));
        assert_eq!(memory.used(), REPLAY_MEMORY - MAX_REPLAY + 13, "the rest was let go of");
        first.reserve(5);
        first.release();
        assert_eq!(memory.used(), REPLAY_MEMORY - MAX_REPLAY + 13);
        drop((first, second, rest));
        assert_eq!(memory.used(), 0);
    }
}
