//! A chain of links in virtual time: the kit that the tests of this crate, and of those above it, run on.
//!
//! Ends are numbered from the origin: link `i` has ends `2i` (towards the origin) and `2i + 1`. Between two links
//! stands a relay that opens each session further, in either direction, and splices it. Nothing here sleeps: time
//! jumps to the next thing that happens.

mod decode;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

pub use crate::link::Held;
use crate::{Config, Event, Link, SessionId, Side, Sides, Splice, SpliceEnd, Transmit};
pub use decode::{Decoded, decode_frame, decode_number};

/// Bytes that an end hands to its wire at once, like the driver's.
const BATCH: usize = 64 << 10;
/// What a wire delivers in one piece.
const SEGMENT: usize = 1_460;

/// One direction of a carrier.
#[derive(Debug, Clone)]
pub struct Wire {
    /// Time that a byte takes.
    pub latency: Duration,
    /// Bytes per second; `None` is no limit.
    pub rate: Option<u64>,
    /// Bytes that may wait below the link: the kernel's send buffer.
    pub depth: usize,
    /// Every byte is lost, silently.
    pub swallow: bool,
    /// Bytes that the link handed over, in all.
    pub carried: u64,
    flying: VecDeque<Segment>,
    free_at: Option<Instant>,
}

#[derive(Debug, Clone)]
struct Segment {
    departs: Instant,
    arrives: Instant,
    bytes: Bytes,
    /// Bytes of the wire up to this one's end, since it began.
    upto: u64,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(1),
            rate: None,
            depth: 256 << 10,
            swallow: false,
            carried: 0,
            flying: VecDeque::new(),
            free_at: None,
        }
    }
}

impl Wire {
    /// The first segment that has not left yet, in the order in which they leave.
    fn next_to_leave(&self, now: Instant) -> Option<&Segment> {
        self.flying.get(self.flying.partition_point(|segment| segment.departs <= now))
    }

    fn waiting(&self, now: Instant) -> usize {
        let Some(next) = self.next_to_leave(now) else { return 0 };
        let behind = self.flying.back().map_or(0, |last| last.upto - next.upto);
        usize::try_from(behind).unwrap_or(usize::MAX) + next.bytes.len()
    }

    fn push(&mut self, now: Instant, mut bytes: Bytes) {
        let mut upto = self.carried;
        self.carried += bytes.len() as u64;
        if self.swallow {
            return;
        }
        while !bytes.is_empty() {
            let segment = bytes.split_to(bytes.len().min(SEGMENT));
            let start = self.free_at.map_or(now, |at| at.max(now));
            let takes = self
                .rate
                .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(segment.len() as f64 / rate as f64));
            let departs = start + takes;
            self.free_at = Some(departs);
            upto += segment.len() as u64;
            self.flying.push_back(Segment { departs, arrives: departs + self.latency, bytes: segment, upto });
        }
    }

    /// Loses what is on its way and everything after it.
    pub fn cut(&mut self) {
        self.swallow = true;
        self.flying.clear();
    }
}

/// One end of a link with its driver.
#[derive(Debug)]
pub struct End {
    /// The link's state.
    pub link: Link,
    /// What was not taken as an event of a splice.
    pub events: Vec<Event>,
    /// Nothing runs here until then.
    pub paused_until: Option<Instant>,
    inbox: BytesMut,
    out: Transmit,
}

/// What joins two links at a relay. A splice runs only when an event names one of its two sessions, as a driver
/// would have it: a wake-up that the link owes and does not give is a session that hangs.
#[derive(Debug, Default)]
struct Relay {
    splices: Vec<Joined>,
    ends: Vec<SpliceEnd>,
}

#[derive(Debug)]
struct Joined {
    /// The sessions at the relay's left and right link.
    ids: [SessionId; 2],
    /// The one that was opened by its peer is the right one.
    backwards: bool,
    woken: bool,
    splice: Splice,
}

impl Joined {
    fn new(hand: usize, opened: SessionId, further: SessionId) -> Self {
        let backwards = hand == 1;
        let ids = if backwards { [further, opened] } else { [opened, further] };
        Self { ids, backwards, woken: true, splice: Splice::new(opened, further) }
    }

    fn run(&mut self, now: Instant, [left, right]: &mut [&mut Link; 2]) -> Option<SpliceEnd> {
        if !std::mem::take(&mut self.woken) {
            return None;
        }
        let sides = if self.backwards { Sides::Two(right, left) } else { Sides::Two(left, right) };
        self.splice.run(now, sides)
    }
}

