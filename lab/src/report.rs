//! The report: a page with a table for each scenario, and plots, from the record.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::record::{self, Record};
use crate::result::{Bound, Run, Value};
use crate::scenario::{Figure, Scenario};
use crate::svg::{self, Row};
use crate::verdict::{Cell, cells, sorted, text};

/// Writes `docs/lab-report.md` and the plots in `lab/report`.
///
/// # Errors
///
/// When a file cannot be written.
pub(crate) fn write(root: &Path, scenarios: &[Scenario], record: &Record) -> anyhow::Result<()> {
    let page = page(scenarios, record, |name, svg| {
        let plots = root.join("lab/report");
        fs::create_dir_all(&plots)?;
        Ok(fs::write(plots.join(format!("{name}.svg")), svg)?)
    })?;
    Ok(fs::write(root.join("docs/lab-report.md"), page)?)
}

/// The page; each plot is given away.
fn page(
    scenarios: &[Scenario],
    record: &Record,
    mut plot: impl FnMut(&str, String) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let scenarios: Vec<Scenario> =
        scenarios.iter().filter(|scenario| !scenario.is_field_report()).copied().collect();
    let scenarios = &scenarios[..];
    let is_own = |run: &Run| scenarios.iter().any(|scenario| scenario.name == run.scenario);
    let runs: Vec<Run> = record.current().into_iter().filter(is_own).collect();
    let main_build = record::main_build(&runs);
    let cells = cells(scenarios, &runs);
    let mut page = head(scenarios, record, &main_build, &cells, &runs);
    page += &again(scenarios, record);
    page += &differences(&cells);
    for scenario in scenarios {
        let own: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.scenario.name == scenario.name).collect();
        if own.is_empty() {
            continue;
        }
        section(&mut page, scenario, &own, &main_build)?;
        if let Some(svg) = drawing(scenario, &own) {
            plot(scenario.name, svg)?;
            write!(page, "\n![{0}: each run](../lab/report/{0}.svg)\n", scenario.name)?;
        }
    }
    Ok(page)
}

