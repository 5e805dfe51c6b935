//! The lab. `cargo xtask lab` builds it and runs it; [`README.md`](../README.md) says how it works.

mod actor;
mod app;
mod apps;
mod capture;
mod cgroup;
mod chaos;
mod fault;
mod field;
mod history;
mod hosts;
mod inside;
mod janitor;
mod leftovers;
mod machine;
mod measure;
mod needs;
mod plan;
mod process;
mod record;
mod report;
mod result;
mod runner;
mod scenario;
mod seeded;
mod shell;
mod status;
mod svg;
mod verdict;
mod wire;
mod world;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;

use crate::janitor::Janitor;
use crate::machine::Machine;
use crate::plan::Step;
use crate::record::{Head, Record, Writer};
use crate::result::{Bound, Run};
use crate::scenario::Scenario;
use crate::world::Programs;

/// Measures Hopline's promises on hosts of network namespaces, with real gRPC applications and real faults.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask lab", max_term_width = 100)]
struct Arguments {
    /// Lists the scenarios and runs none.
    #[arg(long)]
    list: bool,
    /// Runs scenarios whose name begins with this; may be repeated.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Runs the short subset, once each.
    #[arg(long)]
    smoke: bool,
    /// Runs everything.
    #[arg(long)]
    all: bool,
    /// The languages of the applications; `rust-go` is a Rust client with a Go server [default: all]
    #[arg(long = "impl", value_name = "LANGUAGE,...", value_delimiter = ',')]
    languages: Vec<String>,
    /// How often, instead of each scenario's own number.
    #[arg(long, value_name = "N")]
    runs: Option<u32>,
    /// What random moments and plans follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs that only wait go on at once.
    #[arg(long, value_name = "N", default_value_t = 12)]
    side_by_side: usize,
    /// Random faults for so many minutes under load, and a proof of the history afterwards.
    #[arg(long, value_name = "MINUTES")]
    chaos: Option<u64>,
    /// The plan of faults to run under load, instead of one drawn from the seed.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Keeps the folder of each run with its logs in /dev/shm, as `hopline-lab-kept-...`; RUST_LOG says what is logged.
    #[arg(long)]
    keep: bool,
    /// Adds the runs to the pages' record, lab/record, and writes docs/lab-report.md and docs/field-reports.md anew. With
    /// nothing to run it only writes the pages. Without it the runs are on record in target/lab-record.
    #[arg(long)]
    report: bool,
    /// Why it is measured, for the record: what is measured again says why.
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// The `hopline` binary to run; without it cargo builds one.
    #[arg(long, value_name = "FILE")]
    hopline: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Err(error) = lab() else { return ExitCode::SUCCESS };
    // Without the backtrace that `main` itself would print: the error says what it is.
    let _ = writeln!(std::io::stderr(), "error: {error:#}");
    ExitCode::FAILURE
}

fn lab() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, lab] = &words[..]
        && word == "janitor"
    {
        janitor::run(lab.parse().context("the lab's process id")?);
        return Ok(());
    }
    if words.get(1).is_some_and(|word| word == "actor") {
        return actor::run();
    }
    if words.get(1).is_some_and(|word| word == "wire") {
        return wire::live(&words[2..]);
    }
    let arguments = Arguments::parse();
    if arguments.list {
        return list();
    }
    let languages = match &arguments.languages[..] {
        [] => apps::all().iter().map(|&name| name.to_owned()).collect(),
        some => some.to_vec(),
    };
    let root = root();
    if arguments.report && arguments.only.is_empty() && !arguments.smoke && !arguments.all {
        return write_pages(&root);
    }
    let plan = planned(&arguments)?;
    let scenarios = if plan.is_some() { Vec::new() } else { chosen(&arguments)? };
    needs::check(&languages)?;
    let target = apps::target_folder(&root);
    let hopline = match &arguments.hopline {
        Some(file) => file.canonicalize().with_context(|| format!("{}", file.display()))?,
        None => {
            apps::cargo_build(&root, "hopline-cli")?;
            target.join("release/hopline")
        }
    };
    let programs = Programs { hopline, apps: apps::build(&languages, &root, &target)? };
    leftovers::sweep();
    let _janitor = Janitor::start()?;
    let folder = leftovers::folder();
    if let Some(plan) = plan {
        return chaos::prove(&programs, &folder, arguments.seed, &plan, &target);
    }
    let head = Head {
        machine: Machine::read(&root, &programs)?,
        asked: words[1..].join(" "),
        note: arguments.note.clone(),
    };
    let record = Writer::begin(&record::folder(&root, &target, arguments.report), &head)?;
    let work = runner::Work {
        scenarios: &scenarios,
        programs: &programs,
        runs: arguments.runs.or(arguments.smoke.then_some(1)),
        seed: arguments.seed,
        side_by_side: arguments.side_by_side,
        keep: arguments.keep,
        folder,
        record: &record,
    };
    for language in &programs.apps {
        say(&format!("{}: {}", language.name, language.version))?;
    }
    say(&format!("{} scenarios, about {} s", scenarios.len(), runner::estimate(&work)))?;
    let runs = runner::run(&work);
    say(&format!("on record: {}", record.path.display()))?;
    let judged = judge(&scenarios, &runs);
    if arguments.report {
        write_pages(&root)?;
    }
    judged
}

