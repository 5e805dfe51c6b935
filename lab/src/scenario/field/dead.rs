//! Peers and paths that die, or only seem to: F70 to F88.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, far_end, figure, seconds};
use crate::fault::Fault;
use crate::result::Bound;
use crate::world::{Options, Way};

/// A link that lived for so long is dialled again at once; one that was lost within 10 s is dialled ever more slowly.
const LIVED: Duration = Duration::from_secs(11);

const OK: Bound = Bound::Word(&["ok"]);
const NONE: Bound = Bound::AtMost(0.0);

const SHORT: &[Figure] = &[
    figure("waiting", "of 40 sessions that neither went on nor ended, 30 s after the healing", "", NONE),
    figure("wrong", "with wrong bytes", "", NONE),
    figure("fresh", "a session after the healing", "", OK),
];
const BLOCKED: &[Figure] = &[
    figure("client_s", "the writing client is told", "s", Bound::AtMost(15.2)),
    figure("left", "descriptors of that connection half a second later", "", NONE),
    figure("stops_s", "the sidecar stops on SIGINT, the relay still stopped", "s", Bound::AtMost(1.5)),
];
const CUTS: &[Figure] = &[
    figure("failed", "of the opens that were made at once after each of 4 cuts", "", NONE),
    figure("slowest_ms", "the slowest", "ms", Bound::AtMost(3_000.0)),
];
const FLUSHES: &[Figure] = &[
    figure("failed", "of 90 opens, two a second, the NAT forgetting all every 10 s", "", Bound::AtMost(0.0)),
    figure("slowest_ms", "the slowest", "ms", Bound::AtMost(10_000.0)),
];
const STATES: &[Figure] = &[
    figure("idle_s", "idle", "s", Bound::AtMost(15.2)),
    figure("reading_s", "the client reading", "s", Bound::AtMost(15.2)),
    figure("writing_s", "the client writing", "s", Bound::AtMost(15.2)),
    figure("full_s", "the client writing, the server not reading", "s", Bound::AtMost(15.2)),
];
const BAD: &[Figure] = &[
    figure("waiting", "of 20 sessions that neither went on nor ended", "", NONE),
    figure("wrong", "with wrong bytes", "", NONE),
    figure("fresh_s", "a session after the healing", "s", Bound::AtMostOrDirectPlus(10.0, 0.0)),
];
const LIVES: &[Figure] = &[
    figure("client", "the client's script", "", OK),
    figure("server", "the server's script", "", OK),
    figure("links", "links that the sidecar has had", "", Bound::AtMost(1.0)),
    figure("seconds", "took", "s", Bound::None),
];
const ROUNDS: &[Figure] = &[
    figure("rounds", "the session's script", "", OK),
    figure("links", "links that the sidecar has had", "", Bound::AtMost(1.0)),
];
const RESETS: &[Figure] = &[
    figure("failed", "of 450 short sessions, 10 a second", "", Bound::AtMostOrDirectPlus(12.0, 8.0)),
    figure("after", "of 20 after the last reset", "", NONE),
    figure("back_s", "the first of them", "s", Bound::AtMost(5.0)),
];
const WARM: &[Figure] = &[
    figure("ended", "of 20 warm sessions that ended", "", Bound::Within(20.0, 20.0)),
    figure("first_s", "the first", "s", Bound::AtMost(26.0)),
    figure("last_s", "the last", "s", Bound::AtMost(26.0)),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f70-outage-below-the-bound",
        promise: "F70",
        what: "Every packet is lost for 13 s under 40 ping-pongs, then the path is good again.",
        figures: SHORT,
        seconds: 55,
        run: |case| outage(case, None, 13),
        ..BASE
    },
    Scenario {
        name: "f71-close-while-blocked",
        promise: "F71",
        what: "The relay is stopped while the client writes all it can, so that the link's socket takes no more.",
        figures: BLOCKED,
        ways: &[Way::Tcp],
        seconds: 25,
        run: blocked,
        ..BASE
    },
    Scenario {
        name: "f73-links-are-cut",
        promise: "F73",
        what: "The link's connection (directly: the session's) is reset from outside, 4 times, 11 s apart, and an application \
               opens at once.",
        figures: CUTS,
        seconds: 50,
        run: cuts,
        ..BASE
    },
    Scenario {
        name: "f74-nat-forgets-again-and-again",
        promise: "F74",
        what: "The NAT before the client's host forgets all flows every 10 s for 45 s, and drops what it does not know.",
        figures: FLUSHES,
        seconds: 60,
        run: flushes,
        ..BASE
    },
    Scenario {
        name: "f76-every-state-of-a-session",
        promise: "F76",
        what: "The path dies under four sessions: one idle, one that is read, one that is written, one with full windows.",
        figures: STATES,
        seconds: 45,
        run: states,
        ..BASE
    },
    Scenario {
        name: "f77-almost-all-is-lost",
        promise: "F77",
        what: "95 % of all packets are lost for 25 s under 20 ping-pongs.",
        figures: BAD,
        seconds: 60,
        run: |case| outage(case, Some(95), 25),
        ..BASE
    },
    Scenario {
        name: "f79-slow-both-ways",
        promise: "F79",
        what: "The client's host has 200 KiB/s behind a queue of 1 MiB; 5 MiB each way in two sessions at once.",
        figures: LIVES,
        seconds: 60,
        run: slow,
        ..BASE
    },
    Scenario {
        name: "f80-little-processor",
        promise: "F80",
        what: "The sidecar (directly: the server) has 5 % of one CPU for 35 s, under 10 ping-pongs.",
        figures: ROUNDS,
        seconds: 50,
        run: starved,
        ..BASE
    },
    Scenario {
        name: "f82-proxy-that-cuts-what-is-idle",
        promise: "F82",
        what: "A proxy before the relay (directly: before the server) cuts what is silent for 12 s. A session says something, \
               nothing for 30 s, and something again.",
        figures: ROUNDS,
        seconds: 40,
        run: idle_cut,
        ..BASE
    },
    Scenario {
        name: "f86-resets-of-every-hop",
        promise: "F86",
        what: "The connections of both network hops are reset 4 times, 11 s apart, under short sessions.",
        figures: RESETS,
        seconds: 55,
        run: resets,
        ..BASE
    },
    Scenario {
        name: "f88-the-forward-host-vanishes",
        promise: "F88",
        what: "The host of the server vanishes under 20 idle sessions.",
        figures: WARM,
        seconds: 45,
        run: vanishes,
        ..BASE
    },
];

