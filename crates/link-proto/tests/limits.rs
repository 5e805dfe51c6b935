//! Every row of [`LIMITS`], provoked by a peer that keeps no bounds (WIRE-47): its counter moves, what the row says
//! happens, the peer is told why, and a session beside it goes on. `docs/limits.md` has the same rows.

#[expect(dead_code, reason = "the scripts need all of it")]
mod words;

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use hopline_limits::Limit;
use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{Code, Config, Event, LIMITS, Limits, Link, Read, SessionId, Side, Transmit, Write};

const HELLO: &str =
    "hello 1..1 instance=00000000000000000000000000000000 early=100000 sessions=4096 header=4096 name=\"x\"";

/// A listener whose peer is the test.
struct Victim {
    link: Link,
    now: Instant,
    /// The session of an application that does no wrong.
    innocent: Option<SessionId>,
}

impl Victim {
    /// A link that has only begun.
    fn fresh(change: impl FnOnce(&mut Limits)) -> Self {
        let now = Chain::new(1, |_, _| ()).now;
        let mut config = Config::new(Side::Listener, [0; 16], "victim");
        change(&mut config.limits);
        let link = Link::new(config, now).unwrap_or_else(|error| panic!("{error}"));
        Self { link, now, innocent: None }
    }

    /// A link that is up, with session 1 open and answered.
    fn up(change: impl FnOnce(&mut Limits)) -> Self {
        let mut victim = Self::fresh(change);
        victim.feed(HELLO);
        victim.feed("open 1 \"\"");
        victim.innocent = victim.link.session(1);
        victim.answer(1);
        victim.sent();
        victim
    }

    fn feed(&mut self, words: &str) {
        self.feed_bytes(&words::encode(words));
    }

    fn feed_bytes(&mut self, bytes: &[u8]) {
        self.link.handle_bytes(self.now, &mut BytesMut::from(bytes));
    }

    fn id(&self, number: u64) -> SessionId {
        self.link.session(number).unwrap_or_else(|| panic!("no session {number}"))
    }

    fn answer(&mut self, number: u64) {
        let id = self.id(number);
        self.link.answer(id, Bytes::new());
    }

    /// Opens and answers.
    fn open(&mut self, number: u64) -> SessionId {
        self.feed(&format!("open {number} \"\""));
        self.answer(number);
        self.sent();
        self.id(number)
    }

