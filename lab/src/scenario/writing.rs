//! Checked byte streams: nothing lost, nothing twice, on rough paths; and writes into a path that is dead.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::app::Event;
use crate::fault::Fault;
use crate::result::Bound;
use crate::seeded::prefix_sha256;
use crate::shell::now_ms;
use crate::world::{Options, Way};

/// The seed of a check's bytes; the other direction has the next one.
const SEED: u32 = 7;

const BYTES: &[Figure] = &[
    Figure {
        id: "bytes",
        what: "bytes at both ends",
        unit: "",
        article: "",
        bound: Bound::Word(&["all, and a clean end"]),
    },
    Figure { id: "seconds", what: "took", unit: "s", article: "", bound: Bound::None },
    Figure {
        id: "reason",
        what: "reason@hop in /status",
        unit: "",
        article: "",
        bound: Bound::Word(&["none"]),
    },
];
/// A path as bad as this may end the session, but never wrongly.
const HONEST: &[Figure] = &[
    Figure {
        id: "bytes",
        what: "bytes at both ends",
        unit: "",
        article: "",
        bound: Bound::Word(&["all, and a clean end", "an honest cut at both ends"]),
    },
    Figure { id: "seconds", what: "took", unit: "s", article: "", bound: Bound::None },
    Figure { id: "reason", what: "reason@hop in /status", unit: "", article: "", bound: Bound::None },
];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P1",
    what: "",
    figures: BYTES,
    ways: &[Way::Direct, Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 3,
    seconds: 30,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "bytes-clean",
        what: "8 MiB each way at once, on a good path.",
        seconds: 8,
        smoke: true,
        run: |case| rough(case, None, None, 8 << 20, 0),
        ..BASE
    },
    Scenario {
        name: "loss-1",
        promise: "P11",
        what: "1 % of all packets on both network hops is lost, 2 MiB each way.",
        run: |case| rough(case, loss(1), loss_agent(1), 2 << 20, 0),
        ..BASE
    },
    Scenario {
        name: "loss-5",
        promise: "P11",
        what: "5 % of all packets on both network hops is lost, 1 MiB each way.",
        run: |case| rough(case, loss(5), loss_agent(5), 1 << 20, 0),
        ..BASE
    },
    Scenario {
        name: "loss-30",
        promise: "P17",
        what: "30 % of all packets on both network hops is lost, 64 KiB each way; a session may end, but not wrongly.",
        figures: HONEST,
        seconds: 60,
        run: |case| rough(case, loss(30), loss_agent(30), 64 << 10, 0),
        ..BASE
    },
    Scenario {
        name: "reorder-5",
        promise: "P11",
        what: "5 % of all packets on both network hops are held back for 5 ms and overtaken, 4 MiB each way.",
        run: |case| {
            let reorder = |from: &str, to: &str| {
                Some(Fault::Reorder { from: from.to_owned(), to: to.to_owned(), percent: 5, by_ms: 5 })
            };
            rough(case, reorder("web", "relay"), reorder("relay", "db"), 4 << 20, 0)
        },
        ..BASE
    },
    Scenario {
        name: "slow-32k",
        promise: "P11",
        what: "The sidecar's host has 32 KiB/s each way behind a queue of 256 KiB (8 s); 1.5 MiB each way, as fast as it goes.",
        seconds: 75,
        run: |case| {
            let slow = Fault::Limit { host: "web".to_owned(), kib_per_s: 32, queue_kib: 256 };
            rough(case, Some(slow), None, 3 << 19, 0)
        },
        ..BASE
    },
    Scenario { name: "outage-8s", run: |case| outage(case, 8), ..OUTAGE },
    Scenario { name: "outage-12s", run: |case| outage(case, 12), ..OUTAGE },
    Scenario { name: "outage-14s", run: |case| outage(case, 14), ..OUTAGE },
];

const OUTAGE: Scenario = Scenario {
    promise: "P17",
    what: "Every packet between relay and agent is lost for some seconds under a checked stream of 20 KB/s each way, then \
           the path is good again: all bytes or an error at both ends, and nobody waits after 60 s.",
    figures: HONEST,
    ways: &[Way::Unix],
    seconds: 45,
    ..BASE
};

fn loss(percent: u8) -> Option<Fault> {
    Some(Fault::Loss { from: "web".to_owned(), to: "relay".to_owned(), percent })
}