/// A ping-pong with an echo, for so long.
fn rounds(for_s: u64) -> Json {
    json!([{"ping_pong": {"bytes": 200, "for_ms": for_s * 1_000, "pause_ms": 200}}, "fin", {"recv_end": {}}])
}

/// Loses packets, all or a share, under sessions; each has to go on or to end.
fn outage(case: &mut Case<'_>, percent: Option<u8>, for_s: u64) -> anyhow::Result<()> {
    let count = if percent.is_some() { 20 } else { 40 };
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let wait_ms = (for_s + 30) * 1_000;
    let wanted = json!({"script": rounds(for_s + 8), "count": count, "patience_ms": wait_ms});
    raw.go_many("rounds", wanted)?;
    std::thread::sleep(seconds(3));
    let to = far_end(case.way);
    let (from, to) = ("web".to_owned(), to.to_owned());
    let fault = match percent {
        Some(percent) => Fault::Loss { from, to, percent },
        None => Fault::Drop { from, to, both: true },
    };
    let fault = raw.world.apply(&fault)?;
    std::thread::sleep(seconds(for_s));
    let healed_ms = fault.heal()?;
    let began = Instant::now();
    let mut tries = 0;
    let fresh = loop {
        tries += 1;
        let script = json!([{"ping_pong": {"bytes": 10, "times": 1}}, "fin"]);
        let ran = raw.run(&format!("fresh {tries}"), script, SOON * 2)?;
        if ran.word() == "ok" || began.elapsed() > SOON {
            break ran;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    case.word("fresh", fresh.word());
    case.number("fresh_s", (fresh.mark("ping_pong").unwrap_or(f64::INFINITY) - healed_ms) / 1e3);
    std::thread::sleep(seconds(30).saturating_sub(began.elapsed()));
    let ran = raw.counts(raw.client, "rounds")?;
    case.number("waiting", ran.count("open"));
    let wrong = ran.0.body["faults"]["ping_pong: wrong bytes"].as_f64();
    case.number("wrong", wrong.unwrap_or_default());
    Ok(())
}

fn blocked(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"recv_end": {}}]))?;
    raw.go("writer", json!([{"send": {"bytes": 1_u64 << 36}}]))?;
    std::thread::sleep(seconds(3));
    let old = raw.ports_to("sidecar", 7_443)?;
    let freeze = raw.world.apply(&Fault::Freeze { process: "relay".to_owned() })?;
    let ran = raw.ran("writer", SOON)?;
    case.number("client_s", (ran.0.mono_ms - freeze.at_ms) / 1e3);
    anyhow::ensure!(ran.word() != "ok", "it wrote everything");
    std::thread::sleep(Duration::from_millis(500));
    let now = raw.ports_to("sidecar", 7_443)?;
    #[expect(clippy::cast_precision_loss, reason = "one link")]
    case.number("left", old.iter().filter(|port| now.contains(*port)).count() as f64);
    let began = Instant::now();
    raw.world.end("sidecar", rustix::process::Signal::INT)?;
    case.number("stops_s", began.elapsed().as_secs_f64());
    freeze.heal().map(drop)
}

