//! Half-closes and closes: F1 to F13.

use std::time::Duration;

use serde_json::json;

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, figure};
use crate::measure::connections;
use crate::result::Bound;
use crate::world::{Options, Way};

const MIB: u64 = 1 << 20;
const OK: Bound = Bound::Word(&["ok"]);
const FIN: Bound = Bound::Word(&["fin"]);

const REPLY: &[Figure] = &[
    figure("client", "client's script", "", OK),
    figure("received", "bytes of the reply", "", Bound::Within(1_048_576.0, 1_048_576.0)),
    figure("end", "the reply's end", "", FIN),
    figure("server", "server's script", "", OK),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["none"])),
];

const EARLY: &[Figure] = &[
    figure("client", "client's script", "", OK),
    figure("received", "bytes of the reply", "", Bound::Within(65_536.0, 65_536.0)),
    figure("after_s", "after the first word", "s", Bound::AtMostOrDirectPlus(5.0, 1.0)),
    figure("server", "server's script", "", OK),
];

const HTTP: &[Figure] = &[
    figure("answers", "whole answers", "", Bound::Within(1_000.0, 1_000.0)),
    figure("client", "faults of the client", "", OK),
    figure("p99_ms", "an answer, 99th percentile", "ms", Bound::None),
    figure("server", "faults of the server", "", OK),
];

const CLOSES: &[Figure] = &[
    figure("end", "the client reads", "", FIN),
    figure("after_ms", "after the server's close", "ms", Bound::AtMostOrDirectPlus(100.0, 100.0)),
    figure("open", "open sessions 5 s after the client's close", "", Bound::AtMost(0.0)),
];

const LINGER: &[Figure] = &[
    figure("lived", "sessions that lived for 20 s", "", Bound::Within(2_000.0, 2_000.0)),
    figure("open", "open sessions in /status meanwhile", "", Bound::Within(2_000.0, 2_000.0)),
    figure("rss_kib", "memory of the sidecar for each", "KiB", Bound::AtMost(96.0)),
    figure("left", "open sessions 5 s after the client has gone", "", Bound::AtMost(0.0)),
    figure("descriptors", "descriptors of the sidecar then, beyond those before", "", Bound::AtMost(2.0)),
];

const CLOSE_WAIT: &[Figure] = &[
    figure("ended", "sessions that ended", "", Bound::Within(3_000.0, 3_000.0)),
    figure("server_host", "connections in CLOSE_WAIT at the agent's host 5 s later", "", Bound::AtMost(0.0)),
    figure("client_host", "at the sidecar's host", "", Bound::AtMost(0.0)),
    figure("open", "open sessions", "", Bound::AtMost(0.0)),
];

const WRITER: &[Figure] = &[
    figure("fault", "the writer's error", "", Bound::Word(&["send: reset", "send: pipe"])),
    figure("after_ms", "after the server's close", "ms", Bound::AtMostOrDirectPlus(200.0, 200.0)),
    figure("open", "open sessions then", "", Bound::AtMost(0.0)),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f1-reply-after-half-close",
        promise: "F1",
        what: "The client sends 1 KiB and half-closes. The server reads to the end, waits 3 s, sends 1 MiB and closes.",
        figures: REPLY,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        seconds: 6,
        run: |case| reply_after(case, 3),
        ..BASE
    },
    Scenario {
        name: "f2-silence-after-half-close",
        promise: "F2",
        what: "The same with a server that is silent for 40 s: longer than two bounds of a link.",
        figures: REPLY,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        seconds: 43,
        run: |case| reply_after(case, 40),
        ..BASE
    },
    Scenario {
        name: "f4-said-before-the-server-is-there",
        promise: "F4",
        what: "The client sends 8 KiB and half-closes while the way to the server's host swallows everything, for 2 s.",
        figures: EARLY,
        seconds: 8,
        run: early,
        ..BASE
    },
    Scenario {
        name: "f5-http-half-close",
        promise: "F5",
        what: "1,000 HTTP/1.0 requests, 20 at once, each half-closed behind its blank line.",
        figures: HTTP,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: http,
        ..BASE
    },
    Scenario {
        name: "f7-server-closes",
        promise: "F7",
        what: "The server sends 4 KiB and closes while the client reads; then the client closes.",
        figures: CLOSES,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: server_closes,
        ..BASE
    },
    Scenario {
        name: "f8-half-closed-for-long",
        promise: "F8",
        what: "The server half-closes 2,000 sessions; the client neither closes nor writes for 20 s, and ends then.",
        figures: LINGER,
        seconds: 40,
        run: linger,
        ..BASE
    },
    Scenario {
        name: "f32-server-closes-idle-sessions",
        promise: "F32",
        what: "3,000 idle sessions; the server closes all of them at once, and each client closes when it reads the end.",
        figures: CLOSE_WAIT,
        seconds: 40,
        run: close_wait,
        ..BASE
    },
    Scenario {
        name: "f11-writer-behind-a-close",
        promise: "F11",
        what: "The client writes 1 KiB every 10 ms, the server reads 5 KiB and closes.",
        figures: WRITER,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        run: writer,
        ..BASE
    },
];

fn reply_after(case: &mut Case<'_>, seconds: u64) -> anyhow::Result<()> {
    let serve = json!(["recv_fin", {"wait": seconds * 1_000}, {"send": {"bytes": MIB}}]);
    let mut raw = Raw::start(case, serve)?;
    let script = json!([{"send": {"bytes": 1_024}}, "fin", "recv_fin"]);
    let ran = raw.run("client", script, Duration::from_secs(seconds + 20))?;
    let served = raw.served(Duration::from_secs(5), |ran| ran.count("open") == 0.0)?;
    case.word("client", ran.word());
    case.number("received", ran.count("received"));
    case.word("end", ran.ends());
    case.word("server", served.word());
    if case.way != Way::Direct {
        case.word("reason", raw.reason()?);
    }
    Ok(())
}

