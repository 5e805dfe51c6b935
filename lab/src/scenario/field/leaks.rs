//! Sessions, descriptors and memory that stay: F10, F25 to F43, F65.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, figure, seconds};
use crate::fault::Fault;
use crate::measure::connections;
use crate::result::Bound;
use crate::status;
use crate::world::Way;

const OK: Bound = Bound::Word(&["ok"]);
const NONE: Bound = Bound::AtMost(0.0);

const MANY: &[Figure] = &[
    figure("client", "faults of the client", "", OK),
    figure("server", "faults of the server", "", OK),
    figure("fresh_ms", "one more then", "ms", Bound::AtMostOrDirectPlus(100.0, 100.0)),
    figure("open", "open sessions then", "", NONE),
];
const SOAK: &[Figure] = &[
    figure("wrong", "of 2,400 sessions ended otherwise than they were told to", "", NONE),
    figure("relay_kib", "growth of the relay's memory after the first third", "KiB", Bound::AtMost(2_048.0)),
    figure("agent_kib", "the agent's", "KiB", Bound::AtMost(2_048.0)),
    figure("sidecar_kib", "the sidecar's", "KiB", Bound::AtMost(2_048.0)),
    figure("descriptors", "descriptors of all three, beyond those at the start", "", Bound::AtMost(3.0)),
    figure("open", "open sessions", "", NONE),
];
const STALLED: &[Figure] = &[
    figure("longest_ms", "the longest open", "ms", Bound::AtMost(12_000.0)),
    figure("faults", "those that failed", "", Bound::None),
    figure("waiting", "opens that wait, 4 s after the agent runs again", "", NONE),
    figure(
        "dials",
        "dials of the agent for opens that were given up: those on their way at that moment",
        "",
        Bound::AtMost(40.0),
    ),
    figure("fresh", "a session then", "", OK),
];
const STARVED: &[Figure] = &[
    figure("others", "sessions that were open before", "", OK),
    figure("cpu_s", "processor time of the sidecar in 5 s without descriptors", "s", Bound::AtMost(1.5)),
    figure("lines", "lines that it logged in that time", "", Bound::AtMost(5.0)),
    figure("findings", "findings in /status meanwhile", "", Bound::AtLeast(1.0)),
    figure("state", "the mapping there", "", Bound::Word(&["degraded", "failed"])),
    figure("fresh_ms", "a session, once there are some again", "ms", Bound::AtMost(1_000.0)),
];
const RELAY_STARVED: &[Figure] = &[
    figure("others", "sessions that were open before", "", OK),
    figure("registered", "a new session through the registrations that were there", "", OK),
    figure("cpu_s", "processor time of the relay in 5 s without descriptors", "s", Bound::AtMost(1.5)),
    figure("edge_s", "a new edge is ready, once there are some again", "s", Bound::AtMost(35.0)),
];
const ORDERS: &[Figure] = &[
    figure("begun", "sessions, 20 for each pair of ends", "", Bound::Within(320.0, 320.0)),
    figure("server_left", "connections of servers that are left a second later", "", NONE),
    figure("client_left", "connections of clients", "", NONE),
    figure("open", "open sessions within 5 s", "", NONE),
];
const SEGMENT: &[Figure] = &[
    figure("client", "the client's script", "", OK),
    figure("server", "the server's script", "", OK),
    figure("sent", "bytes that it sent", "B", Bound::Within(8_388_608.0, 8_388_608.0)),
    figure("open", "open sessions then", "", NONE),
];
const SIZES: &[Figure] = &[
    figure("wrong", "sizes whose bytes or end were wrong, of 7", "", NONE),
    figure("open", "open sessions", "", NONE),
    figure("descriptors", "descriptors of the sidecar, beyond those at the start", "", Bound::AtMost(1.0)),
];
const KILLS: &[Figure] = &[
    figure("relay_kib", "growth of the relay's memory from kill 3 to kill 15", "KiB", Bound::AtMost(1_024.0)),
    figure("agent_kib", "the agent's", "KiB", Bound::AtMost(1_024.0)),
    figure("left", "sessions that the agent still has", "", NONE),
    figure("server_left", "connections that the server still has", "", NONE),
];
const GIVES_UP: &[Figure] = &[
    figure("server_open", "connections that the server still has 5 s later", "", NONE),
    figure("open", "open sessions", "", NONE),
    figure("descriptors", "descriptors of all three, beyond those at the start", "", Bound::AtMost(3.0)),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f10-clean-ends-give-their-slot-back",
        promise: "F10",
        what: "12,000 sessions, 8 at once, each ended by the client while the server waits for the end: three times as many \
               as a link has slots.",
        figures: MANY,
        seconds: 40,
        run: |case| many(case, 12_000, json!([{"send": {"bytes": 1}}, "fin", "recv_fin"])),
        ..BASE
    },
    Scenario {
        name: "f65-slots-are-used-again",
        promise: "F65",
        what: "15,000 sessions, 8 at once, each of one round trip.",
        figures: MANY,
        seconds: 40,
        run: |case| {
            many(case, 15_000, json!([{"ping_pong": {"bytes": 10, "times": 1}}, "fin", {"recv_end": {}}]))
        },
        ..BASE
    },
    Scenario {
        name: "f25-soak-with-aborts",
        promise: "F25",
        what: "60 opens a second for 40 s, one in twenty reset by the client, one by the server.",
        figures: SOAK,
        seconds: 55,
        run: soak,
        ..BASE
    },
    Scenario {
        name: "f26-agent-that-stalls",
        promise: "F26",
        what: "The agent (directly: the server) is stopped for 12 s under 100 opens a second for 5 s; the open timeout is 10 s.",
        figures: STALLED,
        seconds: 30,
        run: stalled,
        ..BASE
    },
    Scenario {
        name: "f28-sidecar-without-descriptors",
        promise: "F28",
        what: "The sidecar may have 60 descriptors, and 300 applications connect.",
        figures: STARVED,
        ways: &[Way::Tcp, Way::Unix],
        seconds: 25,
        run: starved,
        ..BASE
    },
    Scenario {
        name: "f29-relay-without-descriptors",
        promise: "F29",
        what: "The relay has no descriptors left, and 100 connections and one edge wait for it.",
        figures: RELAY_STARVED,
        ways: &[Way::Tcp],
        seconds: 45,
        run: relay_starved,
        ..BASE
    },
    Scenario {
        name: "f34-any-order-of-ends",
        promise: "F34",
        what: "Each of four ends of the client (half-close, close, reset, nothing) with each of the server, data in flight.",
        figures: ORDERS,
        run: orders,
        ..BASE
    },
    Scenario {
        name: "f35-end-behind-data-while-blocked",
        promise: "F35",
        what: "The server sends 31 bytes and its end while the client's 8 MiB are stuck; 3 s later it reads them.",
        figures: SEGMENT,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: segment,
        ..BASE
    },
    Scenario {
        name: "f37-any-size",
        promise: "F37",
        what: "Replies of 0, 1, 65,535, 65,536, 65,537 bytes, 1 MiB and 64 MiB, the client's request as large.",
        figures: SIZES,
        seconds: 20,
        run: sizes,
        ..BASE
    },
    Scenario {
        name: "f41-killed-sidecars",
        promise: "F41",
        what: "A sidecar with 50 sessions is killed with -9, 15 times.",
        figures: KILLS,
        ways: &[Way::Tcp],
        seconds: 50,
        run: kills,
        ..BASE
    },
    Scenario {
        name: "f43-clients-that-give-up",
        promise: "F43",
        what: "500 connections a second for 20 s, each closed at once.",
        figures: GIVES_UP,
        seconds: 35,
        run: gives_up,
        ..BASE
    },
];