    fn read(&mut self, id: SessionId, most: usize) -> Option<Bytes> {
        match self.link.read(self.now, id, most) {
            Ok(Read::Data(bytes)) => Some(bytes),
            Ok(Read::End | Read::Pending) | Err(_) => None,
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.link.poll_timeout().filter(|next| *next <= until) {
            self.now = next;
            self.link.handle_timeout(next);
        }
        self.now = until;
    }

    /// Frames that leave now, as words.
    fn sent(&mut self) -> Vec<String> {
        let mut out = Transmit::default();
        while self.link.poll_transmit(self.now, &mut out, usize::MAX) {}
        let bytes: Vec<u8> = out.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        let mut at = 0;
        std::iter::from_fn(|| {
            let (words, len) = words::decode(&bytes[at..])?;
            at += len;
            Some(words)
        })
        .collect()
    }
}

/// What a peer does to meet the limit of this name, and no other of those that guard something.
fn provoke(name: &str) -> Victim {
    match name {
        "sessions" | "unanswered_opens" | "held_sessions" | "refused_sessions" => opens(name),
        "header_bytes" | "body_bytes" | "message_bytes" | "name_bytes" => lengths(name),
        "early_credit" | "first_window" | "max_window" | "budget" | "credit" => credit(name),
        "pinned_bytes" | "small_piece" | "send_queue" | "control_entries" => queues(name),
        "pongs" | "ping_burst" | "drains" | "hello_timeout" | "linger_timeout" => link_control(name),
        other => panic!("no test provokes {other}"),
    }
}

fn opens(name: &str) -> Victim {
    let mut victim = Victim::up(|limits| match name {
        "unanswered_opens" => limits.unanswered_opens = 1,
        _ => limits.sessions = 3,
    });
    match name {
        "sessions" => [3, 5, 7].map(|id| victim.feed(&format!("open {id} \"\""))).to_vec(),
        "unanswered_opens" => [3, 5].map(|id| victim.feed(&format!("open {id} \"\""))).to_vec(),
        // The owner looks at none of them. With the innocent one six may be held.
        "held_sessions" => (1..7)
            .map(|number| {
                victim.feed(&format!("open {} \"\"", 2 * number + 1));
                if number < 6 {
                    victim.feed(&format!("abort {} timeout hops=0 \"\"", 2 * number + 1));
                }
            })
            .collect(),
        // The carrier takes nothing, so that no refusal leaves: three are open and three more refused.
        _ => (1..7).map(|number| victim.feed(&format!("open {} \"\"", 2 * number + 1))).collect(),
    };
    victim
}

fn lengths(name: &str) -> Victim {
    match name {
        "header_bytes" => {
            let mut victim = Victim::up(|limits| limits.header_bytes = 10);
            victim.feed("open 3 11*x");
            victim
        }
        "body_bytes" => {
            let mut victim = Victim::up(|_| ());
            // An extension that announces 4,097 bytes; nobody waits for them.
            victim.feed("hex 40 81 20");
            victim
        }
        "message_bytes" => {
            let mut victim = Victim::up(|_| ());
            victim.feed("open 3 \"\"");
            victim.feed("abort 3 timeout hops=0 513*x");
            victim
        }
        _ => {
            let mut victim = Victim::fresh(|_| ());
            victim.feed(&HELLO.replace("name=\"x\"", &format!("name=\"{}\"", "x".repeat(256))));
            victim
        }
    }
}

fn credit(name: &str) -> Victim {
    match name {
        "early_credit" => {
            let mut victim = Victim::up(|limits| limits.early_credit = 10);
            victim.feed("open 3 \"\"");
            victim.feed("data 3 11*x");
            victim
        }
        "first_window" => {
            let mut victim = Victim::up(|limits| limits.budget = 48 << 10);
            let id = victim.open(3);
            assert_eq!(victim.link.session_counters(id).map(|counters| counters.window), Some(16 << 10));
            victim
        }
        "max_window" => {
            let mut victim = Victim::up(|_| ());
            victim.open(3);
            victim.feed("data 3 65537*x");
            victim
        }
        "budget" => {
            let mut victim = Victim::up(|limits| {
                (limits.early_credit, limits.first_window) = (100, 100);
                limits.budget = 0;
            });
            let id = victim.open(3);
            for _ in 0..2 {
                victim.feed("data 3 100*x");
                victim.read(id, 100);
                victim.sent();
            }
            assert_eq!(victim.link.session_counters(id).map(|counters| counters.window), Some(100));
            victim
        }
        _ => {
            let mut victim = Victim::up(|_| ());
            victim.open(3);
            victim.feed("credit 3 +2147483647");
            victim
        }
    }
}

fn queues(name: &str) -> Victim {
    let mut victim = Victim::up(|limits| limits.pinned_bytes = 0);
    let id = victim.open(3);
    match name {
        "pinned_bytes" => victim.feed("data 3 5000*x"),
        "small_piece" => (0..1_000).for_each(|_| victim.feed("data 3 1*x")),
        "send_queue" => {
            assert_eq!(victim.link.write(id, &[1; 100_000]), Ok(Write::Taken(64 << 10)));
            assert_eq!(victim.link.write(id, &[1; 100_000]), Ok(Write::Pending));
        }
        _ => {
            // The carrier takes nothing while the session is read.
            victim.feed("data 3 60000*x");
            while victim.read(id, 1_000).is_some() {}
            assert!(victim.link.held().queued <= 2, "{:?}", victim.link.held());
        }
    }
    victim
}

fn link_control(name: &str) -> Victim {
    match name {
        "pongs" => {
            let mut victim = Victim::up(|_| ());
            victim.feed("ping 1");
            victim.feed("ping 2");
            victim
        }
        "ping_burst" => {
            let mut victim = Victim::up(|_| ());
            for _ in 0..=256 {
                victim.feed("ping 1");
                victim.sent_pongs();
            }
            victim
        }
        "drains" => {
            let mut victim = Victim::up(|_| ());
            (0..1_000).for_each(|_| victim.feed("drain 1000"));
            let drains = std::iter::from_fn(|| victim.link.poll_event())
                .filter(|event| matches!(event, Event::PeerDrains { .. }))
                .count();
            assert_eq!(drains, 1);
            victim
        }
        "hello_timeout" => {
            let mut victim = Victim::fresh(|_| ());
            victim.wait(Duration::from_secs(11));
            victim
        }
        _ => {
            let mut victim = Victim::up(|limits| limits.linger_timeout = Duration::from_secs(60));
            let id = victim.open(3);
            victim.feed("end 3");
            let _ = victim.link.read(victim.now, id, 1);
            let _ = victim.link.write(id, b"never taken");
            victim.link.end(id);
            victim.link.release(id);
            for _ in (0..60).step_by(5) {
                assert_eq!(victim.link.held().lingering, 1);
                victim.feed("presence");
                victim.sent();
                victim.wait(Duration::from_secs(5));
            }
            victim
        }
    }
}

impl Victim {
    /// Lets the pong go, but not the rest.
    fn sent_pongs(&mut self) {
        if self.link.end_of_link().is_none() {
            self.sent();
        }
    }

