//! What a connection has said to a young session, kept so that it can be said again.
//!
//! A session whose path is lost is gone with all that was on its way. While it is young, both edges can start it anew
//! on another path: the sidecar opens it again under its id, at the same agent process, and says everything once more;
//! the agent, which knows the id, skips what it has had and says again what the sidecar has not. So an open that meets
//! the death of a relay does not fail, and nothing runs twice. Young is a session until [`YOUNG`] after its answer,
//! and while each direction has carried no more than [`MOST`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};

/// How long after its answer a session may be started anew. The answer of a healthy path is there in less, and so is the
/// first answer of most servers.
pub(crate) const YOUNG: Duration = Duration::from_secs(1);
/// Bytes that are kept of one direction of one session.
pub(crate) const MOST: usize = 64 << 10;
/// Bytes that are kept of all sessions of a process together. Before its answer no more of a session is read than fits;
/// after it, one that does not fit is not kept any more.
pub(crate) const MEMORY: usize = 32 << 20;

/// How a client of HTTP/2 begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The memory that all [`Kept`] of a process share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

impl Memory {
    /// Bytes that are kept now, or may be in a moment.
    pub(crate) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes as much of what is left as is wanted.
    fn take(&self, wanted: usize) -> usize {
        let taken = |used: usize| MEMORY.saturating_sub(used).min(wanted);
        let add = |used: usize| Some(used + taken(used));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_or(0, taken)
    }

    fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes in the order in which they were said, by reference.
#[derive(Debug)]
pub(crate) struct Kept {
    pieces: Vec<Bytes>,
    len: usize,
    /// Bytes of the memory that are held for what is read next.
    reserved: usize,
    memory: Memory,
}

impl Kept {
    pub(crate) fn new(memory: &Memory) -> Self {
        Self { pieces: Vec::new(), len: 0, reserved: 0, memory: memory.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Nothing in it asks a server for anything: it may be said to any number of them. True of nothing at all, and of how
    /// an HTTP/2 client begins: its preface and frames of the connection, as long as no request has followed. A gRPC
    /// channel says no more before it has heard from the server.
    pub(crate) fn is_harmless(&self) -> bool {
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
        MOST.saturating_sub(self.len).min(self.reserved + MEMORY.saturating_sub(self.memory.used()))
    }

    /// Makes sure that so many of the next bytes can be kept, at most those that are wanted: the other sessions can't take
    /// their room any more.
    pub(crate) fn reserve(&mut self, wanted: usize) -> usize {
        let wanted = wanted.min(MOST.saturating_sub(self.len));
        self.reserved += self.memory.take(wanted.saturating_sub(self.reserved));
        self.reserved.min(wanted)
    }

    /// Nothing was read into what was reserved.
    pub(crate) fn release(&mut self) {
        self.memory.give_back(std::mem::take(&mut self.reserved));
    }

    /// Keeps these too, and lets go of what else was reserved. False if that is too much: then what is kept is not all any
    /// more.
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
    pub(crate) fn since(&self, from: u64) -> Option<Vec<Bytes>> {
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

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.give_back(self.len + self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(kept: &Kept, from: u64) -> Option<String> {
        let pieces = kept.since(from)?;
        Some(pieces.iter().map(|piece| std::str::from_utf8(piece).unwrap()).collect())
    }

    #[test]
    fn what_was_said_is_said_again_from_any_byte_on() {
        let mut kept = Kept::new(&Memory::default());
        assert_eq!(text(&kept, 0).as_deref(), Some(""));
        for piece in ["he", "llo", " you"] {
            assert!(kept.push(&Bytes::from_static(piece.as_bytes())));
        }
        for from in 0..=9 {
            assert_eq!(text(&kept, from as u64).as_deref(), Some(&"hello you"[from..]), "from {from}");
        }
        assert_eq!(text(&kept, 10), None);
        assert_eq!(text(&kept, u64::MAX), None);
    }

    #[test]
    fn the_beginning_of_http2_is_harmless_up_to_its_first_request() {
        fn frame(kind: u8, length: u8) -> Vec<u8> {
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 0];
            frame.extend(std::iter::repeat_n(7, length.into()));
            frame
        }
        // In two pieces, cut wherever it can be.
        fn harmless(bytes: &[u8]) -> bool {
            let verdicts = (0..=bytes.len()).map(|cut| {
                let mut kept = Kept::new(&Memory::default());
                for piece in [&bytes[..cut], &bytes[cut..]] {
                    assert!(kept.push(&Bytes::copy_from_slice(piece)));
                }
                kept.is_harmless()
            });
            let verdicts: Vec<bool> = verdicts.collect();
            assert!(verdicts.iter().all(|verdict| *verdict == verdicts[0]), "{verdicts:?}");
            verdicts[0]
        }
        assert!(harmless(b""));
        assert!(!harmless(b"P") && !harmless(b"GET / HTTP/1.1\r\n") && !harmless(&PREFACE[..23]));
        let start = [PREFACE, &frame(4, 18), &frame(8, 4), &frame(6, 8), &frame(2, 5), &frame(4, 0)].concat();
        assert!(harmless(PREFACE) && harmless(&start));
        for request in [frame(1, 30), frame(0, 0), frame(9, 1), frame(200, 3)] {
            let whole = [&start[..], &request].concat();
            for len in 0..=whole.len() {
                let known = len >= start.len() + 4 || (start.len() + 1..start.len() + 4).contains(&len);
                let expected = len == 0 || (len >= PREFACE.len() && !known);
                if len < PREFACE.len() || len >= start.len() {
                    assert_eq!(harmless(&whole[..len]), expected, "{len} of {}", whole.len());
                }
            }
        }
        // A frame whose kind is known, and known to be harmless, may be cut.
        for len in start.len() + 4..start.len() + 17 {
            assert!(harmless(&[&start[..], &frame(6, 8)].concat()[..len]), "{len}");
        }
    }

    #[test]
    fn one_session_keeps_so_much_and_all_together_so_much() {
        let memory = Memory::default();
        let piece = Bytes::from(vec![0; MOST]);
        let mut many = Vec::new();
        for _ in 0..MEMORY / MOST {
            let mut kept = Kept::new(&memory);
            assert!(kept.push(&piece));
            assert_eq!(kept.room(), 0);
            assert!(!kept.push(&Bytes::from_static(b"x")));
            many.push(kept);
        }
        assert!(!Kept::new(&memory).push(&piece), "all memory is taken");
        many.pop();
        assert!(Kept::new(&memory).push(&piece));
        drop(many);
        assert_eq!(memory.used(), 0);
    }

    /// What was promised to one session is not given to another, and what is not used of it is.
    #[test]
    fn what_is_reserved_is_kept() {
        let memory = Memory::default();
        let mut rest: Vec<Kept> = (1..MEMORY / MOST).map(|_| Kept::new(&memory)).collect();
        for kept in &mut rest {
            assert!(kept.push(&Bytes::from(vec![0; MOST])));
        }
        let (mut first, mut second) = (Kept::new(&memory), Kept::new(&memory));
        assert_eq!(first.reserve(MOST - 10), MOST - 10);
        assert_eq!(second.reserve(MOST), 10);
        assert_eq!((first.room(), second.room()), (MOST - 10, 10));
        assert_eq!(first.reserve(MOST), MOST - 10, "no more is left");
        assert!(!second.push(&Bytes::from_static(b"eleven byte")));
        assert!(second.push(&Bytes::from_static(b"ten bytes.")));
        assert!(first.push(&Bytes::from_static(b"few")));
        assert_eq!(memory.used(), MEMORY - MOST + 13, "the rest was let go of");
        first.reserve(5);
        first.release();
        assert_eq!(memory.used(), MEMORY - MOST + 13);
        drop((first, second, rest));
        assert_eq!(memory.used(), 0);
    }
}
