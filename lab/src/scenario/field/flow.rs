//! Sessions that hold up others, and windows: F44 to F68.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Pace, Scenario};
use super::kit::{BASE, Ran, Raw, SOON, dig_hole, figure, seconds, with_nobody};
use crate::fault::Fault;
use crate::result::Bound;
use crate::world::Way;

const OK: Bound = Bound::Word(&["ok"]);
const NONE: Bound = Bound::AtMost(0.0);
const MIB: u64 = 1 << 20;
/// Times its own without the others; on a machine whose own noise is more, what the noise is directly.
const TWICE: Bound = Bound::AtMostOrDirectPlus(2.0, 1.0);

const BESIDE: &[Figure] = &[
    figure("times", "median round trip, times that without the others", "", TWICE),
    figure("p99_times", "99th percentile, times that without the others", "", Bound::None),
    figure("p99_ms", "99th percentile", "ms", Bound::None),
    figure("rounds", "the session's script", "", OK),
];
const SATURATED: &[Figure] = &[
    figure("open", "an open while 50 sessions fill the path", "", OK),
    figure("open_ms", "it took", "ms", Bound::AtMostOrDirectPlus(2_000.0, 500.0)),
    figure("ended", "of the 50 that ended within 16 s of the path's death", "", Bound::Within(50.0, 50.0)),
    figure("last_s", "the last of them", "s", Bound::AtMost(15.2)),
];
const OPENS: &[Figure] = &[
    figure("opens", "faults of 100 opens beside a download", "", OK),
    figure("p99_ms", "their 99th percentile", "ms", Bound::AtMostOrDirectPlus(100.0, 50.0)),
    figure("alone_ms", "99th percentile of 100 without it", "ms", Bound::None),
];
const RAPID: &[Figure] = &[
    figure(
        "fresh_ms",
        "a session after 4,000 that were killed",
        "ms",
        Bound::AtMostOrDirectPlus(100.0, 100.0),
    ),
    figure("server_open", "connections that the server still has 2 s later", "", NONE),
    figure("open", "open sessions", "", NONE),
];
const WHOLE: &[Figure] = &[
    figure("client", "faults of the client", "", OK),
    figure("server", "faults of the server", "", OK),
    figure("seconds", "took", "s", Bound::None),
];
const ECHO: &[Figure] = &[
    figure("client", "the client that writes 24 MiB before it reads", "", OK),
    figure("others", "faults of 10 others meanwhile", "", OK),
];
const GAPS: &[Figure] = &[
    figure("client", "faults of the client", "", OK),
    figure(
        "gap_ms",
        "the longest time without a byte, at the client",
        "ms",
        Bound::AtMostOrDirectPlus(1_000.0, 500.0),
    ),
    figure("server_ms", "at the server", "ms", Bound::AtMostOrDirectPlus(1_000.0, 500.0)),
];
const CHAT: &[Figure] = &[
    figure("client", "faults of the client", "", OK),
    figure(
        "gap_ms",
        "the longest time without a byte, at the client",
        "ms",
        Bound::AtMostOrDirectPlus(1_500.0, 1_000.0),
    ),
    figure("server_ms", "at the server", "ms", Bound::AtMostOrDirectPlus(1_500.0, 1_000.0)),
];
const CREDIT: &[Figure] = &[
    figure("before_s", "32 MiB before", "s", Bound::None),
    figure(
        "times",
        "times as long after 200 that closed with 1 MiB unread",
        "",
        Bound::AtMostOrDirectPlus(2.0, 1.0),
    ),
    figure("open", "open sessions", "", NONE),
];
const SLOW: &[Figure] = &[
    figure("sidecar_mib", "memory of the sidecar for each of 20 slow readers", "MiB", Bound::AtMost(5.0)),
    figure("relay_mib", "of the relay", "MiB", Bound::AtMost(5.0)),
    figure("agent_mib", "of the agent", "MiB", Bound::AtMost(5.0)),
    figure("growth_mib", "growth of all three in the last 15 s", "MiB", Bound::AtMost(4.0)),
];
const CAP: &[Figure] = &[
    figure("answered", "of 4,300 sessions at once", "", Bound::AtLeast(4_095.0)),
    figure("hang", "that were neither answered nor refused", "", NONE),
    figure("later", "a session when some have gone", "", OK),
];
const DEPENDENT: &[Figure] = &[
    figure("second", "8 MiB of the session that is read first", "", OK),
    figure("first", "the 20 that waited", "", OK),
    figure("second_s", "it took", "s", Bound::None),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["none"])),
];

