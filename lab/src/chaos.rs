//! Random faults under load, with a history that is checked afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rustix::process::Signal;
use serde_json::json;

use crate::app::{App, Event};
use crate::apps::Language;
use crate::fault::Applied;
use crate::history::{History, Injected, Reason, Report, Session, Side};
use crate::plan::{Harm, Step};
use crate::shell::now_ms;
use crate::world::{Options, Programs, Way, World};

/// How many sessions are open at once.
const SESSIONS: usize = 4;
/// After the plan: sessions go on for so long, then none is begun, and the open ones have the checker's 60 s.
const AFTER: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(62);

/// Runs a plan with each language at once, each in a world of its own, and proves their histories.
///
/// # Errors
///
/// Says what is wrong in a history; the history itself is kept in the target folder.
pub(crate) fn prove(
    programs: &Programs,
    folder: &Path,
    seed: u64,
    plan: &[Step],
    target: &Path,
) -> anyhow::Result<()> {
    crate::say(&format!("seed {seed}, {} steps:", plan.len()))?;
    for step in plan {
        crate::say(&format!("  {step}"))?;
    }
    let outcomes = std::thread::scope(|scope| {
        let start = |(number, language): (usize, &Language)| {
            let folder = folder.join(&language.name);
            let language = language.clone();
            scope.spawn(move || {
                let way = if number % 2 == 0 { Way::Unix } else { Way::Tcp };
                let history = Chaos { number, folder, programs, language: &language, way, seed, plan }.run();
                (language.name, history)
            })
        };
        let threads: Vec<_> = programs.apps.iter().enumerate().map(start).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut wrong = Vec::new();
    for outcome in outcomes {
        let Ok((language, history)) = outcome else { bail!("a run panicked") };
        let history = history.with_context(|| language.clone())?;
        let clean = history.sessions.iter().filter(|session| session.client.end == "OK").count();
        crate::say(&format!(
            "{}: {} sessions, {clean} ended clean, {} met no fault; {} bytes received at both ends; {} faults: {}; \
             reasons: {}",
            language,
            history.sessions.len(),
            crate::history::untouched(&history),
            bytes(&history),
            history.injected.len(),
            kinds(&history),
            said(&history),
        ))?;
        let found = crate::history::check(&history);
        if !found.is_empty() {
            let file = target.join(format!("lab-history-{language}-{seed}.json"));
            std::fs::write(&file, serde_json::to_string_pretty(&history)?)?;
            crate::say(&format!("{language}: the history is in {}", file.display()))?;
        }
        wrong.extend(found);
    }
    if !wrong.is_empty() {
        bail!("the history is wrong:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

/// How often `/status` said what.
fn said(history: &History) -> String {
    counted(history.reasons.iter().map(|seen| format!("{}@{}", seen.reason, seen.hop)))
}

/// How many faults of each kind there were: a kind is the first word of its text.
fn kinds(history: &History) -> String {
    let word = |harm: &Harm| harm.to_string().split(' ').next().unwrap_or_default().to_owned();
    counted(history.injected.iter().map(|injected| word(&injected.step.harm)))
}

fn counted(words: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let words: Vec<String> = counts.iter().map(|(word, count)| format!("{word} ×{count}")).collect();
    words.join(", ")
}

/// What both ends of all sessions received, by their last reports.
fn bytes(history: &History) -> u64 {
    let sides = history.sessions.iter().flat_map(|session| [Some(&session.client), session.server.as_ref()]);
    sides.flatten().filter_map(|side| side.reports.last()).map(|report| report.received).sum()
}

/// One run of a plan.
#[derive(Debug)]
struct Chaos<'a> {
    number: usize,
    folder: PathBuf,
    programs: &'a Programs,
    language: &'a Language,
    way: Way,
    seed: u64,
    plan: &'a [Step],
}

/// A session that goes on.
#[derive(Debug)]
struct Running {
    app: App,
    name: String,
    seed: u32,
    bytes: u64,
}

/// A step that is in force.
#[derive(Debug)]
struct InForce {
    step: Step,
    from_ms: f64,
    /// None for processes that are down.
    applied: Option<Applied>,
}

impl Chaos<'_> {
    /// Runs the plan and gives what happened.
    ///
    /// # Errors
    ///
    /// When the world cannot be built, or a fault not be put in force or undone.
    fn run(&self) -> anyhow::Result<History> {
        let mut world = World::build(self.number, &self.folder, self.programs, Options::plain(self.way))?;
        let server = world.start_server(self.language)?;
        let mut history = History::default();
        let mut running: Vec<Running> = Vec::new();
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut todo: Vec<Step> = self.plan.to_vec();
        todo.sort_by_key(|step| step.at);
        todo.reverse();
        let mut in_force: Vec<InForce> = Vec::new();
        let began_ms = now_ms();
        let mut healed = false;
        loop {
            let spent = Duration::from_secs_f64((now_ms() - began_ms) / 1e3);
            undo_what_is_over(&mut world, &mut in_force, &mut history)?;
            while todo.last().is_some_and(|step| step.at <= spent) {
                let Some(step) = todo.pop() else { break };
                in_force.extend(begin(&mut world, step, &in_force)?);
            }
            if !healed && todo.is_empty() && in_force.is_empty() {
                healed = true;
                history.healed_ms = now_ms();
            }
            watch_reasons(&world, &mut history);
            let since_healed = if healed { (now_ms() - history.healed_ms) / 1e3 } else { 0.0 };
            running = collect(running, &mut history, false)?;
            if since_healed < AFTER.as_secs_f64() {
                while running.len() < SESSIONS {
                    running.push(self.open(&world, &mut random, history.sessions.len() + running.len())?);
                }
            } else if running.is_empty() || since_healed > GRACE.as_secs_f64() + AFTER.as_secs_f64() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        collect(running, &mut history, true)?;
        // The last handlers are told by their own sockets: a moment.
        std::thread::sleep(Duration::from_secs(2));
        history.closed_ms = now_ms();
        attach_handlers(&world.app(server).events(), &mut history);
        Ok(history)
    }

    fn open(&self, world: &World, random: &mut ChaCha8Rng, number: usize) -> anyhow::Result<Running> {
        let name = format!("{}-{number}", self.language.name);
        let mut app = world.spawn_client(&name, self.language, &world.target(), &[])?;
        let seed = random.random_range(1..1_000_000);
        let seconds = random.random_range(1..=15);
        let rate: u64 = *[4_000, 40_000, 400_000].get(random.random_range(0..3)).unwrap_or(&4_000);
        let bytes = rate * seconds;
        let arguments = json!({
            "seed": seed, "send": bytes, "receive": bytes, "chunk": 2_000, "send_rate": rate, "receive_rate": rate,
        });
        app.call(&name, "check", arguments)?;
        Ok(Running { app, name, seed, bytes })
    }
}

/// Does a step, unless one in force already has hold of what it needs.
fn begin(world: &mut World, step: Step, in_force: &[InForce]) -> anyhow::Result<Option<InForce>> {
    let busy = in_force.iter().any(|other| match (&other.step.harm, &step.harm) {
        (Harm::Fault(a), Harm::Fault(b)) => std::mem::discriminant(a) == std::mem::discriminant(b),
        (Harm::Kill(_) | Harm::Drain(_), _) | (_, Harm::Kill(_) | Harm::Drain(_)) => true,
    });
    if busy {
        return Ok(None);
    }
    let from_ms = now_ms();
    let applied = match &step.harm {
        Harm::Fault(fault) => Some(world.apply_some_time(fault)?),
        Harm::Kill(process) => {
            world.end(process, Signal::KILL)?;
            None
        }
        Harm::Drain(process) => {
            world.signal(process, Signal::TERM)?;
            None
        }
    };
    Ok(Some(InForce { step, from_ms, applied }))
}

fn undo_what_is_over(
    world: &mut World,
    in_force: &mut Vec<InForce>,
    history: &mut History,
) -> anyhow::Result<()> {
    let mut left = Vec::new();
    for InForce { step, from_ms, applied } in in_force.drain(..) {
        let over = now_ms() - from_ms >= step.lasts.as_secs_f64() * 1e3;
        let restart = match &step.harm {
            Harm::Fault(_) => None,
            Harm::Kill(process) | Harm::Drain(process) => Some(process.clone()),
        };
        // A drain takes its time: the process is started again when it has ended.
        let ended = match &restart {
            Some(process) => world.has_ended(process),
            None => true,
        };
        if !over || !ended {
            left.push(InForce { step, from_ms, applied });
            continue;
        }
        match restart.as_deref() {
            Some("relay") => world.start_relay()?,
            Some(edge) => world.start_edge(edge)?,
            None => {}
        }
        if let Some(applied) = applied {
            applied.heal()?;
        }
        history.injected.push(Injected { step, from_ms, to_ms: now_ms() });
    }
    *in_force = left;
    Ok(())
}

/// Takes sessions that have ended out of the running ones; all of them at the end.
fn collect(running: Vec<Running>, history: &mut History, all: bool) -> anyhow::Result<Vec<Running>> {
    let mut left = Vec::new();
    for session in running {
        let events = session.app.events();
        let ended = events.iter().any(|event| event.kind == "end");
        if !ended && !all {
            left.push(session);
            continue;
        }
        let Running { name, seed, bytes, .. } = session;
        let client = side(&events, &name, ["start", "end", "status"]).with_context(|| name.clone())?;
        history.sessions.push(Session { name, seed, bytes, client, server: None });
    }
    Ok(left)
}

fn attach_handlers(events: &[Event], history: &mut History) {
    for session in &mut history.sessions {
        session.server = side(events, &session.name, ["handler", "handler_end", "reason"]);
    }
}

/// What one end wrote down of a call.
fn side(events: &[Event], call: &str, [begin, end, word]: [&str; 3]) -> Option<Side> {
    let own: Vec<&Event> = events.iter().filter(|event| event.call == call).collect();
    let last = own.iter().find(|event| event.kind == end);
    let totals = own.iter().filter(|event| event.kind == "progress" || event.kind == end);
    Some(Side {
        began_ms: own.iter().find(|event| event.kind == begin)?.mono_ms,
        ended_ms: last.map(|event| event.mono_ms),
        end: last.map(|event| event.text(word).to_owned()).unwrap_or_default(),
        reports: totals
            .map(|event| Report {
                sent: event.count("sent"),
                received: event.count("received"),
                received_sha256: event.text("received_sha256").to_owned(),
            })
            .collect(),
    })
}

/// Notes the mapping's last error when it is a new one.
fn watch_reasons(world: &World, history: &mut History) {
    // A sidecar that is down or frozen says nothing.
    let Ok(status) = world.status("sidecar") else { return };
    let Some(entry) = crate::status::entry(&status, "mappings", "lab") else { return };
    let error = &entry["last_error"];
    let Some((reason, age_s)) = error["reason"].as_str().zip(error["age_s"].as_f64()) else { return };
    let at_ms = now_ms() - age_s * 1e3;
    let hop = error["hop"].as_u64().unwrap_or_default();
    let known = history
        .reasons
        .last()
        .is_some_and(|last| last.reason == reason && last.hop == hop && (last.at_ms - at_ms).abs() < 500.0);
    if !known {
        history.reasons.push(Reason { at_ms, reason: reason.to_owned(), hop });
    }
}
