//! Joined sessions under every order of what can end them: the four halves (each side's end, and each side's
//! reader that takes everything) and an abort of each side, with data in flight (field report F13, WIRE-26, WIRE-29,
//! WIRE-30, WIRE-45).
//!
//! Each of the 720 orders runs three times: with everything settled between two steps, with nothing settled, so
//! that steps cross on the wire, and with half of a trip between them. And again with one of the two links slow, so
//! that data is still under way when everything else is over. A second later nothing is left, at any end.

use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::testkit::{Chain, Held};
use hopline_link_proto::{Abort, Code, Event, Read, SendState, SessionId, Sides, Splice, SpliceEnd, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// This side writes its last bytes and ends.
    End(usize),
    /// This side's reader, which has stood still so far, takes everything from here on.
    Read(usize),
    /// This side gives up.
    Abort(usize),
}

const STEPS: [Step; 6] =
    [Step::End(0), Step::End(1), Step::Read(0), Step::Read(1), Step::Abort(0), Step::Abort(1)];

/// Every order of some steps.
fn orders(steps: &[Step]) -> Vec<Vec<Step>> {
    if steps.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in steps.iter().enumerate() {
        let mut rest = steps.to_vec();
        rest.remove(at);
        all.extend(orders(&rest).into_iter().map(|order| [&[*first], &order[..]].concat()));
    }
    all
}

/// What each side writes first, before its last bytes: less than the smallest window, so that it leaves at once.
const FIRST: &[u8] = b"in flight";
const LAST: &[u8] = b", and the rest";

/// Where time is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    Nowhere,
    /// At this link: what is written first takes a tenth of a second there.
    Link(usize),
}

struct Run {
    chain: Chain,
    /// Steps in which time goes on, and time for everything to settle.
    tick: Duration,
    rest: Duration,
    first: Vec<u8>,
    ids: [SessionId; 2],
    reads: [bool; 2],
    got: [Vec<u8>; 2],
    outcome: [Option<Result<(), Code>>; 2],
    ended: [bool; 2],
    aborted: [bool; 2],
}

impl Run {
    fn new(slow: Slow) -> Self {
        let mut chain = Chain::new(2, |_, _| ());
        let (near, far) = chain.open(b"");
        let (mut tick, mut rest, mut first) =
            (Duration::from_micros(500), Duration::from_millis(20), FIRST.to_vec());
        if let Slow::Link(link) = slow {
            for wire in &mut chain.wires[2 * link..2 * link + 2] {
                (wire.rate, wire.depth) = (Some(50_000), 1_000);
            }
            (tick, rest) = (Duration::from_millis(10), Duration::from_secs(1));
            first.resize(5_000, b'.');
        }
        let mut run = Self {
            chain,
            tick,
            rest,
            first,
            ids: [near, far],
            reads: [false; 2],
            got: [Vec::new(), Vec::new()],
            outcome: [None, None],
            ended: [false; 2],
            aborted: [false; 2],
        };
        (0..2).for_each(|side| run.write(side, &run.first.clone()));
        run
    }

    fn end_of(side: usize) -> usize {
        3 * side
    }