fn cuts(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let (mut failed, mut slowest) = (0.0, 0.0_f64);
    for number in 0..4 {
        raw.go(&format!("old {number}"), rounds(60))?;
        std::thread::sleep(LIVED);
        let cut = Fault::Cut { from: "web".to_owned(), to: far_end(case.way).to_owned() };
        raw.world.apply(&cut)?;
        let script = json!([{"ping_pong": {"bytes": 10, "times": 1}}, "fin", "recv_fin"]);
        let ran = raw.run(&format!("new {number}"), script, SOON)?;
        failed += if ran.word() == "ok" { 0.0 } else { 1.0 };
        slowest = slowest.max(ran.time("ms", "max"));
    }
    case.number("failed", failed);
    case.number("slowest_ms", slowest);
    Ok(())
}

fn flushes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { behind_nat: Some("web"), ..Options::plain(case.way) };
    let mut raw = Raw::start_with(case, options, json!(["echo"]))?;
    let script = json!([{"ping_pong": {"bytes": 10, "times": 1}}, "fin", "recv_fin"]);
    raw.go_many("opens", json!({"script": script, "count": 90, "per_s": 2, "patience_ms": 20_000}))?;
    for _ in 0..4 {
        std::thread::sleep(seconds(10));
        raw.world.apply(&Fault::Forget { host: "web".to_owned() })?;
    }
    let ran = raw.ran("opens", SOON)?;
    case.number("failed", 90.0 - ran.count("ok"));
    case.number("slowest_ms", ran.time("ms", "max"));
    Ok(())
}

fn states(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let say = |id: &str| json!({"say": id});
    let scripts = [
        ("idle_s", json!([{"ask": [{"until": "never"}]}, {"recv_end": {}}, say("idle_s")])),
        (
            "reading_s",
            json!([{"ask": [{"send": {"bytes": 1 << 30, "per_s": 20_000}}]}, {"recv_end": {}}, say("reading_s")]),
        ),
        (
            "writing_s",
            json!([{"ask": [{"recv_end": {}}]}, {"also": [{"send": {"bytes": 1 << 30, "per_s": 20_000}}]},
            {"recv_end": {}}, say("writing_s")]),
        ),
        (
            "full_s",
            json!([{"ask": [{"until": "never"}]}, {"also": [{"send": {"bytes": 1 << 30}}]}, {"recv_end": {}},
            say("full_s")]),
        ),
    ];
    for (id, script) in &scripts {
        raw.go_many(id, json!({"script": script, "patience_ms": 35_000}))?;
    }
    std::thread::sleep(seconds(4));
    let cut = raw.world.cut_path("web", far_end(case.way))?;
    let until = Instant::now() + seconds(32);
    for (id, _) in &scripts {
        let left = until.saturating_duration_since(Instant::now());
        let said = |event: &crate::app::Event| event.kind == "said" && event.call == *id;
        match raw.world.app(raw.client).find(left, said)? {
            Some(event) => case.number(id, (event.mono_ms - cut.at_ms) / 1e3),
            None => case.not_within(id, 32.0),
        }
    }
    Ok(())
}