/// Descriptors of the chain's processes.
fn descriptors(raw: &Raw) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for process in ["relay", "agent", "sidecar"] {
        sum += raw.held(process)?.map_or(0.0, |held| held.descriptors);
    }
    Ok(sum)
}

fn many(case: &mut Case<'_>, count: u64, script: Json) -> anyhow::Result<()> {
    // A ping-pong has an echo at the other side, which ends as the peer does.
    let rounds = script.to_string().contains("ping_pong");
    let serve = if rounds { json!(["echo"]) } else { json!(["recv_fin"]) };
    let mut raw = Raw::start(case, serve)?;
    raw.go_many("many", json!({"script": script, "count": count, "parallel": 8}))?;
    let ran = raw.ran("many", SOON * 4)?;
    case.word("client", ran.word());
    let fresh = raw.run("fresh", script, SOON)?;
    case.number("fresh_ms", fresh.time("ms", "max"));
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("server", served.word());
    case.number("open", raw.open_sessions()?);
    Ok(())
}

fn soak(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    raw.run("warm", json!([{"ask": []}, "recv_fin"]), SOON)?;
    let before = descriptors(&raw)?;
    let good = json!([{"ask": [{"recv": {"bytes": 2_000}}, {"send": {"bytes": 20_000}}]},
        {"send": {"bytes": 2_000}}, {"recv": {"bytes": 20_000}}, "recv_fin"]);
    let client_resets = json!([{"ask": [{"send": {"bytes": 500_000}}]}, {"recv": {"bytes": 100}}, "rst"]);
    let server_resets = json!([{"ask": [{"send": {"bytes": 1_000}}, "rst"]}, {"recv_end": {}}]);
    raw.go_many("good", json!({"script": good, "count": 2_160, "per_s": 54}))?;
    raw.go_many("client resets", json!({"script": client_resets, "count": 120, "per_s": 3}))?;
    raw.go_many("server resets", json!({"script": server_resets, "count": 120, "per_s": 3}))?;
    std::thread::sleep(seconds(14));
    let processes = ["relay", "agent", "sidecar"];
    let third = processes.map(|process| raw.held(process).ok().flatten().map(|held| held.rss_kib));
    let good = raw.ran("good", SOON * 2)?;
    let [a, b] = [raw.ran("client resets", SOON)?, raw.ran("server resets", SOON)?];
    std::thread::sleep(seconds(5));
    let resets = b.0.body["ends"]["reset"].as_f64().unwrap_or_default();
    case.number("wrong", 2_400.0 - good.count("ok") - a.count("ok") - resets);
    if case.way == Way::Direct {
        return Ok(());
    }
    for (process, third) in processes.iter().zip(third) {
        let now = raw.held(process)?.map_or(0.0, |held| held.rss_kib);
        case.number(&format!("{process}_kib"), now - third.unwrap_or_default());
    }
    case.number("descriptors", descriptors(&raw)? - before);
    case.number("open", raw.open_sessions()?);
    Ok(())
}

