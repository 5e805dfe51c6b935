//! One connection, watched from both sides.

use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::explain::{Cause, explain};
use crate::limits::Limits;
use crate::tally::Tally;

/// What a client says first when it speaks HTTP/2 without TLS.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of a TLS connection: a record with a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why a connection that spoke HTTP/2 is no longer followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GaveUp {
    /// A frame is not what its head says.
    Framing,
    /// A header block is longer than [`Limits::block_bytes`].
    HeaderBlock,
    /// A header table is larger than [`Limits::table_bytes`].
    HeaderTable,
    /// A header block can't be decoded.
    Hpack,
    /// The client speaks HTTP/2, the server does not.
    Server,
    /// All watchers of the mapping together held more than [`Limits::mapping_bytes`].
    Memory,
}

impl GaveUp {
    /// Every reason.
    pub const ALL: [Self; 6] =
        [Self::Framing, Self::HeaderBlock, Self::HeaderTable, Self::Hpack, Self::Server, Self::Memory];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Framing => "framing",
            Self::HeaderBlock => "header_block",
            Self::HeaderTable => "header_table",
            Self::Hpack => "hpack",
            Self::Server => "server",
            Self::Memory => "memory",
        }
    }
}

/// What a watcher knows of its connection. It leaves `Unknown` once; from `H2c` it can only go to `GaveUp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inspect {
    /// Nothing decided yet.
    #[default]
    Unknown,
    /// HTTP/2 without TLS: followed.
    H2c,
    /// TLS: nothing can be read.
    Tls,
    /// Something else.
    Other,
    /// Not looked at.
    Off,
    /// It was followed, and is no longer.
    GaveUp(GaveUp),
}

impl Inspect {
    /// The word in `/status`: `unknown`, `h2c`, `opaque`, `off` or `gave_up`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::H2c => "h2c",
            Self::Tls | Self::Other => "opaque",
            Self::Off => "off",
            Self::GaveUp(_) => "gave_up",
        }
    }
}

/// Who ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The application closed it.
    Application,
    /// The server closed it.
    Server,
    /// It was cut: a link, a relay, an agent, a drain.
    Fault,
}

enum Mode {
    /// How much of the preface has come.
    Deciding(Box<Connection>, usize),
    Following(Box<Connection>),
    Done(Inspect),
}

/// Watches one connection: bytes go in as they pass, in any pieces; it only ever borrows them.
///
/// Each call takes the time; it never goes back. After each, [`Watcher::poll_timeout`] says when
/// [`Watcher::handle_timeout`] wants to be called if no byte comes first. What the client says must be handed over
/// before what the server answers to it. What was counted goes to a mapping by [`crate::MappingWatch::fold`]: it is a
/// fixed number of counters, so nothing piles up if that is seldom.
pub struct Watcher {
    mode: Mode,
    /// What was counted before the watching ended.
    rest: Tally,
    /// Calls of the application itself.
    pub(crate) calls: u64,
    pub(crate) began: Option<Instant>,
    pub(crate) server_spoke: bool,
    pub(crate) ended_by: Option<EndedBy>,
    pub(crate) folded: Folded,
}

/// What a mapping has taken from a watcher already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Folded {
    pub(crate) inspect: Inspect,
    /// Kinds of hints that this connection was counted for.
    pub(crate) shown: [bool; crate::HintKind::ALL.len()],
    pub(crate) closed: bool,
    /// Bytes that it held then.
    pub(crate) held: usize,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").field("inspect", &self.inspect()).finish_non_exhaustive()
    }
}

impl Watcher {
    /// Watches a connection that was accepted `now`.
    #[must_use]
    pub fn new(limits: &Limits, now: Instant) -> Self {
        let mode = Mode::Deciding(Box::new(Connection::new(limits, now)), 0);
        Self { began: Some(now), ..Self::in_mode(mode) }
    }

    /// A connection that is not looked at: `inspect: false`.
    #[must_use]
    pub fn off() -> Self {
        Self::in_mode(Mode::Done(Inspect::Off))
    }

    fn in_mode(mode: Mode) -> Self {
        Self {
            mode,
            rest: Tally::default(),
            calls: 0,
            began: None,
            server_spoke: false,
            ended_by: None,
            folded: Folded::default(),
        }
    }

    fn is_off(&self) -> bool {
        self.inspect() == Inspect::Off
    }

    /// What is known of the connection.
    #[must_use]
    pub fn inspect(&self) -> Inspect {
        match &self.mode {
            Mode::Deciding(..) => Inspect::Unknown,
            Mode::Following(_) => Inspect::H2c,
            Mode::Done(inspect) => *inspect,
        }
    }