    fn write(&mut self, side: usize, bytes: &[u8]) {
        let _ = self.chain.link(Self::end_of(side)).write(self.ids[side], bytes);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::End(side) => {
                self.write(side, LAST);
                let link = self.chain.link(Self::end_of(side));
                self.ended[side] = link.abort_reason(self.ids[side]).is_none();
                link.end(self.ids[side]);
            }
            Step::Read(side) => self.reads[side] = true,
            Step::Abort(side) => {
                let link = self.chain.link(Self::end_of(side));
                self.aborted[side] = link.abort_reason(self.ids[side]).is_none();
                let Some(code) = Code::app(side as u32) else { return };
                link.abort(self.ids[side], Abort::new(code, ""));
            }
        }
        self.read();
    }

    fn read(&mut self) {
        let now = self.chain.now;
        for side in 0..2 {
            while self.reads[side] && self.outcome[side].is_none() {
                match self.chain.link(Self::end_of(side)).read(now, self.ids[side], usize::MAX) {
                    Ok(Read::Data(bytes)) => self.got[side].extend_from_slice(&bytes),
                    Ok(Read::Pending) => break,
                    Ok(Read::End) => self.outcome[side] = Some(Ok(())),
                    Err(abort) => self.outcome[side] = Some(Err(abort.code)),
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.chain.now + time;
        while self.chain.now < until {
            self.chain.run_for(self.tick);
            self.read();
        }
    }

    /// What must hold when everything has come to rest.
    fn check(&mut self) {
        let all = [&self.first[..], LAST].concat();
        let any_abort = self.aborted.iter().any(|aborted| *aborted);
        for side in 0..2 {
            let other = 1 - side;
            if self.reads[side] {
                assert!(all.starts_with(&self.got[side]));
                match self.outcome[side] {
                    Some(Ok(())) => assert!(self.ended[other] && self.got[side] == all),
                    Some(Err(code)) => {
                        let theirs = (0..2).filter(|by| self.aborted[*by]).map(|by| Code::app(by as u32));
                        assert!(theirs.into_iter().any(|by| by == Some(code)), "{code}");
                        // What had left before the abort is read first.
                        let ours = self.aborted[side];
                        assert!(ours || self.got[side].starts_with(&self.first), "{:?}", self.got[side]);
                    }
                    None => assert!(!any_abort && !self.ended[other], "side {side} reads nothing"),
                }
            }
            let state = self.chain.link(Self::end_of(side)).send_state(self.ids[side]);
            if state == Ok(SendState::Acknowledged) {
                assert!(self.got[other] == all && self.ended[side]);
            }
            if !any_abort && self.ended[side] && self.reads[other] {
                assert_eq!(state, Ok(SendState::Acknowledged), "side {side}");
            }
        }
        for side in 0..2 {
            self.chain.link(Self::end_of(side)).release(self.ids[side]);
        }
        self.run(self.rest);
        let clean = !any_abort && self.ended == [true; 2] && self.reads == [true; 2];
        let ends = self.chain.splice_ends(0);
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert!(!clean || ends[0] == SpliceEnd::Clean, "{ends:?}");
        for end in 0..4 {
            let link = self.chain.link(end);
            let held = Held { events: 0, ..link.held() };
            assert_eq!(
                (held, link.open_sessions(), link.budget_used()),
                (Held::default(), 0, 0),
                "end {end}"
            );
        }
    }
}

fn try_order(order: &[Step], slow: Slow, trip: Duration) {
    let name = format!("{order:?} with {trip:?} between, slow {slow:?}");
    let mut run = Run::new(slow);
    // Both first pieces are on their way when the first step comes.
    run.run(trip.max(Duration::from_micros(500)));
    for step in order {
        run.step(*step);
        run.run(trip);
    }
    run.run(run.rest);
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.check()));
    assert!(checked.is_ok(), "{name}");
}

#[test]
fn every_order_of_ends_reads_and_aborts() {
    let mut tried = 0;
    for order in orders(&STEPS) {
        for trip in [0, 1, 10] {
            try_order(&order, Slow::Nowhere, Duration::from_millis(trip));
            tried += 1;
        }
    }
    assert_eq!(tried, 720 * 3);
}

