//! A chain, the applications at its two ends, and what is done to them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hopline_link_proto::testkit::{Chain, Held};
use hopline_link_proto::{Abort, Code, Config, Event, Read, SendState, SessionId, Write};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::model::{Fault, Pair, Side};

/// Without a byte, an end or an abort for so long a session that everyone works on is stuck: the liveness bound,
/// twice, and what a slow wire takes for what lies in it.
const STALL: Duration = Duration::from_secs(120);
/// More than any healthy history takes.
const LIMIT: Duration = Duration::from_secs(7_200);

/// What happened in some histories.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sessions: u64,
    pub(crate) bytes: u64,
    pub(crate) clean: u64,
    pub(crate) aborted: u64,
    /// Aborted with `conn_lost`.
    pub(crate) cut: u64,
    pub(crate) longest_stall: Duration,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.bytes += other.bytes;
        self.clean += other.clean;
        self.aborted += other.aborted;
        self.cut += other.cut;
        self.longest_stall = self.longest_stall.max(other.longest_stall);
    }
}

/// How rough a history is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mood {
    /// Everyone does what they mean to, at odd moments.
    Peaceful,
    /// Applications give up and go away.
    Fickle,
    /// Links die.
    Rough,
}

pub(crate) struct World {
    rng: ChaCha8Rng,
    mood: Mood,
    links: usize,
    chain: Chain,
    pairs: Vec<Pair>,
    by_id: BTreeMap<(usize, SessionId), (usize, usize)>,
    faults: Vec<Fault>,
    /// Most bytes that a direction means to carry: small windows take a round trip for each.
    goal: u64,
    /// Early credit that each end grants, and its budget.
    early: Vec<u64>,
    budgets: Vec<u64>,
    tight: bool,
    tally: Tally,
}

