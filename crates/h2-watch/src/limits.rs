//! Everything that the two ends of a connection can make a watcher hold, with its bound.

use std::time::Duration;

/// The bounds of one watcher. What goes beyond them ends the watching, or forgets the oldest; it is counted, and the
/// bytes pass all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that are followed at once. Default 1,024, at about 200 bytes each. One more and the oldest is
    /// forgotten (`streams_forgotten`): its end is not counted, and a cut does not explain itself to it.
    pub streams: usize,
    /// Bytes of one header block. Default 64 KiB; each direction may hold one that is incomplete. A larger one: gave
    /// up, `header_block`.
    pub block_bytes: usize,
    /// Size of a header table, as HPACK counts it. Default 64 KiB, which is 64 KiB of memory at most, for each
    /// direction. A larger one: gave up, `header_table`.
    pub table_bytes: usize,
    /// Bytes that all watchers of a mapping may hold together. Default 64 MiB: a hundred connections at their worst
    /// (0.6 MB), or thousands of ordinary ones (a few KB). The watcher that goes beyond it gave up, `memory`.
    pub mapping_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 1_024, block_bytes: 64 << 10, table_bytes: 64 << 10, mapping_bytes: 64 << 20 }
    }
}

/// Two PINGs on an idle connection within this are `idle_pings_under_15s`.
pub(crate) const SHORT_KEEPALIVE: Duration = Duration::from_secs(15);
/// A PING this soon after headers or data is no keepalive: Go, Java and Python measure the path so.
pub(crate) const ACTIVITY: Duration = Duration::from_secs(1);
/// Data that waits longer on the application's window is a stall.
pub(crate) const STALL: Duration = Duration::from_secs(5);
/// A call that begins this soon after a failed one is its repetition.
pub(crate) const REPEAT: Duration = Duration::from_millis(100);
/// A stream that begins this soon after one ended, at the server's limit of streams, had waited for it.
pub(crate) const TURN: Duration = Duration::from_millis(50);
/// Streams may begin for this long after a GOAWAY: the client has not read it yet.
pub(crate) const GOAWAY_GRACE: Duration = Duration::from_secs(1);
/// How long throughput is watched before it is judged.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// On a shorter path a small window costs nothing that matters.
pub(crate) const LONG_PATH: Duration = Duration::from_millis(2);