/// The session that an event speaks of.
fn concerns(event: &Event) -> Option<SessionId> {
    match event {
        Event::Opened { id, .. } | Event::Answered(id) | Event::Readable(id) | Event::Writable(id) => {
            Some(*id)
        }
        Event::Up(_)
        | Event::Suspect
        | Event::Recovered
        | Event::PeerDrains { .. }
        | Event::Drained
        | Event::Down(_) => None,
    }
}

/// A chain of one or more links.
#[derive(Debug)]
pub struct Chain {
    /// Virtual time.
    pub now: Instant,
    /// When the chain began.
    pub began: Instant,
    /// Ends, numbered from the origin.
    pub ends: Vec<End>,
    /// `wires[e]` carries what end `e` sends.
    pub wires: Vec<Wire>,
    relays: Vec<Relay>,
}

#[expect(clippy::disallowed_methods, reason = "virtual time needs one origin; only differences are used")]
fn origin() -> Instant {
    Instant::now()
}

impl Chain {
    /// A chain of `links` links that are up; `config` may change each end's set-up (by end number).
    #[must_use]
    pub fn new(links: usize, mut config: impl FnMut(usize, &mut Config)) -> Self {
        let began = origin();
        let mut ends = Vec::new();
        for number in 0..2 * links {
            let side = if number % 2 == 0 { Side::Dialer } else { Side::Listener };
            let mut setup = Config::new(side, [number as u8; 16], format!("end-{number}"));
            config(number, &mut setup);
            let link = Link::new(setup, began).unwrap_or_else(|error| unreachable!("test config: {error}"));
            ends.push(End {
                link,
                events: Vec::new(),
                paused_until: None,
                inbox: BytesMut::new(),
                out: Transmit::default(),
            });
        }
        let relays = (1..links).map(|_| Relay::default()).collect();
        let mut chain = Self { now: began, began, ends, wires: vec![Wire::default(); 2 * links], relays };
        chain.run_for(Duration::from_millis(20));
        chain
    }

    /// The carrier of link `number` ends at both ends, at once, with what is on its way.
    pub fn end_carrier(&mut self, number: usize) {
        for end in [2 * number, 2 * number + 1] {
            self.wires[end].cut();
            self.ends[end].link.handle_carrier_end(self.now, "reset");
        }
    }

    /// Process `number` (0 is the origin, then the relays in order) stands still for so long.
    pub fn pause(&mut self, number: usize, time: Duration) {
        for end in [2 * number, (2 * number).wrapping_sub(1)] {
            if let Some(end) = self.ends.get_mut(end) {
                end.paused_until = Some(self.now + time);
            }
        }
    }

    /// Whether process `number` stands still now.
    #[must_use]
    pub fn stands_still(&self, number: usize) -> bool {
        self.is_paused((2 * number).min(self.far()))
    }

    /// The link at this end.
    pub fn link(&mut self, end: usize) -> &mut Link {
        &mut self.ends[end].link
    }

    /// The last end.
    #[must_use]
    pub fn far(&self) -> usize {
        self.ends.len() - 1
    }

    /// Opens a session at the origin, runs until the far end sees it, answers it: both ids.
    pub fn open(&mut self, header: &'static [u8]) -> (SessionId, SessionId) {
        let near =
            self.link(0).open(Bytes::from_static(header)).unwrap_or_else(|e| unreachable!("open: {e}"));
        self.run_for(Duration::from_millis(100));
        let far = self.far();
        self.collect(far);
        let opened = |event: &Event| if let Event::Opened { id, .. } = event { Some(*id) } else { None };
        let found = self.ends[far].events.iter().rev().find_map(opened);
        let Some(id) = found else { unreachable!("the open did not arrive") };
        self.link(far).answer(id, Bytes::new());
        self.run_for(Duration::from_millis(100));
        (near, id)
    }

    /// How the splices at relay `relay` (0 is next to the origin) ended, in order.
    #[must_use]
    pub fn splice_ends(&self, relay: usize) -> &[SpliceEnd] {
        &self.relays[relay].ends
    }

    /// Splices that still run, at all relays.
    #[must_use]
    pub fn splices(&self) -> usize {
        self.relays.iter().map(|relay| relay.splices.len()).sum()
    }

