//! What the fuzz targets do with their bytes, as plain functions: `fuzz/` runs them under libFuzzer, and
//! `corpus.rs` replays what it found.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hopline_link_proto::testkit::{Chain, Decoded, Held, decode_frame, decode_number};
use hopline_link_proto::{
    Abort, Code, Config, Event, Limits, Link, LinkEnd, Read, SendState, SessionId, Side, Transmit, Write,
};

use crate::words;

/// Bounds that a few bytes can reach.
const LIMITS: Limits = Limits {
    sessions: 4,
    unanswered_opens: 3,
    header_bytes: 64,
    early_credit: 32,
    first_window: 64,
    max_window: 512,
    budget: 600,
    pinned_bytes: 0,
    hello_timeout: Duration::from_secs(10),
    linger_timeout: Duration::from_secs(3),
};

fn link(side: Side, now: Instant) -> Link {
    let mut config = Config::new(side, [7; 16], "fuzz");
    config.limits = LIMITS;
    Link::new(config, now).unwrap_or_else(|error| panic!("{error}"))
}

fn now() -> Instant {
    // Any instant will do: only differences are used.
    Chain::new(1, |_, _| ()).now
}

/// Arbitrary bytes for a link of each side, fresh and up. Its first byte says how they are cut, and whether the
/// carrier takes what the link sends.
pub(crate) fn frames(data: &[u8]) {
    let Some((how, bytes)) = data.split_first() else { return };
    let began = now();
    for side in [Side::Dialer, Side::Listener] {
        for up in [false, true] {
            let mut one = One::new(side, up, began);
            one.blocked = how & 0x80 != 0;
            for piece in bytes.chunks(1 + usize::from(how & 0x7f)) {
                one.feed(piece);
            }
            one.finish();
        }
    }
}

/// A link with an owner that answers, reads and ends as soon as it can.
struct One {
    link: Link,
    now: Instant,
    inbox: BytesMut,
    blocked: bool,
    ids: Vec<SessionId>,
}

impl One {
    fn new(side: Side, up: bool, now: Instant) -> Self {
        let mut one =
            Self { link: link(side, now), now, inbox: BytesMut::new(), blocked: false, ids: Vec::new() };
        if up {
            let hello =
                "hello 1..1 instance=00000000000000000000000000000000 early=20 sessions=5 header=9 name=\"\"";
            one.feed(&words::encode(hello));
            for _ in 0..3 {
                let id = one.link.open(Bytes::from_static(b"open")).unwrap_or_else(|error| panic!("{error}"));
                let _ = one.link.write(id, &[b'x'; 40]);
                one.ids.push(id);
            }
            one.link.end(one.ids[1]);
            one.send();
        }
        one
    }

    fn feed(&mut self, piece: &[u8]) {
        self.inbox.extend_from_slice(piece);
        self.link.handle_bytes(self.now, &mut self.inbox);
        assert!(self.inbox.len() <= Link::LONGEST_FRAME, "{} bytes wait", self.inbox.len());
        if !self.blocked {
            self.send();
        }
        while let Some(event) = self.link.poll_event() {
            self.on_event(&event);
        }
        let held = self.link.held();
        // Sessions of ours, those of the peer's, its refused ones, and those that are over and not let go.
        assert!(held.sessions <= 3 + 4 + 4 + self.ids.len(), "{held:?}");
        assert!(held.queued <= 200 && held.events == 0, "{held:?}");
        assert!(held.received <= 64 * (3 + 8) + 600, "{held:?}");
        assert!(self.link.budget_used() <= LIMITS.budget);
    }

    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Opened { id, .. } => {
                self.ids.push(*id);
                match id.number() % 3 {
                    0 => self.link.answer(*id, Bytes::new()),
                    1 => self.link.abort(*id, Abort::new(Code::REFUSED, "")),
                    _ => {}
                }
                self.read(*id);
            }
            Event::Readable(id) | Event::Writable(id) | Event::Answered(id) => self.read(*id),
            Event::Up(_)
            | Event::Suspect
            | Event::Recovered
            | Event::PeerDrains { .. }
            | Event::Drained
            | Event::Down(_) => {}
        }
    }

    fn read(&mut self, id: SessionId) {
        loop {
            match self.link.read(self.now, id, 10) {
                Ok(Read::Data(bytes)) => assert!(!bytes.is_empty() && bytes.len() <= 10),
                Ok(Read::Pending) => return,
                Ok(Read::End) => {
                    self.link.end(id);
                    break;
                }
                Err(_) => break,
            }
        }
        self.link.release(id);
        self.ids.retain(|other| *other != id);
    }

    /// What is sent must be frames.
    fn send(&mut self) {
        let mut out = Transmit::default();
        while self.link.poll_transmit(self.now, &mut out, 1_000) {}
        let sent: Vec<u8> = out.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let mut at = 0;
        while at < sent.len() {
            let Some((_, len)) = words::decode(&sent[at..]) else { panic!("half a frame was sent") };
            at += len;
        }
    }

    /// Silence: then the link is over, and nothing is left of it.
    fn finish(mut self) {
        for _ in 0..20 {
            let Some(next) = self.link.poll_timeout() else { break };
            self.now = next.max(self.now);
            self.link.handle_timeout(self.now);
            self.send();
        }
        assert!(self.link.end_of_link().is_some(), "{:?}", self.link);
        for id in std::mem::take(&mut self.ids) {
            self.link.release(id);
        }
        while self.link.poll_event().is_some() {}
        self.send();
        check_empty(&self.link);
    }
}