const ALONE: Scenario = Scenario { pace: Pace::Alone, ..BASE };

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f44-one-that-does-not-read",
        promise: "F44",
        what: "A ping-pong of 1 KiB for 5 s, and for 15 s beside a session whose server sends all it can and whose client \
               reads nothing.",
        figures: BESIDE,
        seconds: 24,
        run: |case| {
            beside(case, |raw| {
                let script = json!([{"ask": [{"send": {"bytes": 1 << 30}}]}, {"until": "go"}]);
                raw.go("stuck", script)
            })
        },
        ..ALONE
    },
    Scenario {
        name: "f46-a-full-path-dies",
        promise: "F46",
        what: "The client's host has 100 Mbit/s, 50 downloads fill it, and one more session opens. Then every packet is \
               dropped.",
        figures: SATURATED,
        seconds: 30,
        run: saturated,
        ..BASE
    },
    Scenario {
        name: "f47-opens-beside-a-download",
        promise: "F47",
        what: "100 opens, 20 a second, without and with a download at full speed on the same link.",
        figures: OPENS,
        seconds: 18,
        run: opens,
        ..ALONE
    },
    Scenario {
        name: "f49-dials-into-a-hole",
        promise: "F49",
        what: "A ping-pong of 1 KiB for 5 s, and for 15 s beside 100 opens whose server's host swallows everything.",
        figures: BESIDE,
        seconds: 24,
        run: |case| {
            let host = if case.way == Way::Direct { "web" } else { "db" };
            beside(case, |raw| {
                dig_hole(&raw.world, host)?;
                let address = if host == "web" { "10.64.0.99:50099" } else { "127.0.0.1:7904" };
                raw.go_many("hole", json!({"address": address, "script": [{"recv_end": {}}], "count": 100}))
            })
        },
        ..ALONE
    },
    Scenario {
        name: "f50-rapid-interrupts",
        promise: "F50",
        what: "20 times 200 streams at once, each dropped after 10 to 100 ms.",
        figures: RAPID,
        seconds: 25,
        run: rapid,
        ..BASE
    },
    Scenario {
        name: "f52-both-write-first",
        promise: "F52",
        what: "Both ends of 20 sessions write 4 MiB, and read only after 2 s.",
        figures: WHOLE,
        seconds: 15,
        run: |case| {
            let ops = json!([{"also": [{"send": {"bytes": 4 * MIB}}, "fin"]}, {"wait": 2_000}, "recv_fin"]);
            whole(case, &ops, 20)
        },
        ..BASE
    },
    Scenario {
        name: "f53-echo-written-first",
        promise: "F53",
        what: "A client writes 24 MiB to an echo and reads nothing for 8 s, then all of it; 10 others play ping-pong.",
        figures: ECHO,
        seconds: 25,
        run: echo,
        ..BASE
    },
    Scenario {
        name: "f56-nothing-stands-still",
        promise: "F56",
        what: "20 sessions send as fast as they can both ways, 16 MiB each.",
        figures: GAPS,
        seconds: 30,
        run: |case| {
            let ops = json!([{"also": [{"send": {"bytes": 16 * MIB}}, "fin"]}, "recv_fin"]);
            gaps(case, &ops, 20)
        },
        ..ALONE
    },
    Scenario {
        name: "f58-unread-sessions-that-go",
        promise: "F58",
        what: "A download of 32 MiB, then 200 sessions that are closed with 1 MiB unread, then the download again.",
        figures: CREDIT,
        seconds: 20,
        run: credit,
        ..ALONE
    },
    Scenario {
        name: "f59-slow-readers",
        promise: "F59",
        what: "20 servers send all they can to clients that read 1 KiB/s, for 30 s.",
        figures: SLOW,
        seconds: 40,
        run: slow,
        ..BASE
    },
    Scenario {
        name: "f61-tiny-records",
        promise: "F61",
        what: "1 MiB each way in records of 25 bytes, 8 sessions.",
        figures: WHOLE,
        seconds: 25,
        run: |case| {
            let send = json!({"send": {"bytes": MIB, "chunk": 25}});
            whole(case, &json!([{"also": [send, "fin"]}, "recv_fin"]), 8)
        },
        ..BASE
    },
    Scenario {
        name: "f62-small-pieces-both-ways",
        promise: "F62",
        what: "100 sessions send 5,000 pieces of 10 bytes each way as fast as they can.",
        figures: WHOLE,
        seconds: 30,
        run: |case| {
            let send = json!({"send": {"bytes": 50_000, "chunk": 10}});
            whole(case, &json!([{"also": [send, "fin"]}, "recv_fin"]), 100)
        },
        ..BASE
    },
    Scenario {
        name: "f64-more-than-a-link-takes",
        promise: "F64",
        what: "4,300 sessions at once on a link that takes 4,096; then 500 go.",
        figures: CAP,
        seconds: 30,
        run: cap,
        ..BASE
    },
    Scenario {
        name: "f67-chat-in-bursts",
        promise: "F67",
        what: "100 sessions, each sending 30 bursts of 5 KB each way with pauses of up to 0.5 s.",
        figures: CHAT,
        seconds: 20,
        run: |case| {
            let turn = json!([{"send": {"bytes": 5_000}}, {"wait_between": [0, 500]}]);
            let ops = json!([{"also": [{"repeat": {"times": 30, "ops": turn}}, "fin"]}, "recv_fin"]);
            gaps(case, &ops, 100)
        },
        ..ALONE
    },
    Scenario {
        name: "f68-reads-that-depend",
        promise: "F68",
        what: "20 sessions of 16 MiB each are read only when 8 MiB of one more have come, on the same link.",
        figures: DEPENDENT,
        seconds: 25,
        run: dependent,
        ..BASE
    },
];

