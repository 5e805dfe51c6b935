//! One end of one link: the state that everything else in this crate serves.

#[cfg(any(test, feature = "testkit"))]
mod held;
mod receive;
mod sessions;
mod time;
mod transmit;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::code::Code;
use crate::frame::{Abort, FrameError};
use crate::hello::{Hello, VERSION_MAX, VERSION_MIN};
use crate::limits::{Limits, MAX_CREDIT};
use crate::liveness::Liveness;
use crate::session::{Opening, Session, SessionId};
use crate::watch::Watch;

#[cfg(any(test, feature = "testkit"))]
pub use held::Held;
pub use sessions::{OpenError, Read, SendState, SessionCounters, Write};
pub use transmit::Transmit;

/// Which side of the carrier this is. The dialer's sessions have odd ids, and its liveness setting is the one
/// that a listener without a setting of its own adopts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Dialer,
    /// The side that accepted.
    Listener,
}

/// How one end of a link is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which side this is.
    pub side: Side,
    /// This side's liveness. `None` on a listener adopts the dialer's; on a dialer it is the default preset.
    pub liveness: Option<Liveness>,
    /// Random per process start: tells a restarted process from the one before.
    pub instance: [u8; 16],
    /// What this side calls itself in its hello, at most 255 bytes. A claim only; proof is the carrier's business.
    pub name: String,
    /// What the peer may make this side hold.
    pub limits: Limits,
    /// Where session ids begin, in sessions opened; 0 but in tests of the ids' end.
    pub first_session: u64,
}

impl Config {
    /// The defaults for a side.
    #[must_use]
    pub fn new(side: Side, instance: [u8; 16], name: impl Into<String>) -> Self {
        Self {
            side,
            liveness: None,
            instance,
            name: name.into(),
            limits: Limits::default(),
            first_session: 0,
        }
    }
}

/// A [`Config`] that can't work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The name is longer than 255 bytes.
    #[error("a link's name has at most 255 bytes")]
    Name,
    /// Not `0 < early_credit <= first_window <= max_window < 2^31`.
    #[error("windows must rise from early_credit, above 0, over first_window to max_window, below 2^31")]
    Windows,
    /// Headers have at most 4,096 bytes.
    #[error("header_bytes is at most 4096")]
    Header,
}

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// Nothing was heard for the liveness bound.
    DeadPeer {
        /// For how long it had been silent.
        silent: Duration,
    },
    /// The peer said goodbye.
    Goodbye(Abort),
    /// This side said goodbye.
    Closed(Abort),
    /// The carrier ended or failed without a goodbye.
    CarrierLost {
        /// What the carrier said.
        message: String,
        /// For how long it had been silent.
        silent: Duration,
    },
    /// The peer broke a rule of the wire.
    Protocol(ProtocolError),
    /// The peer's hello did not come in time.
    NoHello,
}

impl std::fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DeadPeer { silent } => write!(f, "silent for {:.1} s", silent.as_secs_f64()),
            Self::Goodbye(abort) => write!(f, "peer said goodbye ({}): {}", abort.code, abort.message),
            Self::Closed(abort) => write!(f, "closed ({}): {}", abort.code, abort.message),
            Self::CarrierLost { message, .. } => write!(f, "connection lost: {message}"),
            Self::Protocol(error) => write!(f, "{error}"),
            Self::NoHello => f.write_str("no hello in time"),
        }
    }
}

impl LinkEnd {
    /// What each session of the link reads: the link's end as a reason.
    #[must_use]
    pub fn abort(&self) -> Abort {
        let millis = |silent: &Duration| u64::try_from(silent.as_millis()).ok();
        match self {
            Self::DeadPeer { silent } | Self::CarrierLost { silent, .. } => {
                Abort { silent_ms: millis(silent), ..Abort::new(Code::CONN_LOST, self.to_string()) }
            }
            Self::Goodbye(abort) | Self::Closed(abort) => abort.clone(),
            Self::Protocol(_) => Abort::new(Code::PROTOCOL, self.to_string()),
            Self::NoHello => Abort::new(Code::CONN_LOST, self.to_string()),
        }
    }
}

/// A rule of the wire that the peer broke; each ends the link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The first frame was not a hello, or a second hello came.
    #[error("hello out of place")]
    Hello,
    /// An open whose id is not the next of its side.
    #[error("open with session id {0} out of order")]
    OpenOrder(u64),
    /// More opens than this side's hello allows, and as many again that were being refused.
    #[error("open of session {0}, far beyond what this side allows at once")]
    TooManyOpens(u64),
    /// A frame for a session that was never opened.
    #[error("frame for session {0}, which was never opened")]
    NeverOpened(u64),
    /// An answer to a session that awaits none.
    #[error("answer to session {0}, which awaits none")]
    Answer(u64),
    /// More bytes than were granted.
    #[error("session {0} sent more than its credit")]
    Credit(u64),
    /// Credit beyond what a window may be.
    #[error("session {0} was granted more than 2^31 - 1 bytes")]
    CreditOverflow(u64),
    /// Data or an end after the end.
    #[error("session {0} sent after its end")]
    AfterEnd(u64),
    /// An acceptor's end before its answer.
    #[error("session {0} was ended before it was answered")]
    EndBeforeAnswer(u64),
    /// An acknowledgement of an end that was not sent.
    #[error("session {0} acknowledged an end that was not sent")]
    EndAck(u64),
}