fn head(
    scenarios: &[Scenario],
    record: &Record,
    main_build: &str,
    cells: &[Cell<'_>],
    runs: &[Run],
) -> String {
    let mut page =
        "# Lab report\n\nWritten by `cargo xtask lab` from the [record](../lab/record) of all runs; \
                    [lab/README.md](../lab/README.md) says how it measures, and how to run it.\n"
            .to_owned();
    page += &machine(record, main_build);
    let count = |verdict: bool, open: bool| {
        let fits = |cell: &&Cell<'_>| cell.holds == Some(verdict) && cell.scenario.open.is_some() == open;
        cells.iter().filter(fits).count()
    };
    let others = runs.iter().filter(|run| run.build != main_build).count();
    page += &format!(
        "\n**{} figures are as promised, {} are not, {} are known to be open.** A figure is one cell below: one quantity of one \
         application on one way. {} runs of build {main_build} are shown, and {others} of others, which their rows name. What \
         was measured before them is [below](#passes).\n\n",
        count(true, false) + count(true, true),
        count(false, false),
        count(false, true),
        runs.len() - others,
    );
    for cell in cells.iter().filter(|cell| cell.holds == Some(false)) {
        page += &broken(cell);
    }
    for run in runs.iter().filter(|run| run.error.is_some()) {
        let what = if run.replaced { "another run took its place" } else { "no measurement" };
        let error = run.error.as_deref().unwrap_or_default().replace('\n', " ");
        page += &format!("- {what}: {} {} {} #{}: {error}\n", run.scenario, run.app, run.way, run.run);
    }
    let leaning: Vec<String> = cells.iter().filter_map(leaning).collect();
    page += "\nA bound that leans on the direct runs compares medians, ours with theirs, of runs made in turn: if the direct \
             median comes out late by some noise, the bound is later by as much, and by no more. ";
    page += &if leaning.is_empty() {
        "No figure holds by that alone.\n".to_owned()
    } else {
        format!("These figures hold by that alone:\n\n{}", leaning.concat())
    };
    page += "\nNumbers are minimum / median / maximum of the runs, or the one run. *direct* is the same client and server with \
             nothing between them, *unix* and *tcp* go through sidecar, relay and agent, by a unix socket or a TCP mapping. \
             *article* is what the closed harness of the seed measured with grpc-go, mostly once. A status is as promised when \
             it is what the same client says of a connection that breaks (or a deadline that passes) without us: UNAVAILABLE \
             (DEADLINE_EXCEEDED) in Go, UNKNOWN (CANCELLED) in tonic. What was measured in a run before it broke off counts. \
             **✗** marks what is not as promised.\n";
    page + &passes(scenarios, record)
}

/// The newest pass of a build: on what it was measured.
fn machine(record: &Record, build: &str) -> String {
    let Some(pass) = record.0.iter().rev().find(|pass| pass.build() == build) else { return String::new() };
    let machine = &pass.head.machine;
    let applications: Vec<String> =
        machine.applications.iter().map(|(name, version)| format!("{name} ({version})")).collect();
    format!(
        "\n| | |\n|---|---|\n| build | {} |\n| product | {} |\n| applications | {} |\n| system | {}, Linux {}, TCP {} |\n\
         | machine | {} |\n",
        machine.commit,
        machine.hopline,
        applications.join(", "),
        machine.system,
        machine.kernel,
        or_not(&machine.congestion),
        machine.processors,
    )
}

/// A figure that is not as promised, as a line of a list.
fn broken(cell: &Cell<'_>) -> String {
    let open = cell.scenario.open.map(|why| format!(" (open: {why})")).unwrap_or_default();
    format!(
        "- [{0}](#{0}), {1} {2}: {3}: {4} {5}, promised {6}{open}\n",
        cell.scenario.name,
        cell.app,
        cell.way,
        cell.figure.what,
        cell.text(),
        cell.figure.unit,
        cell.figure.bound,
    )
}

fn leaning(cell: &Cell<'_>) -> Option<String> {
    let direct = cell.leans.as_ref()?;
    Some(format!(
        "- [{0}](#{0}), {1} {2}: {3}: {4} {5}, directly {6}; promised {7}\n",
        cell.scenario.name,
        cell.app,
        cell.way,
        cell.figure.what,
        cell.text(),
        cell.figure.unit,
        text(direct),
        cell.figure.bound,
    ))
}

/// Every pass that measured a promise, whether its runs are shown or not.
fn passes(scenarios: &[Scenario], record: &Record) -> String {
    let mut page = "\n## Passes\n\nEvery pass that is on record, and how many of its figures are not as promised by the bounds of today.\n\n| measured | build | load \
                    | asked for | runs | without a whole measurement | not as promised | |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for pass in &record.0 {
        let is_own = |run: &&Run| scenarios.iter().any(|scenario| scenario.name == run.scenario);
        let runs: Vec<Run> = pass.runs.iter().filter(is_own).cloned().collect();
        if runs.is_empty() {
            continue;
        }
        let broken = cells(scenarios, &runs)
            .iter()
            .filter(|cell| cell.holds == Some(false) && cell.scenario.open.is_none())
            .count();
        page += &format!(
            "| {} | {} | {} | `{}` | {} | {} | {broken} | {} |\n",
            pass.head.machine.date,
            pass.build(),
            load(&pass.head.machine.load, &runs),
            pass.head.asked,
            runs.len(),
            runs.iter().filter(|run| run.error.is_some()).count(),
            pass.head.note,
        );
    }
    page
}

/// The load of a pass: what it began with, and the least and the most of its runs.
fn load(began: &str, runs: &[Run]) -> String {
    let mut loads: Vec<f64> = runs.iter().filter_map(|run| run.load.parse().ok()).collect();
    loads.sort_by(f64::total_cmp);
    match (loads.first(), loads.last()) {
        (Some(least), Some(most)) => format!("{least:.2} to {most:.2}"),
        _ => or_not(began).to_owned(),
    }
}

