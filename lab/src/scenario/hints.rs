//! Hints: what the sidecar says of an application that could do better, and its silence about one that could not.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::streams::SOON;
use super::{Case, Figure, Pace, Scenario};
use crate::result::Bound;
use crate::status;
use crate::world::{Way, World};

/// Connections of one call: at least 5 in a minute.
const CONNECTIONS: usize = 6;
/// Until all hints show: three PINGs of 10 s, and the minute after which connections are judged.
const PATIENCE: Duration = Duration::from_secs(100);
/// Longer than any of what is provoked takes.
const HEALTHY: Duration = Duration::from_secs(45);
const ALL: &str = "app_not_reading client_keepalive connection_per_call no_deadline";

const SHOWN: &[Figure] = &[
    figure("hints", "hints in /status", Bound::Word(&[ALL])),
    figure("idle_pings", "idle_pings_under_15s", Bound::AtLeast(1.0)),
    figure("goaways", "too_many_pings_goaway", Bound::None),
    figure("without_deadline", "calls_without_deadline", Bound::Within(1.0, 1.0)),
    figure("one_call", "connections_with_one_call", Bound::AtLeast(5.0)),
    figure("stalls", "stalls_over_5s", Bound::Within(1.0, 1.0)),
];

const fn figure(id: &'static str, what: &'static str, bound: Bound) -> Figure {
    Figure { id, what, unit: "", article: "", bound }
}

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "hints-shown",
        promise: "P18",
        what: "A keepalive of 10 s on an idle stream, a call without a deadline, six connections of one call, and a stream \
               that is not read, on one mapping.",
        figures: SHOWN,
        ways: &[Way::Unix, Way::Tcp],
        speaks_grpc: true,
        pace: Pace::Waits,
        runs: 1,
        seconds: 75,
        smoke: false,
        open: None,
        run: shown,
    },
    Scenario {
        name: "hints-silent",
        promise: "P18",
        what: "The same application as it should be: no keepalive on an idle stream, deadlines, one connection for all calls, \
               and a stream that is read.",
        figures: &[figure("hints", "hints in /status", Bound::Word(&["none"]))],
        ways: &[Way::Unix, Way::Tcp],
        speaks_grpc: true,
        pace: Pace::Waits,
        runs: 1,
        seconds: 50,
        smoke: false,
        open: None,
        run: silent,
    },
];

fn shown(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let pinging = ["--keepalive-ms", "10000", "--keepalive-idle"];
    let pinging = world.start_client("pinging", &language, &target, &pinging)?;
    world.app(pinging).call("idle", "ticks", json!({"deadline_ms": 600_000}))?;
    let deaf = world.start_client("deaf", &language, &target, &[])?;
    let unread = json!({"deadline_ms": 600_000, "every_ms": 1, "bytes": 16_384, "read_most": 3});
    world.app(deaf).call("unread", "ticks", unread)?;
    for number in 0..CONNECTIONS {
        let mut once = world.spawn_client(&format!("once {number}"), &language, &target, &[])?;
        once.echo("only")?;
    }
    let patient = world.start_client("patient", &language, &target, &[])?;
    world.app(patient).echo("bounded")?;
    world.app(patient).call("unbounded", "echo", json!({"bytes": 64, "seed": 1}))?;
    world.app(patient).expect("end", "unbounded", SOON)?;
    let until = Instant::now() + PATIENCE;
    let mut hints = hints(&world, "lab")?;
    while kinds(&hints) != ALL && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(500));
        hints = self::hints(&world, "lab")?;
    }
    case.word("hints", kinds(&hints));
    for (id, kind, name) in [
        ("idle_pings", "client_keepalive", "idle_pings_under_15s"),
        ("goaways", "client_keepalive", "too_many_pings_goaway"),
        ("without_deadline", "no_deadline", "calls_without_deadline"),
        ("one_call", "connection_per_call", "connections_with_one_call"),
        ("stalls", "app_not_reading", "stalls_over_5s"),
    ] {
        let hint = hints.iter().find(|hint| hint["kind"] == kind);
        if let Some(number) = hint.and_then(|hint| hint["evidence"][name].as_f64()) {
            case.number(id, number);
        }
    }
    Ok(())
}

fn silent(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world()?;
    world.start_server(&language)?;
    let target = world.target();
    let began = Instant::now();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).call("idle", "ticks", json!({"deadline_ms": 600_000}))?;
    let read = json!({"deadline_ms": 600_000, "every_ms": 5, "bytes": 1_024});
    world.app(client).call("read", "ticks", read)?;
    let mut number = 0;
    while began.elapsed() < HEALTHY {
        world.app(client).echo(&format!("call {number}"))?;
        number += 1;
        std::thread::sleep(Duration::from_secs(1));
    }
    case.word("hints", kinds(&hints(&world, "lab")?));
    Ok(())
}

/// The hints of a mapping.
///
/// # Errors
///
/// When the sidecar does not answer.
pub(super) fn hints(world: &World, mapping: &str) -> anyhow::Result<Vec<Json>> {
    let status = world.status("sidecar")?;
    let hints =
        status::entry(&status, "mappings", mapping).and_then(|entry| entry["hints"].as_array().cloned());
    Ok(hints.unwrap_or_default())
}

/// Their words in order, or `none`.
pub(super) fn kinds(hints: &[Json]) -> String {
    let mut kinds: Vec<&str> = hints.iter().filter_map(|hint| hint["kind"].as_str()).collect();
    kinds.sort_unstable();
    if kinds.is_empty() { "none".to_owned() } else { kinds.join(" ") }
}