fn check_empty(link: &Link) {
    assert_eq!((link.held(), link.open_sessions(), link.budget_used()), (Held::default(), 0, 0));
}

/// Arbitrary bytes for each decoder by itself. The first byte says which: a whole frame, the body of a hello, of an
/// abort or of a drain, a number. What is taken means the same when it is encoded anew, which is the shortest form;
/// and no beginning of it means anything.
pub(crate) fn decoders(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    let framed = |head: &[u8]| {
        let mut frame = head.to_vec();
        words::put(&mut frame, bytes.len() as u64);
        frame.extend_from_slice(bytes);
        frame
    };
    let frame = |bytes: &[u8]| decode_frame(bytes, 64);
    match which % 6 {
        0 => check_decoder(&framed(&[0x01]), frame),
        1 => check_decoder(&framed(&[0x08, 0x01]), frame),
        2 => check_decoder(&framed(&[0x0c]), frame),
        3 => check_decoder(bytes, decode_number),
        _ => check_decoder(bytes, frame),
    }
}

fn check_decoder(bytes: &[u8], decode: impl Fn(&[u8]) -> Decoded) {
    let whole = decode(bytes);
    let end = match &whole {
        Decoded::Whole { len, text, again } => {
            assert!(*len <= bytes.len() && again.len() <= *len, "{text}: {again:02x?}");
            let Decoded::Whole { len: length, text: same, .. } = decode(again) else {
                panic!("{text}: {again:02x?}")
            };
            assert_eq!((length, &same), (again.len(), text));
            assert_eq!(decode(&bytes[..*len]), whole, "what comes behind it changes nothing");
            *len
        }
        Decoded::Partial | Decoded::Illegal(_) => bytes.len(),
    };
    for cut in (0..end).step_by(1 + end / 64) {
        let part = decode(&bytes[..cut]);
        let illegal = matches!((&part, &whole), (Decoded::Illegal(a), Decoded::Illegal(b)) if a == b);
        assert!(part == Decoded::Partial || illegal, "{part:?} at {cut}, and then {whole:?}");
    }
}

/// A schedule of calls on two links that are joined: neither may ever call the other's bytes illegal, what is read
/// is what was written, and at the end nothing is left.
pub(crate) fn two_ends(data: &[u8]) {
    let mut ends = Two::new();
    let mut schedule = data.iter().copied();
    while let Some(step) = schedule.next() {
        let argument = schedule.next().unwrap_or(0);
        ends.step(step, argument);
        ends.check();
    }
    ends.finish();
}

/// What one end knows of a session.
#[derive(Debug, Default)]
struct Known {
    written: u64,
    read: u64,
    ended: bool,
    /// It read the other's end.
    at_end: bool,
    released: bool,
}