    /// Virtual time since the beginning.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    /// Runs for so long.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time, |_| false);
    }

    /// Runs until `done` says so, or until `limit`; true if `done` did. What `done` itself does to a link leaves at the
    /// same instant, as a driver is woken by its owner's calls.
    pub fn run_until(&mut self, limit: Instant, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            if self.settle() {
                continue;
            }
            let Some(next) = self.next_time().filter(|next| *next <= limit) else {
                self.now = limit;
                self.settle();
                return done(self);
            };
            self.now = next;
        }
    }

    /// Everything that happens at this instant; true if anything did.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut busy = false;
            for end in 0..self.ends.len() {
                if !self.is_paused(end) {
                    busy |= self.turn(end);
                }
            }
            for relay in 0..self.relays.len() {
                if !self.is_paused(2 * relay + 1) {
                    busy |= self.run_relay(relay);
                }
            }
            if !busy {
                return any;
            }
            any = true;
        }
    }

    fn is_paused(&self, end: usize) -> bool {
        self.ends[end].paused_until.is_some_and(|until| until > self.now)
    }

    /// One turn of an end's driver: read, time, write.
    fn turn(&mut self, number: usize) -> bool {
        let now = self.now;
        let end = &mut self.ends[number];
        let mut busy = false;
        let from = &mut self.wires[number ^ 1];
        while from.flying.front().is_some_and(|segment| segment.arrives <= now) {
            if let Some(segment) = from.flying.pop_front() {
                end.inbox.extend_from_slice(&segment.bytes);
                end.link.handle_bytes(now, &mut end.inbox);
                busy = true;
            }
        }
        if end.link.poll_timeout().is_some_and(|at| at <= now) {
            end.link.handle_timeout(now);
            busy = true;
        }
        let wire = &mut self.wires[number];
        while wire.waiting(now) < wire.depth && end.link.poll_transmit(now, &mut end.out, BATCH) {
            while let Some(piece) = end.out.pieces.pop_front() {
                wire.push(now, piece);
            }
            end.out = Transmit::default();
            busy = true;
        }
        busy
    }

    fn run_relay(&mut self, number: usize) -> bool {
        let right = 2 * number + 2;
        let mut busy = false;
        let mut opened = Vec::new();
        for (hand, end) in [right - 1, right].into_iter().enumerate() {
            while let Some(event) = self.ends[end].link.poll_event() {
                busy = true;
                if let Some(id) = concerns(&event) {
                    let splices = &mut self.relays[number].splices;
                    splices.iter_mut().for_each(|joined| joined.woken |= joined.ids[hand] == id);
                }
                if let Event::Opened { id, header } = event {
                    opened.push((hand, id, header));
                } else {
                    self.ends[end].events.push(event);
                }
            }
        }
        let (head, tail) = self.ends.split_at_mut(right);
        let mut links = [&mut head[right - 1].link, &mut tail[0].link];
        let relay = &mut self.relays[number];
        for (hand, id, header) in opened {
            match links[1 - hand].open(header) {
                Ok(further) => relay.splices.push(Joined::new(hand, id, further)),
                Err(error) => {
                    let abort = crate::Abort::new(crate::Code::OFFLINE, error.to_string());
                    links[hand].abort(id, abort);
                    links[hand].release(id);
                }
            }
        }
        if busy {
            let now = self.now;
            let ends = &mut relay.ends;
            relay.splices.retain_mut(|joined| {
                let end = joined.run(now, &mut links);
                let runs_on = end.is_none();
                ends.extend(end);
                runs_on
            });
        }
        busy
    }

    /// The next instant at which something may happen.
    fn next_time(&mut self) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let mut consider = |at: Option<Instant>| next = next.into_iter().chain(at).min();
        for number in 0..self.ends.len() {
            if let Some(until) = self.ends[number].paused_until.filter(|until| *until > self.now) {
                consider(Some(until));
                continue;
            }
            consider(self.ends[number].link.poll_timeout());
            let from = &self.wires[number ^ 1];
            consider(from.flying.front().map(|segment| segment.arrives));
            // A full wire takes more when its next segment has left.
            let wire = &self.wires[number];
            if wire.waiting(self.now) >= wire.depth {
                consider(wire.next_to_leave(self.now).map(|segment| segment.departs));
            }
        }
        next.map(|at| at.max(self.now))
    }

    /// Takes what arrived as events at this end, in order. Ends at a relay only keep what is no open.
    pub fn events(&mut self, end: usize) -> Vec<Event> {
        self.collect(end);
        std::mem::take(&mut self.ends[end].events)
    }

    fn collect(&mut self, end: usize) {
        while let Some(event) = self.ends[end].link.poll_event() {
            self.ends[end].events.push(event);
        }
    }

    /// Reads everything that is there: bytes, and whether the end or an abort came behind them.
    pub fn read_all(&mut self, end: usize, id: SessionId) -> (Vec<u8>, Option<Result<(), crate::Abort>>) {
        let now = self.now;
        let mut got = Vec::new();
        loop {
            match self.ends[end].link.read(now, id, usize::MAX) {
                Ok(crate::Read::Data(bytes)) => got.extend_from_slice(&bytes),
                Ok(crate::Read::Pending) => return (got, None),
                Ok(crate::Read::End) => return (got, Some(Ok(()))),
                Err(abort) => return (got, Some(Err(abort))),
            }
        }
    }
}
