use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;

fn root() -> PathBuf {
    crate::root()
}

/// The ids that there are: the other numbers were never given.
fn known() -> Vec<String> {
    (1..=230_u32)
        .filter(|number| !number.is_multiple_of(3) || *number == 147)
        .map(|number| format!("F{number}"))
        .collect()
}

#[test]
fn every_report_has_its_row_in_order() {
    let rows = read(&root()).unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, known());
    assert_eq!(ids.len(), 155);
    for row in &rows {
        assert!(!row.kind.is_empty() && !row.reported.is_empty(), "{}", row.id);
        assert!(!row.tests.is_empty() || !row.note.is_empty(), "{}: no test and no reason", row.id);
        let cells = [&row.reported, &row.note];
        assert!(cells.iter().all(|cell| !cell.contains('|') && !cell.contains('\n')), "{}", row.id);
    }
}

#[test]
fn named_scenarios_and_tests_are_there() {
    let scenarios = crate::scenario::all();
    let mut named = BTreeSet::new();
    for row in read(&root()).unwrap() {
        for test in &row.tests {
            if let Some(name) = test.strip_prefix("scenario:") {
                assert!(scenarios.iter().any(|scenario| scenario.name == name), "{}: no {test}", row.id);
                named.insert(name.to_owned());
                continue;
            }
            let (package, function) = test.split_once('/').unwrap();
            let folder =
                if package == "lab" { root().join("lab") } else { root().join("crates").join(package) };
            assert!(tests_below(&folder).contains(function), "{}: no {test}", row.id);
        }
    }
    for scenario in scenarios.iter().filter(|scenario| scenario.is_field_report()) {
        let start = scenario.name.split('-').next().unwrap_or_default().to_uppercase();
        assert_eq!(scenario.promise, start, "a scenario's promise is its row: {}", scenario.name);
        assert!(named.contains(scenario.name), "no row names {}", scenario.name);
    }
}

#[test]
fn the_page_is_what_the_table_and_the_results_say() {
    let runs = record::Record::read(&root()).unwrap().current();
    let page = page(&root(), &crate::scenario::all(), &runs).unwrap();
    let stored = fs::read_to_string(root().join("docs/field-reports.md")).unwrap();
    assert!(page == stored, "docs/field-reports.md is not current: cargo xtask lab --report writes it");
}

/// Files with these endings below a folder.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, found);
        } else if path.extension().is_some_and(|end| {
            ["md", "sh", "service", "yaml", "yml", "1", "toml"].iter().any(|known| end == *known)
        }) {
            found.push(path);
        }
    }
}

/// F185: what we ship never shows a token as an argument: tokens go by file or by stdin.
#[test]
fn f185_no_token_stands_on_a_command_line() {
    let mut files = vec![root().join("README.md")];
    for folder in ["docs", "examples", "deploy"] {
        texts(&root().join(folder), &mut files);
    }
    let mut joins = 0;
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines() {
            assert!(!line.contains("--token"), "{}: {line}", file.display());
            let Some((_, after)) = line.split_once("hopline join ") else { continue };
            joins += 1;
            let word = after.trim_start_matches(['`', '\'', '"']).split_whitespace().next().unwrap_or("-");
            let secret = word.starts_with("$(") || word.starts_with("hopline-join-");
            assert!(!secret, "{}: {line}", file.display());
        }
    }
    assert!(joins > 3, "{joins} lines with `hopline join`");
}

/// The names of all test functions below a folder.
fn tests_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with("node_modules") {
                found.extend(tests_below(&path));
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in source.lines().map(str::trim_start) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
                if let Some(name) = name.and_then(|name| name.split('(').next())
                    && std::mem::take(&mut is_test)
                {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    found
}