#[test]
fn every_order_where_one_side_is_slow() {
    let mut tried = 0;
    for order in orders(&STEPS) {
        for slow in [Slow::Link(0), Slow::Link(1)] {
            for trip in [0, 30] {
                try_order(&order, slow, Duration::from_millis(trip));
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 720 * 2 * 2);
}

#[test]
fn every_order_of_the_four_halves_alone_is_clean() {
    let mut tried = 0;
    for order in orders(&STEPS[..4]) {
        for (slow, trip) in [0, 1, 10].map(|trip| (Slow::Nowhere, trip)).into_iter().chain([
            (Slow::Link(0), 0),
            (Slow::Link(0), 30),
            (Slow::Link(1), 0),
            (Slow::Link(1), 30),
        ]) {
            let trip = Duration::from_millis(trip);
            let mut run = Run::new(slow);
            run.run(trip);
            for step in &order {
                run.step(*step);
                run.run(trip);
            }
            run.run(run.rest);
            assert_eq!(run.outcome, [Some(Ok(())), Some(Ok(()))], "{order:?}, {trip:?} between, {slow:?}");
            run.check();
            tried += 1;
        }
    }
    assert_eq!(tried, 24 * 7);
}

/// What a forwarder holds when the abort comes goes on before it, as far as the next hop has granted credit, though
/// more waits than a session's queue takes (WIRE-29, WIRE-45).
#[test]
fn what_came_before_an_abort_is_passed_on() {
    let mut chain = Chain::new(2, |_, config| {
        config.limits.first_window = 1 << 20;
        config.limits.max_window = 1 << 20;
    });
    let (near, far) = chain.open(b"");
    chain.wires[2].rate = Some(200_000);
    chain.wires[2].depth = 10_000;
    let all = vec![7; 400_000];
    let mut written = 0;
    while written < all.len() {
        if let Ok(Write::Taken(n)) = chain.link(0).write(near, &all[written..]) {
            written += n;
        }
        chain.run_for(Duration::from_millis(1));
    }
    let gone = chain.link(2).counters().data_out;
    assert!(gone < 200_000, "most is still at the relay, but {gone} bytes have left it");
    chain.link(0).abort(near, Abort::new(Code::TIMEOUT, ""));
    chain.run_for(Duration::from_secs(10));
    let (got, end) = chain.read_all(3, far);
    assert_eq!(got.len(), all.len());
    assert!(matches!(end, Some(Err(abort)) if abort.code == Code::TIMEOUT));
}

/// A writer that was let go of gives up waiting for the acknowledgement of its end. What a forwarder holds of it is still
/// read whole, with the end behind it, however slowly (WIRE-30, WIRE-45, WIRE-50).
#[test]
fn a_slow_reader_gets_the_tail_of_a_writer_that_waits_no_longer() {
    let mut chain = Chain::new(2, |end, config| {
        if end == 0 {
            config.limits.linger_timeout = Duration::from_secs(5);
        }
    });
    let (near, far) = chain.open(b"");
    // The far side says all that it has to say, and reads nothing yet.
    chain.link(3).end(far);
    chain.run_for(Duration::from_millis(50));
    assert_eq!(chain.read_all(0, near).1, Some(Ok(())));
    // One window lies at the far end, and one at the forwarder.
    let all: Vec<u8> = (0..120_000).map(|at| at as u8).collect();
    let mut written = 0;
    while written < all.len() {
        if let Ok(Write::Taken(n)) = chain.link(0).write(near, &all[written..]) {
            written += n;
        }
        chain.run_for(Duration::from_millis(5));
    }
    chain.link(0).end(near);
    chain.link(0).release(near);
    chain.run_for(Duration::from_secs(30));
    assert_eq!((chain.link(0).counters().limits.linger_timeout, chain.link(0).open_sessions()), (1, 0));
    let mut got = Vec::new();
    loop {
        let now = chain.now;
        match chain.link(3).read(now, far, 1_000) {
            Ok(Read::Data(bytes)) => got.extend_from_slice(&bytes),
            Ok(Read::End) => break,
            Ok(Read::Pending) => {}
            Err(abort) => panic!("{abort} after {} bytes", got.len()),
        }
        chain.run_for(Duration::from_millis(200));
    }
    assert!(got == all, "{} bytes", got.len());
    chain.link(3).release(far);
    chain.run_for(Duration::from_secs(1));
    assert_eq!(chain.splice_ends(0), [SpliceEnd::Clean]);
    for end in 0..4 {
        let held = Held { events: 0, ..chain.link(end).held() };
        assert_eq!((held, chain.link(end).open_sessions()), (Held::default(), 0), "end {end}");
    }
}

/// A machine that reaches itself: both sessions of the splice are of one link.
struct Mirror {
    chain: Chain,
    splice: Splice,
    opener: SessionId,
    acceptor: SessionId,
    end: Option<SpliceEnd>,
}

impl Mirror {
    fn new() -> Self {
        let mut chain = Chain::new(1, |_, _| ());
        let opened = |event| if let Event::Opened { id, .. } = event { Some(id) } else { None };
        let Ok(opener) = chain.link(0).open(Bytes::from_static(b"me")) else { panic!("open") };
        chain.run_for(Duration::from_millis(5));
        let Some(left) = chain.events(1).into_iter().find_map(opened) else { panic!("no open at the relay") };
        let Ok(right) = chain.link(1).open(Bytes::from_static(b"me")) else { panic!("open") };
        let splice = Splice::new(left, right);
        chain.run_for(Duration::from_millis(5));
        let Some(acceptor) = chain.events(0).into_iter().find_map(opened) else { panic!("no open") };
        chain.link(0).answer(acceptor, Bytes::new());
        let mut mirror = Self { chain, splice, opener, acceptor, end: None };
        mirror.run();
        mirror
    }

    fn run(&mut self) {
        for _ in 0..50 {
            let now = self.chain.now;
            if self.end.is_none() {
                self.end = self.splice.run(now, Sides::One(self.chain.link(1)));
            }
            self.chain.run_for(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_splice_within_one_link() {
    let mut mirror = Mirror::new();
    let (opener, acceptor) = (mirror.opener, mirror.acceptor);
    assert_eq!(mirror.chain.link(0).answered(opener), Ok(Some(Bytes::new())));
    for (from, to, bytes) in [(opener, acceptor, &b"there"[..]), (acceptor, opener, &b"and back"[..])] {
        assert!(mirror.chain.link(0).write(from, bytes).is_ok());
        mirror.chain.link(0).end(from);
        mirror.run();
        assert_eq!(mirror.chain.read_all(0, to), (bytes.to_vec(), Some(Ok(()))));
        mirror.run();
        assert_eq!(mirror.chain.link(0).send_state(from), Ok(SendState::Acknowledged));
    }
    assert_eq!(mirror.end, Some(SpliceEnd::Clean));

    let mut mirror = Mirror::new();
    let (opener, acceptor) = (mirror.opener, mirror.acceptor);
    mirror.chain.link(0).abort(opener, Abort::new(Code::TIMEOUT, ""));
    mirror.run();
    let abort = mirror.chain.link(0).abort_reason(acceptor).cloned();
    assert_eq!(abort.map(|abort| (abort.code, abort.hops)), Some((Code::TIMEOUT, 2)));
    assert!(matches!(mirror.end, Some(SpliceEnd::Aborted(_))));
    mirror.chain.link(0).release(opener);
    mirror.chain.link(0).release(acceptor);
    mirror.run();
    for end in 0..2 {
        let held = Held { events: 0, ..mirror.chain.link(end).held() };
        assert_eq!(held, Held::default(), "end {end}");
    }
}