/// A ping-pong for 5 s, then something beside it, then for 15 s more.
fn beside(case: &mut Case<'_>, harm: impl FnOnce(&mut Raw) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut raw = Raw::start_with(case, with_nobody(case), json!(["obey"]))?;
    let rounds = |for_ms: u64| json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 1_024, "for_ms": for_ms, "pause_ms": 10}}, "fin"]);
    raw.run("warm", rounds(1_000), SOON)?;
    let alone = raw.run("alone", rounds(5_000), SOON)?;
    harm(&mut raw)?;
    let ran = raw.run("beside", rounds(15_000), SOON)?;
    case.number("times", ran.time("rounds_ms", "p50") / alone.time("rounds_ms", "p50"));
    case.number("p99_times", ran.time("rounds_ms", "p99") / alone.time("rounds_ms", "p99"));
    case.number("p99_ms", ran.time("rounds_ms", "p99"));
    case.word("rounds", ran.word());
    Ok(())
}

fn saturated(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let limit = Fault::Limit { host: "web".to_owned(), kib_per_s: 12_800, queue_kib: 512 };
    let _limit = raw.world.apply(&limit)?;
    let script = json!([{"ask": [{"send": {"bytes": 1_u64 << 32}}]}, {"recv_end": {}}, {"say": "ended"}]);
    raw.go_many("downloads", json!({"script": script, "count": 50, "patience_ms": 17_000}))?;
    std::thread::sleep(seconds(5));
    let fresh = raw.run("fresh", json!([{"ask": [{"send": {"bytes": 10}}]}, "recv_fin"]), SOON)?;
    case.word("open", fresh.word());
    case.number("open_ms", fresh.time("ms", "max"));
    let to = if case.way == Way::Direct { "db" } else { "relay" };
    let cut = raw.world.cut_path("web", to)?;
    // The patience of the scripts ends those that wait: they count as not ended.
    let ran = raw.ran("downloads", seconds(25))?;
    let timeouts = ran.0.body["ends"]["timeout"].as_f64().unwrap_or_default();
    case.number("ended", ran.count("begun") - timeouts);
    let events = raw.world.app(raw.client).events();
    let last = events.iter().filter(|event| event.kind == "said").map(|event| event.mono_ms);
    if timeouts > 0.0 {
        case.not_within("last_s", 17.0);
    } else {
        case.number("last_s", (last.fold(0.0, f64::max) - cut.at_ms) / 1e3);
    }
    Ok(())
}