fn loss_agent(percent: u8) -> Option<Fault> {
    Some(Fault::Loss { from: "relay".to_owned(), to: "db".to_owned(), percent })
}

/// Runs a checked stream while faults are in force.
fn rough(
    case: &mut Case<'_>,
    fault: Option<Fault>,
    second: Option<Fault>,
    bytes: u64,
    rate: u64,
) -> anyhow::Result<()> {
    let direct = case.way == Way::Direct;
    check(case, bytes, rate, |world| {
        let mut applied = Vec::new();
        // Directly the one path between the hosts has what both network hops have through the chain.
        for fault in [&fault, &second].into_iter().flatten() {
            let fault = if direct { fault.clone().between("web", "db") } else { fault.clone() };
            applied.push(world.apply(&fault)?);
        }
        Ok(applied)
    })
}

fn outage(case: &mut Case<'_>, seconds: u64) -> anyhow::Result<()> {
    check(case, 500_000, 20_000, |world| {
        std::thread::sleep(Duration::from_secs(3));
        let cut = world.cut_path("relay", "db")?;
        std::thread::sleep(Duration::from_secs(seconds));
        cut.heal()?;
        Ok(Vec::new())
    })
}

fn check(
    case: &mut Case<'_>,
    bytes: u64,
    rate: u64,
    harm: impl Fn(&crate::world::World) -> anyhow::Result<Vec<crate::fault::Applied>>,
) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    // What is faulty from the start is so before the stream; what comes and goes does so under it.
    let early = if rate == 0 { harm(&world)? } else { Vec::new() };
    let arguments = json!({
        "seed": SEED, "send": bytes, "receive": bytes, "chunk": 4_096, "send_rate": rate, "receive_rate": rate,
    });
    let began = now_ms();
    world.app(client).call("check", "check", arguments)?;
    if rate > 0 {
        world.app(server).expect("handler", "check", SOON)?;
        drop(harm(&world)?);
    }
    let patience = Duration::from_secs(120);
    let end = world.app(client).find(patience, |event| event.kind == "end" && event.call == "check")?;
    let handler =
        world.app(server).find(SOON * 2, |event| event.kind == "handler_end" && event.call == "check")?;
    drop(early);
    if let Some(end) = &end {
        case.number("seconds", (end.mono_ms - began) / 1e3);
    }
    let verdict = compare(end.as_ref(), handler.as_ref(), bytes);
    case.word("bytes", verdict);
    if case.way != Way::Direct {
        let reason = world.reason()?;
        case.word("reason", reason);
    }
    Ok(())
}

/// Both ends' counts and hashes against the seeded bytes.
fn compare(end: Option<&Event>, handler: Option<&Event>, bytes: u64) -> &'static str {
    let (Some(end), Some(handler)) = (end, handler) else { return "an end that still waits" };
    for (event, seed) in [(handler, SEED), (end, SEED + 1)] {
        if event.text("received_sha256") != prefix_sha256(seed, event.count("received")) {
            return "bytes that were not sent";
        }
    }
    let clean = [end.text("status") == "OK", handler.text("reason") == "returned"];
    let whole = end.count("received") == bytes && handler.count("received") == bytes;
    match (clean, whole) {
        ([true, true], true) => "all, and a clean end",
        ([true, _] | [_, true], false) => "a clean end with bytes missing",
        ([false, false], _) => "an honest cut at both ends",
        // All bytes arrived and the status was lost on the way back: as with any lost answer.
        ([false, true], true) => "an honest cut at both ends",
        ([true, false], true) => "a clean end that the other end calls a cut",
    }
}

/// The host behind a forward vanishes while the client writes.
pub(super) fn silent_forward(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { server: "far", ..Options::plain(case.way) })?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    let arguments = json!({"seed": SEED, "send": 100_000_000, "chunk": 1_000, "send_rate": 5_000});
    world.app(client).call("check", "check", arguments)?;
    world.app(server).expect("handler", "check", SOON)?;
    std::thread::sleep(Duration::from_secs(1));
    let cut = world.cut_path("db", "far")?;
    let patience = Duration::from_secs(40);
    match world.app(client).find(patience, |event| event.kind == "end" && event.call == "check")? {
        Some(end) => case.number("client_s", (end.mono_ms - cut.at_ms) / 1e3),
        None => case.not_within("client_s", patience.as_secs_f64()),
    }
    let reason = world.reason().context("the sidecar's status")?;
    case.word("reason", reason);
    Ok(())
}
