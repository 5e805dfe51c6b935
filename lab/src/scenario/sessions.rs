//! Raw sessions under faults: what both ends read and both `/status` say, who is held up, and what nobody notices.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::field::kit::{BASE, Ran, Raw, SOON, figure};
use super::{Case, Figure, Pace, Scenario};
use crate::fault::Fault;
use crate::result::Bound;
use crate::world::{Options, Way};

const OK: Bound = Bound::Word(&["ok"]);
const RESET: Bound = Bound::Word(&["reset"]);

/// The article's middle link of three is here the one link of two that dies: each end has it next to it, or behind the
/// relay.
const FAR: &[Figure] = &lost(BEHIND, HERE);
const NEAR: &[Figure] = &lost(HERE, BEHIND);
const HERE: Bound = Bound::Word(&["conn_lost@0"]);
const BEHIND: Bound = Bound::Word(&["conn_lost@1"]);

const fn lost(sidecar: Bound, agent: Bound) -> [Figure; 6] {
    [
        figure("client", "the client reads", "", RESET),
        figure("client_s", "after the cut", "s", Bound::AtMost(15.1)),
        figure("server", "the server reads", "", RESET),
        figure("server_s", "after the cut", "s", Bound::AtMost(15.1)),
        figure("sidecar", "reason@hop at the sidecar", "", sidecar),
        figure("agent", "reason@hop at the agent", "", agent),
    ]
}

const GIVES_UP: &[Figure] = &[
    figure("server", "the server reads, behind the client's reset", "", RESET),
    // An application that leaves is no fault of the service.
    figure("agent_first", "reason@hop at the agent then", "", Bound::Word(&["none"])),
    figure("client", "the client reads, behind the server's reset", "", RESET),
    figure("sidecar", "reason@hop at the sidecar", "", Bound::Word(&["peer_reset@2"])),
    figure("agent", "reason@hop at the agent", "", Bound::Word(&["peer_reset@0"])),
];

const SLOW: &[Figure] = &[
    figure("p99_ms", "a round of 10 others, 99th percentile", "ms", Bound::None),
    // Against the same in the same run: what else the machine does is in both.
    figure("slower", "that by what it was before", "", Bound::AtMost(3.0)),
    figure("others", "their faults", "", OK),
    figure("cpu", "processor time of the chain in 3 s while they stand", "s", Bound::AtMost(0.3)),
    figure("memory_mib", "what the sidecar has grown by", "MiB", Bound::AtMost(16.0)),
    figure("late", "the 20 that read at last", "", OK),
];

/// More than the kernels on the way take.
const STALLED: u64 = 16 << 20;

const DESCRIPTORS: &[Figure] = &[
    figure("others", "faults of 10 that were open before", "", OK),
    figure("cpu", "processor time in 5 s of it", "s", Bound::AtMost(1.0)),
    figure("back", "a connection begun meanwhile, in the end", "", OK),
    figure("fresh", "a new one afterwards", "", OK),
    figure("fresh_ms", "which takes", "ms", Bound::AtMost(1_000.0)),
];

const LINKS: &[Figure] = &[DESCRIPTORS[1], DESCRIPTORS[2], DESCRIPTORS[3], DESCRIPTORS[4]];

