//! Failures that users of such software have reported, tried on the real thing. `lab/field-reports.json` is the table of
//! all of them; a scenario's name begins with its row's id.

mod bulk;
mod calls;
mod clock;
mod dead;
mod drain;
mod ends;
mod flow;
mod frames;
mod grpc;
mod health;
pub(super) mod kit;
mod leaks;
mod logs;
mod names;
mod resets;
mod restarts;
mod shape;
mod storms;

use super::Scenario;

/// All of them. A further file of scenarios is a module above and a line here.
pub(super) fn all() -> Vec<Scenario> {
    [
        ends::SCENARIOS,
        resets::SCENARIOS,
        leaks::SCENARIOS,
        flow::SCENARIOS,
        dead::SCENARIOS,
        storms::SCENARIOS,
        drain::SCENARIOS,
        grpc::SCENARIOS,
        restarts::SCENARIOS,
        names::SCENARIOS,
        frames::SCENARIOS,
        bulk::SCENARIOS,
        logs::SCENARIOS,
        clock::SCENARIOS,
        calls::SCENARIOS,
        health::SCENARIOS,
    ]
    .concat()
}
