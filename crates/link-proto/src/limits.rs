//! Everything that a peer can make a link hold, with its bound.
//!
//! [`LIMITS`] are the rows of `docs/limits.md` on a link; [`LimitCounters`] counts by them, and a test
//! provokes every one.

use std::time::Duration;

use hopline_limits::{Limit, REACHED};

/// Longest message of an abort, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;
/// Longest body of a hello, an abort, a drain or an extension frame, in bytes.
pub(crate) const MAX_BODY: usize = 4_096;
/// Longest name in a hello, in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// Most payload in one data frame that we send: what a ping may wait behind, and a session's turn.
pub(crate) const MAX_DATA: usize = 16 << 10;
/// Largest outstanding credit of a session: what a window may never exceed on the wire.
pub(crate) const MAX_CREDIT: u64 = (1 << 31) - 1;
/// Bytes that may wait in a session for the link: enough that one turn never finds it empty, and little enough
/// that a thousand stalled writers cost 64 MiB.
pub(crate) const SEND_QUEUE: usize = 64 << 10;
/// Pieces below this many bytes are copied: a slice of a read buffer keeps all of that buffer alive, and a
/// queue of one-byte slices would cost sixty times its content.
pub(crate) const SMALL_PIECE: usize = 4 << 10;
/// Pings that may come at once. One a second and one an interval are all that a watch needs.
pub(crate) const PING_BURST: u32 = 256;

/// The bounds of one link that can be set. Each is a promise to the machine that runs it; none can be switched off.
/// [`LIMITS`] lists these and those that are fixed.
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
    /// Credit for a session before its answer, in bytes. Default 16 KiB: one full frame, and the first bytes of most
    /// calls whole. This times `sessions` is the least that a link's memory must bear.
    pub early_credit: u32,
    /// Window that an answer grants, early credit included, in bytes. Default 64 KiB. Measured for 1 MiB on a fresh
    /// session at 100 MB/s: over a round trip of 40 ms it takes 222 ms, where 16 KiB take 303 and 256 KiB 142; over
    /// 1 ms all take 11 to 14. Each doubling saves one round trip once, and doubles what an idle session costs.
    pub first_window: u32,
    /// Largest window of a session, in bytes. Default 4 MiB. Measured for one session on a path of 125 MB/s: 124 MB/s
    /// over 10 ms, 84 over 40 ms, 38 over 100 ms; half of it gives 124, 47 and 20, double 124, 117 and 56. What
    /// several sessions carry together is not bounded by it.
    pub max_window: u32,
    /// Bytes that unread data may come to hold beyond the early credit, all sessions together. Default 64 MiB. Measured
    /// for 64 sessions on a path of 125 MB/s and 100 ms: 119 MB/s together, where 32 MiB give 110, 16 give 93 and 8
    /// give 54; 128 MiB give no more. A quarter is kept for first windows, 341 of them by default; behind 32 idle
    /// sessions with wide windows the same 64 carry 42 MB/s, which is what first windows carry.
    pub budget: u64,
    /// Bytes of read buffers that received pieces may keep alive, 64 KiB counted for each piece that is held.
    /// Default 16 MiB. Beyond it pieces are copied, which costs time and holds no more than their length.
    pub pinned_bytes: u64,
    /// How long the peer's hello may take. Default 10 s.
    pub hello_timeout: Duration,
    /// How long a session that was let go of, with everything sent, waits for the peer to take the rest, counted from
    /// the last byte of it that moved. Default 300 s: a reader that pauses for minutes is no fault, and a slot is
    /// all that waiting costs. Then the session is aborted with `timeout`.
    pub linger_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 4_096,
            unanswered_opens: 4_096,
            header_bytes: MAX_BODY as u32,
            early_credit: 16 << 10,
            first_window: 64 << 10,
            max_window: 4 << 20,
            budget: 64 << 20,
            pinned_bytes: 16 << 20,
            hello_timeout: Duration::from_secs(10),
            linger_timeout: Duration::from_secs(300),
        }
    }
}

