//! Windows grow for readers that keep up, shrink for those that do not, and what idle ones hold leaves room for others
//! (promise P16, WIRE-22). `measure` prints the figures behind the defaults of `Limits`.

use std::time::Duration;

use hopline_link_proto::testkit::Chain;
use hopline_link_proto::{Limits, SessionId, Write};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A link of so long a round trip.
fn chain(trip: Duration, rate: Option<u64>, change: impl Fn(&mut Limits)) -> Chain {
    let mut chain = Chain::new(1, |_, config| change(&mut config.limits));
    for wire in &mut chain.wires {
        wire.latency = trip / 2;
        wire.rate = rate;
    }
    chain
}

fn open(chain: &mut Chain) -> [SessionId; 2] {
    let (near, far) = chain.open(b"");
    chain.run_for(millis(300));
    [near, far]
}

/// The listener reads what the dialer writes on each session, until each has so many bytes; the time that takes.
fn pump(chain: &mut Chain, sessions: &[[SessionId; 2]], bytes: u64) -> Duration {
    let began = chain.now;
    let mut left = vec![(bytes, bytes); sessions.len()];
    let limit = chain.now + Duration::from_secs(600);
    let done = chain.run_until(limit, |chain| {
        for ([near, far], (unwritten, unread)) in sessions.iter().zip(&mut left) {
            while *unwritten > 0 {
                let piece = [7; 32 << 10];
                let most = usize::try_from(*unwritten).unwrap_or(usize::MAX).min(piece.len());
                match chain.link(0).write(*near, &piece[..most]) {
                    Ok(Write::Taken(n)) => *unwritten -= n as u64,
                    other => {
                        assert_eq!(other, Ok(Write::Pending));
                        break;
                    }
                }
            }
            *unread -= chain.read_all(1, *far).0.len() as u64;
        }
        left.iter().all(|(_, unread)| *unread == 0)
    });
    assert!(done, "{left:?}");
    chain.now - began
}

fn window(chain: &mut Chain, id: SessionId) -> u64 {
    chain.link(1).session_counters(id).map_or(0, |counters| counters.window)
}

/// Whether the peer could still send all that was granted, and it would be held, within the budget.
fn bounded(chain: &mut Chain) {
    let budget = Limits::default().budget;
    assert!(chain.link(1).budget_used() <= budget, "{}", chain.link(1).budget_used());
}

