//! Runs cases: those that wait side by side, those that measure milliseconds alone.

use std::collections::VecDeque;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::apps::Language;
use crate::fault::Late;
use crate::leftovers;
use crate::machine;
use crate::record::Writer;
use crate::result::Run;
use crate::scenario::{Case, Pace, Scenario};
use crate::world::{Programs, Way};

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    pub(crate) scenarios: &'a [Scenario],
    pub(crate) programs: &'a Programs,
    /// Instead of each scenario's own number.
    pub(crate) runs: Option<u32>,
    pub(crate) seed: u64,
    /// How many that wait run at once.
    pub(crate) side_by_side: usize,
    /// Whether the logs of good runs stay too.
    pub(crate) keep: bool,
    /// Where worlds have their folders.
    pub(crate) folder: PathBuf,
    /// Where each run is kept as soon as it has ended.
    pub(crate) record: &'a Writer,
}

#[derive(Debug, Clone, Copy)]
struct Item<'a> {
    scenario: &'a Scenario,
    language: Option<&'a Language>,
    way: Way,
    run: u32,
}

/// Runs everything and gives the results in the scenarios' order.
pub(crate) fn run(work: &Work<'_>) -> Vec<Run> {
    let items = items(work);
    let (alone, mut waits): (Vec<Item<'_>>, Vec<Item<'_>>) =
        items.iter().copied().partition(|item| item.scenario.pace == Pace::Alone);
    // The longest first: the end is then not one long run alone.
    waits.sort_by_key(|item| std::cmp::Reverse(item.scenario.seconds));
    let queue = Mutex::new(VecDeque::from(waits));
    let done = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..work.side_by_side {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let runs = one(work, item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).extend(runs);
                }
            });
        }
    });
    let mut runs = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    runs.extend(alone.into_iter().flat_map(|item| one(work, item)));
    let place = |run: &Run| {
        let scenario = work.scenarios.iter().position(|scenario| scenario.name == run.scenario);
        (scenario, run.app.clone(), run.way.clone(), run.run, !run.replaced)
    };
    runs.sort_by_key(place);
    runs
}

/// About how long it will take, in seconds.
pub(crate) fn estimate(work: &Work<'_>) -> u64 {
    let items = items(work);
    let sum = |pace| -> u64 {
        items
            .iter()
            .filter(|item| item.scenario.pace == pace)
            .map(|item| u64::from(item.scenario.seconds))
            .sum()
    };
    let longest = items.iter().map(|item| u64::from(item.scenario.seconds)).max().unwrap_or_default();
    sum(Pace::Alone) + (sum(Pace::Waits) / work.side_by_side.max(1) as u64).max(longest)
}

fn items<'a>(work: &Work<'a>) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    for scenario in work.scenarios {
        let languages: Vec<Option<&Language>> =
            if scenario.speaks_grpc { work.programs.apps.iter().map(Some).collect() } else { vec![None] };
        for language in languages {
            // The ways in turn: what else the machine does is then the same for all of them.
            for run in 1..=work.runs.unwrap_or(scenario.runs) {
                for &way in scenario.ways {
                    items.push(Item { scenario, language, way, run });
                }
            }
        }
    }
    items
}

/// A run; another one in its place when a fault of it came late, a few times. All of them are kept: what was measured before
/// the fault counts.
fn one(work: &Work<'_>, item: Item<'_>) -> Vec<Run> {
    const AGAIN: usize = 4;
    let mut runs = Vec::new();
    loop {
        let run = attempt(work, item, runs.len() == AGAIN);
        say(&run);
        if let Err(error) = work.record.add(&run) {
            let _ = writeln!(std::io::stderr(), "this run is not on record: {error:#}");
        }
        let replaced = run.replaced;
        runs.push(run);
        if !replaced {
            return runs;
        }
    }
}

/// One attempt; one whose fault came late is replaced if it is not the last.
fn attempt(work: &Work<'_>, item: Item<'_>, is_last: bool) -> Run {
    let app = item.language.map_or("raw", |language| &language.name);
    let name = format!("{}-{app}-{}-{}", item.scenario.name, item.way.word(), item.run);
    let folder = work.folder.join(&name);
    let mut case = Case {
        language: item.language,
        way: item.way,
        seed: work.seed,
        programs: work.programs,
        folder: folder.clone(),
        values: std::collections::BTreeMap::new(),
    };
    let (began, at) = (Instant::now(), machine::now());
    let outcome = catch_unwind(AssertUnwindSafe(|| (item.scenario.run)(&mut case)));
    let (error, late) = match outcome {
        Ok(Ok(())) => (None, false),
        Ok(Err(error)) => (Some(format!("{error:#}")), error.chain().any(|cause| cause.is::<Late>())),
        Err(_) => (Some("the scenario panicked".to_owned()), false),
    };
    let replaced = late && !is_last;
    let error = match error {
        Some(error) if !replaced => Some(format!("{error} (logs: {})", leftovers::keep(&folder).display())),
        error => {
            if work.keep && error.is_none() {
                leftovers::keep(&folder);
            } else {
                let _ = std::fs::remove_dir_all(&folder);
            }
            error
        }
    };
    Run {
        scenario: item.scenario.name.to_owned(),
        app: app.to_owned(),
        way: item.way.word().to_owned(),
        run: item.run,
        values: case.values,
        error,
        took_s: began.elapsed().as_secs_f64(),
        at,
        load: machine::load(),
        replaced,
        build: String::new(),
    }
}

fn say(run: &Run) {
    let values: Vec<String> = run.values.iter().map(|(id, value)| format!("{id} {value}")).collect();
    let what = if run.replaced { "made again" } else { "FAILED" };
    let error = run.error.as_ref().map(|error| format!("  {what}: {error}")).unwrap_or_default();
    let line = format!("{} {} {} #{}: {}{error}", run.scenario, run.app, run.way, run.run, values.join(", "));
    // A closed terminal is no reason to stop measuring.
    let _ = writeln!(std::io::stdout(), "{line}");
}