fn slow(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let limit = Fault::Limit { host: "web".to_owned(), kib_per_s: 200, queue_kib: 1_024 };
    let _limit = raw.world.apply(&limit)?;
    let down = json!([{"ask": [{"send": {"bytes": 5 << 20}}]}, "recv_fin"]);
    let up = json!([{"ask": ["recv_fin"]}, {"send": {"bytes": 5 << 20}}, "fin", "recv_fin"]);
    raw.go("down", down)?;
    raw.go("up", up)?;
    let [down, up] = [raw.ran("down", SOON * 4)?, raw.ran("up", SOON * 4)?];
    case.word("client", if up.word() == "ok" { down.word() } else { up.word() });
    case.number("seconds", down.time("ms", "max").max(up.time("ms", "max")) / 1e3);
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("server", served.word());
    case.number("links", raw.links_made("sidecar")?);
    Ok(())
}

fn starved(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    raw.go_many("rounds", json!({"script": rounds(38), "count": 10}))?;
    std::thread::sleep(seconds(2));
    let process = if case.way == Way::Direct { "server" } else { "sidecar" };
    let starve = raw.world.apply(&Fault::Starve { process: process.to_owned(), percent: 5 })?;
    std::thread::sleep(seconds(35));
    starve.heal()?;
    let ran = raw.ran("rounds", SOON)?;
    case.word("rounds", ran.word());
    case.number("links", raw.links_made("sidecar")?);
    Ok(())
}

fn idle_cut(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { sidecar_lines: "relay: [\"10.64.0.2:7444\"]\n", ..Options::plain(case.way) };
    let limits = json!({"idle_ms": 12_000});
    let mut raw = Raw::start_behind(case, options, json!(["echo"]), &limits)?;
    let round = json!({"ping_pong": {"bytes": 100, "times": 1}});
    let script = json!([round, {"wait": 30_000}, round, "fin", {"recv_end": {}}]);
    let ran = raw.run("rounds", script, SOON * 2)?;
    case.word("rounds", ran.word());
    case.number("links", raw.links_made("sidecar")?);
    Ok(())
}

fn resets(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let script = json!([{"ping_pong": {"bytes": 100, "times": 2, "pause_ms": 50}}, "fin", "recv_fin"]);
    raw.go_many("load", json!({"script": script, "count": 450, "per_s": 10}))?;
    for _ in 0..4 {
        std::thread::sleep(LIVED);
        let hops: &[[&str; 2]] =
            if case.way == Way::Direct { &[["web", "db"]] } else { &[["web", "relay"], ["db", "relay"]] };
        for [from, to] in hops {
            raw.world.apply(&Fault::Cut { from: (*from).to_owned(), to: (*to).to_owned() })?;
        }
    }
    raw.go_many("after", json!({"script": script, "count": 20, "parallel": 1}))?;
    let after = raw.ran("after", SOON * 2)?;
    let load = raw.ran("load", SOON)?;
    case.number("failed", 450.0 - load.count("ok"));
    case.number("after", 20.0 - after.count("ok"));
    case.number("back_s", after.time("ms", "max") / 1e3);
    Ok(())
}

fn vanishes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { server: "far", ..Options::plain(case.way) };
    let mut raw = Raw::start_with(case, options, json!([{"send": {"bytes": 1}}, {"recv_end": {}}]))?;
    let script = json!([{"recv": {"bytes": 1}}, {"recv_end": {}}, {"say": "ended"}]);
    raw.go_many("warm", json!({"script": script, "count": 20, "patience_ms": 40_000}))?;
    raw.served(SOON, |ran| ran.count("open") >= 20.0)?;
    let from = if case.way == Way::Direct { "web" } else { "db" };
    let cut = raw.world.cut_path(from, "far")?;
    std::thread::sleep(seconds(30));
    let events = raw.world.app(raw.client).events();
    let times: Vec<f64> = events
        .iter()
        .filter(|event| event.kind == "said")
        .map(|event| (event.mono_ms - cut.at_ms) / 1e3)
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "some dozen sessions")]
    case.number("ended", times.len() as f64);
    if times.is_empty() {
        case.not_within("last_s", 30.0);
    } else {
        case.number("first_s", times.iter().copied().fold(f64::INFINITY, f64::min));
        case.number("last_s", times.iter().copied().fold(0.0, f64::max));
    }
    Ok(())
}
