//! Paths that take time, more or less of it, or let packets overtake each other: what calls, bulk and liveness make of it.
//!
//! A path of 50 ms is that each way. Through the chain all of it lies between sidecar and relay, or half of it on each
//! of the two network hops; directly it is the one path.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::streams::{Plan, SOON, run};
use super::{Case, Figure, Pace, Scenario};
use crate::fault::{Applied, Fault};
use crate::result::Bound;
use crate::seeded::prefix_sha256;
use crate::world::{Options, Way, World};

/// The seeds of what the client and the server send.
const SEEDS: [u32; 2] = [11, 12];
/// How many calls a median is of.
const CALLS: usize = 60;

const fn figure(id: &'static str, what: &'static str, unit: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit, article: "", bound }
}

/// A path of 50 ± 20 ms, and what a machine adds: 10 ms.
const CALL: &[Figure] = &[
    figure(
        "unary_ms",
        "median of 60 calls, one after the other",
        "ms",
        Bound::AtMostOrDirectPlus(110.0, 10.0),
    ),
    figure("left_ms", "left of 3,000 ms at the handler", "ms", Bound::AtLeastOrDirectLess(2_990.0, 5.0)),
    figure("never_ms", "client's end at a 1 s deadline", "ms", Bound::AtMostOrDirectPlus(1_010.0, 5.0)),
    figure("never_status", "its status", "", Bound::DeadlineStatus),
    figure("never_handler_ms", "its handler's end", "ms", Bound::AtMostOrDirectPlus(1_080.0, 5.0)),
    figure(
        "cancel_ms",
        "handler's end at a cancel after 500 ms",
        "ms",
        Bound::AtMostOrDirectPlus(580.0, 5.0),
    ),
];

/// What a window that does not grow gives over a round trip of 100 ms is 0.6 MB/s.
const RATE: &[Figure] = &[
    figure("up", "to the server", "MB/s", Bound::AtLeastOfDirect(0.5)),
    figure("down", "from the server", "MB/s", Bound::AtLeastOfDirect(0.5)),
];

const LIVES: &[Figure] = &[
    figure("lives", "the stream after 40 s", "", Bound::Word(&["lives"])),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["none"])),
];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P1",
    what: "",
    figures: RATE,
    ways: &[Way::Direct, Way::Tcp],
    speaks_grpc: false,
    pace: Pace::Alone,
    runs: 3,
    seconds: 20,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "delay-calls",
        promise: "P2",
        what: "A path of 50 ± 20 ms between sidecar and relay. Calls, deadlines and cancels on a channel that has made a \
               call.",
        figures: CALL,
        ways: &[Way::Direct, Way::Unix],
        speaks_grpc: true,
        seconds: 22,
        run: calls,
        ..BASE
    },
    Scenario {
        name: "delay-bulk",
        what: "A path of 50 ms between sidecar and relay; 16 MiB of raw TCP to the server, then as much back.",
        run: |case| bulk(case, [(50, 0), (0, 0)], 16 << 20),
        ..BASE
    },
    Scenario {
        name: "delay-bulk-halves",
        what: "The same with 25 ms on each network hop.",
        run: |case| bulk(case, [(25, 0), (25, 0)], 16 << 20),
        ..BASE
    },
    Scenario {
        name: "delay-bulk-jitter",
        what: "50 ± 20 ms between sidecar and relay, 4 MiB each way: the jitter keeps TCP itself slow.",
        run: |case| bulk(case, [(50, 20), (0, 0)], 4 << 20),
        ..BASE
    },
    Scenario {
        name: "jitter-500",
        promise: "P11",
        what: "Paths of 500 ± 500 ms on both network hops for 40 s; the server writes 2 KB every 50 ms.",
        run: |case| jitter(case, "default"),
        ..JITTER
    },
    Scenario {
        name: "jitter-500-fast",
        promise: "P11",
        what: "The same with the preset fast (dead within 4.5 s).",
        run: |case| jitter(case, "fast"),
        ..JITTER
    },
];

