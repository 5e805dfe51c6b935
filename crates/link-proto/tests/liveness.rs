//! Liveness on bad days (promise P11): slow wires full of data in both directions, processes that stand still under
//! traffic, machines that were suspended. In virtual time, at every preset: pauses scale with the preset's bound, and
//! at the default preset are the promised ones.

use std::time::Duration;

use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{Code, LinkEnd, Liveness, SessionId};

const KIB: u64 = 1 << 10;
const PRESETS: [Liveness; 5] =
    [Liveness::FAST, Liveness::DEFAULT, Liveness::NAT, Liveness::DATACENTER, Liveness::MOBILE];

/// Which ends stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Nobody,
    Dialer,
    Listener,
    Both,
}

impl Who {
    fn ends(self) -> &'static [usize] {
        match self {
            Self::Nobody => &[],
            Self::Dialer => &[0],
            Self::Listener => &[1],
            Self::Both => &[0, 1],
        }
    }
}

/// What goes over the link meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Idle,
    /// One side sends as much as the wire takes.
    OneWay(usize),
    BothWays,
}

struct Link {
    chain: Chain,
    ids: [SessionId; 2],
    traffic: Traffic,
    moved: u64,
}

impl Link {
    fn new(preset: Liveness, rate: u64, traffic: Traffic) -> Self {
        let mut chain = Chain::new(1, |end, config| config.liveness = (end == 0).then_some(preset));
        let (near, far) = chain.open(b"");
        for wire in &mut chain.wires {
            wire.rate = Some(rate);
            wire.latency = Duration::from_millis(20);
        }
        Self { chain, ids: [near, far], traffic, moved: 0 }
    }

    fn run_for(&mut self, time: Duration) {
        let Self { chain, ids, traffic, moved } = self;
        chain.run_until(chain.now + time, |chain| {
            for (end, id) in ids.iter().enumerate() {
                if chain.ends[end].paused_until.is_some_and(|until| until > chain.now) {
                    continue;
                }
                if *traffic == Traffic::BothWays || *traffic == Traffic::OneWay(end) {
                    let _ = chain.link(end).write(*id, &[7; 60_000]);
                }
                *moved += chain.read_all(end, *id).0.len() as u64;
            }
            false
        });
    }

    fn pause(&mut self, who: Who, time: Duration) {
        let until = self.chain.now + time;
        who.ends().iter().for_each(|end| self.chain.ends[*end].paused_until = Some(until));
    }

    fn ends(&mut self) -> [Option<LinkEnd>; 2] {
        [0, 1].map(|end| self.chain.link(end).end_of_link().cloned())
    }
}

/// A pause of two thirds of the bound: 10 s at the default preset.
fn short(preset: Liveness) -> Duration {
    preset.bound() * 2 / 3
}

/// A pause of four bounds: 60 s at the default preset.
fn long(preset: Liveness) -> Duration {
    preset.bound() * 4
}

/// Begins the pause at several places between two pings, and goes on long enough for a death that is to come.
fn survives(preset: Liveness, rate: u64, traffic: Traffic, who: Who, pause: Duration) {
    let parts = if preset == Liveness::DEFAULT && traffic == Traffic::BothWays { 4 } else { 1 };
    for part in 0..parts {
        let mut link = Link::new(preset, rate, traffic);
        // Queues fill first.
        link.run_for(Duration::from_secs(20) + preset.interval() * part / parts);
        let before = link.moved;
        link.pause(who, pause);
        link.run_for(pause + preset.bound() * 3);
        let ends = link.ends();
        assert_eq!(
            ends,
            [None, None],
            "{preset}, {rate} B/s, {traffic:?}, {who:?} for {pause:?}, part {part}"
        );
        assert!(traffic == Traffic::Idle || link.moved > before, "nothing moved");
    }
}