    /// The link ended, and its peer was told so with this code.
    fn has_ended(&mut self, code: &str) {
        assert!(self.link.end_of_link().is_some());
        let sent = self.sent();
        let last = sent.last().map(String::as_str).unwrap_or_default();
        assert!(last.starts_with(&format!("goodbye {code} ")), "{sent:?}");
    }

    /// The innocent session carries bytes both ways.
    fn lives(&mut self) {
        assert_eq!(self.link.end_of_link(), None);
        let Some(id) = self.innocent else { panic!("no session beside it") };
        self.feed("data 1 \"and back\"");
        assert_eq!(self.read(id, 100), Some(Bytes::from_static(b"and back")));
        assert_eq!(self.link.write(id, b"there"), Ok(Write::Taken(5)));
        let sent = self.sent();
        assert!(sent.iter().any(|words| words == "data 1 \"there\""), "{sent:?}");
    }
}

/// Counts that ordinary traffic moves too.
const ORDINARY: [&str; 2] = ["small_piece", "pongs"];

#[test]
fn every_limit_is_met_and_counted() {
    let mut ran = 0;
    for limit in LIMITS {
        let mut victim = provoke(limit.name);
        let met: Vec<_> = victim.link.counters().limits.by_limit().filter(|(_, count)| *count > 0).collect();
        let moved: Vec<_> = met
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name == limit.name || !ORDINARY.contains(name))
            .collect();
        assert!(moved.contains(&limit.name), "{}: {met:?}", limit.name);
        let beside: &[&str] = match limit.name {
            // What leads there.
            "refused_sessions" => &["sessions"],
            _ => &[],
        };
        let strangers: Vec<_> =
            moved.iter().filter(|name| **name != limit.name && !beside.contains(name)).collect();
        assert!(strangers.is_empty(), "{}: {strangers:?} moved too", limit.name);
        after(limit, &mut victim);
        ran += 1;
    }
    assert_eq!((ran, LIMITS.len()), (22, 22));
}

