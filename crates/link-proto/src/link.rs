//! One end of one link: the state that everything else in this crate serves.

mod config;
mod end;
mod ends;
mod event;
#[cfg(any(test, feature = "testkit"))]
mod held;
mod reading;
mod receive;
mod sessions;
mod time;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::code::Code;
use crate::counters::Counters;
use crate::flow::Budget;
use crate::frame::Abort;
use crate::hello::{Hello, VERSION_MAX, VERSION_MIN};
use crate::limits::MAX_CREDIT;
use crate::liveness::Liveness;
use crate::queue::Pins;
use crate::session::{Opening, Session, SessionId};
use crate::watch::{PingAllowance, Watch};

pub use config::{Config, ConfigError, Side};
pub use end::{EndCause, LinkEnd, ProtocolError};
pub use event::{Event, Peer};
#[cfg(any(test, feature = "testkit"))]
pub use held::Held;
pub use sessions::{OpenError, Read, SendState, SessionCounters, Write};
pub use transmit::Transmit;

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
/// # Contract
///
/// Methods come in four kinds:
///
/// - *input*, what happens to the link: [`Link::handle_bytes`], [`Link::handle_carrier_end`], [`Link::handle_timeout`];
/// - *use*, what its owner wants: [`Link::open`], [`Link::answer`], [`Link::write`], [`Link::read`], [`Link::end`],
///   [`Link::abort`], [`Link::release`], [`Link::drain`], [`Link::close`] and so on;
/// - *output*, what the owner is to do: [`Link::poll_transmit`], [`Link::poll_event`], [`Link::poll_timeout`];
/// - *looks*, which change nothing: everything that takes `&self`.
///
/// After each input or use the owner drains the outputs, in any order but the timeout last: transmits until nothing
/// comes or the carrier takes no more, events until there is none, then the timeout, which each of the others may move.
/// It calls [`Link::handle_timeout`] at that time or soon after, with the carrier read first. An input that comes more
/// than a second behind the timeout is taken for a pause of this process, and the peer is not blamed for it.
///
/// `now` never goes back from one call to the next. Ids of sessions that were released, or that another link gave, are
/// harmless: what would change something changes nothing, and what would tell something says that there is none.
///
/// Whatever the peer sends is an event, an abort of a session or the end of the link, never a panic. What is asserted
/// is this crate's own: that each session is counted in once and out once, and waits for nothing when it is forgotten.
///
///
/// `T` is what the owner keeps beside each session, such as whom to wake: see [`Link::tag`].
#[derive(Debug)]
pub struct Link<T = ()> {
    config: Config,
    phase: Phase,
    peer: PeerLimits,
    watch: Watch,
    /// Boxed: half of a node's places are empty.
    sessions: BTreeMap<u64, Box<Session<T>>>,
    /// The next session number of each side.
    next_ours: u64,
    next_theirs: u64,
    open_ours: u32,
    open_theirs: u32,
    unanswered_theirs: u32,
    /// The peer's sessions that our owner has not let go of.
    held_theirs: u32,
    budget: Budget,
    /// Pieces of read buffers that sessions hold.
    pins: Pins,
    pings: PingAllowance,
    /// Sessions that were let go of and wait for the peer, by when that is given up.
    lingering: BTreeSet<(Instant, SessionId)>,
    /// The latest time that a call brought.
    now: Instant,
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
    scratch: BytesMut,
    counters: Counters,
}

impl Link {
    /// A link whose carrier is up now, without tags. Its hello goes out first.
    ///
    /// # Errors
    /// A config that can't work.
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        Self::tagged(config, now)
    }
}

impl<T: Default> Link<T> {
    /// The same, whose sessions have tags.
    ///
    /// # Errors
    /// A config that can't work.
    pub fn tagged(config: Config, now: Instant) -> Result<Self, ConfigError> {
        config.check()?;
        let limits = config.limits;
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
            held_theirs: 0,
            budget: Budget::new(&limits),
            pins: Pins::new(limits.pinned_bytes),
            pings: PingAllowance::new(now),
            lingering: BTreeSet::new(),
            now,
            turn: VecDeque::new(),
            control: VecDeque::new(),
            out: ControlOut { hello: true, ..ControlOut::default() },
            decoding: Decoding::Frame,
            events: VecDeque::new(),
            drain: None,
            drained: false,
            peer_drains: false,
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

    /// What the owner keeps beside this session, from its open to when it is forgotten: after its release, and not
    /// before. It begins as the default.
    pub fn tag(&mut self, id: SessionId) -> Option<&mut T> {
        self.sessions.get_mut(&id.0).map(|session| &mut session.tag)
    }

    /// The tags of all sessions.
    pub fn tags(&self) -> impl Iterator<Item = &T> {
        self.sessions.values().map(|session| &session.tag)
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
        let mut counters = self.counters;
        counters.limits.pinned_bytes = self.pins.copied();
        counters.limits.small_piece = self.pins.gathered();
        counters
    }

    /// What unread data may come to hold beyond the early credit of each session, in bytes: windows, and what was
    /// granted beyond them before they shrank. Never above [`Limits::budget`](crate::Limits::budget).
    #[must_use]
    pub fn budget_used(&self) -> u64 {
        self.budget.used()
    }

    /// What [`Link::budget_used`] may be at most: [`Limits::budget`](crate::Limits::budget), in bytes.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget.total()
    }

    /// Says goodbye: every session ends with this reason at both ends, and the link is over. The goodbye is the
    /// last thing that [`Link::poll_transmit`] gives.
    pub fn close(&mut self, code: Code, message: impl Into<String>) {
        if self.end_of_link().is_some() {
            return;
        }
        let abort = Abort::new(code, message);
        let unsent = self.sessions.iter().filter(|(_, s)| s.opening() != Opening::Queued);
        let last_words = unsent
            .filter_map(|(id, s)| Some((SessionId(*id), Abort::clone(s.abort_out.as_ref()?))))
            .collect();
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
        self.lingering.clear();
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
        self.counters.note(&error);
        self.out.goodbye.get_or_insert_with(|| Abort::new(error.code(), error.to_string()));
        self.go_down(LinkEnd::Protocol(error));
    }
}
