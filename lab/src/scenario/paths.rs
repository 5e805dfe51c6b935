//! Paths that die under an open stream: both ways, one way, idle and busy, at each preset, behind a forward.

use std::time::Duration;

use serde_json::json;

use super::streams::{Plan, client_ends, ends, run};
use super::{Case, Figure, Pace, Scenario};
use crate::fault::Fault;
use crate::result::Bound;
use crate::world::{Options, Way};

const P4: [Figure; 4] = ends(15.1, "14.9");
/// Who hears nothing any more ends the link at its bound, and the other end by a reset, which arrives.
const ONE_WAY: [Figure; 4] = ends(15.1, "");
const FAST: [Figure; 4] = ends(4.6, "4.5 (stated)");
const DEFAULT: [Figure; 4] = ends(15.1, "15 (stated)");
const NAT: [Figure; 4] = ends(30.1, "30 (stated)");
const DATACENTER: [Figure; 4] = ends(45.1, "45 (stated)");
const MOBILE: [Figure; 4] = ends(60.1, "60 (stated)");
const FORWARD: [Figure; 4] = client_ends(26.0, "25.6");

const BASE: Scenario = Scenario {
    name: "",
    promise: "P4",
    what: "",
    figures: &P4,
    ways: &[Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 5,
    seconds: 24,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

/// What the server of a busy stream does.
const BUSY: &str = r#"{"every_ms": 500, "bytes": 200}"#;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "dead-path-sidecar",
        what: "Every packet between sidecar and relay (directly: client and server) is dropped under an idle stream, \
               no client keepalive.",
        ways: &[Way::Direct, Way::Unix, Way::Tcp],
        smoke: true,
        run: |case| dead(case, ["web", "relay"], "{}"),
        ..BASE
    },
    Scenario {
        name: "dead-path-agent",
        what: "Every packet between relay and agent is dropped under an idle stream.",
        smoke: true,
        run: |case| dead(case, ["relay", "db"], "{}"),
        ..BASE
    },
    Scenario {
        name: "dead-path-writing",
        what: "The path between sidecar and relay dies while the server writes every 0.5 s.",
        ways: &[Way::Direct, Way::Unix],
        runs: 3,
        run: |case| dead(case, ["web", "relay"], BUSY),
        ..BASE
    },
    Scenario {
        name: "dead-path-agent-writing",
        what: "The path between relay and agent dies while the server writes every 0.5 s.",
        runs: 3,
        run: |case| dead(case, ["relay", "db"], BUSY),
        ..BASE
    },
    Scenario {
        name: "one-way-from-sidecar",
        what: "Only packets from sidecar to relay are dropped.",
        figures: &ONE_WAY,
        runs: 3,
        run: |case| one_way(case, "web", "relay"),
        ..BASE
    },
    Scenario {
        name: "one-way-to-sidecar",
        what: "Only packets from relay to sidecar are dropped.",
        figures: &ONE_WAY,
        runs: 3,
        run: |case| one_way(case, "relay", "web"),
        ..BASE
    },
    Scenario {
        name: "one-way-to-agent",
        what: "Only packets from relay to agent are dropped.",
        figures: &ONE_WAY,
        runs: 3,
        run: |case| one_way(case, "relay", "db"),
        ..BASE
    },
    Scenario {
        name: "one-way-from-agent",
        what: "Only packets from agent to relay are dropped.",
        figures: &ONE_WAY,
        runs: 3,
        run: |case| one_way(case, "db", "relay"),
        ..BASE
    },
    Scenario {
        figures: &FAST,
        seconds: 13,
        run: |case| preset(case, "fast", 10),
        ..preset_base("preset-fast")
    },
    Scenario { figures: &DEFAULT, run: |case| preset(case, "default", 20), ..preset_base("preset-default") },
    Scenario { figures: &NAT, seconds: 38, run: |case| preset(case, "nat", 35), ..preset_base("preset-nat") },
    Scenario {
        figures: &DATACENTER,
        seconds: 53,
        run: |case| preset(case, "datacenter", 50),
        ..preset_base("preset-datacenter")
    },
    Scenario {
        figures: &MOBILE,
        seconds: 68,
        run: |case| preset(case, "mobile", 65),
        ..preset_base("preset-mobile")
    },
    Scenario {
        name: "forward-silent-idle",
        promise: "P12",
        what: "The host behind a forward vanishes under an idle stream (directly: client and server).",
        figures: &FORWARD,
        ways: &[Way::Direct, Way::Unix],
        seconds: 34,
        runs: 3,
        run: |case| silent_forward(case, "{}"),
        ..BASE
    },
    Scenario {
        name: "forward-silent-writing",
        promise: "P12",
        what: "The host behind a forward vanishes while the client writes.",
        figures: &FORWARD_WRITING,
        seconds: 34,
        runs: 3,
        run: super::writing::silent_forward,
        ..BASE
    },
    Scenario {
        name: "forward-frozen",
        promise: "P13",
        what: "The server behind a forward is frozen: its kernel answers, its process does not.",
        figures: &FROZEN,
        seconds: 68,
        runs: 1,
        open: Some("the agent has no probe yet"),
        run: |case| {
            let mut plan = Plan::idle(case.way);
            plan.options.server = "far";
            plan.patience = Duration::from_secs(60);
            let freeze = Fault::Freeze { process: "server".to_owned() };
            run(case, &plan, |world| Ok(world.apply(&freeze)?.into()))
        },
        ..BASE
    },
    Scenario {
        name: "forward-frozen-keepalive",
        promise: "P13",
        what: "The same with a client keepalive of 60 s, timeout 20 s, that the server permits: the article's way to find it.",
        figures: &FROZEN_KEEPALIVE,
        ways: &[Way::Direct, Way::Unix],
        seconds: 100,
        runs: 3,
        run: |case| {
            let mut plan = Plan::idle(case.way);
            plan.options.server = "far";
            plan.options.permit = true;
            plan.flags = &["--keepalive-ms", "60000", "--keepalive-timeout-ms", "20000"];
            plan.patience = Duration::from_secs(95);
            let freeze = Fault::Freeze { process: "server".to_owned() };
            run(case, &plan, |world| Ok(world.apply(&freeze)?.into()))
        },
        ..BASE
    },
    Scenario {
        name: "dead-path-without-us",
        promise: "P4",
        what: "Every packet between client and server is dropped under an idle stream, no client keepalive, nothing of ours: \
               what the operating system's keepalive finds, where a library has set it. (The article's grpc-go set one; \
               this one leaves it to the system, whose default is two hours.)",
        figures: &KERNEL,
        ways: &[Way::Direct],
        seconds: 180,
        runs: 3,
        run: |case| {
            let mut plan = Plan::idle(case.way);
            plan.patience = Duration::from_secs(175);
            run(case, &plan, |world| Ok(world.cut_path("web", "db")?.into()))
        },
        ..BASE
    },
];