#[test]
fn no_false_deaths_on_slow_saturated_wires_with_pauses() {
    let mut ran = 0;
    for preset in PRESETS {
        for rate in [32 * KIB, 200 * KIB] {
            let one_way = [Traffic::OneWay(0), Traffic::OneWay(1)];
            let one_way = one_way.into_iter().filter(|_| preset == Liveness::DEFAULT);
            for traffic in std::iter::once(Traffic::BothWays).chain(one_way) {
                survives(preset, rate, traffic, Who::Nobody, Duration::ZERO);
                survives(preset, rate, traffic, Who::Dialer, short(preset));
                survives(preset, rate, traffic, Who::Listener, short(preset));
                survives(preset, rate, traffic, Who::Both, long(preset));
                ran += 4;
            }
        }
    }
    assert_eq!(ran, (5 + 2) * 2 * 4);
}

/// Without traffic a pause comes on top of the silence before it: 8 s of the default preset's 15 are promised.
#[test]
fn no_false_deaths_on_idle_links_with_pauses() {
    let mut ran = 0;
    for preset in PRESETS {
        for who in [Who::Nobody, Who::Dialer, Who::Listener] {
            survives(preset, 200 * KIB, Traffic::Idle, who, preset.timeout() * 4 / 5);
            ran += 1;
        }
        survives(preset, 200 * KIB, Traffic::Idle, Who::Both, long(preset));
        ran += 1;
    }
    assert_eq!(ran, 5 * 4);
}

/// The other end declares it dead within the bound of the last byte that it heard, and the paused one, when it wakes,
/// reads why before it judges by itself.
#[test]
fn one_end_that_stands_still_for_long_is_dead_at_the_other() {
    let mut ran = 0;
    for preset in PRESETS {
        for rate in [32 * KIB, 200 * KIB] {
            for traffic in [Traffic::Idle, Traffic::BothWays] {
                for (who, other) in [(Who::Dialer, 1), (Who::Listener, 0)] {
                    let mut link = Link::new(preset, rate, traffic);
                    link.run_for(Duration::from_secs(20));
                    link.pause(who, long(preset));
                    let paused_at = link.chain.now;
                    let mut last = link.chain.link(other).last_heard();
                    while link.ends()[other].is_none() && link.chain.now < paused_at + long(preset) {
                        last = link.chain.link(other).last_heard();
                        link.run_for(Duration::from_millis(100));
                    }
                    let what = format!("{preset}, {rate} B/s, {traffic:?}, {who:?}");
                    let Some(LinkEnd::DeadPeer { silent }) = link.ends()[other].clone() else {
                        panic!("{what}: {:?}", link.ends())
                    };
                    assert_eq!(silent, preset.bound(), "{what}");
                    assert!(link.chain.now - last <= preset.bound() + Duration::from_millis(100), "{what}");
                    // What is on a slow wire is read first, then the goodbye behind it.
                    link.run_for(long(preset) + Duration::from_secs(20));
                    let Some(LinkEnd::Goodbye(abort)) = link.ends()[1 - other].clone() else {
                        panic!("{what}: {:?}", link.ends())
                    };
                    let silent_ms = u64::try_from(preset.bound().as_millis()).ok();
                    assert_eq!(
                        (abort.code, abort.hops, abort.silent_ms),
                        (Code::CONN_LOST, 0, silent_ms),
                        "{what}"
                    );
                    ran += 1;
                }
            }
        }
    }
    assert_eq!(ran, 5 * 2 * 2 * 2);
}

/// A ping passes the data that waits in the link, and so is never later than what the wire already holds.
#[test]
fn pings_overtake_data_that_waits() {
    let mut link = Link::new(Liveness::DEFAULT, 32 * KIB, Traffic::BothWays);
    for wire in &mut link.chain.wires {
        wire.depth = 8 << 10;
    }
    link.run_for(Duration::from_secs(30));
    // The wire holds what was last handed to it, 64 KiB at most, and one more turn.
    let trip = link.chain.link(0).round_trip().unwrap_or(Duration::MAX);
    assert!(
        trip < Duration::from_secs(6),
        "{trip:?} with {} bytes waiting",
        link.chain.link(0).held().unsent
    );
    assert!(link.chain.link(0).held().unsent > 32 << 10, "data waits");
}