struct Two {
    now: Instant,
    links: [Link; 2],
    /// Bytes that each has sent and the other has not received.
    wires: [BytesMut; 2],
    inboxes: [BytesMut; 2],
    blocked: [bool; 2],
    /// By the number of the session, then by the end.
    sessions: BTreeMap<u64, [Known; 2]>,
}

impl Two {
    fn new() -> Self {
        let now = now();
        let mut two = Self {
            now,
            links: [link(Side::Dialer, now), link(Side::Listener, now)],
            wires: [BytesMut::new(), BytesMut::new()],
            inboxes: [BytesMut::new(), BytesMut::new()],
            blocked: [false; 2],
            sessions: BTreeMap::new(),
        };
        two.flow();
        two
    }

    fn step(&mut self, step: u8, argument: u8) {
        let end = usize::from(step & 1);
        let now = self.now;
        match step >> 1 {
            0..8 => drop(self.deliver(end, 1 + usize::from(argument) * 4)),
            8 => self.flow(),
            9 => self.blocked[end] = argument & 1 == 1,
            10..14 => {
                if let Ok(id) =
                    self.links[end].open(Bytes::copy_from_slice(&[argument][..usize::from(argument & 1)]))
                {
                    self.sessions.entry(id.number()).or_default();
                }
            }
            14 => self.links[end].drain(now, Duration::from_millis(u64::from(argument) * 100)),
            15 if argument == 255 => self.links[end].close(Code::SHUTDOWN, "bye"),
            16 if argument == 255 => self.links[end].handle_carrier_end(now, "gone"),
            17..20 => self.pass_time(Duration::from_millis(u64::from(argument) * 20)),
            call => self.on_session(end, call, argument),
        }
    }

    fn on_session(&mut self, end: usize, call: u8, argument: u8) {
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[usize::from(argument) % numbers.len()];
        let (Some(id), Some(known)) = (self.links[end].session(number), self.sessions.get_mut(&number))
        else {
            return;
        };
        if known[end].released {
            return;
        }
        let link = &mut self.links[end];
        let most = usize::from(argument) * 5;
        match call & 0x0f {
            0..2 => link.answer(id, Bytes::copy_from_slice(&[7; 60][..usize::from(argument % 60)])),
            2..5 => {
                let bytes: Vec<u8> =
                    (0..most as u64).map(|at| byte(number, end, known[end].written + at)).collect();
                let written =
                    if call & 1 == 0 { link.write(id, &bytes) } else { link.write_bytes(id, bytes.into()) };
                if let Ok(Write::Taken(n)) = written {
                    known[end].written += n as u64;
                }
            }
            5..9 => self.read(end, id, most),
            9 => {
                link.end(id);
                known[end].ended |= link.abort_reason(id).is_none();
            }
            10 => link.abort(id, Abort::new(Code::TIMEOUT, "enough")),
            11 => {
                link.release(id);
                known[end].released = true;
            }
            12 => {
                if link.send_state(id) == Ok(SendState::Acknowledged) {
                    assert_eq!(known[end].written, known[1 - end].read);
                }
            }
            13 => drop(link.answered(id)),
            // A forwarder's way to read: bytes first, credit and acknowledgement later.
            14 => {
                if let Ok(Read::Data(bytes)) = link.take(id, most) {
                    check_bytes(number, 1 - end, known[end].read, &bytes);
                    known[end].read += bytes.len() as u64;
                    link.credit(self.now, id, bytes.len() as u64);
                }
            }
            _ => link.acknowledge_end(id),
        }
    }

    fn read(&mut self, end: usize, id: SessionId, most: usize) {
        let Some(known) = self.sessions.get_mut(&id.number()) else { return };
        match self.links[end].read(self.now, id, most) {
            Ok(Read::Data(bytes)) => {
                check_bytes(id.number(), 1 - end, known[end].read, &bytes);
                known[end].read += bytes.len() as u64;
                assert!(known[end].read <= known[1 - end].written && !known[end].at_end);
            }
            Ok(Read::End) => {
                assert!(known[1 - end].ended && known[end].read == known[1 - end].written, "{known:?}");
                known[end].at_end = true;
            }
            Ok(Read::Pending) | Err(_) => assert!(!known[end].at_end),
        }
    }

