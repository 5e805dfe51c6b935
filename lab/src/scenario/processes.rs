//! Processes of the chain that freeze, are killed, or drain.

use std::time::Duration;

use rustix::process::Signal;

use super::streams::{Done, Plan, REASON, STATUS, ends, run};
use super::{Case, Figure, Pace, Scenario};
use crate::fault::Fault;
use crate::result::Bound;
use crate::world::Way;

const BOTH: [Figure; 4] = ends(15.1, "");
const AT_ONCE: [Figure; 4] = ends(1.0, "");
/// The frozen process itself learns it when it runs again.
const HANDLER_LATER: [Figure; 4] = [
    ends(15.1, "")[0],
    STATUS,
    Figure {
        id: "handler_s",
        what: "handler's end (thawed after 25 s)",
        unit: "s",
        article: "",
        bound: Bound::Within(25.0, 26.0),
    },
    REASON,
];
const CLIENT_LATER: [Figure; 4] = [
    Figure {
        id: "client_s",
        what: "client's end (thawed after 25 s)",
        unit: "s",
        article: "",
        bound: Bound::Within(25.0, 26.0),
    },
    STATUS,
    ends(15.1, "")[2],
    REASON,
];
const LIVES: [Figure; 1] = [Figure {
    id: "lives",
    what: "the stream after a freeze of 8 s",
    unit: "",
    article: "",
    bound: Bound::Word(&["yes"]),
}];

const BASE: Scenario = Scenario {
    name: "",
    promise: "P11",
    what: "",
    figures: &BOTH,
    ways: &[Way::Unix],
    speaks_grpc: true,
    pace: Pace::Waits,
    runs: 3,
    seconds: 34,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frozen-relay",
        what: "The relay is stopped under an idle stream: a true death at both its neighbours.",
        run: |case| frozen(case, "relay"),
        ..BASE
    },
    Scenario {
        name: "frozen-agent",
        what: "The agent is stopped for 25 s under an idle stream.",
        figures: &HANDLER_LATER,
        run: |case| frozen(case, "agent"),
        ..BASE
    },
    Scenario {
        name: "frozen-sidecar",
        what: "The sidecar is stopped for 25 s under an idle stream.",
        figures: &CLIENT_LATER,
        run: |case| frozen(case, "sidecar"),
        ..BASE
    },
    Scenario {
        name: "frozen-8s-relay",
        what: "The relay is stopped for 8 s under an idle stream, and goes on.",
        figures: &LIVES,
        seconds: 20,
        run: |case| short_freeze(case, "relay"),
        ..BASE
    },
    Scenario {
        name: "frozen-8s-agent",
        what: "The agent is stopped for 8 s under an idle stream, and goes on.",
        figures: &LIVES,
        seconds: 20,
        run: |case| short_freeze(case, "agent"),
        ..BASE
    },
    Scenario {
        name: "frozen-8s-sidecar",
        what: "The sidecar is stopped for 8 s under an idle stream, and goes on.",
        figures: &LIVES,
        seconds: 20,
        run: |case| short_freeze(case, "sidecar"),
        ..BASE
    },
    Scenario {
        name: "killed-relay",
        promise: "P15",
        what: "The relay is killed with -9 under an idle stream.",
        figures: &AT_ONCE,
        seconds: 10,
        smoke: true,
        run: |case| killed(case, "relay"),
        ..BASE
    },
    Scenario {
        name: "killed-agent",
        promise: "P15",
        what: "The agent is killed with -9 under an idle stream.",
        figures: &AT_ONCE,
        seconds: 10,
        run: |case| killed(case, "agent"),
        ..BASE
    },
];

fn frozen(case: &mut Case<'_>, process: &str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.heal_after = Some(Duration::from_secs(25));
    let freeze = Fault::Freeze { process: process.to_owned() };
    run(case, &plan, |world| Ok(world.apply(&freeze)?.into()))
}

fn short_freeze(case: &mut Case<'_>, process: &str) -> anyhow::Result<()> {
    let mut plan = Plan::idle(case.way);
    plan.heal_after = Some(Duration::from_secs(8));
    plan.patience = Duration::from_secs(16);
    let freeze = Fault::Freeze { process: process.to_owned() };
    run(case, &plan, |world| Ok(world.apply(&freeze)?.into()))?;
    let ended = case.values.remove("status").is_some();
    case.word("lives", if ended { "no" } else { "yes" });
    Ok(())
}

fn killed(case: &mut Case<'_>, process: &str) -> anyhow::Result<()> {
    let plan = Plan::idle(case.way);
    run(case, &plan, |world| {
        let at_ms = world.end(process, Signal::KILL)?;
        Ok(Done { at_ms, undo: Vec::new() })
    })
}