/// What the link tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer's hello came: sessions may be opened.
    Up(Peer),
    /// The peer opened a session; answer it, or abort it to refuse.
    Opened {
        /// The new session.
        id: SessionId,
        /// Its opaque header.
        header: Bytes,
    },
    /// One of our opens was answered, or failed, after [`Link::answered`] said pending.
    Answered(SessionId),
    /// A read that found nothing may now find something.
    Readable(SessionId),
    /// A write, or a wait for the far reader, that could not go on may now go on.
    Writable(SessionId),
    /// A ping has waited 2 s for its answer.
    Suspect,
    /// The peer was heard again.
    Recovered,
    /// The peer drains: it takes no new sessions, and cuts what is open in so many milliseconds.
    PeerDrains {
        /// From now on.
        deadline_ms: u64,
    },
    /// Our own drain is over: no session is left, or its deadline cut them.
    Drained,
    /// The link is over. Its sessions have been told; what they received stays readable.
    Down(LinkEnd),
}

/// What the peer's hello said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Random per process start of the peer.
    pub instance: [u8; 16],
    /// What it calls itself.
    pub name: String,
    /// The liveness that this side now keeps.
    pub liveness: Liveness,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Waits for the peer's hello until then.
    Hello(Instant),
    Up,
    Down(LinkEnd),
}

/// What the peer allows.
#[derive(Clone, Copy, Debug)]
struct PeerLimits {
    early_credit: u64,
    sessions: u32,
    header_bytes: u32,
}

/// Control frames that go out before any data, each at most once.
#[derive(Clone, Debug, Default)]
struct ControlOut {
    hello: bool,
    ping: Option<u8>,
    pong: Option<u8>,
    presence: bool,
    drain: Option<u64>,
    /// Aborts of sessions that were still to be sent when the link was closed.
    last_words: Vec<(SessionId, Abort)>,
    goodbye: Option<Abort>,
}

/// What the decoder is in the middle of.
#[derive(Clone, Copy, Debug)]
enum Decoding {
    Frame,
    /// The payload of a data frame: so many bytes are still to come.
    Data(SessionId, u64),
}

/// The longest drain, which an instant can always hold: 24 days.
const LONGEST_DRAIN: Duration = Duration::from_millis(MAX_CREDIT);

/// One end of one link, without I/O, clock, task or lock.
///
/// Calls come in three kinds. *Input*: [`Link::handle_bytes`], [`Link::handle_carrier_end`],
/// [`Link::handle_timeout`]. *Use*: [`Link::open`], [`Link::answer`], [`Link::write`], [`Link::read`],
/// [`Link::end`], [`Link::abort`], [`Link::release`] and so on. *Output*: [`Link::poll_transmit`],
/// [`Link::poll_event`], [`Link::poll_timeout`]. After input or use, drain the outputs; time never goes back.
#[derive(Debug)]
pub struct Link {
    config: Config,
    phase: Phase,
    peer: PeerLimits,
    watch: Watch,
    sessions: BTreeMap<u64, Session>,
    /// The next session number of each side.
    next_ours: u64,
    next_theirs: u64,
    open_ours: u32,
    open_theirs: u32,
    unanswered_theirs: u32,
    /// Bytes of windows beyond the early credit.
    budget_used: u64,
    /// Sessions with something to send, each once, first come first served.
    turn: VecDeque<SessionId>,
    /// Sessions with credit or an acknowledgement to send.
    control: VecDeque<SessionId>,
    out: ControlOut,
    decoding: Decoding,
    events: VecDeque<Event>,
    drain: Option<Instant>,
    drained: bool,
    peer_drains: bool,
    expected: Option<Instant>,
    scratch: BytesMut,
    counters: Counters,
}

/// What a link has counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Payload bytes of sessions received.
    pub data_in: u64,
    /// Payload bytes of sessions sent.
    pub data_out: u64,
    /// Opens of the peer that met a limit.
    pub opens_over_limit: u64,
    /// Frames for sessions that are already over.
    pub late_frames: u64,
    /// Extension frames skipped.
    pub extensions_skipped: u64,
}

