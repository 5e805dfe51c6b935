//! Drains: F100 to F107.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, figure, seconds};
use crate::result::Bound;
use crate::shell::now_ms;
use crate::status;
use crate::world::{Options, Way};

const OK: Bound = Bound::Word(&["ok"]);

const LONG: &[Figure] = &[
    figure("client_s", "the client's end after SIGTERM", "s", Bound::Within(39.5, 40.5)),
    figure("server_s", "the server's", "s", Bound::Within(39.5, 40.5)),
    figure("reason", "reason@hop in /status", "", Bound::Word(&["drain_deadline@1"])),
];
const LAST: &[Figure] = &[
    figure("opens", "faults of 400 sessions, 100 a second", "", OK),
    figure("slowest_ms", "the slowest", "ms", Bound::AtMost(10_000.0)),
    figure("exit", "exit code of the relay", "", Bound::Within(0.0, 0.0)),
];
const HOLED: &[Figure] = &[
    figure("exit_s", "the relay's exit after SIGTERM", "s", Bound::AtMost(6.5)),
    figure("exit", "its exit code", "", Bound::Within(0.0, 0.0)),
];
const AGENT: &[Figure] = &[
    figure("opens", "faults of 300 sessions, 50 a second", "", OK),
    figure("old", "a session of the agent that leaves, until it ends by itself", "", OK),
    figure("exit_s", "its exit after SIGTERM", "s", Bound::AtMost(9.0)),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "f100-long-grace",
        promise: "F100",
        what: "The relay has `drain: 40s` and gets SIGTERM under a session that goes on.",
        figures: LONG,
        ways: &[Way::Tcp, Way::Unix],
        seconds: 48,
        run: long,
        ..BASE
    },
    Scenario {
        name: "f101-last-opens",
        promise: "F101",
        what: "100 sessions a second, each of 200 ms; the relay gets SIGTERM in their middle and is started again.",
        figures: LAST,
        ways: &[Way::Tcp, Way::Unix],
        seconds: 30,
        run: last,
        ..BASE
    },
    Scenario {
        name: "f103-hole-in-a-drain",
        promise: "F103",
        what: "The relay drains (5 s) with a session whose client's path swallows every packet.",
        figures: HOLED,
        ways: &[Way::Tcp],
        seconds: 15,
        run: holed,
        ..BASE
    },
    Scenario {
        name: "f104-an-agent-leaves",
        promise: "F104",
        what: "Two agents serve one name. One gets SIGTERM under 50 short sessions a second; a session that it has ends by \
               itself 5 s later.",
        figures: AGENT,
        ways: &[Way::Tcp],
        seconds: 20,
        run: agent_leaves,
        ..BASE
    },
];

fn long(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { relay_lines: "drain: 40s\n", ..Options::plain(case.way) };
    let mut raw = Raw::start_with(case, options, json!(["obey"]))?;
    let both =
        json!([{"also": [{"send": {"bytes": 1 << 30, "per_s": 1_000}}]}, {"recv_end": {}}, {"say": "ended"}]);
    let mut script = vec![json!({"ask": both})];
    script.extend(both.as_array().cloned().unwrap_or_default());
    raw.go("session", json!(script))?;
    std::thread::sleep(seconds(3));
    let term_ms = raw.world.signal("relay", Signal::TERM)?;
    std::thread::sleep(seconds(39));
    for (id, app) in [("client_s", raw.client), ("server_s", raw.server)] {
        let ended_ms = raw.said(app, "ended")?;
        case.number(id, (ended_ms - term_ms) / 1e3);
    }
    case.word("reason", raw.reason()?);
    Ok(())
}

fn last(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["echo"]))?;
    let script = json!([{"ping_pong": {"bytes": 100, "times": 3, "pause_ms": 60}}, "fin", "recv_fin"]);
    raw.go_many("opens", json!({"script": script, "count": 400, "per_s": 100}))?;
    std::thread::sleep(seconds(2));
    raw.world.signal("relay", Signal::TERM)?;
    let code = raw.world.wait_end("relay")?;
    raw.world.start_relay()?;
    let ran = raw.ran("opens", SOON)?;
    case.word("opens", ran.word());
    case.number("slowest_ms", ran.time("ms", "max"));
    case.number("exit", code.map_or(f64::NAN, f64::from));
    Ok(())
}

fn holed(case: &mut Case<'_>) -> anyhow::Result<()> {
    let options = Options { relay_lines: "drain: 5s\n", ..Options::plain(case.way) };
    let mut raw = Raw::start_with(case, options, json!([{"send": {"bytes": 1 << 30, "per_s": 100_000}}]))?;
    raw.go("session", json!([{"recv_end": {}}]))?;
    std::thread::sleep(seconds(3));
    let _cut = raw.world.cut_path("web", "relay")?;
    let term_ms = raw.world.signal("relay", Signal::TERM)?;
    let code = raw.world.wait_end("relay")?;
    case.number("exit_s", (now_ms() - term_ms) / 1e3);
    case.number("exit", code.map_or(f64::NAN, f64::from));
    Ok(())
}

fn agent_leaves(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    // Until the second is there, the first has all sessions.
    let old =
        json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 10, "for_ms": 8_000, "pause_ms": 50}}, "fin"]);
    raw.go("old", old)?;
    std::thread::sleep(seconds(2));
    raw.world.add_edge("second", "db", "--publish", "services:\n  raw: { tcp: { tcp: 50052 } }\n")?;
    let socket = raw.world.status_socket("second");
    crate::shell::until("the second agent", SOON, || status::ready(&socket).then_some(()))?;
    let short = json!([{"ask": ["echo"]}, {"ping_pong": {"bytes": 10, "times": 3, "pause_ms": 30}}, "fin", "recv_fin"]);
    raw.go_many("opens", json!({"script": short, "count": 300, "per_s": 50}))?;
    std::thread::sleep(seconds(1));
    let began = Instant::now();
    raw.world.end("agent", Signal::TERM)?;
    case.number("exit_s", began.elapsed().as_secs_f64());
    case.word("old", raw.ran("old", SOON)?.word());
    case.word("opens", raw.ran("opens", SOON)?.word());
    Ok(())
}
