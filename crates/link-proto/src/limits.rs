//! Everything that a peer can make a link hold, with its bound.

use std::time::Duration;

/// The bounds of one link. Each is a promise to the machine that runs it; none can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions that the peer may have open at once. Default 4,096. Guards against a peer that only opens.
    /// One more is refused with `overload`.
    pub sessions: u32,
    /// Opens of the peer that wait for their answer at once. Default 4,096, as many as there may be sessions: after
    /// an outage all that were held come in one moment. Each may hold early data and a dial further on. One more
    /// is refused with `overload`.
    pub unanswered_opens: u32,
    /// Bytes of an open's or answer's opaque header. Default 4,096. A longer one ends the link.
    pub header_bytes: u32,
    /// Bytes of an abort's message. 512: longer ones are cut before they are sent. Fixed by the wire.
    pub message_bytes: u32,
    /// Credit for a session before its answer, in bytes. Default 16 KiB. This times `sessions` is the least that
    /// a link's memory must bear.
    pub early_credit: u32,
    /// Window that an answer grants, early credit included, in bytes. Default 64 KiB: a round trip's worth at
    /// 5 MB/s over 12 ms; readers that keep up on longer paths grow from there.
    pub first_window: u32,
    /// Largest window of a session, in bytes. Default 4 MiB: 100 MB/s over 40 ms.
    pub max_window: u32,
    /// Bytes of windows beyond the early credit, all sessions together. Default 64 MiB.
    pub budget: u64,
    /// How long the peer's hello may take. Default 10 s.
    pub hello_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4_096,
            unanswered_opens: 4_096,
            header_bytes: 4_096,
            message_bytes: MAX_MESSAGE as u32,
            early_credit: 16 << 10,
            first_window: 64 << 10,
            max_window: 4 << 20,
            budget: 64 << 20,
            hello_timeout: Duration::from_secs(10),
        }
    }
}

/// Longest message of an abort, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;
/// Longest body of a hello, an abort, a drain or an extension frame, in bytes.
pub(crate) const MAX_BODY: usize = 4_096;
/// Most payload in one data frame that we send: what a ping may wait behind, and a session's turn.
pub(crate) const MAX_DATA: usize = 16 << 10;
/// Largest outstanding credit of a session: what a window may never exceed on the wire.
pub(crate) const MAX_CREDIT: u64 = (1 << 31) - 1;