/// What the table says happens.
fn after(limit: &Limit, victim: &mut Victim) {
    if limit.beyond.starts_with("the link ends with `protocol`") {
        victim.has_ended("protocol");
    } else if limit.beyond.starts_with("the link ends with `overload`") {
        victim.has_ended("overload");
    } else if limit.beyond.starts_with("the link is over") {
        assert!(victim.link.end_of_link().is_some());
    } else if limit.beyond.starts_with("the open is refused with `overload`") {
        let sent = victim.sent();
        let refusals =
            sent.iter().filter(|words| words.starts_with("abort ") && words.contains(" overload "));
        assert_eq!(refusals.count(), 1, "{sent:?}");
        victim.lives();
    } else if limit.beyond.starts_with("the session is aborted with `timeout`") {
        let sent = victim.sent();
        assert!(sent.iter().any(|words| words.starts_with("abort 3 timeout ")), "{sent:?}");
        assert_eq!(victim.link.open_sessions(), 1);
        victim.lives();
    } else {
        victim.lives();
    }
}

/// A session that was let go of is not given up while the peer takes anything of it, however slowly.
#[test]
fn a_slow_tail_is_not_cut() {
    let mut victim = Victim::up(|limits| limits.linger_timeout = Duration::from_secs(60));
    let id = victim.open(3);
    victim.feed("end 3");
    let _ = victim.link.read(victim.now, id, 1);
    for _ in 0..2 {
        assert!(matches!(victim.link.write(id, &[7; 60_000]), Ok(Write::Taken(_))));
        victim.sent();
    }
    victim.link.end(id);
    victim.link.release(id);
    // A byte every 50 s, for five hours.
    for second in (0..18_000).step_by(5) {
        victim.feed("presence");
        if second % 50 == 0 {
            victim.feed("credit 3 +1");
        }
        victim.sent();
        victim.wait(Duration::from_secs(5));
    }
    assert_eq!((victim.link.open_sessions(), victim.link.counters().limits.linger_timeout), (2, 0));
    victim.feed("credit 3 +100000");
    victim.sent();
    victim.feed("end-ack 3");
    assert_eq!((victim.link.open_sessions(), victim.link.held().lingering), (1, 0));
    victim.lives();
}

/// The wait begins when the session is let go of, not with what was the last to move before; and what leaves counts, as
/// credit that comes does.
#[test]
fn a_wait_counts_from_the_last_that_moved() {
    let mut victim = Victim::up(|limits| limits.linger_timeout = Duration::from_secs(60));
    let id = victim.open(3);
    victim.feed("end 3");
    let _ = victim.link.read(victim.now, id, 1);
    assert!(matches!(victim.link.write(id, &[7; 60_000]), Ok(Write::Taken(60_000))));
    let wait = |victim: &mut Victim, seconds: u64| {
        for _ in (0..seconds).step_by(5) {
            victim.feed("presence");
            victim.wait(Duration::from_secs(5));
        }
    };
    // The carrier takes nothing so far.
    wait(&mut victim, 100);
    victim.link.end(id);
    victim.link.release(id);
    wait(&mut victim, 50);
    assert_eq!(victim.link.held().lingering, 1);
    victim.sent();
    wait(&mut victim, 50);
    assert_eq!(victim.link.held().lingering, 1);
    wait(&mut victim, 10);
    assert_eq!((victim.link.held().lingering, victim.link.counters().limits.linger_timeout), (0, 1));
}

/// At a relay a peer that breaks the rules loses its own link. The sessions that cross it end with the reason at their
/// other ends, and the link that those came over lives.
#[test]
fn other_links_do_not_notice() {
    for bytes in [&[0xff][..], &[0x0d], &[0x07, 0x01, 0x80, 0x00]] {
        let mut chain = Chain::new(2, |_, _| ());
        let (_, far) = chain.open(b"");
        let now = chain.now;
        chain.link(1).handle_bytes(now, &mut BytesMut::from(bytes));
        chain.run_for(Duration::from_millis(50));
        for end in 0..2 {
            assert!(chain.link(end).end_of_link().is_some(), "end {end}");
        }
        let abort = chain.read_all(3, far).1.and_then(Result::err);
        assert_eq!(abort.map(|abort| (abort.code, abort.hops)), Some((Code::PROTOCOL, 1)));
        chain.run_for(Duration::from_secs(60));
        for end in 2..4 {
            assert_eq!(chain.link(end).end_of_link(), None, "end {end}");
        }
    }
}
