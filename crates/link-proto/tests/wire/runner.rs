//! Runs a script against one link.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{Abort, Code, Config, Event, Link, LinkEnd, SessionId, Side, Transmit};

use crate::words;

/// What the peer says in `up`, and in `> hello` without more.
const HELLO: &str = "hello 1..1 instance=70656572706565727065657270656572 interval=5000 timeout=10000 \
                     early=16384 sessions=4096 header=4096 name=\"peer\"";

/// The script with its indented lines as they are now.
pub(crate) fn run(script: &str) -> String {
    let mut out = String::new();
    let mut player = Player::new();
    for line in script.lines().filter(|line| !line.starts_with(' ')) {
        let _ = writeln!(out, "{line}");
        if !line.is_empty() && !line.starts_with('#') {
            player.play(line);
        }
        for said in player.said.drain(..) {
            let _ = writeln!(out, "  {said}");
        }
    }
    out
}

/// The first lines that differ.
pub(crate) fn difference(want: &str, got: &str) -> String {
    let (mut want, mut got) = (want.lines(), got.lines());
    for number in 1.. {
        match (want.next(), got.next()) {
            (None, None) => break,
            (a, b) if a != b => return format!("line {number}\n  written: {a:?}\n  is:      {b:?}"),
            _ => {}
        }
    }
    "only line ends differ".to_owned()
}

/// One link with its owner and its carrier.
pub(crate) struct Player {
    began: Instant,
    now: Instant,
    link: Option<Link>,
    inbox: BytesMut,
    /// The carrier takes nothing.
    blocked: bool,
    /// Bytes that were sent and are no whole frame yet.
    sent: Vec<u8>,
    at: String,
    /// What was sent and told, as a script shows it.
    pub(crate) said: Vec<String>,
    /// The same bytes as they went.
    pub(crate) raw: Vec<u8>,
}

impl Player {
    pub(crate) fn new() -> Self {
        // Any instant will do: only differences are used.
        let began = Chain::new(1, |_, _| ()).began;
        Self {
            began,
            now: began,
            link: None,
            inbox: BytesMut::new(),
            blocked: false,
            sent: Vec::new(),
            at: String::new(),
            said: Vec::new(),
            raw: Vec::new(),
        }
    }

