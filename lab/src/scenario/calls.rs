//! Deadlines, cancels, keepalive: what gRPC does by itself, and what the chain must not change.

use std::time::Duration;

use serde_json::json;

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::capture::Capture;
use crate::fault::Applied;
use crate::result::Bound;
use crate::shell::now_ms;
use crate::status;
use crate::world::{Options, Way, World};

const fn figure(
    id: &'static str,
    what: &'static str,
    unit: &'static str,
    article: &'static str,
    bound: Bound,
) -> Figure {
    Figure { id, what, unit, article, bound }
}

const DEADLINES: &[Figure] = &[
    figure(
        "left_ms",
        "left of 3,000 ms at the handler",
        "ms",
        "2,999",
        Bound::AtLeastOrDirectLess(2_990.0, 5.0),
    ),
    figure(
        "never_ms",
        "client's end at a 1 s deadline",
        "ms",
        "1,002",
        Bound::AtMostOrDirectPlus(1_010.0, 5.0),
    ),
    figure("never_status", "its status", "", "DEADLINE_EXCEEDED", Bound::DeadlineStatus),
    figure("never_handler_ms", "its handler's end", "ms", "1,002", Bound::AtMostOrDirectPlus(1_010.0, 5.0)),
    figure(
        "cancel_ms",
        "handler's end at a cancel after 500 ms",
        "ms",
        "500",
        Bound::AtMostOrDirectPlus(520.0, 5.0),
    ),
];

const KEEPALIVE: &[Figure] = &[
    figure("end_s", "the stream's end", "s", "31", Bound::LikeDirect(1.0)),
    figure("status", "its status", "", "UNAVAILABLE", Bound::LikeDirect(0.0)),
];
const KEEPALIVE_60: &[Figure] = &[
    figure("end_s", "the stream's end", "s", "181", Bound::LikeDirect(1.0)),
    figure("status", "its status", "", "UNAVAILABLE", Bound::LikeDirect(0.0)),
];

const STUCK: &[Figure] = &[
    figure("after_45_s", "the call after 45 s", "", "open", Bound::Word(&["open"])),
    figure("state", "the channel's state", "", "READY", Bound::LikeDirect(0.0)),
    figure("bytes", "bytes from the server in 45 s", "B", "115", Bound::LikeDirect(34.0)),
    figure(
        "client_ms",
        "client's end with a 2 s deadline",
        "ms",
        "2,000",
        Bound::AtMostOrDirectPlus(2_010.0, 5.0),
    ),
    figure("handler_ms", "its handler's end", "ms", "2,000", Bound::AtMostOrDirectPlus(2_010.0, 5.0)),
    figure("status", "its status", "", "DEADLINE_EXCEEDED", Bound::DeadlineStatus),
];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P1",
    what: "",
    figures: KEEPALIVE,
    ways: &[Way::Direct, Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 3,
    seconds: 48,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "deadlines",
        promise: "P2",
        what: "On a channel that has made a call: a 3,000 ms deadline seen by its handler; a 1 s deadline on a handler that \
               never returns; a cancel after 500 ms. Each five times in a run, which reports the medians.",
        figures: DEADLINES,
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        pace: Pace::Alone,
        runs: 5,
        seconds: 10,
        smoke: true,
        run: |case| deadlines(case, |_| Ok(Vec::new()), |_, _, _| Ok(())),
        ..BASE
    },
    Scenario {
        name: "one-session",
        promise: "P3",
        what: "20 unary calls, a stream and 5 more calls on one channel.",
        figures: &[figure("sessions", "sessions in /status", "", "1", Bound::Within(1.0, 1.0))],
        ways: &[Way::Unix, Way::Tcp],
        seconds: 4,
        smoke: true,
        run: one_session,
        ..BASE
    },
    Scenario {
        name: "keepalive-10s",
        what: "Client keepalive of 10 s, without calls too, on an idle stream of a default server: the server objects \
               (too_many_pings) as it does directly. Rust servers never object.",
        run: |case| keepalive(case, &["--keepalive-ms", "10000", "--keepalive-idle"], 45),
        ..BASE
    },
    Scenario {
        name: "keepalive-60s",
        what: "Client keepalive of 60 s, timeout 20 s, on a healthy idle stream of a default server.",
        figures: KEEPALIVE_60,
        runs: 1,
        seconds: 200,
        run: |case| keepalive(case, &["--keepalive-ms", "60000", "--keepalive-timeout-ms", "20000"], 195),
        ..BASE
    },
    Scenario {
        name: "stuck-handler",
        promise: "P2",
        what: "A handler that never returns, client keepalive 10 s / 5 s that the server permits: keepalive finds nothing, a \
               2 s deadline does.",
        figures: STUCK,
        ways: &[Way::Direct, Way::Tcp],
        seconds: 52,
        run: stuck,
        ..BASE
    },
];

/// How often a run measures each of its quantities; it reports the medians. A single one on a busy machine says more of
/// the machine.
const ROUNDS: usize = 5;

