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
/// Bytes that are kept of all sessions of a process together; beyond them a session is not kept.
const MEMORY: usize = 32 << 20;

/// The memory that all [`Kept`] of a process share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

/// Bytes in the order in which they were said, by reference.
#[derive(Debug)]
pub(crate) struct Kept {
    pieces: Vec<Bytes>,
    len: usize,
    memory: Memory,
}

impl Kept {
    pub(crate) fn new(memory: &Memory) -> Self {
        Self { pieces: Vec::new(), len: 0, memory: memory.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit, as far as this session goes and the others leave some.
    pub(crate) fn room(&self) -> usize {
        let of_all = MEMORY.saturating_sub(self.memory.0.load(Ordering::Relaxed));
        MOST.saturating_sub(self.len).min(of_all)
    }

    /// Keeps these too. False if that is too much: then what is kept is not all any more. The one piece that begins
    /// below the bound may pass it.
    pub(crate) fn push(&mut self, bytes: &Bytes) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.memory.0.fetch_add(bytes.len(), Ordering::Relaxed);
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

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.len, Ordering::Relaxed);
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
        assert_eq!(memory.0.load(Ordering::Relaxed), 0);
    }
}
