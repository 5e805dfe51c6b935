//! The common shape: a stream is open, harm is done, and both ends of the stream are waited for.

use std::time::Duration;

use rand::RngExt as _;
use serde_json::{Value as Json, json};

use super::{Case, Figure};
use crate::fault::Applied;
use crate::result::Bound;
use crate::shell::now_ms;
use crate::world::{Options, Way, World};

/// For a message on a good path.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// A session that is younger than a second is started anew when its path is lost, and given up only when its open
/// timeout has passed. The streams of scenarios are older than that, in milliseconds.
const GROWN: u64 = 1_500;

/// Harm that was done: when, and what is undone later.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) at_ms: f64,
    pub(super) undo: Vec<Applied>,
}

impl From<Applied> for Done {
    fn from(applied: Applied) -> Self {
        Self { at_ms: applied.at_ms, undo: vec![applied] }
    }
}

/// How a stream is opened and waited for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) options: Options,
    /// What the stream's call says: every how many milliseconds the server sends.
    pub(super) stream: Json,
    /// The client's flags.
    pub(super) flags: &'static [&'static str],
    /// How long both ends are waited for after the harm.
    pub(super) patience: Duration,
    /// When the harm is undone; at the end, when it is none.
    pub(super) heal_after: Option<Duration>,
}

impl Plan {
    /// An idle stream in a plain world, waited for during 40 s.
    pub(super) fn idle(way: Way) -> Self {
        Self {
            options: Options::plain(way),
            stream: json!({}),
            flags: &[],
            patience: Duration::from_secs(40),
            heal_after: None,
        }
    }
}

/// Figures of [`run`] where all ends are bounded by `bound_s` after the harm.
pub(super) const fn ends(bound_s: f64, article: &'static str) -> [Figure; 4] {
    [
        Figure { id: "client_s", what: "client's end", unit: "s", article, bound: Bound::AtMost(bound_s) },
        STATUS,
        Figure {
            id: "handler_s",
            what: "handler's end",
            unit: "s",
            article: "",
            bound: Bound::AtMost(bound_s),
        },
        REASON,
    ]
}

/// The same where the server is out of our reach: its handler's end is its own kernel's business.
pub(super) const fn client_ends(bound_s: f64, article: &'static str) -> [Figure; 4] {
    let [client, status, handler, reason] = ends(bound_s, article);
    [client, status, Figure { bound: Bound::None, ..handler }, reason]
}

pub(super) const STATUS: Figure =
    Figure { id: "status", what: "client's status", unit: "", article: "", bound: Bound::BrokenStatus };
pub(super) const REASON: Figure =
    Figure { id: "reason", what: "reason@hop in /status", unit: "", article: "", bound: Bound::None };

/// Opens a stream on a channel that has made a call; then, at a moment within a ping's interval that differs from run to
/// run, does the harm, and records when client and handler ended.
pub(super) fn run(
    case: &mut Case<'_>,
    plan: &Plan,
    harm: impl FnOnce(&mut World) -> anyhow::Result<Done>,
) -> anyhow::Result<()> {
    let language = case.language()?;
    let mut world = case.world_with(plan.options.clone())?;
    let server = world.start_server(&language)?;
    let target = world.target();
    let client = world.start_client("client", &language, &target, plan.flags)?;
    world.app(client).echo("warm")?;
    world.app(client).call("stream", "ticks", plan.stream.clone())?;
    world.app(client).expect("message", "stream", SOON)?;
    let moment = Duration::from_millis(case.random().random_range(GROWN..GROWN + 5_000));
    std::thread::sleep(moment);
    // Not a figure: for a person who asks at which moment a run was late.
    case.number("moment_s", moment.as_secs_f64());
    let done = harm(&mut world)?;
    watch(case, &mut world, plan, (client, server), done)
}

fn watch(
    case: &mut Case<'_>,
    world: &mut World,
    plan: &Plan,
    (client, server): (usize, usize),
    done: Done,
) -> anyhow::Result<()> {
    let Done { at_ms, mut undo } = done;
    let (mut end, mut handler) = (None, None);
    let spent = || Duration::from_secs_f64((now_ms() - at_ms).max(0.0) / 1e3);
    while (end.is_none() || handler.is_none()) && spent() < plan.patience {
        let step = Duration::from_millis(50);
        if end.is_none() {
            end = world.app(client).find(step, |event| event.kind == "end" && event.call == "stream")?;
        }
        if handler.is_none() {
            let wanted = |event: &crate::app::Event| event.kind == "handler_end" && event.call == "stream";
            handler = world.app(server).find(step, wanted)?;
        }
        if plan.heal_after.is_some_and(|after| spent() >= after) {
            undo.drain(..).try_for_each(|applied| applied.heal().map(drop))?;
        }
    }
    if let Some(end) = &end {
        case.word("status", end.text("status"));
    }
    for (id, event) in [("client_s", &end), ("handler_s", &handler)] {
        match event {
            Some(event) => case.number(id, (event.mono_ms - at_ms) / 1e3),
            None => case.not_within(id, plan.patience.as_secs_f64()),
        }
    }
    if case.way != Way::Direct {
        let asked = undo.drain(..).try_for_each(|applied| applied.heal().map(drop));
        asked?;
        let reason = world.reason().unwrap_or_else(|_| "no /status".to_owned());
        case.word("reason", reason);
    }
    Ok(())
}