#[test]
fn sixteen_idle_sessions_with_wide_windows_leave_room_for_later_ones() {
    let mut chain = chain(millis(100), None, |_| ());
    let grown: Vec<_> = (0..16)
        .map(|_| {
            let ids = open(&mut chain);
            pump(&mut chain, &[ids], 16 << 20);
            ids
        })
        .collect();
    let widths: Vec<_> = grown.iter().map(|[_, far]| window(&mut chain, *far)).collect();
    assert_eq!(widths[0], 4 << 20);
    assert!(widths.iter().all(|width| *width > 500 << 10), "{widths:?}");
    bounded(&mut chain);
    // All of them idle, with credit that is not used. A later one has its first window, and grows.
    let later = open(&mut chain);
    assert_eq!(window(&mut chain, later[1]), 64 << 10);
    let took = pump(&mut chain, &[later], 16 << 20);
    let width = window(&mut chain, later[1]);
    assert!(width > 500 << 10, "{width}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    bounded(&mut chain);
}

/// A thousand sessions: each has its first window though some had grown before.
#[test]
fn first_windows_have_their_own_share() {
    let mut chain = chain(millis(100), None, |_| ());
    for _ in 0..20 {
        let ids = open(&mut chain);
        pump(&mut chain, &[ids], 8 << 20);
    }
    let firsts: Vec<_> = (0..340)
        .map(|_| {
            let (_, far) = chain.open(b"");
            window(&mut chain, far)
        })
        .collect();
    assert!(firsts.iter().all(|first| *first == 64 << 10), "{firsts:?}");
    bounded(&mut chain);
}

#[test]
fn a_reader_that_slows_down_is_granted_less_and_its_budget_is_free_again() {
    let mut chain = chain(millis(100), None, |_| ());
    let [near, far] = open(&mut chain);
    pump(&mut chain, &[[near, far]], 16 << 20);
    assert_eq!(window(&mut chain, far), 4 << 20);
    let before = chain.link(1).budget_used();
    // It goes on at 100 KiB a second; what was granted is never taken back, so the writer is never held up.
    let mut waits = 0;
    let mut read = 0;
    for _ in 0..60 {
        while let Ok(Write::Taken(_)) = chain.link(0).write(near, &[7; 32 << 10]) {
            chain.run_for(millis(1));
        }
        chain.run_for(Duration::from_secs(1));
        let now = chain.now;
        let found = chain.link(1).read(now, far, 100 << 10);
        let Ok(hopline_link_proto::Read::Data(bytes)) = found else {
            waits += 1;
            continue;
        };
        read += bytes.len();
    }
    assert_eq!(waits, 0);
    assert!(read > 0 && window(&mut chain, far) == 64 << 10, "{}", window(&mut chain, far));
    assert!(chain.link(1).counters().windows_narrowed >= 6, "{:?}", chain.link(1).counters());
    // 4 MiB were granted and came: nothing is granted for what was read of them.
    assert_eq!(chain.link(1).budget_used(), before - read as u64);
    // Read up, and it grows again as it keeps up.
    pump_only_reads(&mut chain, far);
    assert!(chain.link(1).budget_used() < 1 << 20, "{}", chain.link(1).budget_used());
    pump(&mut chain, &[[near, far]], 16 << 20);
    assert!(window(&mut chain, far) > 1 << 20);
}

fn pump_only_reads(chain: &mut Chain, far: SessionId) {
    for _ in 0..300 {
        chain.run_for(Duration::from_secs(2));
        let now = chain.now;
        let _ = chain.link(1).read(now, far, 64 << 10);
    }
}

/// Many readers that all keep up share what there is, and none is left behind.
#[test]
fn sessions_that_all_want_more_get_about_the_same() {
    let mut chain = chain(millis(200), None, |limits| limits.budget = 8 << 20);
    let sessions: Vec<_> = (0..16).map(|_| open(&mut chain)).collect();
    pump(&mut chain, &sessions, 4 << 20);
    let widths: Vec<_> = sessions.iter().map(|[_, far]| window(&mut chain, *far)).collect();
    let (least, most) = (widths.iter().min(), widths.iter().max());
    assert!(least >= Some(&(100 << 10)) && most <= Some(&(1 << 20)), "{widths:?}");
    assert!(chain.link(1).budget_used() <= 8 << 20);
}

/// A paused reader costs its window, and no other session a stall: with half of all sessions unread, the others carry
/// what they carried alone.
#[test]
fn paused_readers_cost_their_windows_and_stall_nobody() {
    let mut chain = chain(millis(10), None, |_| ());
    let stuck: Vec<_> = (0..100).map(|_| open(&mut chain)).collect();
    let free = open(&mut chain);
    let alone = pump(&mut chain, &[free], 8 << 20);
    for [near, _] in &stuck {
        while let Ok(Write::Taken(_)) = chain.link(0).write(*near, &[7; 32 << 10]) {
            chain.run_for(millis(1));
        }
    }
    chain.run_for(Duration::from_secs(1));
    assert!(chain.link(1).held().received <= 100 * (64 << 10), "{:?}", chain.link(1).held());
    let beside = pump(&mut chain, &[free], 8 << 20);
    assert!(beside <= alone + millis(50), "{alone:?} alone, {beside:?} beside");
}

/// Once nothing more can come a session is charged for what it holds, and for nothing once it is let go of.
#[test]
fn a_session_that_is_over_is_charged_for_what_it_holds() {
    for ends in [true, false] {
        let mut chain = chain(millis(10), None, |_| ());
        let [near, far] = open(&mut chain);
        assert_eq!(chain.link(1).budget_used(), 48 << 10);
        assert_eq!(chain.link(0).write(near, &[7; 20_000]), Ok(Write::Taken(20_000)));
        if ends {
            chain.link(0).end(near);
        } else {
            chain.run_for(millis(50));
            chain.link(0).release(near);
        }
        chain.run_for(millis(50));
        assert_eq!(chain.link(1).budget_used(), 20_000 - (16 << 10));
        chain.link(1).release(far);
        assert_eq!(chain.link(1).budget_used(), 0);
    }
}

/// The figures that `Limits` quotes. `cargo test --release -p hopline-link-proto --test windows -- --ignored --nocapture`
#[test]
#[ignore = "prints figures"]
fn measure() {
    println!("1 MiB on a fresh session, in ms, at 100 MB/s; by first window and round trip:");
    for first in [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10] {
        let times = [1, 10, 40, 100].map(|trip| {
            let mut chain = chain(millis(trip), Some(100_000_000), |limits| limits.first_window = first);
            let ids = open(&mut chain);
            format!("{trip} ms: {:.0}", pump(&mut chain, &[ids], 1 << 20).as_secs_f64() * 1e3)
        });
        println!("  first window {:>3} KiB: {}", first >> 10, times.join(", "));
    }
    println!("64 MiB on one session, in MB/s, at 125 MB/s; by largest window and round trip:");
    for max in [1 << 20, 2 << 20, 4 << 20, 8 << 20] {
        let rates = [10, 40, 100].map(|trip| {
            let mut chain = chain(millis(trip), Some(125_000_000), |limits| limits.max_window = max);
            chain.wires.iter_mut().for_each(|wire| wire.depth = 16 << 20);
            let ids = open(&mut chain);
            pump(&mut chain, &[ids], 16 << 20);
            format!("{trip} ms: {:.1}", 67.108_864 / pump(&mut chain, &[ids], 64 << 20).as_secs_f64())
        });
        println!("  largest window {:>2} MiB: {}", max >> 20, rates.join(", "));
    }
    println!(
        "64 sessions together, in MB/s, at 125 MB/s and 100 ms; by budget, alone and behind 32 idle ones:"
    );
    for budget in [8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20] {
        let rates = [0, 32].map(|idle| {
            let mut chain = chain(millis(100), Some(125_000_000), |limits| limits.budget = budget);
            chain.wires.iter_mut().for_each(|wire| wire.depth = 16 << 20);
            for _ in 0..idle {
                let ids = open(&mut chain);
                pump(&mut chain, &[ids], 8 << 20);
            }
            let sessions: Vec<_> = (0..64).map(|_| open(&mut chain)).collect();
            pump(&mut chain, &sessions, 1 << 20);
            format!("{:.1}", 134.217_728 / pump(&mut chain, &sessions, 2 << 20).as_secs_f64())
        });
        println!("  budget {:>3} MiB: {}", budget >> 20, rates.join(", "));
    }
}
