//! The relay goes and comes, paths come back, names that nobody serves; and what liveness costs.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use serde_json::json;

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::app::Event;
use crate::capture::{Capture, in_20_s, last_before_gap};
use crate::result::Bound;
use crate::shell::now_ms;
use crate::status;
use crate::world::{Way, World};

const fn figure(
    id: &'static str,
    what: &'static str,
    unit: &'static str,
    article: &'static str,
    bound: Bound,
) -> Figure {
    Figure { id, what, unit, article, bound }
}

const RESTART: &[Figure] = &[
    figure("stream_s", "the stream's end after SIGTERM", "s", "10.1", Bound::Within(9.9, 10.3)),
    figure("status", "its status", "", "UNAVAILABLE", Bound::BrokenStatus),
    figure("reason", "reason@hop in /status", "", "drain_deadline", Bound::Word(&["drain_deadline@1"])),
    figure("retry_s", "a retried call succeeds after SIGTERM", "s", "11.6 to 15.7", Bound::None),
    figure("back_s", "the same, after the relay listens again", "s", "", Bound::AtMost(1.0)),
    figure("fresh", "a new channel's call, begun during the drain", "", "", Bound::Word(&["OK"])),
];

const RETURNS: &[Figure] = &[
    figure(
        "failed",
        "failed opens begun after both ends knew of the death",
        "",
        "about 2 s of them",
        Bound::AtMost(0.0),
    ),
    figure("opens", "of", "", "", Bound::AtLeast(8.0)),
    figure("first_s", "first success after the path is good again", "s", "2", Bound::AtMost(2.0)),
];

const OFFLINE: &[Figure] = &[
    figure("fails_ms", "the connection fails after", "ms", "at once", Bound::AtMost(100.0)),
    figure("reason", "reason@hop in /status", "", "", Bound::Word(&["offline@1"])),
];

const COST: &[Figure] = &[
    figure("after_last", "TCP payload in the 20 s after the last byte", "B", "156", Bound::AtMost(156.0)),
    figure("any", "the most in any 20 s", "B", "208", Bound::AtMost(208.0)),
];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P9",
    what: "",
    figures: COST,
    ways: &[Way::Tcp],
    speaks_grpc: false,
    pace: Pace::Waits,
    runs: 3,
    seconds: 75,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "relay-restart",
        promise: "P6",
        what: "The only relay gets SIGTERM under an open stream (drain 10 s) and is started again when it has ended. A call is \
               retried every 0.5 s after the stream's end.",
        figures: RESTART,
        ways: &[Way::Unix],
        speaks_grpc: true,
        seconds: 24,
        smoke: true,
        run: restart,
        ..BASE
    },
    Scenario {
        name: "path-returns-sidecar",
        promise: "P7",
        what: "The path between sidecar and relay is dead for 20 s. From 16 s on, raw connections are opened every 0.5 s.",
        figures: RETURNS,
        seconds: 40,
        run: |case| returns(case, "web"),
        ..BASE
    },
    Scenario {
        name: "path-returns-agent",
        promise: "P7",
        what: "The path between relay and agent is dead for 20 s. From 16 s on, raw connections are opened every 0.5 s.",
        figures: RETURNS,
        seconds: 40,
        run: |case| returns(case, "db"),
        ..BASE
    },
    Scenario {
        name: "offline",
        promise: "P8",
        what: "A raw connection to a mapping whose service was never published, a second time after the relay's first 10 s.",
        figures: OFFLINE,
        ways: &[Way::Unix],
        seconds: 16,
        runs: 5,
        smoke: true,
        run: offline,
        ..BASE
    },
    Scenario {
        name: "liveness-bytes-1",
        what: "The idle link between sidecar and relay with 1 session, captured for 65 s.",
        run: |case| cost(case, 1),
        ..BASE
    },
    Scenario {
        name: "liveness-bytes-500",
        what: "The same with 500 sessions.",
        run: |case| cost(case, 500),
        ..BASE
    },
];