    pub(crate) fn play(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "link" => self.create(rest),
            "up" => {
                self.create(rest);
                self.feed(&words::encode(HELLO));
                self.drain();
                self.said.clear();
            }
            ">" if rest == "hello" => self.feed(&words::encode(HELLO)),
            ">" => self.feed(&words::encode(rest)),
            "flood" => {
                let Some((count, frame)) = rest.split_once(' ') else { panic!("no count: {rest:?}") };
                let frame = words::encode(frame);
                self.feed(&frame.repeat(words::parse_number(count) as usize));
            }
            "at" => self.run_to(rest),
            "late" => self.late(rest),
            "block" => self.blocked = true,
            "unblock" => self.blocked = false,
            "call" => {
                let said = self.call(&words::split(rest));
                self.said.extend(said.map(|said| format!("= {said}")));
            }
            "held" => {
                let held = format!("= {:?}", self.link().held());
                self.said.push(held);
            }
            other => panic!("no step is called {other:?}"),
        }
        self.drain();
    }

    fn create(&mut self, words: &str) {
        let mut words = words.split(' ');
        let side = match words.next() {
            Some("dialer") => Side::Dialer,
            Some("listener") => Side::Listener,
            other => panic!("no side is called {other:?}"),
        };
        let mut config = Config::new(side, *b"instance of this", "this");
        for word in words {
            let Some((key, value)) = word.split_once('=') else { panic!("no setting: {word:?}") };
            let number = || value.parse().unwrap_or_else(|_| panic!("no number: {word:?}"));
            match key {
                "sessions" => config.limits.sessions = number(),
                "unanswered" => config.limits.unanswered_opens = number(),
                "header" => config.limits.header_bytes = number(),
                "early" => config.limits.early_credit = number(),
                "first" => config.limits.first_window = number(),
                "max" => config.limits.max_window = number(),
                "budget" => config.limits.budget = u64::from(number()),
                "linger" => config.limits.linger_timeout = Duration::from_secs(u64::from(number())),
                "liveness" => config.liveness = Some(value.parse().unwrap_or_else(|e| panic!("{e}"))),
                "first_session" => config.first_session = words::parse_number(value),
                other => panic!("no setting is called {other:?}"),
            }
        }
        self.now = self.began;
        self.inbox.clear();
        self.sent.clear();
        self.link = Some(Link::new(config, self.now).unwrap_or_else(|error| panic!("{error}")));
    }

    pub(crate) fn link(&mut self) -> &mut Link {
        self.link.as_mut().unwrap_or_else(|| panic!("no link yet"))
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let Some(link) = &mut self.link else { panic!("no link yet") };
        link.handle_bytes(self.now, &mut self.inbox);
    }

    /// From timeout to timeout, with what happens at each.
    fn run_to(&mut self, time: &str) {
        let until = self.began + duration(time);
        assert!(until >= self.now, "time goes back at {time}");
        while let Some(next) = self.link().poll_timeout().filter(|next| *next <= until) {
            self.now = next.max(self.now);
            let now = self.now;
            self.at = format!("@{:?} ", now - self.began);
            self.link().handle_timeout(now);
            self.drain();
        }
        self.at.clear();
        self.now = until;
    }

    /// The process stood still until then.
    fn late(&mut self, time: &str) {
        self.now = self.began + duration(time);
        let now = self.now;
        self.link().handle_timeout(now);
    }

    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    /// Bytes from the peer, in pieces that arrive at one moment.
    pub(crate) fn receive(&mut self, pieces: &[&[u8]]) {
        pieces.iter().for_each(|piece| self.feed(piece));
        self.drain();
    }

    fn drain(&mut self) {
        let now = self.now;
        let blocked = self.blocked;
        let Some(link) = &mut self.link else { return };
        let mut out = Transmit::default();
        while !blocked && link.poll_transmit(now, &mut out, 64 << 10) {
            out.pieces.drain(..).for_each(|piece| self.sent.extend_from_slice(&piece));
            out = Transmit::default();
        }
        self.raw.extend_from_slice(&self.sent);
        let mut at = 0;
        while let Some((words, len)) = words::decode(&self.sent[at..]) {
            let bytes = &self.sent[at..at + len];
            let hex = match words::data_head(bytes) {
                Some((payload, head)) if payload > 40 => format!("{}..", words::hex(&bytes[..head])),
                _ => words::hex(bytes),
            };
            self.said.push(format!("{}< {hex}  {words}", self.at));
            at += len;
        }
        self.sent.drain(..at);
        assert!(self.sent.is_empty(), "part of a frame was sent: {:02x?}", self.sent);
        while let Some(event) = self.link.as_mut().and_then(Link::poll_event) {
            self.said.push(format!("{}event {}", self.at, event_words(&event)));
        }
    }

    fn call(&mut self, parts: &[String]) -> Option<String> {
        let word = |at: usize| parts.get(at).map_or("", String::as_str);
        let bytes = |at: usize| Bytes::from(words::text(word(at)));
        let now = self.now;
        let link = self.link();
        // Ids are made by the link; the wire's number names them here.
        let id = |link: &Link| {
            let number = words::parse_number(word(1));
            link.session(number).unwrap_or_else(|| panic!("no session {number}"))
        };
        match word(0) {
            "open" => {
                return Some(match link.open(bytes(1)) {
                    Ok(id) => id.number().to_string(),
                    Err(error) => format!("error {error}"),
                });
            }
            "close" => link.close(code(word(1)), String::from_utf8_lossy(&bytes(2))),
            "drain" => link.drain(now, duration(word(1))),
            "carrier-end" => link.handle_carrier_end(now, String::from_utf8_lossy(&bytes(1))),
            "answer" => link.answer(id(link), bytes(2)),
            "write" => return Some(result(link.write(id(link), &bytes(2)))),
            "end" => link.end(id(link)),
            "abort" => {
                link.abort(id(link), Abort::new(code(word(2)), String::from_utf8_lossy(&bytes(3))));
            }
            "release" => link.release(id(link)),
            "acknowledge" => link.acknowledge_end(id(link)),
            "read" => {
                let max = if word(2).is_empty() { usize::MAX } else { words::parse_number(word(2)) as usize };
                return Some(match link.read(now, id(link), max) {
                    Ok(hopline_link_proto::Read::Data(bytes)) => words::quote(&bytes),
                    Ok(other) => format!("{other:?}"),
                    Err(abort) => abort_text(&abort),
                });
            }
            "answered" => return Some(result(link.answered(id(link)))),
            "send-state" => return Some(result(link.send_state(id(link)))),
            other => panic!("no call is called {other:?}"),
        }
        None
    }
}

fn result<T: std::fmt::Debug>(result: Result<T, Abort>) -> String {
    result.map_or_else(|abort| abort_text(&abort), |value| format!("{value:?}"))
}

fn abort_text(abort: &Abort) -> String {
    let silent = abort.silent_ms.map(|ms| format!(" silent={ms}")).unwrap_or_default();
    format!("{} hops={} {:?}{silent}", abort.code, abort.hops, abort.message)
}

fn code(word: &str) -> Code {
    Code::from_name(word).unwrap_or_else(|| panic!("no code is called {word:?}"))
}

fn duration(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap_or(text.len()));
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("no time: {text:?}"));
    match unit {
        "s" => Duration::from_secs_f64(number),
        "ms" => Duration::from_secs_f64(number / 1_000.0),
        _ => panic!("no time: {text:?}"),
    }
}

fn event_words(event: &Event) -> String {
    let id = |id: &SessionId| id.number();
    match event {
        Event::Up(peer) => format!("up {} liveness={}", peer.name, peer.liveness),
        Event::Opened { id: session, header } => format!("opened {} {}", id(session), words::quote(header)),
        Event::Answered(session) => format!("answered {}", id(session)),
        Event::Readable(session) => format!("readable {}", id(session)),
        Event::Writable(session) => format!("writable {}", id(session)),
        Event::Suspect => "suspect".to_owned(),
        Event::Recovered => "recovered".to_owned(),
        Event::PeerDrains { deadline_ms } => format!("peer-drains {deadline_ms}"),
        Event::Drained => "drained".to_owned(),
        Event::Down(end) => match end {
            LinkEnd::Protocol(error) => format!("down protocol {error:?}"),
            LinkEnd::Goodbye(abort) => format!("down goodbye {}", abort_text(abort)),
            LinkEnd::Closed(abort) => format!("down closed {}", abort_text(abort)),
            LinkEnd::DeadPeer { silent } => format!("down dead silent={silent:?}"),
            LinkEnd::CarrierLost { message, silent } => {
                format!("down carrier-lost {message:?} silent={silent:?}")
            }
            LinkEnd::NoHello => "down no-hello".to_owned(),
        },
    }
}