fn early(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { server: "far", ..Options::plain(case.way) };
    let serve = json!([{"recv": {"bytes": 8_192}}, "recv_fin", {"send": {"bytes": 65_536}}]);
    let mut raw = Raw::start_with(case, options, serve)?;
    let from = if case.way == Way::Direct { "web" } else { "db" };
    let cut = raw.world.cut_path(from, "far")?;
    raw.go("client", json!([{"send": {"bytes": 8_192}}, "fin", "recv_fin"]))?;
    std::thread::sleep(Duration::from_secs(2));
    cut.heal()?;
    let ran = raw.ran("client", SOON)?;
    case.word("client", ran.word());
    case.number("received", ran.count("received"));
    case.number("after_s", ran.time("ms", "max") / 1e3);
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("server", served.word());
    Ok(())
}

fn http(case: &mut Case<'_>) -> anyhow::Result<()> {
    let answer = "HTTP/1.0 200 OK\r\nContent-Length: 2000\r\n\r\n";
    let serve = json!([{"recv_text": "\r\n\r\n"}, {"text": answer}, {"send": {"bytes": 2_000}}, "recv_fin"]);
    let mut raw = Raw::start(case, serve)?;
    let script = json!([
        {"text": "GET / HTTP/1.0\r\nHost: lab\r\n\r\n"}, "fin", {"recv_text": "\r\n\r\n"}, {"recv": {"bytes": 2_000}},
        "recv_fin",
    ]);
    raw.go_many("http", json!({"script": script, "count": 1_000, "parallel": 20}))?;
    let ran = raw.ran("http", SOON * 2)?;
    case.number("answers", ran.count("ok"));
    case.word("client", ran.word());
    case.number("p99_ms", ran.time("ms", "p99"));
    let served = raw.served(SOON, |ran| ran.count("open") == 0.0)?;
    case.word("server", served.word());
    Ok(())
}

fn server_closes(case: &mut Case<'_>) -> anyhow::Result<()> {
    let serve =
        json!([{"recv": {"bytes": 10}}, {"send": {"bytes": 4_096}}, {"wait": 1_000}, {"say": "closes"}]);
    let mut raw = Raw::start(case, serve)?;
    let ran = raw.run("client", json!([{"send": {"bytes": 10}}, {"recv_end": {}}]), SOON)?;
    let closes_ms = raw.said(raw.server, "closes")?;
    case.word("end", ran.ends());
    case.number("after_ms", ran.mark("recv_end")? - closes_ms);
    let open = raw.open_after_5_s()?;
    case.number("open", open);
    Ok(())
}

fn linger(case: &mut Case<'_>) -> anyhow::Result<()> {
    let serve = json!([{"recv": {"bytes": 1}}, "fin", {"recv_end": {}}]);
    let mut raw = Raw::start(case, serve)?;
    raw.run("warm", json!([{"send": {"bytes": 1}}, "recv_fin"]), SOON)?;
    let before = raw.held("sidecar")?;
    let script = json!([{"send": {"bytes": 1}}, "recv_fin", {"say": "half-closed"}, {"until": "go"}]);
    raw.go_many("linger", json!({"script": script, "count": 2_000, "per_s": 400}))?;
    std::thread::sleep(Duration::from_secs(25));
    let lived = raw.served(Duration::ZERO, |_| true)?;
    case.number("lived", lived.count("open"));
    let (open, held) = (raw.open_sessions()?, raw.held("sidecar")?);
    raw.flag(raw.client, "go")?;
    raw.ran("linger", SOON)?;
    if let (Some(before), Some(held)) = (before, held) {
        case.number("open", open);
        case.number("rss_kib", (held.rss_kib - before.rss_kib) / 2_000.0);
        case.number("left", raw.open_after_5_s()?);
        let after = raw.held("sidecar")?.map_or(0.0, |held| held.descriptors);
        case.number("descriptors", after - before.descriptors);
    }
    Ok(())
}

fn close_wait(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!([{"recv": {"bytes": 1}}, {"until": "close"}]))?;
    let script = json!([{"send": {"bytes": 1}}, "recv_fin"]);
    raw.go_many("idle", json!({"script": script, "count": 3_000, "per_s": 500}))?;
    let open = raw.served(SOON, |ran| ran.count("open") >= 3_000.0)?;
    anyhow::ensure!(open.count("open") >= 3_000.0, "{} of 3000 are open", open.count("open"));
    raw.flag(raw.server, "close")?;
    let ran = raw.ran("idle", SOON)?;
    std::thread::sleep(Duration::from_secs(5));
    case.number("ended", ran.count("ok"));
    for (id, host) in [("server_host", "db"), ("client_host", "web")] {
        case.number(id, connections(&raw.world.net, host, "close-wait")?);
    }
    case.number("open", raw.open_sessions()?);
    Ok(())
}

fn writer(case: &mut Case<'_>) -> anyhow::Result<()> {
    let serve = json!([{"recv": {"bytes": 5_120}}, {"say": "closes"}]);
    let mut raw = Raw::start(case, serve)?;
    let turn = json!([{"send": {"bytes": 1_024}}, {"wait": 10}]);
    let ran = raw.run("client", json!([{"repeat": {"times": 2_000, "ops": turn}}]), SOON * 2)?;
    let closes_ms = raw.said(raw.server, "closes")?;
    case.word("fault", ran.word());
    case.number("after_ms", ran.mark("send")? - closes_ms);
    case.number("open", raw.open_after_5_s()?);
    Ok(())
}