/// What was not as promised and was measured again at the same build.
fn again(scenarios: &[Scenario], record: &Record) -> String {
    let mut page = String::new();
    for (pass, runs) in record.made_again() {
        let cells = cells(scenarios, &runs);
        let lines: String =
            cells.iter().filter(|cell| cell.holds == Some(false)).map(|cell| broken(cell)).collect();
        if !lines.is_empty() {
            page += &format!(
                "\nOf {} at {}, {} runs were made again; by the rules of today these of their figures were not as \
                 promised:\n\n{lines}",
                pass.build(),
                pass.head.machine.date,
                runs.len(),
            );
        }
    }
    if page.is_empty() { page } else { format!("\n## Made again\n{page}") }
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

/// A scenario's part of a page: what it does, and a table of its figures. Rows of another build than the page's say so.
///
/// # Errors
///
/// None in practice: it writes to a string.
pub(crate) fn section(
    page: &mut String,
    scenario: &Scenario,
    cells: &[&Cell<'_>],
    main_build: &str,
) -> anyhow::Result<()> {
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
        let at = if first.build == main_build { String::new() } else { format!(" at {}", first.build) };
        let name = format!("{} {} ×{runs}{at}", first.app, first.way);
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
    use crate::machine::Machine;
    use crate::machine::tests::machine;
    use crate::record::{Head, Pass};
    use crate::result::tests::run;

    fn pass(build: &str, note: &str, runs: Vec<Run>) -> Pass {
        let machine = Machine { commit: build.to_owned(), ..machine() };
        let of_build = |run| Run { build: build.to_owned(), ..run };
        let head = Head { machine, asked: "--all".to_owned(), note: note.to_owned() };
        Pass { head, runs: runs.into_iter().map(of_build).collect() }
    }

    fn of(record: &Record) -> String {
        page(&crate::scenario::all(), record, |_, _| Ok(())).unwrap()
    }

    #[test]
    fn the_page_marks_what_is_broken() {
        let mut plots = Vec::new();
        let record = Record(vec![pass("abc", "", vec![run("unix", 1, 14.0), run("tcp", 1, 16.0)])]);
        let page = page(&crate::scenario::all(), &record, |name, _| {
            plots.push(name.to_owned());
            Ok(())
        })
        .unwrap();
        assert!(page.contains("| go unix ×1 | 14 |"), "{page}");
        assert!(page.contains("| go tcp ×1 | 16 **✗** |"), "{page}");
        let says = "**1 figures are as promised, 1 are not, 0 are known to be open.**";
        assert!(page.contains(says), "{page}");
        assert_eq!(plots, ["dead-path-sidecar"]);
    }

    #[test]
    fn what_was_made_again_stays_on_the_page_with_its_reason() {
        let first = pass("abc", "first", vec![run("unix", 1, 16.0), run("tcp", 1, 14.0)]);
        let again = pass("abc", "the machine was busy", vec![run("unix", 1, 14.0)]);
        let page = of(&Record(vec![first, again]));
        assert!(page.contains("2 figures are as promised, 0 are not"), "{page}");
        assert!(page.contains("1 runs were made again"), "{page}");
        assert!(page.contains("go unix: client's end: 16 s, promised ≤ 15.10"), "{page}");
        assert!(page.contains("| the machine was busy |"), "{page}");
    }

    #[test]
    fn a_row_of_another_build_says_so() {
        let first = pass("abc", "", vec![run("unix", 1, 14.0), run("tcp", 1, 14.0), run("tcp", 2, 14.0)]);
        let other = pass("def", "", vec![run("unix", 1, 13.0)]);
        let page = of(&Record(vec![first, other]));
        assert!(page.contains("| go unix ×1 at def | 13 |"), "{page}");
        assert!(page.contains("| go tcp ×2 | 14 / 14 / 14 |"), "{page}");
        assert!(page.contains("2 runs of build abc are shown, and 1 of others"), "{page}");
    }

    #[test]
    fn what_came_before_a_late_fault_counts_and_is_told() {
        let late = Run { error: Some("drop came late".to_owned()), replaced: true, ..run("unix", 1, 14.5) };
        let page = of(&Record(vec![pass("abc", "", vec![late, run("unix", 1, 13.5)])]));
        assert!(page.contains("| go unix ×2 | 13.50 / 14 / 14.50 |"), "{page}");
        assert!(
            page.contains("another run took its place: dead-path-sidecar go unix #1: drop came late"),
            "{page}"
        );
    }

    #[test]
    fn the_page_is_what_the_record_says() {
        let root = crate::root();
        let stored = fs::read_to_string(root.join("docs/lab-report.md")).unwrap();
        let page = of(&Record::read(&root).unwrap());
        assert!(page == stored, "docs/lab-report.md is not current: cargo xtask lab --report writes it");
    }
}