fn stalled(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"send": {"bytes": 1}}, {"recv_end": {}}]))?;
    let script = json!([{"recv": {"bytes": 1}}]);
    raw.run("warm", script.clone(), SOON)?;
    // Old enough for its session not to be said again.
    std::thread::sleep(seconds(2));
    let process = if case.way == Way::Direct { "server" } else { "agent" };
    let freeze = raw.world.apply(&Fault::Freeze { process: process.to_owned() })?;
    let wanted = json!({"script": script, "count": 500, "per_s": 100, "patience_ms": 15_000});
    raw.go_many("stalled", wanted)?;
    std::thread::sleep(seconds(12));
    freeze.heal()?;
    let ran = raw.ran("stalled", SOON)?;
    case.number("longest_ms", ran.time("ms", "max"));
    case.word("faults", ran.word());
    std::thread::sleep(seconds(4));
    let fresh = raw.run("fresh", json!([{"recv": {"bytes": 1}}]), SOON)?;
    case.word("fresh", fresh.word());
    let served = raw.served(SOON, |_| true)?;
    if case.way != Way::Direct {
        case.number("waiting", raw.open_after_5_s()?);
        case.number("dials", served.count("begun") - ran.count("ok") - 2.0);
    }
    Ok(())
}

fn starved(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let rounds = json!([{"ping_pong": {"bytes": 100, "for_ms": 12_000, "pause_ms": 50}}, "fin"]);
    raw.go_many("others", json!({"script": rounds, "count": 10}))?;
    std::thread::sleep(seconds(2));
    // Nobody could ask for it later.
    let early = status::Early::open(&raw.world.status_socket("sidecar"))?;
    let limit = raw.world.apply(&Fault::Descriptors { process: "sidecar".to_owned(), count: 60 })?;
    let wait = json!([{"send": {"bytes": 1}}, {"until": "go"}]);
    raw.go_many("crowd", json!({"script": wait, "count": 300}))?;
    std::thread::sleep(seconds(3));
    let status = early.status()?;
    let findings = status["findings"].as_array().map(Vec::len);
    let state = status::entry(&status, "mappings", "raw").and_then(|entry| entry["state"].as_str());
    case.word("state", state.unwrap_or("none"));
    let before = raw.held("sidecar")?.map_or(0.0, |held| held.cpu_s);
    let lines = raw.log_lines("sidecar")?;
    std::thread::sleep(seconds(5));
    case.number("cpu_s", raw.held("sidecar")?.map_or(0.0, |held| held.cpu_s) - before);
    case.number("lines", raw.log_lines("sidecar")? - lines);
    limit.heal()?;
    raw.flag(raw.client, "go")?;
    raw.ran("crowd", SOON)?;
    let fresh = raw.run("fresh", json!([{"ping_pong": {"bytes": 100, "times": 1}}]), SOON)?;
    case.number("fresh_ms", fresh.time("ms", "max"));
    case.word("others", raw.ran("others", SOON)?.word());
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    case.number("findings", findings.unwrap_or_default() as f64);
    Ok(())
}

