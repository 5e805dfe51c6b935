//! The page of the field reports: for each of them what tries it, and with what result. The table is
//! `lab/field-reports.json`; a test here holds it against the scenarios and the tests that there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::apps;
use crate::record;
use crate::report;
use crate::result::{Reference, Run, Value};
use crate::scenario::Scenario;
use crate::verdict::{Cell, cells};

/// One failure that was reported.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    kind: String,
    reported: String,
    /// `scenario:NAME`, or `CRATE/FUNCTION` of a test.
    tests: Vec<String>,
    /// What the tests leave out, or why there is none.
    #[serde(default)]
    note: String,
}

/// How one row is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Evidence {
    /// Real processes, and the same directly.
    Beside,
    /// Real processes.
    Lab,
    /// Tests of crates.
    Crates,
    Nothing,
}

fn read(root: &Path) -> anyhow::Result<Vec<Row>> {
    let file = root.join("lab/field-reports.json");
    let text = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", file.display()))
}

/// Writes `docs/field-reports.md` from the table and the newest runs on record.
///
/// # Errors
///
/// When a file cannot be read or written.
pub(crate) fn write(root: &Path, scenarios: &[Scenario], runs: &[Run]) -> anyhow::Result<()> {
    fs::write(root.join("docs/field-reports.md"), page(root, scenarios, runs)?)?;
    Ok(())
}

fn page(root: &Path, scenarios: &[Scenario], runs: &[Run]) -> anyhow::Result<String> {
    let rows = read(root)?;
    let is_field = |run: &&Run| {
        scenarios.iter().any(|scenario| scenario.name == run.scenario && scenario.is_field_report())
    };
    let own: Vec<Run> = runs.iter().filter(is_field).cloned().collect();
    let main_build = record::main_build(&own);
    let cells = cells(scenarios, runs);
    let mut page = head(&rows, scenarios, &main_build);
    let mut kind = "";
    for row in &rows {
        if row.kind != kind {
            kind = &row.kind;
            write!(
                page,
                "\n## {kind}\n\n| id | reported | tried by | result | directly |\n|---|---|---|---|---|\n"
            )?;
        }
        let tests: Vec<String> = row.tests.iter().map(|test| shown(test, scenarios)).collect();
        let mut tried = tests.join(", ");
        if !row.note.is_empty() {
            tried = if tried.is_empty() { row.note.clone() } else { format!("{tried}. {}", row.note) };
        }
        let (result, directly) = result(row, &cells, runs);
        writeln!(page, "| {} | {} | {tried} | {result} | {directly} |", row.id, row.reported)?;
    }
    page += "\n# Figures\n";
    for scenario in scenarios.iter().filter(|scenario| scenario.is_field_report()) {
        let own: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.scenario.name == scenario.name).collect();
        if !own.is_empty() {
            report::section(&mut page, scenario, &own, &main_build)?;
        }
    }
    Ok(page)
}

fn head(rows: &[Row], scenarios: &[Scenario], main_build: &str) -> String {
    let mut counts: BTreeMap<Evidence, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(evidence(row, scenarios)).or_default() += 1;
    }
    let count = |evidence| counts.get(&evidence).copied().unwrap_or_default();
    format!(
        "# What users of such software report, and how Hopline does\n\nFailures of tunnels, relays, multiplexers and gRPC \
         proxies that their users have reported in public: each tried here. Written by `cargo xtask lab --report` from \
         [lab/field-reports.json](../lab/field-reports.json) and the [record](../lab/record) of the scenarios; the same lab as \
         that of the [lab report](lab-report.md), which says how it measures.\n\n| {} reports | |\n|---|---|\n| tried with real \
         processes on hosts of their own, and directly beside it | {} |\n| tried with real processes | {} |\n| tried by tests \
         of the crates, `cargo test` | {} |\n| not tried | {} |\n\nA scenario's name leads to its figures. *held*: every figure \
         of every run is within its bound; *open*: known not to be, with its reason below. *directly*: whether the same client and server with nothing between them are \
         within the same bounds; where they are not, no proxy can be asked to be. Behind each result stands the build that \
         was measured; below, figures are of {main_build} where their row names no other.\n",
        rows.len(),
        count(Evidence::Beside),
        count(Evidence::Lab),
        count(Evidence::Crates),
        count(Evidence::Nothing),
    )
}

/// What a row counts as: the best of what tries it.
fn evidence(row: &Row, scenarios: &[Scenario]) -> Evidence {
    let of = |test: &String| match test.strip_prefix("scenario:") {
        Some(name) => scenarios.iter().find(|scenario| scenario.name == name).map(|scenario| {
            let direct = scenario.ways.iter().any(|way| way.word() == "direct");
            if direct { Evidence::Beside } else { Evidence::Lab }
        }),
        None => Some(Evidence::Crates),
    };
    row.tests.iter().filter_map(of).min().unwrap_or(Evidence::Nothing)
}

/// A test as the page names it: a scenario of this page leads to its figures, one of the promises to the lab's report.
fn shown(test: &str, scenarios: &[Scenario]) -> String {
    match test.strip_prefix("scenario:") {
        Some(name) => {
            let here = scenarios.iter().any(|scenario| scenario.name == name && scenario.is_field_report());
            let page = if here { "" } else { "lab-report.md" };
            format!("[{name}]({page}#{name})")
        }
        None => format!("`{test}`"),
    }
}

/// The result through the chain, and directly.
fn result(row: &Row, cells: &[Cell<'_>], runs: &[Run]) -> (String, String) {
    let named: Vec<&str> = row.tests.iter().filter_map(|test| test.strip_prefix("scenario:")).collect();
    if named.is_empty() {
        return (if row.tests.is_empty() { "" } else { "in `cargo test`" }.to_owned(), String::new());
    }
    let own: Vec<&Cell<'_>> = cells.iter().filter(|cell| named.contains(&cell.scenario.name)).collect();
    let fails =
        |open: bool| own.iter().any(|cell| cell.holds == Some(false) && cell.scenario.open.is_some() == open);
    let failed = fails(false)
        || runs
            .iter()
            .any(|run| run.error.is_some() && !run.replaced && named.contains(&run.scenario.as_str()));
    let missing = named.iter().any(|name| !own.iter().any(|cell| cell.scenario.name == *name));
    let result = match (failed, missing) {
        (true, _) => "**failed**",
        (false, true) => "not run",
        (false, false) if fails(true) => "**open**",
        (false, false) => "held",
    };
    let mut builds: Vec<&str> = own.iter().map(|cell| cell.build).collect();
    builds.sort_unstable();
    builds.dedup();
    let at = if builds.is_empty() { String::new() } else { format!(" at {}", builds.join(", ")) };
    let direct: Vec<&Cell<'_>> = own.iter().copied().filter(|cell| cell.way == "direct").collect();
    let directly = match &direct[..] {
        [] => "",
        some if some.iter().all(|cell| direct_holds(cell)) => "the same",
        _ => "fails",
    };
    (format!("{result}{at}"), directly.to_owned())
}

/// Whether what was measured directly is within the bound that the chain is held to.
fn direct_holds(cell: &Cell<'_>) -> bool {
    let (broken, deadline) = apps::statuses(cell.app);
    let bound = cell.figure.bound.alone();
    let reference = Reference { direct: &[] as &[Value], broken, deadline };
    bound.holds(&cell.values, &reference) != Some(false)
}

#[cfg(test)]
mod tests;