/// One every 10 ms for 8 s.
const OPENS: u32 = 800;
const YOUNG: &[Figure] = &[
    figure("faults", "faults of 800 connections", "", OK),
    figure("served", "connections that the server has seen", "", Bound::Within(800.0, 800.0)),
    figure("most_s", "the longest of them", "s", Bound::AtMost(10.0)),
];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "both-ends-far-link",
        promise: "P5",
        what: "Every packet between relay and agent is dropped under an idle raw session. Chains of three links are not there \
               yet: this is the second of two.",
        figures: FAR,
        ways: &[Way::Tcp],
        seconds: 24,
        runs: 3,
        run: |case| both_ends(case, ["relay", "db"]),
        ..BASE
    },
    Scenario {
        name: "both-ends-near-link",
        promise: "P5",
        what: "The same for the first of two, between sidecar and relay.",
        figures: NEAR,
        ways: &[Way::Tcp],
        seconds: 24,
        runs: 3,
        run: |case| both_ends(case, ["web", "relay"]),
        ..BASE
    },
    Scenario {
        name: "giving-up-travels",
        promise: "P15",
        what: "The client resets its connection; then the server another one. Both links are crossed.",
        figures: GIVES_UP,
        ways: &[Way::Tcp],
        run: giving_up,
        ..BASE
    },
    Scenario {
        name: "slow-reader",
        promise: "P16",
        what: "20 sessions on which the server sends 16 MiB are not read, beside 10 that go to and fro; then they are.",
        figures: SLOW,
        pace: Pace::Alone,
        seconds: 30,
        run: slow_reader,
        ..BASE
    },
    Scenario {
        name: "descriptors-sidecar",
        promise: "P1",
        what: "The sidecar may open no more than 48 descriptors for 5 s, while 100 connections are begun.",
        figures: DESCRIPTORS,
        ways: &[Way::Unix, Way::Tcp],
        seconds: 20,
        run: |case| descriptors(case, "sidecar", 48),
        ..BASE
    },
    Scenario {
        name: "descriptors-relay",
        promise: "P7",
        what: "The relay may open no more descriptors for 5 s, and the sidecar's link is reset: the next is accepted when it \
               may again.",
        figures: LINKS,
        ways: &[Way::Tcp],
        seconds: 20,
        run: |case| descriptors(case, "relay", 8),
        ..BASE
    },
    Scenario {
        name: "killed-relay-young",
        promise: "P7",
        what: "The relay is killed with -9 and started again after 3 s, while a connection is opened every 10 ms that says \
               1 KiB, reads it back, and ends.",
        figures: YOUNG,
        ways: &[Way::Tcp],
        runs: 3,
        seconds: 20,
        run: young,
        ..BASE
    },
];

/// Sends 1 KiB to and fro with an `obey` at the other side, for so long.
fn rounds(for_ms: u64) -> Json {
    json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 1_024, "for_ms": for_ms, "pause_ms": 20}}, "fin"])
}

/// One round, and a clean end.
fn once() -> Json {
    json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 1_024, "times": 1}}, "fin", "recv_fin"])
}

fn both_ends(case: &mut Case<'_>, [from, to]: [&str; 2]) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let script = json!([{"ask": [{"say": "open"}, {"recv_end": {}}]}, {"recv_end": {}}]);
    raw.go("client", script)?;
    raw.said(raw.server, "open")?;
    // A younger session would be carried on elsewhere.
    std::thread::sleep(Duration::from_secs(3));
    let cut = raw.world.cut_path(from, to)?;
    let client = raw.ran("client", SOON)?;
    let server = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("client", client.ends());
    case.word("server", server.ends());
    case.number("client_s", (client.mark("recv_end")? - cut.at_ms) / 1e3);
    case.number("server_s", (server.mark("recv_end")? - cut.at_ms) / 1e3);
    reasons(case, &raw)
}

fn reasons(case: &mut Case<'_>, raw: &Raw) -> anyhow::Result<()> {
    case.word("sidecar", raw.reason()?);
    let agent = raw.entry("agent", "services", |entry| crate::status::reason(Some(entry)))?;
    case.word("agent", agent);
    Ok(())
}

fn giving_up(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let script = json!([{"ask": [{"say": "open"}, {"recv_end": {}}]}, {"until": "reset"}, "rst"]);
    raw.go("first", script)?;
    raw.said(raw.server, "open")?;
    std::thread::sleep(Duration::from_millis(1_500));
    raw.flag(raw.client, "reset")?;
    let server = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("server", server.ends());
    let agent = raw.entry("agent", "services", |entry| crate::status::reason(Some(entry)))?;
    case.word("agent_first", agent);
    let client = raw.run("second", json!([{"ask": [{"wait": 1_500}, "rst"]}, {"recv_end": {}}]), SOON)?;
    case.word("client", client.ends());
    reasons(case, &raw)
}

