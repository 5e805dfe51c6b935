//! The report: results as JSON, a page with a table for each scenario, and plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::result::{Bound, Run, Value};
use crate::scenario::{Figure, Scenario};
use crate::svg::{self, Row};
use crate::verdict::{Cell, cells, sorted};

/// Everything that was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) runs: Vec<Run>,
}

impl Results {
    /// Takes runs in; those of the same scenario, application and way are replaced as a whole. All are dropped when they
    /// were of another commit of the product: they say nothing of this one.
    pub(crate) fn merge(&mut self, newer: Self) {
        let mut applications = newer.machine.applications.clone();
        if self.machine.commit == newer.machine.commit {
            let known = |name: &str| newer.machine.applications.iter().any(|(other, _)| other == name);
            applications.extend(self.machine.applications.drain(..).filter(|(name, _)| !known(name)));
            applications.sort();
        } else {
            self.runs.clear();
        }
        let same = |a: &Run, b: &Run| a.scenario == b.scenario && a.app == b.app && a.way == b.way;
        self.runs.retain(|old| !newer.runs.iter().any(|new| same(old, new)));
        self.runs.extend(newer.runs);
        self.machine = Machine { applications, ..newer.machine };
    }

    /// Reads a file of results.
    ///
    /// # Errors
    ///
    /// When it is not there or is none.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no file of results", file.display()))
    }

    /// Writes a file of results.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(file, text).with_context(|| format!("{}", file.display()))
    }
}

/// Writes `docs/lab-report.md` and the plots in `lab/report`.
///
/// # Errors
///
/// When a file cannot be written.
pub(crate) fn write(root: &Path, scenarios: &[Scenario], results: &Results) -> anyhow::Result<()> {
    let plots = root.join("lab/report");
    fs::create_dir_all(&plots)?;
    let scenarios: Vec<Scenario> =
        scenarios.iter().filter(|scenario| !scenario.is_field_report()).copied().collect();
    let scenarios = &scenarios[..];
    let cells = cells(scenarios, &results.runs);
    let mut page = head(&results.machine, &cells, &results.runs);
    page += &differences(&cells);
    for scenario in scenarios {
        let own: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.scenario.name == scenario.name).collect();
        if own.is_empty() {
            continue;
        }
        section(&mut page, scenario, &own)?;
        if let Some(svg) = drawing(scenario, &own) {
            fs::write(plots.join(format!("{}.svg", scenario.name)), svg)?;
            write!(page, "\n![{0}: each run](../lab/report/{0}.svg)\n", scenario.name)?;
        }
    }
    fs::write(root.join("docs/lab-report.md"), page)?;
    Ok(())
}

