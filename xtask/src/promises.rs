//! `docs/promises.md`: each row cites what can break it, and that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// What a row says while nothing proves it.
const NOT_YET: &str = "no test yet";
/// The last promise.
const LAST: usize = 22;

/// Where a citation is looked up: the word before it in its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Test,
    Lab,
    Demo,
}

impl Kind {
    /// By the words of a row, such as "tests `a`, `b`; lab `c`".
    const WORDS: [(&str, Self); 4] =
        [("tests", Self::Test), ("test", Self::Test), ("lab", Self::Lab), ("demo", Self::Demo)];

    fn what(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Lab => "lab scenario",
            Self::Demo => "row of the demo",
        }
    }
}

/// What there is to cite.
struct There(BTreeMap<Kind, BTreeSet<String>>);

/// The faults of the page's rows.
///
/// # Errors
///
/// When the page or the sources can't be read.
pub(crate) fn faults(root: &Path, tests: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let text = read(&root.join("docs/promises.md"))?;
    let mut scenarios = BTreeSet::new();
    for path in crate::wire::sources(&root.join("lab/src/scenario"))? {
        scenarios.extend(scenarios_of(&read(&path)?).map(str::to_owned));
    }
    let rows = demo_rows(&read(&root.join("crates/demo/src/rows/mod.rs"))?);
    ensure!(
        !scenarios.is_empty() && !rows.is_empty(),
        "no lab scenarios, or no rows of the demo, were found"
    );
    let there = There([(Kind::Test, tests.clone()), (Kind::Lab, scenarios), (Kind::Demo, rows)].into());
    Ok(judge(&text, &there))
}

fn judge(text: &str, there: &There) -> Vec<String> {
    let mut wrong = Vec::new();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| P"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let ids: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    let wanted: Vec<String> = (1..=LAST).map(|number| format!("P{number}")).collect();
    if ids != wanted {
        wrong.push(format!("docs/promises.md: the rows are {}, not P1 to P{LAST}", ids.join(", ")));
    }
    for row in rows {
        let [id, _, proof, _] = row[..] else {
            wrong.push(format!("docs/promises.md: {} has {} cells, not 4", row[0], row.len()));
            continue;
        };
        let cited = citations(proof);
        if cited.is_empty() && !proof.contains(NOT_YET) {
            wrong.push(format!("docs/promises.md: {id} cites nothing, and does not say {NOT_YET:?}"));
        }
        for (kind, name) in cited {
            if !there.0.get(&kind).is_some_and(|names| names.contains(name)) {
                wrong.push(format!("docs/promises.md: {id}: no {} {name}", kind.what()));
            }
        }
    }
    wrong
}

/// What stands between backquotes, each with the kind whose word came last before it.
fn citations(cell: &str) -> Vec<(Kind, &str)> {
    let mut kind = Kind::Test;
    let mut found = Vec::new();
    for (index, part) in cell.split('`').enumerate() {
        if index % 2 == 1 {
            found.push((kind, part));
            continue;
        }
        for word in part.split(|letter: char| !letter.is_alphanumeric()) {
            if let Some((_, named)) = Kind::WORDS.iter().find(|(own, _)| *own == word) {
                kind = *named;
            }
        }
    }
    found
}

/// Names stand in their field, or are given to what makes the rest.
fn scenarios_of(source: &str) -> impl Iterator<Item = &str> {
    ["name: \"", "_base(\""].into_iter().flat_map(|before| source.split(before).skip(1)).filter_map(|rest| {
        let name = rest.split('"').next()?;
        (!name.is_empty()).then_some(name)
    })
}

/// The words of `Kind::name`.
fn demo_rows(source: &str) -> BTreeSet<String> {
    let names = source.split("fn name(self)").nth(1).and_then(|rest| rest.split("\n    }\n").next());
    let lines = names.unwrap_or_default().lines();
    lines.filter_map(|line| Some(line.split("=> \"").nth(1)?.split('"').next()?.to_owned())).collect()
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_citation_is_of_the_kind_that_was_named_last() {
        let cell = "tests `a`, `b`; lab `c`, the demo's `d`";
        assert_eq!(
            citations(cell),
            [(Kind::Test, "a"), (Kind::Test, "b"), (Kind::Lab, "c"), (Kind::Demo, "d")]
        );
    }

    #[test]
    fn a_row_that_cites_nothing_or_in_vain_is_wrong() {
        let there = There([(Kind::Test, BTreeSet::from(["a".to_owned()]))].into());
        let rows: Vec<String> =
            (1..=LAST).map(|number| format!("| P{number} | x | test `a` | yes |")).collect();
        assert_eq!(judge(&rows.join("\n"), &there), Vec::<String>::new());
        for (bad, says) in [
            ("| P1 | x | see the lab | yes |", "P1 cites nothing"),
            ("| P1 | x | test `b` | yes |", "P1: no test b"),
            ("| P1 | x | lab `a` | yes |", "P1: no lab scenario a"),
            ("| P2 | x | test `a` | yes |", "the rows are P2, P2"),
            ("| P1 | test `a` | yes |", "3 cells"),
        ] {
            let mut rows = rows.clone();
            bad.clone_into(&mut rows[0]);
            let wrong = judge(&rows.join("\n"), &there).join("\n");
            assert!(wrong.contains(says), "{wrong}");
        }
    }

    #[test]
    fn names_are_found_in_the_sources() {
        let source =
            "Scenario {\n    name: \"\",\n    name: \"dead-path\",\n ..preset_base(\"preset-nat\") }";
        assert_eq!(scenarios_of(source).collect::<Vec<_>>(), ["dead-path", "preset-nat"]);
        let rows = "    fn name(self) -> X {\n        match self {\n            Self::A => \"unary\",\n        }\n    }\n\n fn p() { Self::B => \"no\" }";
        assert_eq!(demo_rows(rows), BTreeSet::from(["unary".to_owned()]));
    }
}