fn opens(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let open = json!([{"ask": [{"send": {"bytes": 10}}]}, "recv_fin"]);
    raw.run("warm", open.clone(), SOON)?;
    raw.go_many("alone", json!({"script": open, "count": 100, "per_s": 20}))?;
    let alone = raw.ran("alone", SOON)?;
    raw.go("download", json!([{"ask": [{"send": {"bytes": 1_u64 << 36}}]}, {"recv_end": {}}]))?;
    std::thread::sleep(seconds(1));
    raw.go_many("beside", json!({"script": open, "count": 100, "per_s": 20}))?;
    let ran = raw.ran("beside", SOON)?;
    case.word("opens", ran.word());
    case.number("p99_ms", ran.time("ms", "p99"));
    case.number("alone_ms", alone.time("ms", "p99"));
    Ok(())
}

fn rapid(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let logs = json!({"send": {"bytes": 1 << 30, "per_s": 100_000}});
    let script = json!([{"ask": [logs]}, {"also": [{"recv_end": {}}]}, {"wait_between": [10, 100]}, "rst"]);
    for round in 0..20 {
        let name = format!("round {round}");
        raw.go_many(&name, json!({"script": script, "count": 200}))?;
        raw.ran(&name, SOON)?;
    }
    let fresh = raw.run("fresh", json!([{"ask": [{"send": {"bytes": 10}}]}, "recv_fin"]), SOON)?;
    case.number("fresh_ms", fresh.time("ms", "max"));
    std::thread::sleep(seconds(2));
    case.number("server_open", raw.served(Duration::ZERO, |_| true)?.count("open"));
    case.number("open", raw.open_sessions()?);
    Ok(())
}

/// The same steps at both ends of some sessions.
fn both(case: &mut Case<'_>, ops: &Json, count: u64) -> anyhow::Result<(Raw, Ran, Ran)> {
    let mut raw = Raw::start(case, ops.clone())?;
    raw.go_many("client", json!({"script": ops, "count": count}))?;
    let ran = raw.ran("client", SOON * 2)?;
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("client", ran.word());
    Ok((raw, ran, served))
}

fn whole(case: &mut Case<'_>, ops: &Json, count: u64) -> anyhow::Result<()> {
    let (_raw, ran, served) = both(case, ops, count)?;
    case.word("server", served.word());
    case.number("seconds", ran.time("ms", "max") / 1e3);
    Ok(())
}

fn gaps(case: &mut Case<'_>, ops: &Json, count: u64) -> anyhow::Result<()> {
    let (_raw, ran, served) = both(case, ops, count)?;
    case.number("gap_ms", ran.time("gap_ms", "max"));
    case.number("server_ms", served.time("gap_ms", "max"));
    Ok(())
}

fn echo(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let rounds = json!([{"ping_pong": {"bytes": 1_024, "for_ms": 10_000, "pause_ms": 50}}, "fin"]);
    raw.go_many("others", json!({"script": rounds, "count": 10}))?;
    // What comes back is the client's own stream.
    let script = json!([{"also": [{"send": {"bytes": 24 * MIB}}, "fin"]}, {"wait": 8_000}, "recv_own"]);
    raw.go("writer", script)?;
    let ran = raw.ran("writer", SOON * 2)?;
    case.word("client", ran.word());
    case.word("others", raw.ran("others", SOON)?.word());
    Ok(())
}