fn relay_starved(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let config = format!("connect:\n  raw: {{ listen: \"unix:{}\" }}\n", raw.world.path("late.sock"));
    raw.world.add_edge("late", "web", "--dial", &config)?;
    let late = raw.world.status_socket("late");
    crate::shell::until("the late edge", SOON, || status::ready(&late).then_some(()))?;
    let rounds = json!([{"ping_pong": {"bytes": 100, "for_ms": 12_000, "pause_ms": 50}}, "fin"]);
    raw.go_many("others", json!({"script": rounds, "count": 10}))?;
    std::thread::sleep(seconds(2));
    raw.world.end("late", Signal::TERM)?;
    let held = raw.held("relay")?.map_or(0.0, |held| held.descriptors);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some dozen descriptors")]
    let count = held as u32;
    let limit = raw.world.apply(&Fault::Descriptors { process: "relay".to_owned(), count })?;
    let relay = format!("{}:7443", raw.world.net.address("relay"));
    let wait = json!({"script": [{"until": "go"}], "count": 100, "address": relay});
    raw.go_many("crowd", wait)?;
    raw.world.start_edge("late")?;
    std::thread::sleep(seconds(1));
    let before = raw.held("relay")?.map_or(0.0, |held| held.cpu_s);
    std::thread::sleep(seconds(5));
    case.number("cpu_s", raw.held("relay")?.map_or(0.0, |held| held.cpu_s) - before);
    let once = json!([{"ping_pong": {"bytes": 100, "times": 1}}]);
    let registered = raw.run("registered", once, SOON)?;
    case.word("registered", registered.word());
    limit.heal()?;
    raw.flag(raw.client, "go")?;
    let began = Instant::now();
    crate::shell::until("the late edge again", seconds(40), || status::ready(&late).then_some(()))?;
    case.number("edge_s", began.elapsed().as_secs_f64());
    case.word("others", raw.ran("others", SOON)?.word());
    Ok(())
}

fn orders(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let ends = [json!(["fin", {"recv_end": {}}]), json!(["close"]), json!(["rst"]), json!([])];
    let data = json!({"also": [{"send": {"bytes": 200_000}}]});
    for (number, (client, server)) in
        ends.iter().flat_map(|client| ends.iter().map(move |server| (client, server))).enumerate()
    {
        let with = |own: &Json| {
            let mut all = vec![data.clone(), json!({"recv": {"bytes": 100}})];
            all.extend(own.as_array().cloned().unwrap_or_default());
            all
        };
        let mut script = vec![json!({"ask": with(server)})];
        script.extend(with(client));
        raw.go_many(&format!("pair {number}"), json!({"script": script, "count": 20}))?;
    }
    for number in 0..16 {
        raw.ran(&format!("pair {number}"), SOON)?;
    }
    std::thread::sleep(seconds(1));
    let served = raw.served(Duration::ZERO, |_| true)?;
    case.number("begun", served.count("begun"));
    case.number("server_left", served.count("open"));
    let host = if case.way == Way::Direct { "db" } else { "web" };
    // The links of sidecar and agent are connections too.
    let links = if case.way == Way::Direct { 0.0 } else { 1.0 };
    case.number("client_left", connections(&raw.world.net, host, "established")? - links);
    case.number("open", raw.open_after_5_s()?);
    Ok(())
}