/// One of the values, as likely as the others.
fn pick<T: Copy>(rng: &mut impl Rng, values: &[T]) -> T {
    values[rng.random_range(0..values.len())]
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let links = rng.random_range(1..=5);
        let mood = pick(&mut rng, &[Mood::Peaceful, Mood::Fickle, Mood::Fickle, Mood::Rough]);
        let tight = rng.random_bool(0.1);
        let lingers = rng.random_bool(0.1);
        let (mut early, mut budgets) = (Vec::new(), Vec::new());
        let mut chain = Chain::new(links, |_, config: &mut Config| {
            let limits = &mut config.limits;
            if rng.random_bool(0.5) {
                limits.early_credit = pick(&mut rng, &[1, 7, 100, 1_000, 16 << 10]);
                limits.first_window = limits.early_credit * pick(&mut rng, &[1, 2, 10]);
                limits.max_window = limits.first_window * pick(&mut rng, &[1, 4, 100]);
                limits.budget = pick(&mut rng, &[0, 1_000, 100_000, 64 << 20]);
            }
            if tight {
                limits.sessions = rng.random_range(1..6);
                limits.unanswered_opens = rng.random_range(1..4);
            }
            limits.pinned_bytes = pick(&mut rng, &[0, 100_000, 16 << 20]);
            if lingers {
                limits.linger_timeout = Duration::from_secs(rng.random_range(2..60));
            }
            early.push(u64::from(limits.early_credit));
            budgets.push(limits.budget);
        });
        for wire in &mut chain.wires {
            wire.latency = Duration::from_micros(rng.random_range(0..40_000));
            wire.depth = pick(&mut rng, &[1, 3_000, 20_000, 100_000]);
            wire.rate = pick(&mut rng, &[None, None, Some(40_000), Some(1_000_000)]);
        }
        let smallest = early.iter().copied().min().unwrap_or_default();
        let goal = (smallest * 300).min(400_000);
        let by_id = BTreeMap::new();
        // Who lets go may be told that the other side took too long.
        let faults = if lingers { vec![Fault::Left(Code::TIMEOUT)] } else { Vec::new() };
        let (pairs, tally) = (Vec::new(), Tally::default());
        Self { rng, mood, links, chain, pairs, by_id, faults, goal, early, budgets, tight, tally }
    }

    /// Harm first, and safety; then all go on with what they mean to do, and progress is demanded.
    pub(crate) fn run(mut self) -> Tally {
        for _ in 0..self.rng.random_range(10..150) {
            self.step();
            let pause = pick(&mut self.rng, &[0, 0, 1, 10, 100, 2_000]);
            self.run_for(Duration::from_millis(pause));
        }
        self.finish();
        self.close_down();
        for pair in &self.pairs {
            pair.check_over(&self.faults);
            for side in &pair.sides {
                self.tally.bytes += side.read;
                match &side.outcome {
                    Some(Ok(())) => self.tally.clean += 1,
                    Some(Err(abort)) => {
                        self.tally.aborted += 1;
                        self.tally.cut += u64::from(abort.code == Code::CONN_LOST);
                    }
                    None => {}
                }
            }
        }
        self.tally.sessions = self.pairs.len() as u64;
        self.tally
    }

    /// Runs on, and hands out the events of both ends.
    fn run_for(&mut self, time: Duration) {
        self.chain.run_for(time);
        self.take_events();
        self.check_memory();
    }

    /// No end holds more received bytes than it has granted windows for.
    fn check_memory(&mut self) {
        for end in 0..self.early.len() {
            let early = self.early[end];
            let link = self.chain.link(end);
            let held = link.held();
            assert!(
                link.budget_used() <= self.budgets[end],
                "end {end}: {} of {}",
                link.budget_used(),
                self.budgets[end]
            );
            assert!(
                held.received as u64 <= link.budget_used() + held.sessions as u64 * early,
                "end {end}: {held:?}"
            );
        }
    }

    fn take_events(&mut self) -> bool {
        let mut any = false;
        for end in [0, self.chain.far()] {
            for event in self.chain.events(end) {
                any = true;
                self.on_event(end, event);
            }
        }
        any
    }

    fn on_event(&mut self, end: usize, event: Event) {
        let (id, set): (_, fn(&mut Side)) = match event {
            Event::Opened { id, header } => {
                let number = header.as_ref().try_into().map(u64::from_be_bytes);
                let number = number.unwrap_or_else(|_| panic!("a header that nobody sent: {header:?}"));
                let pair = &mut self.pairs[number as usize];
                assert_eq!((pair.sides[1].id, pair.sides[1].end), (None, end), "opened twice: {pair:?}");
                pair.sides[1].id = Some(id);
                self.by_id.insert((end, id), (number as usize, 1));
                return;
            }
            Event::Readable(id) => (id, |side| side.read_ready = true),
            Event::Writable(id) => (id, |side| side.write_ready = true),
            Event::Answered(id) => (id, |side| side.answer_ready = true),
            Event::Down(end) => {
                assert!(!self.faults.is_empty(), "a link ended without a fault: {end}");
                return;
            }
            Event::PeerDrains { .. } | Event::Drained | Event::Suspect | Event::Recovered | Event::Up(_) => {
                return;
            }
        };
        let (pair, side) = self.by_id[&(end, id)];
        set(&mut self.pairs[pair].sides[side]);
    }

    /// One thing that an application, or the network, does.
    fn step(&mut self) {
        if self.pairs.len() < 12 && self.rng.random_bool(0.15) {
            self.open();
        }
        if self.mood == Mood::Rough && self.rng.random_bool(0.02) {
            self.harm();
        }
        if self.rng.random_bool(0.01) {
            let process = self.rng.random_range(0..=self.links);
            let time = Duration::from_millis(self.rng.random_range(1..8_000));
            // Two in a row would be one long one.
            if (0..=self.links).all(|process| !self.chain.stands_still(process)) {
                self.chain.pause(process, time);
            }
        }
        if self.rng.random_bool(0.003) && (0..=self.links).all(|process| !self.chain.stands_still(process)) {
            // The machine that they all run on was suspended.
            let time = Duration::from_secs(self.rng.random_range(1..=60));
            (0..=self.links).for_each(|process| self.chain.pause(process, time));
        }
        if self.rng.random_bool(0.01) {
            let wire = self.rng.random_range(0..self.chain.wires.len());
            self.chain.wires[wire].rate = pick(&mut self.rng, &[None, Some(32 << 10), Some(200 << 10)]);
        }
        if self.pairs.is_empty() {
            return;
        }
        let pair = self.rng.random_range(0..self.pairs.len());
        let side = self.rng.random_range(0..2);
        let model = &self.pairs[pair].sides[side];
        let process = if model.end == 0 { 0 } else { self.links };
        if model.id.is_none() || model.released || self.chain.stands_still(process) {
            return;
        }
        match self.rng.random_range(0..100) {
            0..30 => {
                let max = pick(&mut self.rng, &[1, 100, 10_000, 1 << 20]);
                self.read(pair, side, max);
            }
            30..70 => {
                let len = pick(&mut self.rng, &[1, 100, 5_000, 100_000]);
                self.write(pair, side, len);
            }
            70..80 => self.answer(pair, side),
            80..85 => self.end(pair, side),
            85..90 => self.check_send_state(pair, side),
            90..93 if self.mood >= Mood::Fickle => self.give_up(pair, side),
            93..95 if self.mood >= Mood::Fickle => self.release(pair, side),
            _ => {}
        }
    }

    fn open(&mut self) {
        let number = self.pairs.len() as u64;
        let far = self.chain.far();
        let (from, to) = if self.rng.random_bool(0.7) { (0, far) } else { (far, 0) };
        let process = if from == 0 { 0 } else { self.links };
        if self.chain.stands_still(process) {
            return;
        }
        let Ok(id) = self.chain.link(from).open(Bytes::copy_from_slice(&number.to_be_bytes())) else {
            return;
        };
        let mut goal = || self.rng.random_range(0..=self.goal);
        let mut opener = Side::new(from, goal());
        let mut acceptor = Side::new(to, goal());
        opener.id = Some(id);
        match self.rng.random_range(0..4) {
            0 => opener.waits = true,
            1 => acceptor.waits = true,
            _ => {}
        }
        self.by_id.insert((from, id), (self.pairs.len(), 0));
        let may_be_refused = self.tight || !self.faults.is_empty();
        self.pairs.push(Pair { number, sides: [opener, acceptor], may_be_refused });
    }

    fn harm(&mut self) {
        let link = self.rng.random_range(0..self.links);
        let end = 2 * link + self.rng.random_range(0..2);
        let now = self.chain.now;
        // Opens on their way meet what is left of the chain.
        self.pairs.iter_mut().for_each(|pair| pair.may_be_refused = true);
        match self.rng.random_range(0..7) {
            0 => {
                self.chain.wires[2 * link].cut();
                self.chain.wires[2 * link + 1].cut();
                self.faults.push(Fault::Lost(link));
            }
            1 => {
                self.chain.wires[end].cut();
                self.faults.push(Fault::Lost(link));
            }
            2 => {
                self.chain.wires[end].swallow = true;
                self.faults.push(Fault::Lost(link));
            }
            3 => {
                self.chain.end_carrier(link);
                self.faults.push(Fault::Lost(link));
            }
            4 => {
                let process = self.rng.random_range(0..=self.links);
                self.chain.pause(process, Duration::from_secs(60));
                let links = [process.checked_sub(1), Some(process).filter(|link| *link < self.links)];
                self.faults.extend(links.into_iter().flatten().map(Fault::Lost));
            }
            5 => {
                self.chain.link(end).close(Code::SHUTDOWN, "stopping");
                self.faults.push(Fault::Left(Code::SHUTDOWN));
            }
            _ => {
                let deadline = Duration::from_millis(self.rng.random_range(0..20_000));
                self.chain.link(end).drain(now, deadline);
                self.faults.extend([Code::DRAIN_DEADLINE, Code::DRAINING, Code::OFFLINE].map(Fault::Left));
            }
        }
    }

    /// True if something was there.
    fn read(&mut self, pair: usize, side: usize, max: usize) -> bool {
        let (links, now) = (self.links, self.chain.now);
        let model = &mut self.pairs[pair];
        let (end, Some(id)) = (model.sides[side].end, model.sides[side].id) else { return false };
        let was = model.sides[side].outcome.clone();
        match self.chain.link(end).read(now, id, max) {
            Ok(Read::Data(bytes)) => {
                model.check_read(side, &bytes);
                return true;
            }
            Ok(Read::Pending) => {
                assert_eq!(was, None, "nothing comes behind an outcome: {model:?}");
                model.sides[side].read_ready = false;
                return false;
            }
            Ok(Read::End) => model.check_end(side),
            Err(abort) => model.check_abort(side, &abort, links, &self.faults),
        }
        let is = &model.sides[side].outcome;
        assert!(was.is_none() || was == *is, "an outcome changed from {was:?}: {model:?}");
        was.is_none()
    }

    /// True if something was written.
    fn write(&mut self, pair: usize, side: usize, len: usize) -> bool {
        let by_reference = self.rng.random_bool(0.5);
        let model = &mut self.pairs[pair];
        let (end, Some(id)) = (model.sides[side].end, model.sides[side].id) else { return false };
        let from = model.sides[side].written;
        let len = len.min(usize::try_from(model.sides[side].goal - from).unwrap_or(usize::MAX));
        if len == 0 || model.sides[side].ended {
            return false;
        }
        let bytes = model.bytes(side, from, len);
        let link = self.chain.link(end);
        let written = if by_reference { link.write_bytes(id, bytes.into()) } else { link.write(id, &bytes) };
        match written {
            Ok(Write::Taken(n)) => {
                assert!(n > 0 && n <= len && (n == len || !by_reference));
                model.sides[side].written += n as u64;
                return true;
            }
            Ok(Write::Pending) => model.sides[side].write_ready = false,
            Err(abort) => {
                let read_before = model.sides[side].outcome.clone();
                model.check_abort(side, &abort, self.links, &self.faults);
                // What was received stays readable, an end included.
                model.sides[side].outcome = read_before;
                model.sides[side].goal = from;
            }
        }
        false
    }

    fn answer(&mut self, pair: usize, side: usize) {
        let model = &mut self.pairs[pair];
        let (end, Some(id)) = (model.sides[side].end, model.sides[side].id) else { return };
        let number = Bytes::copy_from_slice(&model.number.to_le_bytes());
        if side == 1 {
            self.chain.link(end).answer(id, number);
            model.sides[1].answered = true;
            return;
        }
        match self.chain.link(end).answered(id) {
            Ok(Some(header)) => {
                assert!(model.sides[1].answered, "an answer that nobody gave: {model:?}");
                assert_eq!(header, number);
                model.sides[0].answered = true;
            }
            Ok(None) => {
                assert!(!model.sides[0].answered);
                model.sides[0].answer_ready = false;
            }
            Err(abort) => {
                let read_before = model.sides[0].outcome.clone();
                model.check_abort(0, &abort, self.links, &self.faults);
                model.sides[0].outcome = read_before;
                model.sides[0].answered = true;
            }
        }
    }

    fn end(&mut self, pair: usize, side: usize) {
        let model = &mut self.pairs[pair].sides[side];
        if let Some(id) = model.id
            && model.gave_up.is_none()
        {
            model.ended = true;
            model.goal = model.written;
            let end = model.end;
            self.chain.link(end).end(id);
        }
    }

    fn check_send_state(&mut self, pair: usize, side: usize) {
        let model = &mut self.pairs[pair];
        let (end, Some(id)) = (model.sides[side].end, model.sides[side].id) else { return };
        match self.chain.link(end).send_state(id) {
            Ok(SendState::Open) => assert!(!model.sides[side].ended, "{model:?}"),
            Ok(SendState::Ending) => {
                assert!(model.sides[side].ended && !model.sides[side].acknowledged, "{model:?}");
                model.sides[side].write_ready = false;
            }
            Ok(SendState::Acknowledged) => model.check_acknowledged(side),
            Err(abort) => {
                let read_before = model.sides[side].outcome.clone();
                model.check_abort(side, &abort, self.links, &self.faults);
                model.sides[side].outcome = read_before;
                // Nothing more is to be learned here.
                model.sides[side].acknowledged = true;
                model.sides[side].ended = true;
            }
        }
    }

    fn give_up(&mut self, pair: usize, side: usize) {
        let number = self.rng.random_range(0..5);
        let Some(code) = Code::app(number) else { return };
        let model = &mut self.pairs[pair].sides[side];
        let Some(id) = model.id else { return };
        let link = self.chain.link(model.end);
        if link.abort_reason(id).is_none() {
            model.gave_up.get_or_insert(code);
        }
        link.abort(id, Abort::new(code, "gave up"));
    }

    fn release(&mut self, pair: usize, side: usize) {
        let model = &mut self.pairs[pair].sides[side];
        let Some(id) = model.id else { return };
        let link = self.chain.link(model.end);
        let clean = model.ended && model.outcome == Some(Ok(())) && (side == 0 || model.answered);
        if !clean && link.abort_reason(id).is_none() {
            model.gave_up.get_or_insert(Code::PEER_RESET);
        }
        link.release(id);
        model.released = true;
    }

    /// All go on, woken by events only, until everything is over.
    fn finish(&mut self) {
        let began = self.chain.now;
        let mut moved = began;
        loop {
            let mut busy = self.take_events();
            for pair in 0..self.pairs.len() {
                for side in 0..2 {
                    busy |= self.go_on(pair, side);
                }
            }
            if busy {
                self.tally.longest_stall = self.tally.longest_stall.max(self.chain.now - moved);
                moved = self.chain.now;
            }
            if self.pairs.iter().all(|pair| pair.sides.iter().all(|side| side.id.is_none() || side.is_over()))
            {
                let opens_out =
                    self.pairs.iter().any(|pair| pair.sides[1].id.is_none() && !pair.sides[0].is_over());
                assert!(!opens_out);
                return;
            }
            if !busy {
                let stuck = self.chain.now - moved >= STALL;
                assert!(!stuck, "nothing moves: {:#?}, {:?}", self.unfinished(), self.faults);
                // Whoever stands still goes on by itself when that is over.
                let now = self.chain.now;
                let wakes =
                    self.chain.ends.iter().filter_map(|end| end.paused_until).filter(|until| *until > now);
                let limit = wakes.min().map_or(now + STALL, |wakes| wakes.min(now + STALL));
                self.wait_for_event(limit);
            }
            assert!(self.chain.now - began < LIMIT, "no end of it: {:#?}", self.unfinished());
        }
    }

    fn unfinished(&self) -> Vec<&Pair> {
        self.pairs.iter().filter(|pair| !pair.sides.iter().all(Side::is_over)).collect()
    }

    fn wait_for_event(&mut self, limit: Instant) {
        let far = self.chain.far();
        let mut events = Vec::new();
        self.chain.run_until(limit, |chain| {
            for end in [0, far] {
                events.extend(chain.events(end).into_iter().map(|event| (end, event)));
            }
            !events.is_empty()
        });
        for (end, event) in events {
            self.on_event(end, event);
        }
    }

    /// What a side does when everyone works: read all, write its goal, end, wait for the far reader.
    fn go_on(&mut self, pair: usize, side: usize) -> bool {
        let model = &self.pairs[pair].sides[side];
        let process = if model.end == 0 { 0 } else { self.links };
        if model.id.is_none() || model.is_over() || self.chain.stands_still(process) {
            return false;
        }
        let mut busy = false;
        if !self.pairs[pair].sides[side].answered && self.pairs[pair].sides[side].answer_ready {
            self.answer(pair, side);
            busy |= self.pairs[pair].sides[side].answered;
        }
        while self.pairs[pair].sides[side].read_ready && self.read(pair, side, 50_000) {
            busy = true;
        }
        if self.pairs[pair].sides[side].waits && self.pairs[pair].sides[side].outcome.is_none() {
            return busy;
        }
        while self.pairs[pair].sides[side].write_ready && self.write(pair, side, 50_000) {
            busy = true;
        }
        let model = &self.pairs[pair].sides[side];
        if !model.ended && model.written == model.goal {
            self.end(pair, side);
            self.pairs[pair].sides[side].ended = true;
            busy = true;
        }
        let model = &self.pairs[pair].sides[side];
        if model.ended && !model.acknowledged && model.write_ready {
            self.check_send_state(pair, side);
            busy |= self.pairs[pair].sides[side].acknowledged;
        }
        busy
    }

    /// Everyone lets go: then nothing is left anywhere.
    fn close_down(&mut self) {
        for pair in 0..self.pairs.len() {
            for side in 0..2 {
                if !self.pairs[pair].sides[side].released {
                    self.release(pair, side);
                }
            }
        }
        // Opens that arrived behind their opener's end are let go as they come.
        self.run_for(Duration::from_secs(100));
        for pair in 0..self.pairs.len() {
            if !self.pairs[pair].sides[1].released {
                self.release(pair, 1);
            }
        }
        self.run_for(Duration::from_secs(100));
        assert_eq!(self.chain.splices(), 0, "splices are left");
        for end in 0..=self.chain.far() {
            let link = self.chain.link(end);
            assert_eq!(
                (link.open_sessions(), link.budget_used()),
                (0, 0),
                "left at end {end}: {:?}",
                link.held()
            );
            let held = Held { events: 0, queued: 0, ..link.held() };
            assert_eq!(held, Held::default(), "left at end {end}");
        }
    }
}