    /// The round trip of the path to the server, if the caller knows it: the sum over its links. Without it only the
    /// application's own PINGs tell, and most send none; the hints `small_window` and `deadline_too_short` need it.
    pub fn set_path_round_trip(&mut self, round_trip: Option<Duration>) {
        if let Some(connection) = self.connection() {
            connection.set_path_round_trip(round_trip);
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.mode {
            Mode::Deciding(connection, _) | Mode::Following(connection) => Some(connection),
            Mode::Done(_) => None,
        }
    }

    /// Bytes of the application, on their way to the server.
    pub fn handle_from_client(&mut self, mut bytes: &[u8], now: Instant) {
        if let Mode::Deciding(_, have) = &mut self.mode {
            let count = bytes.len().min(PREFACE.len() - *have);
            let (start, rest) = bytes.split_at(count);
            if start != &PREFACE[*have..*have + count] {
                let tls = *have == 0 && start.first() == Some(&TLS_HANDSHAKE);
                self.mode = Mode::Done(if tls { Inspect::Tls } else { Inspect::Other });
                return;
            }
            *have += count;
            bytes = rest;
            if *have < PREFACE.len() {
                return;
            }
            if let Mode::Deciding(connection, _) =
                std::mem::replace(&mut self.mode, Mode::Done(Inspect::Unknown))
            {
                self.mode = Mode::Following(connection);
            }
        }
        if let Mode::Following(connection) = &mut self.mode
            && let Err(reason) = connection.handle_client(bytes, now)
        {
            self.give_up(reason);
        }
    }

    /// Bytes of the server, on their way to the application.
    pub fn handle_from_server(&mut self, bytes: &[u8], now: Instant) {
        self.server_spoke |= !bytes.is_empty();
        let following = matches!(self.mode, Mode::Following(_));
        let Some(connection) = self.connection() else { return };
        let result = connection.handle_server(bytes, now);
        let fault = if connection.server.began_otherwise() { Some(GaveUp::Server) } else { result.err() };
        match fault {
            None => {}
            Some(reason) if following => self.give_up(reason),
            // A server may speak first; then this is decided before the preface.
            Some(_) => self.mode = Mode::Done(Inspect::Other),
        }
    }

    /// The application's socket takes none of the server's bytes for now: it has not read what it has. The next bytes
    /// that are handed over say that it does again. May be told more than once.
    ///
    /// A window says the same where it is small. One that is larger than what the system queues is never used up by an
    /// application that does not read at all.
    pub fn handle_held_up(&mut self, now: Instant) {
        if let Mode::Following(connection) = &mut self.mode {
            connection.handle_held_up(now);
        }
    }

    /// When [`Watcher::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.mode {
            Mode::Following(connection) => connection.poll_timeout(),
            Mode::Deciding(..) | Mode::Done(_) => None,
        }
    }

    /// Counts what has become due by `now`. Too early or too late does no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Mode::Following(connection) = &mut self.mode {
            connection.handle_timeout(now);
        }
    }

    /// The connection is over. Calls that were open count as CANCELLED where the application closed it without having
    /// been told to by a GOAWAY with an error, else as UNAVAILABLE. Fold once more afterwards.
    pub fn close(&mut self, ended_by: EndedBy, now: Instant) {
        if self.ended_by.is_some() {
            return;
        }
        self.ended_by = Some(ended_by);
        if let Mode::Following(connection) = &mut self.mode {
            connection.close(ended_by == EndedBy::Application, now);
        }
    }

    /// What to write to the application before its connection is closed, so that each call which a fault cuts ends
    /// with UNAVAILABLE and `cause` (promise P19).
    ///
    /// Each open call gets trailers, or a response of trailers alone where none had begun; then a GOAWAY. A call gets
    /// nothing that the server had ended, or that the client had reset; nor one whose response stands inside a message,
    /// unless the client is known to take that (grpcio, grpc-js, tonic): it ends with the connection. The fields are
    /// literals that no table keeps.
    ///
    /// None: there is nothing that may be written, so reset the connection. That is so where it is not followed, where
    /// the server's last byte was inside a frame or a header block, and where the server has said nothing and no call
    /// is open: the client is still connecting, and will try again.
    ///
    /// The caller sees to it that every byte of the server that was handed over here is written first, that nothing
    /// comes after, and that this is done for faults alone: never on a connection that application or server ended. Then
    /// it shuts down its sending side and reads on for a moment: a TCP connection that is closed with unread bytes is
    /// reset, and the client may lose what it has not read.
    #[must_use]
    pub fn explain(&self, cause: &Cause<'_>) -> Option<Vec<u8>> {
        match &self.mode {
            Mode::Following(connection) => explain(connection, cause),
            Mode::Deciding(..) | Mode::Done(_) => None,
        }
    }

    /// Whether a fold would change anything.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let tally = match &self.mode {
            Mode::Deciding(connection, _) | Mode::Following(connection) => &connection.tally,
            Mode::Done(_) => &self.rest,
        };
        let stalled = matches!(&self.mode, Mode::Following(connection) if connection.is_stalled());
        let changed = stalled
            || self.inspect() != self.folded.inspect
            || self.ended_by.is_some() && !self.folded.closed;
        !self.is_off() && (changed || !tally.is_empty())
    }

    /// An estimate of the memory that it holds, in bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.mode {
            Mode::Deciding(connection, _) | Mode::Following(connection) => {
                size_of::<Self>() + size_of::<Connection>() + connection.held_bytes()
            }
            Mode::Done(_) => size_of::<Self>(),
        }
    }

    /// What was counted since the last time, with the waits that go on now.
    pub(crate) fn take_tally(&mut self, now: Instant) -> Tally {
        let tally = match &mut self.mode {
            Mode::Deciding(connection, _) | Mode::Following(connection) => {
                connection.note_running_stalls(now);
                &mut connection.tally
            }
            Mode::Done(_) => &mut self.rest,
        };
        let agent = tally.agent;
        let taken = std::mem::replace(tally, Tally { agent, ..Tally::default() });
        self.calls += taken.calls;
        taken
    }

    /// The bytes go on; only the watching ends. Everything that was kept for it goes.
    pub(crate) fn give_up(&mut self, reason: GaveUp) {
        if let Some(connection) = self.connection() {
            let tally = std::mem::take(&mut connection.tally);
            self.rest.absorb(&tally);
        }
        self.mode = Mode::Done(Inspect::GaveUp(reason));
    }
}