/// What a client's own TCP does when nothing else watches, until the lab stops waiting.
const KERNEL: [Figure; 2] = [
    Figure { article: "153", bound: Bound::LikeDirect(1.0), ..ends(0.0, "")[0] },
    Figure { bound: Bound::LikeDirect(0.0), ..super::streams::STATUS },
];
/// A client's keepalive finds the frozen server in as long as it does directly.
const FROZEN_KEEPALIVE: [Figure; 2] =
    [Figure { article: "80", bound: Bound::LikeDirect(6.0), ..ends(0.0, "")[0] }, super::streams::STATUS];
const FORWARD_WRITING: [Figure; 2] = [ends(26.0, "")[0], super::streams::REASON];
const FROZEN: [Figure; 3] =
    [ends(20.0, "80 (client keepalive)")[0], super::streams::STATUS, super::streams::REASON];

const fn preset_base(name: &'static str) -> Scenario {
    Scenario {
        name,
        promise: "P10",
        what: "The path between sidecar and relay dies under an idle stream; both edges have this preset.",
        runs: 3,
        ..BASE
    }
}

fn dead(case: &mut Case<'_>, [from, to]: [&str; 2], stream: &str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.stream = serde_json::from_str(stream)?;
    let to = if case.way == Way::Direct { "db" } else { to };
    run(case, &plan, |world| Ok(world.cut_path(from, to)?.into()))
}

fn one_way(case: &mut Case<'_>, from: &str, to: &str) -> anyhow::Result<()> {
    let fault = Fault::Drop { from: from.to_owned(), to: to.to_owned(), both: false };
    run(case, &Plan::idle(case.way), |world| Ok(world.apply(&fault)?.into()))
}

fn preset(case: &mut Case<'_>, preset: &'static str, patience_s: u64) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.options = Options { sidecar_keepalive: preset, agent_keepalive: preset, ..plan.options };
    plan.patience = Duration::from_secs(patience_s);
    run(case, &plan, |world| Ok(world.cut_path("web", "relay")?.into()))
}

fn silent_forward(case: &mut Case<'_>, stream: &str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.options.server = "far";
    plan.stream = serde_json::from_str(stream).unwrap_or(json!({}));
    let from = if case.way == Way::Direct { "web" } else { "db" };
    run(case, &plan, |world| Ok(world.cut_path(from, "far")?.into()))
}
