//! Reconnecting, many at once or one for ever: F89 to F98.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use super::super::{Case, Figure, Scenario};
use super::kit::{BASE, Raw, SOON, figure};
use crate::result::Bound;
use crate::status;
use crate::world::Way;

/// How many machines come back at once.
const HERD: usize = 40;

const BACK: &[Figure] = &[
    figure("back", "of 40 machines are back", "", Bound::Within(40.0, 40.0)),
    figure("last_s", "the last, after the relay listens", "s", Bound::AtMost(5.0)),
    figure("call", "a session then", "", Bound::Word(&["ok"])),
];

pub(in super::super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "f89-forty-machines-come-back",
    promise: "F89",
    what: "40 more machines; the relay is killed, and started again after 5 s.",
    figures: BACK,
    ways: &[Way::Tcp],
    seconds: 40,
    run: herd,
    ..BASE
}];

fn herd(case: &mut Case<'_>) -> anyhow::Result<()> {
    let mut raw = Raw::start(case, json!(["obey"]))?;
    let names: Vec<String> = (0..HERD).map(|number| format!("more-{number}")).collect();
    for name in &names {
        let config =
            format!("connect:\n  raw: {{ listen: \"unix:{}\" }}\n", raw.world.path(&format!("{name}.sock")));
        raw.world.add_edge(name, "web", "--dial", &config)?;
    }
    let ready = |raw: &Raw| names.iter().filter(|name| status::ready(&raw.world.status_socket(name))).count();
    crate::shell::until("40 machines", SOON, || (ready(&raw) == HERD).then_some(()))?;
    raw.world.end("relay", Signal::KILL)?;
    std::thread::sleep(Duration::from_secs(5));
    raw.world.start_relay()?;
    let began = Instant::now();
    let mut back = 0;
    while back < HERD && began.elapsed() < SOON {
        back = ready(&raw);
    }
    #[expect(clippy::cast_precision_loss, reason = "some dozen machines")]
    case.number("back", back as f64);
    case.number("last_s", began.elapsed().as_secs_f64());
    let script = json!([{"ask": [{"send": {"bytes": 10}}]}, {"recv": {"bytes": 10}}]);
    let ran = raw.run("call", script, SOON)?;
    case.word("call", ran.word());
    Ok(())
}