fn credit(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let download = json!([{"ask": [{"send": {"bytes": 32 * MIB}}]}, "recv_fin"]);
    raw.run("warm", download.clone(), SOON)?;
    let before = raw.run("before", download.clone(), SOON)?.time("ms", "max");
    let script = json!([{"ask": [{"send": {"bytes": MIB}}, {"until": "never"}]}, {"wait": 1_000}, "close"]);
    raw.go_many("unread", json!({"script": script, "count": 200}))?;
    raw.ran("unread", SOON)?;
    std::thread::sleep(seconds(1));
    let after = raw.run("after", download, SOON)?.time("ms", "max");
    case.number("before_s", before / 1e3);
    case.number("times", after / before);
    case.number("open", raw.open_sessions()?);
    Ok(())
}

fn slow(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    raw.run("warm", json!([{"ask": []}, "recv_fin"]), SOON)?;
    let processes = ["sidecar", "relay", "agent"];
    let memory = |raw: &Raw| {
        processes.map(|process| raw.held(process).ok().flatten().map_or(0.0, |held| held.rss_kib / 1_024.0))
    };
    let before = memory(&raw);
    let script = json!([{"ask": [{"send": {"bytes": 1_u64 << 40}}]}, {"recv_end": {"per_s": 1_024}}]);
    raw.go_many("slow", json!({"script": script, "count": 20}))?;
    std::thread::sleep(seconds(15));
    let middle = memory(&raw);
    std::thread::sleep(seconds(15));
    let after = memory(&raw);
    if case.way != Way::Direct {
        for (index, process) in processes.iter().enumerate() {
            case.number(&format!("{process}_mib"), (after[index] - before[index]) / 20.0);
        }
        let growth: f64 = after.iter().zip(middle).map(|(after, middle)| after - middle).sum();
        case.number("growth_mib", growth);
    }
    Ok(())
}

fn cap(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"send": {"bytes": 1}}, {"recv_end": {}}]))?;
    let hold = |flag: &str| json!([{"recv": {"bytes": 1}}, {"until": flag}]);
    raw.go_many(
        "first",
        json!({"script": hold("first"), "count": 500, "per_s": 1_000, "patience_ms": 20_000}),
    )?;
    raw.go_many(
        "rest",
        json!({"script": hold("rest"), "count": 3_800, "per_s": 300, "patience_ms": 20_000}),
    )?;
    std::thread::sleep(seconds(16));
    let [first, rest] = ["first", "rest"].map(|name| raw.counts(raw.client, name));
    let (first, rest) = (first?, rest?);
    // Those that were answered wait for their flag.
    case.number("answered", first.count("open") + rest.count("open"));
    raw.flag(raw.client, "first")?;
    raw.ran("first", SOON)?;
    std::thread::sleep(seconds(2));
    let later = raw.run("later", json!([{"recv": {"bytes": 1}}]), SOON)?;
    case.word("later", later.word());
    raw.flag(raw.client, "rest")?;
    let rest = raw.ran("rest", SOON)?;
    case.number("hang", rest.0.body["faults"]["recv: timeout"].as_f64().unwrap_or_default());
    Ok(())
}

fn dependent(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let first = json!([{"ask": [{"send": {"bytes": 16 * MIB}}]}, {"until": "go"}, "recv_fin"]);
    raw.go_many("first", json!({"script": first, "count": 20}))?;
    std::thread::sleep(seconds(3));
    let second = json!([{"ask": [{"send": {"bytes": 8 * MIB}}]}, "recv_fin"]);
    let ran = raw.run("second", second, SOON * 2)?;
    case.word("second", ran.word());
    case.number("second_s", ran.time("ms", "max") / 1e3);
    if case.way != Way::Direct {
        case.word("reason", raw.reason()?);
    }
    raw.flag(raw.client, "go")?;
    let ran = raw.ran("first", SOON * 2)?;
    case.word("first", ran.word());
    Ok(())
}