/// Measures deadlines and cancels on a channel that has made a call, while `harm` is in force; `first` is done before, on
/// the same channel.
pub(super) fn deadlines(
    case: &mut Case<'_>,
    harm: impl FnOnce(&World) -> anyhow::Result<Vec<Applied>>,
    first: impl FnOnce(&mut Case<'_>, &mut World, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    let harm = harm(&world)?;
    world.app(client).echo("warm")?;
    first(case, &mut world, client)?;
    let mut all: [Vec<f64>; 4] = Default::default();
    for round in 0..ROUNDS {
        let [left, never, cancel] = ["left", "never", "cancel"].map(|call| format!("{call} {round}"));
        world.app(client).call(&left, "deadline", json!({"deadline_ms": 3_000}))?;
        let end = world.app(client).expect("end", &left, SOON)?;
        all[0].push(end.body["left_ms"].as_f64().unwrap_or_default());
        world.app(client).call(&never, "never", json!({"deadline_ms": 1_000}))?;
        let start_ms = world.app(client).expect("start", &never, SOON)?.mono_ms;
        let end = world.app(client).expect("end", &never, SOON)?;
        case.word("never_status", end.text("status"));
        all[1].push(end.mono_ms - start_ms);
        all[2].push(world.app(server).expect("handler_end", &never, SOON)?.mono_ms - start_ms);
        world.app(client).call(&cancel, "never", json!({"cancel_after_ms": 500}))?;
        let start_ms = world.app(client).expect("start", &cancel, SOON)?.mono_ms;
        all[3].push(world.app(server).expect("handler_end", &cancel, SOON)?.mono_ms - start_ms);
    }
    for (id, numbers) in ["left_ms", "never_ms", "never_handler_ms", "cancel_ms"].iter().zip(&mut all) {
        numbers.sort_by(f64::total_cmp);
        case.number(id, numbers[ROUNDS / 2]);
    }
    harm.into_iter().try_for_each(|applied| applied.heal().map(drop))
}

fn one_session(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    for number in 0..20 {
        world.app(client).echo(&format!("first {number}"))?;
    }
    world.app(client).call("stream", "ticks", json!({}))?;
    world.app(client).expect("message", "stream", SOON)?;
    for number in 0..5 {
        world.app(client).echo(&format!("second {number}"))?;
    }
    let status = world.status("sidecar")?;
    let total =
        status::entry(&status, "mappings", "lab").and_then(|entry| entry["sessions"]["total"].as_f64());
    case.number("sessions", total.unwrap_or_default());
    Ok(())
}

fn keepalive(case: &mut Case<'_>, flags: &[&str], patience_s: u64) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, flags)?;
    world.app(client).call("stream", "ticks", json!({}))?;
    let start = world.app(client).expect("start", "stream", SOON)?;
    let patience = Duration::from_secs(patience_s);
    match world.app(client).find(patience, |event| event.kind == "end" && event.call == "stream")? {
        Some(end) => {
            case.number("end_s", (end.mono_ms - start.mono_ms) / 1e3);
            case.word("status", end.text("status"));
        }
        None => case.not_within("end_s", patience.as_secs_f64()),
    }
    Ok(())
}

fn stuck(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { permit: true, ..Options::plain(case.way) })?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let (interface, port) = if case.way == Way::Direct { ("eth0", 50_051) } else { ("lo", 7_901) };
    let flags = ["--keepalive-ms", "10000", "--keepalive-timeout-ms", "5000"];
    let client = world.start_client("client", &language, &target, &flags)?;
    let capture = Capture::start(&world.net, "web", interface, port, &case.folder)?;
    world.app(client).call("stuck", "never", json!({}))?;
    let start = world.app(client).expect("start", "stuck", SOON)?;
    let wait = Duration::from_secs_f64((45e3 - (now_ms() - start.mono_ms)) / 1e3);
    let end = world.app(client).find(wait, |event| event.kind == "end" && event.call == "stuck")?;
    case.word("after_45_s", if end.is_some() { "ended" } else { "open" });
    let state = world.app(client).state()?;
    case.word("state", state);
    let segments = capture.finish()?;
    let from_server: u64 = segments.iter().filter(|s| s.from_port == port).map(|s| s.payload).sum();
    #[expect(clippy::cast_precision_loss, reason = "some hundred bytes")]
    case.number("bytes", from_server as f64);
    world.app(client).call("bounded", "never", json!({"deadline_ms": 2_000}))?;
    let start = world.app(client).expect("start", "bounded", SOON)?;
    let end = world.app(client).expect("end", "bounded", SOON)?;
    let handler = world.app(server).expect("handler_end", "bounded", SOON)?;
    case.number("client_ms", end.mono_ms - start.mono_ms);
    case.number("handler_ms", handler.mono_ms - start.mono_ms);
    case.word("status", end.text("status"));
    Ok(())
}