fn restart(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    let fresh = world.start_client("fresh", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    world.app(client).call("stream", "ticks", json!({}))?;
    world.app(client).expect("message", "stream", SOON)?;
    let term_ms = world.signal("relay", Signal::TERM)?;
    std::thread::sleep(Duration::from_secs(1));
    // Held until the relay is back: 10.5 s or so, which is why the call has more time than an open.
    let late = json!({"bytes": 64, "seed": 1, "deadline_ms": 20_000});
    std::thread::sleep(Duration::from_secs(3));
    world.app(fresh).call("fresh", "echo", late)?;
    world.wait_end("relay")?;
    world.start_relay()?;
    let listens_ms = now_ms();
    let end = world.app(client).expect("end", "stream", SOON)?;
    case.number("stream_s", (end.mono_ms - term_ms) / 1e3);
    case.word("status", end.text("status"));
    let reason = world.reason()?;
    case.word("reason", reason);
    let mut tries = 0;
    let good = loop {
        tries += 1;
        let end = world.app(client).echo(&format!("retry {tries}"))?;
        if end.text("status") == "OK" {
            break end;
        }
        anyhow::ensure!(tries < 60, "no retry has succeeded: {}", end.text("message"));
        std::thread::sleep(Duration::from_millis(500));
    };
    case.number("retry_s", (good.mono_ms - term_ms) / 1e3);
    case.number("back_s", (good.mono_ms - listens_ms).max(0.0) / 1e3);
    let fresh = world.app(fresh).expect("end", "fresh", SOON)?;
    case.word("fresh", fresh.text("status"));
    Ok(())
}

fn returns(case: &mut Case<'_>, host: &str) -> anyhow::Result<()> {
    let mut world = case.world()?;
    world.start_raw_server()?;
    let client = world.start_actor("web", "client")?;
    world.app(client).say(&json!({"op": "dial", "address": "127.0.0.1:7902"}))?;
    world.app(client).find(SOON, |event| event.kind == "first")?.context("no first byte")?;
    let cut = world.cut_path(host, "relay")?;
    let begun = std::time::Instant::now();
    let seconds = |seconds| Duration::from_secs(seconds);
    std::thread::sleep(seconds(16).saturating_sub(begun.elapsed()));
    let mut cut = Some(cut);
    let mut healed_ms = f64::INFINITY;
    let mut opens = 0_u64;
    while begun.elapsed() < seconds(26) {
        world.app(client).say(&json!({"op": "dial", "address": "127.0.0.1:7902"}))?;
        opens += 1;
        std::thread::sleep(Duration::from_millis(500));
        if begun.elapsed() >= seconds(20)
            && let Some(cut) = cut.take()
        {
            healed_ms = cut.heal()?;
        }
    }
    // Each open has 10 s.
    let good = |events: &[Event]| -> Vec<f64> {
        let after = events.iter().filter(|event| event.kind == "first" && event.body["conn"] != 0);
        after.map(|event| event.mono_ms).collect()
    };
    let patience = std::time::Instant::now();
    while patience.elapsed() < seconds(11) && (good(&world.app(client).events()).len() as u64) < opens {
        std::thread::sleep(Duration::from_millis(100));
    }
    let good = good(&world.app(client).events());
    #[expect(clippy::cast_precision_loss, reason = "some dozen opens")]
    let (failed, opens) = ((opens - good.len() as u64) as f64, opens as f64);
    case.number("failed", failed);
    case.number("opens", opens);
    match good.iter().copied().min_by(f64::total_cmp) {
        Some(first) => case.number("first_s", (first - healed_ms) / 1e3),
        None => case.not_within("first_s", 17.0),
    }
    Ok(())
}

fn offline(case: &mut Case<'_>) -> anyhow::Result<()> {
    let world = case.world()?;
    let path = world.path("nobody.sock");
    // The relay holds opens in its first 10 s: the name may come yet.
    std::thread::sleep(Duration::from_secs(11));
    let began = now_ms();
    let mut stream = std::os::unix::net::UnixStream::connect(&path)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut nothing = [0; 1];
    // The end of a unix socket is an end of file, or a reset.
    let length = std::io::Read::read(&mut stream, &mut nothing).unwrap_or_default();
    anyhow::ensure!(length == 0, "somebody answered");
    case.number("fails_ms", now_ms() - began);
    let status = world.status("sidecar")?;
    case.word("reason", status::reason(status::entry(&status, "mappings", "nobody")));
    Ok(())
}

fn cost(case: &mut Case<'_>, sessions: u64) -> anyhow::Result<()> {
    let mut world = case.world()?;
    world.start_raw_server()?;
    let client = world.start_actor("web", "client")?;
    let capture = Capture::start(&world.net, "web", "eth0", 7_443, &case.folder)?;
    world.app(client).say(&json!({"op": "dial", "address": "127.0.0.1:7902", "count": sessions}))?;
    let began = std::time::Instant::now();
    loop {
        let events = world.app(client).events();
        let first = events.iter().filter(|event| event.kind == "first").count() as u64;
        if first == sessions {
            break;
        }
        if began.elapsed() > SOON * 2 || events.iter().any(|event| event.kind == "end") {
            let ends: Vec<String> = events
                .iter()
                .filter(|event| event.kind == "end")
                .map(|event| event.body.to_string())
                .collect();
            let agent = world.status("agent")?;
            let (here, there) =
                (raw_reason(&world)?, status::reason(status::entry(&agent, "services", "raw")));
            bail!(
                "{first} of {sessions} sessions are there; {here}, at the agent {there}; {}",
                ends.join(" ")
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(65));
    open_sessions(&world, sessions)?;
    let segments = capture.finish()?;
    let last_s = last_before_gap(&segments, 3.0).context("the link was never idle for 3 s")?;
    let (after_last, any) = in_20_s(&segments, last_s);
    #[expect(clippy::cast_precision_loss, reason = "some hundred bytes")]
    let (after_last, any) = (after_last as f64, any as f64);
    case.number("after_last", after_last);
    case.number("any", any);
    Ok(())
}

/// The last error of the raw mapping, whole.
fn raw_reason(world: &World) -> anyhow::Result<String> {
    let status = world.status("sidecar")?;
    Ok(status::entry(&status, "mappings", "raw")
        .map(|entry| entry["last_error"].to_string())
        .unwrap_or_default())
}

fn open_sessions(world: &World, sessions: u64) -> anyhow::Result<()> {
    let status = world.status("sidecar")?;
    let open = status::entry(&status, "mappings", "raw").map(|entry| entry["sessions"]["open"].as_u64());
    anyhow::ensure!(open == Some(Some(sessions)), "{open:?} of {sessions} sessions are open");
    Ok(())
}