fn head(machine: &Machine, cells: &[Cell<'_>], runs: &[Run]) -> String {
    let applications: Vec<String> =
        machine.applications.iter().map(|(name, version)| format!("{name} ({version})")).collect();
    let count = |verdict: bool, open: bool| {
        let fits = |cell: &&Cell<'_>| cell.holds == Some(verdict) && cell.scenario.open.is_some() == open;
        cells.iter().filter(fits).count()
    };
    let mut page = format!(
        "# Lab report\n\nWritten by `cargo xtask lab`; [lab/README.md](../lab/README.md) says how it measures, and how to \
         run it. The raw results are [lab/report/results.json](../lab/report/results.json).\n\n| | |\n|---|---|\n| commit \
         | {} |\n| measured | {} |\n| product | {} |\n| applications | {} |\n| system | {}, Linux {} |\n| machine | {} \
         |\n| load average, TCP | {}, {} |\n| runs | {} |\n\n",
        machine.commit,
        machine.date,
        machine.hopline,
        applications.join(", "),
        machine.system,
        machine.kernel,
        machine.processors,
        or_not(&machine.load),
        or_not(&machine.congestion),
        runs.len(),
    );
    page += &format!(
        "**{} figures are as promised, {} are not, {} are known to be open.** A figure is one cell below: one quantity of one \
         application on one way; it is as promised when every run was.\n\n",
        count(true, false) + count(true, true),
        count(false, false),
        count(false, true),
    );
    for cell in cells.iter().filter(|cell| cell.holds == Some(false)) {
        let open = cell.scenario.open.map(|why| format!(" (open: {why})")).unwrap_or_default();
        page += &format!(
            "- [{0}](#{0}), {1} {2}: {3}: {4} {5}, promised {6}{open}\n",
            cell.scenario.name,
            cell.app,
            cell.way,
            cell.figure.what,
            cell.text(),
            cell.figure.unit,
            cell.figure.bound,
        );
    }
    for run in runs.iter().filter(|run| run.error.is_some()) {
        let error = run.error.as_deref().unwrap_or_default().replace('\n', " ");
        page +=
            &format!("- no measurement: {} {} {} #{}: {error}\n", run.scenario, run.app, run.way, run.run);
    }
    page + "\nNumbers are minimum / median / maximum of the runs, or the one run. *direct* is the same client and server with \
            nothing between them, *unix* and *tcp* go through sidecar, relay and agent, by a unix socket or a TCP mapping. \
            *article* is what the closed harness of the seed measured with grpc-go, mostly once. A status is as promised when \
            it is what the same client says of a connection that breaks (or a deadline that passes) without us: UNAVAILABLE \
            (DEADLINE_EXCEEDED) in Go, UNKNOWN (CANCELLED) in tonic. **✗** marks what is not as promised.\n"
}

/// Where the implementations differ from grpc-go without us: what is compared is direct runs only.
fn differences(cells: &[Cell<'_>]) -> String {
    let direct = || cells.iter().filter(|cell| cell.way == "direct");
    let mut page = "\n## Where others differ from grpc-go\n\nDirectly, with nothing of ours between them: other words, \
                    other outcomes, or medians further apart than by half. Only what differs is listed.\n\n| | grpc-go | \
                    others |\n|---|---|---|\n"
        .to_owned();
    for go in direct().filter(|cell| cell.app == "go") {
        let same = |cell: &&Cell<'_>| {
            cell.app != "go" && cell.scenario.name == go.scenario.name && cell.figure.id == go.figure.id
        };
        let others: Vec<String> = direct()
            .filter(same)
            .filter(|cell| differs(cell, go))
            .map(|cell| format!("{} {}", cell.app, cell.text()))
            .collect();
        if !others.is_empty() {
            let unit =
                if go.figure.unit.is_empty() { String::new() } else { format!(" ({})", go.figure.unit) };
            page += &format!(
                "| [{0}](#{0}): {1}{unit} | {2} | {3} |\n",
                go.scenario.name,
                go.figure.what,
                go.text(),
                others.join("; "),
            );
        }
    }
    page
}

/// Whether two cells tell of different behaviour, not only of different moments.
fn differs(one: &Cell<'_>, other: &Cell<'_>) -> bool {
    let (a, b) = (sorted(&one.values), sorted(&other.values));
    if a.is_empty() || b.is_empty() {
        return one.text() != other.text();
    }
    let (a, b) = (a[a.len() / 2], b[b.len() / 2]);
    (a - b).abs() > 0.5 * a.max(b)
}

/// A text, or that there is none.
fn or_not(text: &str) -> &str {
    if text.is_empty() { "not recorded" } else { text }
}

/// A scenario's part of a page: what it does, and a table of its figures.
///
/// # Errors
///
/// None in practice: it writes to a string.
pub(crate) fn section(page: &mut String, scenario: &Scenario, cells: &[&Cell<'_>]) -> anyhow::Result<()> {
    let open = scenario.open.map(|why| format!(" **Open:** {why}.")).unwrap_or_default();
    writeln!(page, "\n## {}\n\n{}: {}{open}\n", scenario.name, scenario.promise, scenario.what)?;
    let measured = |figure: &&Figure| cells.iter().any(|cell| cell.figure.id == figure.id);
    let figures: Vec<&Figure> = scenario.figures.iter().filter(measured).collect();
    write!(page, "| |")?;
    for figure in &figures {
        let unit = if figure.unit.is_empty() { String::new() } else { format!(" ({})", figure.unit) };
        write!(page, " {}{unit} |", figure.what)?;
    }
    writeln!(page, "\n|---|{}", "---|".repeat(figures.len()))?;
    let row = |name: &str, texts: Vec<String>| format!("| {name} | {} |", texts.join(" | "));
    if figures.iter().any(|figure| figure.bound != Bound::None) {
        writeln!(
            page,
            "{}",
            row("promised", figures.iter().map(|figure| figure.bound.to_string()).collect())
        )?;
    }
    if figures.iter().any(|figure| !figure.article.is_empty()) {
        writeln!(
            page,
            "{}",
            row("article", figures.iter().map(|figure| figure.article.to_owned()).collect())
        )?;
    }
    let mut rows: BTreeMap<(&str, &str), Vec<&Cell<'_>>> = BTreeMap::new();
    for cell in cells {
        rows.entry((cell.app, cell.way)).or_default().push(cell);
    }
    for own in rows.values() {
        let Some(first) = own.first() else { continue };
        let runs = own.iter().map(|cell| cell.values.len()).max().unwrap_or_default();
        let text = |figure: &&Figure| {
            let cell = own.iter().find(|cell| cell.figure.id == figure.id);
            cell.map_or(String::new(), |cell| {
                format!("{}{}", cell.text(), if cell.holds == Some(false) { " **✗**" } else { "" })
            })
        };
        let name = format!("{} {} ×{runs}", first.app, first.way);
        writeln!(page, "{}", row(&name, figures.iter().map(text).collect()))?;
    }
    Ok(())
}

/// The plot of a scenario: of its first figure that has numbers in time or bytes, where there is more than one row.
fn drawing(scenario: &Scenario, cells: &[&Cell<'_>]) -> Option<String> {
    let numbers = |cell: &Cell<'_>| sorted(&cell.values);
    let figure = scenario.figures.iter().find(|figure| {
        let drawn = |cell: &&&Cell<'_>| cell.figure.id == figure.id && !numbers(cell).is_empty();
        ["s", "ms", "B"].contains(&figure.unit) && cells.iter().filter(drawn).count() > 0
    })?;
    let own = cells.iter().filter(|cell| cell.figure.id == figure.id);
    let rows: Vec<Row> = own
        .map(|cell| Row {
            label: format!("{} {}", cell.app, cell.way),
            numbers: numbers(cell),
            not_within: cell.values.iter().find_map(|value| match value {
                Value::NotWithin { not_within } => Some(*not_within),
                Value::Number(_) | Value::Word(_) => None,
            }),
            direct: cell.way == "direct",
            broken: cell.holds == Some(false),
        })
        .collect();
    let title = format!("{}: {}", scenario.name, figure.what);
    let article = figure.article.replace(',', "").parse().ok();
    Some(svg::plot(&title, figure.unit, &rows, figure.bound.line(), article))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(way: &str, number: u32, seconds: f64) -> Run {
        Run {
            scenario: "dead-path-sidecar".to_owned(),
            app: "go".to_owned(),
            way: way.to_owned(),
            run: number,
            values: [("client_s".to_owned(), Value::Number(seconds))].into(),
            error: None,
            took_s: 1.0,
        }
    }

    fn machine() -> Machine {
        Machine {
            commit: "abc".to_owned(),
            hopline: "hopline 1".to_owned(),
            date: "today".to_owned(),
            system: "Debian".to_owned(),
            kernel: "6".to_owned(),
            processors: "2".to_owned(),
            load: "0.1 to 0.3".to_owned(),
            congestion: "cubic".to_owned(),
            applications: vec![("go".to_owned(), "grpc-go 1".to_owned())],
        }
    }

    #[test]
    fn the_page_marks_what_is_broken() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("docs")).unwrap();
        let results = Results { machine: machine(), runs: vec![run("unix", 1, 14.0), run("tcp", 1, 16.0)] };
        write(folder.path(), &crate::scenario::all(), &results).unwrap();
        let page = fs::read_to_string(folder.path().join("docs/lab-report.md")).unwrap();
        assert!(page.contains("| go unix ×1 | 14 |"), "{page}");
        assert!(page.contains("| go tcp ×1 | 16 **✗** |"), "{page}");
        assert!(page.contains("**1 figures are as promised, 1 are not, 0 are known to be open.**"), "{page}");
        assert!(folder.path().join("lab/report/dead-path-sidecar.svg").exists());
    }

    #[test]
    fn results_are_written_where_no_folder_is_yet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lab/report/results.json");
        let results = Results { machine: machine(), runs: vec![run("unix", 1, 14.0)] };
        results.write(&file).unwrap();
        assert_eq!(Results::read(&file).unwrap().runs.len(), 1);
        assert!(Results::read(folder.path()).is_err());
    }

    #[test]
    fn newer_runs_replace_older_ones_of_the_same_cell() {
        let mut results = Results {
            machine: machine(),
            runs: vec![run("unix", 1, 14.0), run("unix", 2, 13.0), run("tcp", 1, 12.0)],
        };
        results.merge(Results { machine: machine(), runs: vec![run("unix", 1, 11.0)] });
        let left: Vec<(&str, &Value)> =
            results.runs.iter().map(|run| (run.way.as_str(), &run.values["client_s"])).collect();
        assert_eq!(left, [("tcp", &Value::Number(12.0)), ("unix", &Value::Number(11.0))]);
        let later = Machine { commit: "def".to_owned(), ..machine() };
        results.merge(Results { machine: later.clone(), runs: vec![run("direct", 1, 10.0)] });
        assert_eq!((results.runs.len(), results.machine), (1, later));
    }
}