fn write_pages(root: &Path) -> anyhow::Result<()> {
    let record = Record::read(root)?;
    report::write(root, &scenario::all(), &record)?;
    field::write(root, &scenario::all(), &record.current())
}

/// Prints what was promised and measured.
///
/// # Errors
///
/// When a run has no measurement, or a promise does not hold that is not known to be open.
fn judge(scenarios: &[Scenario], runs: &[Run]) -> anyhow::Result<()> {
    let mut faults = Vec::new();
    for cell in verdict::cells(scenarios, runs) {
        let open = cell.scenario.open.is_some();
        let verdict = match cell.holds {
            None => "",
            Some(true) => "holds",
            Some(false) if open => "open",
            Some(false) => "BROKEN",
        };
        let what = format!("{} {} {} {}", cell.scenario.name, cell.app, cell.way, cell.figure.id);
        let mut line = format!("{what:48} {verdict:6} {} {}", cell.text(), cell.figure.unit);
        if cell.way != "direct" && cell.figure.bound != Bound::None {
            line += &format!("   promised {}", cell.figure.bound);
        }
        if !cell.figure.article.is_empty() {
            line += &format!("   article {}", cell.figure.article);
        }
        say(&format!("{line}   ({})", cell.figure.what))?;
        if cell.holds == Some(false) && !open {
            faults.push(what);
        }
    }
    for run in runs.iter().filter(|run| run.error.is_some() && !run.replaced) {
        faults.push(format!("{} {} {} #{} has no measurement", run.scenario, run.app, run.way, run.run));
    }
    if !faults.is_empty() {
        bail!("not as promised:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// The plan of faults to run, if one is wanted.
fn planned(arguments: &Arguments) -> anyhow::Result<Option<Vec<Step>>> {
    if let Some(file) = &arguments.plan {
        let text = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
        return Ok(Some(plan::read(&text)?));
    }
    Ok(arguments.chaos.map(|minutes| plan::draw(arguments.seed, Duration::from_secs(minutes * 60))))
}

fn chosen(arguments: &Arguments) -> anyhow::Result<Vec<Scenario>> {
    let all = scenario::all();
    if arguments.all {
        return Ok(all);
    }
    if arguments.smoke {
        return Ok(all.into_iter().filter(|scenario| scenario.smoke).collect());
    }
    if arguments.only.is_empty() {
        bail!("say what to run: --list, --only NAME, --smoke or --all");
    }
    for name in &arguments.only {
        if !all.iter().any(|scenario| scenario.name.starts_with(name.as_str())) {
            bail!("no scenario begins with {name:?}; --list names them");
        }
    }
    let wanted =
        |scenario: &Scenario| arguments.only.iter().any(|name| scenario.name.starts_with(name.as_str()));
    Ok(all.into_iter().filter(wanted).collect())
}

fn list() -> anyhow::Result<()> {
    for scenario in scenario::all() {
        let smoke = if scenario.smoke { ", smoke" } else { "" };
        let open = scenario.open.map(|why| format!(", open: {why}")).unwrap_or_default();
        say(&format!(
            "{:24} {:4} {} runs of {} s{smoke}{open}\n    {}",
            scenario.name, scenario.promise, scenario.runs, scenario.seconds, scenario.what
        ))?;
    }
    Ok(())
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}
