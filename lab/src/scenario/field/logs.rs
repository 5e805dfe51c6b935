//! Floods of one cause, and logs that cannot be written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::kit::{BASE, figure};
use super::shape::{app, count, metric, serve};
use crate::inside::{self, exchange};
use crate::result::Bound;
use crate::scenario::{Case, Figure, Scenario};
use crate::world::{Options, Way, World};

const FLOOD: &[Figure] = &[
    figure("failed", "opens that failed", "", Bound::AtLeast(1_000.0)),
    figure("lines", "most lines of one kind, in any log", "", Bound::AtMost(10.0)),
    figure("counted", "opens that the sidecar counted", "", Bound::AtLeast(1_000.0)),
];
const AWAY: &[Figure] = &[
    FLOOD[0],
    FLOOD[1],
    figure("errors", "lines at error level", "", Bound::AtMost(0.0)),
    figure("missing", "failures that no counter has", "", Bound::AtMost(0.0)),
];
const UNWRITABLE: &[Figure] = &[
    figure("failed", "exchanges that failed", "", Bound::AtMost(0.0)),
    figure("cpu_s", "CPU of relay, agent and sidecar in 10 s", "s", Bound::AtMost(3.0)),
    figure("back", "after a flood and the relay's restart", "", Bound::Word(&["works"])),
];

pub(in crate::scenario) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f164-one-cause",
        promise: "F164",
        what: "The server's port is closed, and an application dials as fast as it goes for 15 s.",
        figures: FLOOD,
        seconds: 25,
        run: one_cause,
        ..BASE
    },
    Scenario {
        name: "f166-agent-away",
        promise: "F166",
        what: "The agent has said goodbye (directly: the server is away), and an application polls for 15 s.",
        figures: AWAY,
        seconds: 25,
        run: away,
        ..BASE
    },
    Scenario {
        name: "f167-log-disk-full",
        promise: "F167",
        what: "Every line that relay, agent and sidecar log meets a full disk, during a flood and a restart of the relay.",
        figures: UNWRITABLE,
        seconds: 30,
        run: |case| unwritable(case, "exec >/dev/full 2>&1"),
        ..BASE
    },
    Scenario {
        name: "f167-log-pipe-closed",
        promise: "F167",
        what: "The same with a pipe that nobody reads any more.",
        figures: UNWRITABLE,
        seconds: 30,
        // The reader ends at once, so what is written later meets a closed pipe.
        run: |case| unwritable(case, "exec > >(true) 2>&1; sleep 0.2"),
        ..BASE
    },
];

/// Dials for so long, and gives how many dials came to nothing.
fn flood(world: &World, seconds: u64) -> anyhow::Result<usize> {
    app(world, |target| {
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut failed = 0;
        while Instant::now() < until {
            failed += usize::from(exchange(target).is_err());
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(failed)
    })
}

/// A line without what differs from one to the next of its kind: digits, and with them its time.
fn kind(line: &str) -> String {
    line.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The most lines of one kind in a log of the chain.
fn most_of_a_kind(world: &World) -> usize {
    let mut most = 0;
    for process in ["relay", "agent", "sidecar"] {
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for line in world.log(process).lines() {
            *kinds.entry(kind(line)).or_default() += 1;
        }
        most = most.max(kinds.into_values().max().unwrap_or_default());
    }
    most
}

fn one_cause(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    case.number("failed", count(flood(&world, 15)?));
    if case.way != Way::Direct {
        case.number("lines", count(most_of_a_kind(&world)));
        case.number("counted", metric(&world, "sidecar", "hopline_mapping_opens_total{mapping=\"raw\"")?);
    }
    Ok(())
}

fn away(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut world = case.world()?;
    if case.way == Way::Direct {
        case.number("failed", count(flood(&world, 15)?));
        return Ok(());
    }
    world.end("agent", Signal::TERM)?;
    let failed = count(flood(&world, 15)?);
    case.number("failed", failed);
    case.number("lines", count(most_of_a_kind(&world)));
    let errors = ["relay", "sidecar"].map(|process| world.log(process).matches("ERROR").count());
    case.number("errors", count(errors.iter().sum()));
    let offline = "hopline_mapping_opens_total{mapping=\"raw\",result=\"offline\"";
    case.number("missing", failed - metric(&world, "sidecar", offline)?);
    Ok(())
}

/// What these processes have used of the CPU, in seconds.
fn cpu_s(world: &World) -> anyhow::Result<f64> {
    let mut ticks = 0.0;
    for process in ["relay", "agent", "sidecar"] {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", world.process(process)?.id()))?;
        // Behind the name, which may hold anything: user and system time are the 12th and 13th words.
        let words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        ticks += words.skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum::<f64>();
    }
    // USER_HZ is 100 on every architecture that the lab runs on.
    Ok(ticks / 100.0)
}

fn unwritable(case: &mut Case<'_>, before: &'static str) -> anyhow::Result<()> {
    let mut world = case.world_with(Options { before: Some(before), ..Options::plain(case.way) })?;
    let server = serve(&world, inside::echo)?;
    app(&world, exchange)?;
    let chained = case.way != Way::Direct;
    let used = if chained { cpu_s(&world)? } else { 0.0 };
    let failed = app(&world, |target| {
        let until = Instant::now() + Duration::from_secs(10);
        let mut failed = 0;
        while Instant::now() < until {
            failed += usize::from(exchange(target).is_err());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(failed)
    })?;
    case.number("failed", count(failed));
    if chained {
        case.number("cpu_s", cpu_s(&world)? - used);
    }
    drop(server);
    flood(&world, 3)?;
    if chained {
        world.end("relay", Signal::KILL)?;
        world.start_relay()?;
    }
    let _server = serve(&world, inside::echo)?;
    let back = app(&world, exchange);
    case.word("back", if back.is_ok() { "works" } else { "broken" });
    Ok(())
}