impl Link {
    /// A link whose carrier is up now. Its hello goes out first.
    ///
    /// # Errors
    /// A config that can't work.
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        let limits = &config.limits;
        if config.name.len() > 255 {
            return Err(ConfigError::Name);
        }
        if limits.early_credit == 0
            || limits.early_credit > limits.first_window
            || limits.first_window > limits.max_window
            || u64::from(limits.max_window) > MAX_CREDIT
        {
            return Err(ConfigError::Windows);
        }
        if limits.header_bytes > 4_096 {
            return Err(ConfigError::Header);
        }
        let dialer = config.side == Side::Dialer;
        let watch = Watch::new(config.liveness.unwrap_or_default(), dialer, now);
        let first = config.first_session;
        Ok(Self {
            phase: Phase::Hello(now + limits.hello_timeout),
            peer: PeerLimits { early_credit: 0, sessions: 0, header_bytes: 0 },
            watch,
            sessions: BTreeMap::new(),
            next_ours: 2 * first + if dialer { 1 } else { 2 },
            next_theirs: 2 * first + if dialer { 2 } else { 1 },
            open_ours: 0,
            open_theirs: 0,
            unanswered_theirs: 0,
            budget_used: 0,
            turn: VecDeque::new(),
            control: VecDeque::new(),
            out: ControlOut { hello: true, ..ControlOut::default() },
            decoding: Decoding::Frame,
            events: VecDeque::new(),
            drain: None,
            drained: false,
            peer_drains: false,
            expected: None,
            scratch: BytesMut::new(),
            counters: Counters::default(),
            config,
        })
    }

    fn hello(&self) -> Hello {
        let limits = &self.config.limits;
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            instance: self.config.instance,
            liveness: match self.config.side {
                Side::Dialer => Some(self.config.liveness.unwrap_or_default()),
                Side::Listener => self.config.liveness,
            },
            early_credit: limits.early_credit,
            sessions: limits.sessions,
            header_bytes: limits.header_bytes,
            name: self.config.name.clone(),
        }
    }

    /// The next thing to tell, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// How the link ended, if it did.
    #[must_use]
    pub fn end_of_link(&self) -> Option<&LinkEnd> {
        match &self.phase {
            Phase::Down(end) => Some(end),
            Phase::Hello(_) | Phase::Up => None,
        }
    }

    /// Whether the peer's hello has come and the link lives.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    /// Which side of the carrier this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.config.side
    }

    /// Sessions that are open on the wire, both sides' together.
    #[must_use]
    pub fn open_sessions(&self) -> u32 {
        self.open_ours + self.open_theirs
    }

    /// The smoothed round trip of our own pings, once one was answered.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.watch.round_trip()
    }

    /// When the last byte arrived.
    #[must_use]
    pub fn last_heard(&self) -> Instant {
        self.watch.last_rx()
    }

    /// Whether a ping has waited 2 s for its answer.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.watch.is_suspect()
    }

    /// The liveness in force.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        self.watch.liveness()
    }

    /// Whether the peer has said that it drains.
    #[must_use]
    pub fn peer_drains(&self) -> bool {
        self.peer_drains
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes of windows beyond the early credit that are granted now.
    #[must_use]
    pub fn budget_used(&self) -> u64 {
        self.budget_used
    }

    /// Says goodbye: every session ends with this reason at both ends, and the link is over. The goodbye is the
    /// last thing that [`Link::poll_transmit`] gives.
    pub fn close(&mut self, code: Code, message: impl Into<String>) {
        if self.end_of_link().is_some() {
            return;
        }
        let abort = Abort::new(code, message);
        let unsent = self.sessions.iter().filter(|(_, s)| !matches!(s.opening, Opening::Queued(_)));
        let last_words = unsent.filter_map(|(id, s)| Some((SessionId(*id), s.abort_out.clone()?))).collect();
        self.out.last_words = last_words;
        self.out.goodbye.get_or_insert_with(|| abort.clone());
        self.go_down(LinkEnd::Closed(abort));
    }

    /// Begins a drain: the peer is told, its new opens are refused with `draining`, and what is still open at the
    /// deadline ends with `drain_deadline`. [`Event::Drained`] follows when no session is left.
    pub fn drain(&mut self, now: Instant, deadline: Duration) {
        if self.drain.is_none() && self.end_of_link().is_none() {
            let deadline = deadline.min(LONGEST_DRAIN);
            self.drain = Some(now + deadline);
            self.out.drain = u64::try_from(deadline.as_millis()).ok();
            self.note_drained();
        }
    }

    fn note_drained(&mut self) {
        if self.drain.is_some() && !self.drained && self.open_sessions() == 0 {
            self.drained = true;
            self.events.push_back(Event::Drained);
        }
    }

    /// Ends the link for this side: every session that is not over yet reads why.
    fn go_down(&mut self, end: LinkEnd) {
        if self.end_of_link().is_some() {
            return;
        }
        let abort = end.abort();
        self.phase = Phase::Down(end.clone());
        let ids: Vec<SessionId> = self.sessions.keys().map(|id| SessionId(*id)).collect();
        for id in ids {
            self.end_session(id, abort.clone());
            self.withdraw_abort(id);
        }
        self.turn.clear();
        self.control.clear();
        self.out = ControlOut {
            last_words: std::mem::take(&mut self.out.last_words),
            goodbye: self.out.goodbye.take(),
            ..ControlOut::default()
        };
        self.events.push_back(Event::Down(end));
    }

    fn protocol_error(&mut self, error: ProtocolError) {
        self.out.goodbye.get_or_insert_with(|| Abort::new(Code::PROTOCOL, error.to_string()));
        self.go_down(LinkEnd::Protocol(error));
    }
}