fn slow_reader(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let warm = raw.run("warm", once(), SOON)?;
    ensure!(warm.word() == "ok", "{}", warm.word());
    let alone = go_to_and_fro(&mut raw, "alone")?;
    case.number("alone_ms", alone.time("rounds_ms", "p99"));
    let before = raw.held("sidecar")?;
    let stalled = json!([
        {"ask": [{"send": {"bytes": STALLED}}]}, {"until": "read"}, {"recv": {"bytes": STALLED}},
    ]);
    raw.go_many("stalled", json!({"script": stalled, "count": 20}))?;
    // What the kernels' buffers take goes on for a moment: that is no held-up session yet.
    let mut stands = busy(&raw)?;
    crate::shell::until("the stalled sessions to stand", SOON, || {
        std::thread::sleep(Duration::from_secs(1));
        let before = std::mem::replace(&mut stands, busy(&raw).unwrap_or(f64::INFINITY));
        (stands - before < 0.05).then_some(())
    })?;
    std::thread::sleep(Duration::from_secs(3));
    case.number("cpu", busy(&raw)? - stands);
    let others = go_to_and_fro(&mut raw, "others")?;
    let p99_ms = others.time("rounds_ms", "p99");
    case.number("p99_ms", p99_ms);
    case.number("median_ms", others.time("rounds_ms", "p50"));
    // Below 2 ms a ratio says nothing.
    case.number("slower", p99_ms.max(2.0) / alone.time("rounds_ms", "p99").max(2.0));
    case.word("others", others.word());
    if let Some((before, after)) = before.zip(raw.held("sidecar")?) {
        case.number("memory_mib", (after.rss_kib - before.rss_kib) / 1_024.0);
    }
    raw.flag(raw.client, "read")?;
    case.word("late", raw.ran("stalled", SOON)?.word());
    Ok(())
}

/// Processor time of the whole chain so far.
fn busy(raw: &Raw) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for process in ["sidecar", "relay", "agent"] {
        sum += raw.held(process)?.map_or(0.0, |held| held.cpu_s);
    }
    Ok(sum)
}

fn go_to_and_fro(raw: &mut Raw, name: &str) -> anyhow::Result<Ran> {
    raw.go_many(name, json!({"script": rounds(9_000), "count": 10}))?;
    raw.ran(name, SOON)
}

/// A process may open no more descriptors for 5 s.
fn descriptors(case: &mut Case<'_>, process: &str, count: u32) -> anyhow::Result<()> {
    let mut raw = Raw::start_with(case, Options::plain(case.way), json!(["obey"]))?;
    raw.go_many("others", json!({"script": rounds(9_000), "count": 10}))?;
    raw.served(SOON, |ran| ran.count("open") == 10.0)?;
    let few = raw.world.apply(&Fault::Descriptors { process: process.to_owned(), count })?;
    let begun = if process == "sidecar" {
        100
    } else {
        raw.world.apply(&Fault::Cut { from: "web".to_owned(), to: "relay".to_owned() })?;
        1
    };
    raw.go_many("back", json!({"script": once(), "count": begun}))?;
    std::thread::sleep(Duration::from_millis(500));
    let before = raw.held(process)?;
    std::thread::sleep(Duration::from_secs(5));
    if let Some((before, after)) = before.zip(raw.held(process)?) {
        case.number("cpu", after.cpu_s - before.cpu_s);
    }
    few.heal()?;
    let back = raw.ran("back", SOON)?;
    case.word("back", back.word());
    let fresh = raw.run("fresh", once(), SOON)?;
    case.word("fresh", fresh.word());
    case.number("fresh_ms", fresh.time("ms", "max"));
    if process == "sidecar" {
        case.word("others", raw.ran("others", SOON)?.word());
    }
    Ok(())
}

fn young(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    raw.go_many("opens", json!({"script": once(), "count": OPENS, "per_s": 100}))?;
    std::thread::sleep(Duration::from_secs(2));
    raw.world.end("relay", Signal::KILL)?;
    std::thread::sleep(Duration::from_secs(3));
    raw.world.start_relay()?;
    let opens: Ran = raw.ran("opens", SOON * 2)?;
    case.word("faults", opens.word());
    case.number("most_s", opens.time("ms", "max") / 1e3);
    let served = raw.counts(raw.server, "server")?;
    case.number("served", served.count("begun"));
    Ok(())
}