    /// Up to so many bytes pass from `from`.
    fn deliver(&mut self, from: usize, most: usize) -> bool {
        let mut out = Transmit::default();
        while !self.blocked[from] && self.links[from].poll_transmit(self.now, &mut out, 200) {}
        out.pieces.iter().for_each(|piece| self.wires[from].extend_from_slice(piece));
        let take = most.min(self.wires[from].len());
        let bytes = self.wires[from].split_to(take);
        let to = 1 - from;
        self.inboxes[to].extend_from_slice(&bytes);
        self.links[to].handle_bytes(self.now, &mut self.inboxes[to]);
        take > 0
    }

    /// Everything passes until both are silent.
    fn flow(&mut self) {
        self.blocked = [false; 2];
        while self.deliver(0, usize::MAX) | self.deliver(1, usize::MAX) {}
        self.take_events();
    }

    fn take_events(&mut self) {
        for end in 0..2 {
            while let Some(event) = self.links[end].poll_event() {
                if let Event::Opened { id, .. } = event {
                    self.sessions.entry(id.number()).or_default();
                }
            }
        }
    }

    fn pass_time(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let next = self.links.iter().filter_map(Link::poll_timeout).min();
            self.now = next.filter(|next| *next <= until).map_or(until, |next| next.max(self.now));
            for end in 0..2 {
                if self.links[end].poll_timeout().is_some_and(|at| at <= self.now) {
                    self.links[end].handle_timeout(self.now);
                }
            }
            self.take_events();
            if self.now == until {
                return;
            }
        }
    }

    fn check(&mut self) {
        self.take_events();
        for link in &self.links {
            match link.end_of_link() {
                Some(LinkEnd::Protocol(error)) => panic!("both keep the rules: {error}"),
                Some(LinkEnd::Goodbye(abort)) => assert_ne!(abort.code, Code::PROTOCOL, "{abort}"),
                _ => {}
            }
            assert!(link.budget_used() <= LIMITS.budget);
        }
    }

    /// Both ends read and end everything; without a fault it comes to its end. Then all is let go.
    fn finish(&mut self) {
        self.flow();
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for _ in 0..2_000 {
            for number in &numbers {
                for end in 0..2 {
                    let Some(id) = self.links[end].session(*number) else { continue };
                    if self.sessions.get(number).is_none_or(|known| known[end].released) {
                        continue;
                    }
                    self.links[end].answer(id, Bytes::new());
                    self.links[end].end(id);
                    if let Some(known) = self.sessions.get_mut(number) {
                        known[end].ended |= self.links[end].abort_reason(id).is_none();
                    }
                    self.read(end, id, usize::MAX);
                }
            }
            self.flow();
            self.check();
            if self.links.iter().all(|link| link.open_sessions() == 0) {
                break;
            }
        }
        let all_up = self.links.iter().all(Link::is_up);
        let open = self.links.iter().map(Link::open_sessions).sum::<u32>();
        assert!(!all_up || open == 0, "{open} sessions are stuck: {:?}", self.sessions);
        for end in 0..2 {
            let down = self.links[1 - end].end_of_link().is_some();
            // One end that is over lets the other learn it by silence.
            if down && self.links[end].end_of_link().is_none() {
                self.pass_time(Duration::from_secs(20));
            }
        }
        for number in numbers {
            for end in 0..2 {
                if let Some(id) = self.links[end].session(number) {
                    self.links[end].release(id);
                }
            }
        }
        self.flow();
        self.take_events();
        self.check();
        self.links.iter().for_each(check_empty);
    }
}

fn byte(number: u64, end: usize, at: u64) -> u8 {
    (number as u8).wrapping_mul(31) ^ (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ (end as u8) << 7
}

fn check_bytes(number: u64, end: usize, from: u64, bytes: &[u8]) {
    for (at, got) in bytes.iter().enumerate() {
        assert_eq!(
            *got,
            byte(number, end, from + at as u64),
            "byte {} of session {number}",
            from + at as u64
        );
    }
}
