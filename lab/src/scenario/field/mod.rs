//! Failures that users of such software have reported, tried on the real thing. `lab/field-reports.json` is the table of
//! all of them; a scenario's name begins with its row's id.

mod dead;
mod drain;
mod ends;
mod flow;
mod grpc;
pub(super) mod kit;
mod leaks;
mod resets;
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
    ]
    .concat()
}
