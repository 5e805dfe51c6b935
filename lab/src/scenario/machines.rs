//! What happens to machines: little CPU, a new address, a clock that jumps, connections cut from outside.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::streams::{Plan, SOON, ends, run};
use super::{Case, Figure, Pace, Scenario};
use crate::fault::Fault;
use crate::result::Bound;
use crate::shell::now_ms;
use crate::world::{Options, Way};

const LIVES: [Figure; 1] =
    [Figure { id: "lives", what: "the stream", unit: "", article: "", bound: Bound::Word(&["lives"]) }];
const CUT: [Figure; 4] = ends(1.0, "");
const MOVED: [Figure; 5] = {
    let [client, status, handler, reason] = ends(15.1, "");
    let fresh = Figure {
        id: "fresh",
        what: "a new channel's call",
        unit: "",
        article: "",
        bound: Bound::Word(&["OK"]),
    };
    [client, status, handler, reason, fresh]
};
const NAT: [Figure; 1] = [Figure {
    id: "second",
    what: "the message after 30 s",
    unit: "",
    article: "",
    bound: Bound::Word(&["arrives"]),
}];
const CLOCK: [Figure; 2] = [
    LIVES[0],
    Figure { id: "fresh", what: "a new channel's call", unit: "", article: "", bound: Bound::Word(&["OK"]) },
];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P11",
    what: "",
    figures: &LIVES,
    ways: &[Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 2,
    seconds: 70,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "starved-relay",
        what: "The relay has 5 % of one CPU for 60 s; the server writes 2 KB every 50 ms.",
        run: |case| starved(case, "relay"),
        ..BASE
    },
    Scenario {
        name: "starved-agent",
        what: "The agent has 5 % of one CPU for 60 s; the server writes 2 KB every 50 ms.",
        run: |case| starved(case, "agent"),
        ..BASE
    },
    Scenario {
        name: "starved-sidecar",
        what: "The sidecar has 5 % of one CPU for 60 s; the server writes 2 KB every 50 ms.",
        run: |case| starved(case, "sidecar"),
        ..BASE
    },
    Scenario {
        name: "cut-sockets",
        promise: "P15",
        what: "The link between sidecar and relay is reset from outside (ss -K) under an idle stream.",
        figures: &CUT,
        seconds: 12,
        run: |case| {
            let cut = Fault::Cut { from: "web".to_owned(), to: "relay".to_owned() };
            run(case, &Plan::idle(case.way), |world| Ok(world.apply(&cut)?.into()))
        },
        ..BASE
    },
    Scenario {
        name: "new-address",
        promise: "P4",
        what: "The sidecar's host loses its address and gets another under an idle stream; afterwards a new channel calls.",
        figures: &MOVED,
        seconds: 30,
        run: |case| ended_by(case, None, &Fault::Readdress { host: "web".to_owned() }),
        ..BASE
    },
    Scenario {
        name: "nat-forgets",
        promise: "P4",
        what: "The NAT before the sidecar's host (directly: before the client's) forgets all flows under an idle stream and \
               drops what it does not know; afterwards a new channel calls.",
        figures: &MOVED,
        ways: &[Way::Direct, Way::Unix],
        seconds: 34,
        run: |case| ended_by(case, Some("web"), &Fault::Forget { host: "web".to_owned() }),
        ..BASE
    },
    Scenario {
        name: "nat-idle",
        promise: "P9",
        what: "The same NAT forgets flows that are idle for 8 s. The server sends again after 30 s of silence.",
        figures: &NAT,
        ways: &[Way::Direct, Way::Unix],
        seconds: 42,
        run: nat_idle,
        ..BASE
    },
    Scenario {
        name: "full-disk",
        promise: "P14",
        what: "The disks of relay, agent and sidecar are full. A stream lives on; the relay is killed and started again, and a \
               new channel calls.",
        figures: &CLOCK,
        seconds: 25,
        run: full_disk,
        ..BASE
    },
    Scenario {
        name: "clock-forward",
        promise: "P11",
        what: "The wall clock of relay, agent and sidecar jumps an hour forward under an idle stream; a new channel calls.",
        figures: &CLOCK,
        seconds: 25,
        run: |case| clock(case, 3_600),
        ..BASE
    },
    Scenario {
        name: "clock-back",
        promise: "P11",
        what: "The same clock jumps half an hour back.",
        figures: &CLOCK,
        seconds: 25,
        run: |case| clock(case, -1_800),
        ..BASE
    },
];