fn segment(case: &mut Case<'_>) -> anyhow::Result<()> {
    let serve =
        json!([{"send": {"bytes": 31}}, "fin", {"wait": 3_000}, {"recv": {"bytes": 8 << 20}}, "recv_fin"]);
    let mut raw = Raw::start(case, serve)?;
    let script =
        json!([{"also": [{"send": {"bytes": 8 << 20}}, "fin"]}, {"recv": {"bytes": 31}}, "recv_fin"]);
    let ran = raw.run("client", script, SOON)?;
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("client", ran.word());
    case.number("sent", ran.count("sent"));
    case.word("server", served.word());
    case.number("open", raw.open_after_5_s()?);
    Ok(())
}

fn sizes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    raw.run("warm", json!([{"ask": []}, "recv_fin"]), SOON)?;
    let before = raw.held("sidecar")?.map_or(0.0, |held| held.descriptors);
    let mut wrong = 0.0;
    for bytes in [0_u64, 1, 65_535, 65_536, 65_537, 1 << 20, 64 << 20] {
        let send = json!({"also": [{"send": {"bytes": bytes}}, "fin"]});
        let script = json!([{"ask": [send, "recv_fin"]}, send, "recv_fin"]);
        let ran = raw.run(&format!("{bytes} bytes"), script, SOON * 2)?;
        #[expect(clippy::cast_precision_loss, reason = "64 MiB")]
        let all = ran.count("received") == bytes as f64;
        if ran.word() != "ok" || !all {
            wrong += 1.0;
        }
    }
    case.number("wrong", wrong);
    std::thread::sleep(seconds(1));
    case.number("open", raw.open_sessions()?);
    if case.way != Way::Direct {
        case.number("descriptors", raw.held("sidecar")?.map_or(0.0, |held| held.descriptors) - before);
    }
    Ok(())
}

fn kills(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"send": {"bytes": 1}}, {"recv_end": {}}]))?;
    let sidecar = raw.world.status_socket("sidecar");
    let mut at_three = [0.0; 2];
    let memory = |raw: &Raw| -> anyhow::Result<[f64; 2]> {
        let of = |process| raw.held(process).map(|held| held.map_or(0.0, |held| held.rss_kib));
        Ok([of("relay")?, of("agent")?])
    };
    for kill in 1..=15 {
        let name = format!("kill {kill}");
        raw.go_many(&name, json!({"script": [{"recv": {"bytes": 1}}, {"recv_end": {}}], "count": 50}))?;
        raw.served(SOON, |ran| ran.count("open") >= 50.0)?;
        // Older than a second: younger sessions wait for their sidecar, which does not come back as the same one.
        std::thread::sleep(Duration::from_millis(1_300));
        raw.world.end("sidecar", Signal::KILL)?;
        raw.ran(&name, SOON)?;
        raw.served(SOON, |ran| ran.count("open") == 0.0)?;
        raw.world.start_edge("sidecar")?;
        crate::shell::until("the sidecar", SOON, || status::ready(&sidecar).then_some(()))?;
        if kill == 3 {
            at_three = memory(&raw)?;
        }
    }
    let now = memory(&raw)?;
    case.number("relay_kib", now[0] - at_three[0]);
    case.number("agent_kib", now[1] - at_three[1]);
    let left = raw.entry("agent", "services", |entry| entry["sessions"]["open"].as_f64())?;
    case.number("left", left.unwrap_or(f64::NAN));
    case.number("server_left", raw.served(Duration::ZERO, |_| true)?.count("open"));
    Ok(())
}

fn gives_up(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"recv_end": {}}]))?;
    raw.run("warm", json!(["close"]), SOON)?;
    let before = descriptors(&raw)?;
    raw.go_many("brief", json!({"script": [], "count": 10_000, "per_s": 500, "parallel": 50}))?;
    raw.ran("brief", SOON * 3)?;
    std::thread::sleep(seconds(5));
    case.number("server_open", raw.served(Duration::ZERO, |_| true)?.count("open"));
    case.number("open", raw.open_sessions()?);
    if case.way != Way::Direct {
        case.number("descriptors", descriptors(&raw)? - before);
    }
    Ok(())
}