const JITTER: Scenario = Scenario {
    figures: LIVES,
    ways: &[Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    seconds: 52,
    ..BASE
};

/// Makes both network hops slow, each by a delay and a jitter in milliseconds; directly the first is the one path.
fn slow(world: &World, way: Way, hops: [(u32, u32); 2]) -> anyhow::Result<Vec<Applied>> {
    let mut applied = Vec::new();
    let (mut near, far) = (hops[0], hops[1]);
    if way == Way::Direct {
        near = (near.0 + far.0, near.1 + far.1);
    }
    let to = if way == Way::Direct { "db" } else { "relay" };
    for ([from, to], (delay_ms, jitter_ms)) in [(["web", to], near), (["relay", "db"], far)] {
        if delay_ms > 0 && (way != Way::Direct || from == "web") {
            let (from, to) = (from.to_owned(), to.to_owned());
            applied.push(world.apply(&Fault::Delay { from, to, delay_ms, jitter_ms })?);
        }
    }
    Ok(applied)
}

/// The same, with links that are made anew on the slow paths. A link that was up before takes minutes to believe that
/// its path has become longer (`least_round_trip` in `link-proto/src/watch.rs`), and its windows stay small so long.
fn slow_from_the_start(world: &World, way: Way, hops: [(u32, u32); 2]) -> anyhow::Result<Vec<Applied>> {
    let applied = slow(world, way, hops)?;
    if way == Way::Direct {
        return Ok(applied);
    }
    let edges = [("sidecar", ["web", "relay"], hops[0]), ("agent", ["db", "relay"], hops[1])];
    for (edge, [from, to], (delay_ms, jitter_ms)) in edges {
        if delay_ms == 0 {
            continue;
        }
        world.apply(&Fault::Cut { from: from.to_owned(), to: to.to_owned() })?;
        let least_us = f64::from(delay_ms.saturating_sub(jitter_ms)) * 2e3;
        crate::shell::until(&format!("{edge}'s slow link"), SOON, || {
            let status = world.status(edge).ok()?;
            let link = status["links"].as_array()?.iter().find(|link| link["state"] == "up")?;
            (link["rtt_us"].as_f64()? >= least_us).then_some(())
        })?;
    }
    Ok(applied)
}

fn calls(case: &mut Case<'_>) -> anyhow::Result<()> {
    let way = case.way;
    super::calls::deadlines(
        case,
        |world| slow_from_the_start(world, way, [(50, 20), (0, 0)]),
        |case, world, client| {
            let mut all = Vec::new();
            for number in 0..CALLS {
                let call = format!("call {number}");
                let end = world.app(client).echo(&call)?;
                ensure!(end.text("status") == "OK", "{call}: {}", end.body);
                all.push(end.mono_ms - world.app(client).expect("start", &call, SOON)?.mono_ms);
            }
            all.sort_by(f64::total_cmp);
            case.number("unary_ms", all[CALLS / 2]);
            Ok(())
        },
    )
}

fn bulk(case: &mut Case<'_>, hops: [(u32, u32); 2], bytes: u64) -> anyhow::Result<()> {
    let mut world = case.world_with(Options { plain_slow_start: true, ..Options::plain(case.way) })?;
    let server = world.start_raw_server()?;
    let client = world.start_actor("web", "client")?;
    let slow = slow_from_the_start(&world, case.way, hops)?;
    let address = world.raw_target();
    world.app(client).say(&json!({"op": "dial", "address": address}))?;
    world.app(client).find(SOON, |event| event.kind == "first")?.context("no first byte")?;
    for (id, [from, to], seed) in [("up", [client, server], SEEDS[0]), ("down", [server, client], SEEDS[1])] {
        let began_ms = crate::shell::now_ms();
        world.app(from).say(&json!({"op": "send", "conn": 0, "bytes": bytes, "seed": seed}))?;
        world.app(from).find(SOON * 4, |event| event.kind == "sent")?.context("not sent within 120 s")?;
        world.app(from).say(&json!({"op": "fin", "conn": 0}))?;
        let end = world.app(to).find(SOON * 2, |event| event.kind == "end")?.context("no end")?;
        // The client reads the one byte that the server says first.
        let greeting = u64::from(id == "down");
        ensure!(end.text("how") == "fin" && end.count("received") == bytes + greeting, "{}", end.body);
        if greeting == 0 {
            ensure!(end.text("received_sha256") == prefix_sha256(seed, bytes), "other bytes than were sent");
        }
        #[expect(clippy::cast_precision_loss, reason = "some MiB")]
        case.number(id, bytes as f64 / 1e3 / (end.mono_ms - began_ms));
    }
    slow.into_iter().try_for_each(|applied| applied.heal().map(drop))
}

fn jitter(case: &mut Case<'_>, preset: &'static str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.options.sidecar_keepalive = preset;
    plan.options.agent_keepalive = preset;
    plan.stream = json!({"every_ms": 50, "bytes": 2_000});
    let way = case.way;
    run(case, &plan, |world| {
        let at_ms = crate::shell::now_ms();
        Ok(super::streams::Done { at_ms, undo: slow(world, way, [(500, 500), (500, 500)])? })
    })?;
    let ended = case.values.remove("status").is_some();
    case.word("lives", if ended { "ended" } else { "lives" });
    Ok(())
}