macro_rules! limits {
    ($($name:ident = $default:expr, $unit:literal, $bounds:literal, $guards_against:literal, $beyond:literal;)*) => {
        /// Everything that a peer can make one end of a link hold. A name is also that of a field in [`LimitCounters`], and in
        /// [`Limits`] where it can be set.
        pub const LIMITS: &[Limit] = &[$(Limit {
            name: stringify!($name),
            default: $default,
            unit: $unit,
            bounds: $bounds,
            guards_against: $guards_against,
            beyond: $beyond,
            counter: REACHED,
        }),*];

        /// How often each limit of [`LIMITS`] was met.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LimitCounters {
            $(#[doc = concat!("Times that `", stringify!($name), "` was met: ", $bounds, ".")]
            pub $name: u64,)*
        }

        impl LimitCounters {
            /// Name and count of each limit, in the order of [`LIMITS`].
            pub fn by_limit(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

limits! {
    sessions = 4_096, "sessions", "sessions of the peer open at once",
        "a peer that only opens",
        "the open is refused with `overload`";
    unanswered_opens = 4_096, "opens", "opens of the peer without an answer",
        "opens that each hold early data and a dial further on",
        "the open is refused with `overload`";
    held_sessions = 8_192, "sessions", "sessions of the peer that this side has not let go of, over or not; twice `sessions`",
        "opens that are aborted at once, faster than this side lets go of them",
        "the open is refused with `overload`";
    refused_sessions = 8_192, "opens", "opens of the peer at once, refused ones included; twice `sessions`",
        "opens whose refusals are not read",
        "the link ends with `protocol`";
    header_bytes = 4_096, "bytes", "bytes of the header of an open or an answer",
        "headers without end",
        "the link ends with `protocol`";
    body_bytes = 4_096, "bytes", "bytes of any other frame's body",
        "a body that is waited for without end",
        "the link ends with `protocol`";
    message_bytes = MAX_MESSAGE as u64, "bytes", "bytes of an abort's message",
        "text that every hop keeps and passes on",
        "the link ends with `protocol`; a message of our own is cut";
    name_bytes = 255, "bytes", "bytes of the peer's name",
        "a name that logs and pages repeat",
        "the link ends with `protocol`";
    early_credit = 16 << 10, "bytes", "bytes of a session before its answer",
        "data for sessions that nobody has accepted yet",
        "the link ends with `protocol`";
    first_window = 64 << 10, "bytes", "bytes of a session after its answer",
        "many sessions that nobody reads",
        "where the budget is short the window is smaller, never less than the early credit";
    max_window = 4 << 20, "bytes", "bytes of a session at most",
        "a sender that ignores its credit",
        "the link ends with `protocol`";
    budget = 64 << 20, "bytes", "bytes of all sessions beyond their early credit",
        "sessions that nobody reads, all with wide windows",
        "windows grow no further, and shrink as their readers take bytes; a quarter is kept for first windows";
    credit = MAX_CREDIT, "bytes", "bytes that the peer has granted to one session and we have not sent",
        "sums that overflow",
        "the link ends with `protocol`";
    pinned_bytes = 16 << 20, "bytes", "bytes of read buffers that received pieces keep alive",
        "pieces that each hold a buffer sixteen times their size",
        "further pieces are copied";
    small_piece = 4 << 10, "bytes", "bytes of a piece that is kept without a copy, at least",
        "data frames of one byte, each of which costs sixty",
        "smaller pieces are copied together";
    send_queue = 64 << 10, "bytes", "bytes of a session that wait to be sent",
        "a peer that grants no credit, or reads nothing",
        "the writer waits";
    control_entries = 1, "entries", "credits and acknowledgements of one session that wait to be sent",
        "a peer that reads nothing while its sessions are read",
        "the waiting one stands for all";
    pongs = 1, "pongs", "pongs that wait to be sent",
        "pings whose pongs are not read",
        "the latest stands for all";
    ping_burst = 256, "pings", "pings at once; then 4 a second and 2 an interval",
        "pings that only cost time",
        "the link ends with `overload`";
    drains = 1, "drains", "drains of the peer",
        "events that repeat themselves",
        "a further one is skipped";
    hello_timeout = 10_000, "ms", "until the peer's hello",
        "connections that say nothing",
        "the link is over";
    linger_timeout = 300_000, "ms", "without progress of a session that was let go of",
        "ends that are never acknowledged, each of which keeps a slot",
        "the session is aborted with `timeout`";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can be set has its default from [`Limits`]; what is fixed, from the constant that the code uses.
    #[test]
    fn the_table_says_what_is_in_force() {
        let limits = Limits::default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap();
        let in_force = [
            ("sessions", u64::from(limits.sessions)),
            ("unanswered_opens", u64::from(limits.unanswered_opens)),
            ("held_sessions", 2 * u64::from(limits.sessions)),
            ("refused_sessions", 2 * u64::from(limits.sessions)),
            ("header_bytes", u64::from(limits.header_bytes)),
            ("body_bytes", MAX_BODY as u64),
            ("message_bytes", MAX_MESSAGE as u64),
            ("name_bytes", MAX_NAME as u64),
            ("early_credit", u64::from(limits.early_credit)),
            ("first_window", u64::from(limits.first_window)),
            ("max_window", u64::from(limits.max_window)),
            ("budget", limits.budget),
            ("credit", MAX_CREDIT),
            ("pinned_bytes", limits.pinned_bytes),
            ("small_piece", SMALL_PIECE as u64),
            ("send_queue", SEND_QUEUE as u64),
            ("control_entries", 1),
            ("pongs", 1),
            ("ping_burst", u64::from(PING_BURST)),
            ("drains", 1),
            ("hello_timeout", millis(limits.hello_timeout)),
            ("linger_timeout", millis(limits.linger_timeout)),
        ];
        let table: Vec<_> = LIMITS.iter().map(|limit| (limit.name, limit.default)).collect();
        assert_eq!(table, in_force);
        let counted: Vec<_> = LimitCounters::default().by_limit().map(|(name, _)| name).collect();
        assert_eq!(counted, LIMITS.iter().map(|limit| limit.name).collect::<Vec<_>>());
    }
}