fn starved(case: &mut Case<'_>, process: &str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.stream = json!({"every_ms": 50, "bytes": 2_000});
    plan.patience = Duration::from_secs(60);
    let starve = Fault::Starve { process: process.to_owned(), percent: 5 };
    run(case, &plan, |world| Ok(world.apply(&starve)?.into()))?;
    say_whether_it_lives(case);
    Ok(())
}

fn say_whether_it_lives(case: &mut Case<'_>) {
    let ended = case.values.contains_key("status");
    case.word("lives", if ended { "ended" } else { "lives" });
}

/// A fault that cannot be undone ends the stream; a new channel has to work at once.
fn ended_by(case: &mut Case<'_>, behind_nat: Option<&'static str>, fault: &Fault) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { behind_nat, ..Options::plain(case.way) })?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    world.app(client).call("stream", "ticks", json!({}))?;
    world.app(client).expect("message", "stream", SOON)?;
    let done = world.apply(fault)?;
    for (id, index, kind) in [("client_s", client, "end"), ("handler_s", server, "handler_end")] {
        let patience = Duration::from_secs_f64((25e3 - (now_ms() - done.at_ms)).max(0.0) / 1e3);
        match world.app(index).find(patience, |event| event.kind == kind && event.call == "stream")? {
            Some(event) => {
                case.number(id, (event.mono_ms - done.at_ms) / 1e3);
                if id == "client_s" {
                    case.word("status", event.text("status"));
                }
            }
            None => case.not_within(id, 25.0),
        }
    }
    if case.way != Way::Direct {
        let reason = world.reason()?;
        case.word("reason", reason);
    }
    let fresh = world.start_client("fresh", &language, &target, &[])?;
    let end = world.app(fresh).echo("fresh")?;
    case.word("fresh", end.text("status"));
    Ok(())
}

fn nat_idle(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { behind_nat: Some("web"), ..Options::plain(case.way) })?;
    world.net.set_kernel("web", "netfilter/nf_conntrack_tcp_timeout_established", "8")?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).call("stream", "ticks", json!({"every_ms": 30_000}))?;
    world.app(client).expect("message", "stream", SOON)?;
    let second = world.app(client).find(Duration::from_secs(36), |event| event.body["n"] == 2)?;
    case.word("second", if second.is_some() { "arrives" } else { "lost" });
    Ok(())
}

fn clock(case: &mut Case<'_>, seconds: i64) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { faked_clock: true, ..Options::plain(case.way) })?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    world.app(client).call("stream", "ticks", json!({}))?;
    world.app(client).expect("message", "stream", SOON)?;
    let _jumped = world.apply(&Fault::Clock { seconds })?;
    // Longer than a dead link would be believed.
    let wait = Duration::from_secs(17);
    let end = world.app(client).find(wait, |event| event.kind == "end" && event.call == "stream")?;
    case.word("lives", if end.is_some() { "ended" } else { "lives" });
    let fresh = world.start_client("fresh", &language, &target, &[])?;
    let end = world.app(fresh).echo("fresh")?;
    case.word("fresh", end.text("status"));
    Ok(())
}

fn full_disk(case: &mut Case<'_>) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(Options { small_disks: true, ..Options::plain(case.way) })?;
    world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, &[])?;
    world.app(client).echo("warm")?;
    world.app(client).call("stream", "ticks", json!({}))?;
    world.app(client).expect("message", "stream", SOON)?;
    let mut full = Vec::new();
    for process in ["relay", "agent", "sidecar"] {
        full.push(world.apply(&Fault::FullDisk { process: process.to_owned() })?);
    }
    let wait = Duration::from_secs(10);
    let end = world.app(client).find(wait, |event| event.kind == "end" && event.call == "stream")?;
    case.word("lives", if end.is_some() { "ended" } else { "lives" });
    world.end("relay", Signal::KILL)?;
    world.start_relay()?;
    let fresh = world.start_client("fresh", &language, &target, &[])?;
    let end = world.app(fresh).echo("fresh")?;
    case.word("fresh", end.text("status"));
    Ok(())
}
