//! The link's wire: requirements of `WIRE.md` that no test cites, and many random histories of chains.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// Fails when a requirement of `WIRE.md` is cited by no test, or a citation names none.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(root.join("WIRE.md")).context("WIRE.md")?;
    let required = required(&text)?;
    let mut cited = BTreeSet::new();
    let mut unknown = Vec::new();
    for path in sources(&root.join("crates"))? {
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let citations = citations(&source);
        for number in citations.difference(&required) {
            unknown.push(format!("{}: WIRE-{number}", path.display()));
        }
        if is_test(&path) {
            cited.extend(citations);
        }
    }
    let uncited: Vec<_> = required.difference(&cited).map(|number| format!("WIRE-{number}")).collect();
    ensure!(uncited.is_empty(), "no test cites {}", uncited.join(", "));
    ensure!(unknown.is_empty(), "WIRE.md has no such requirement: {}", unknown.join(", "));
    Ok(())
}

/// Runs random histories of chains in release mode: so many seeds from the first.
pub(crate) fn sim(root: &Path, seeds: u64, first: u64) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--release", "--package", "hopline-link-proto", "--test", "sim"])
        .args(["--", "--ignored", "--nocapture", "--exact", "many"])
        .env("HOPLINE_SIM_SEEDS", seeds.to_string())
        .env("HOPLINE_SIM_SEED", first.to_string())
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "a history broke a promise, or the simulation did not build");
    Ok(())
}

/// The numbers that begin a requirement, which must be 1, 2, 3 and so on.
fn required(text: &str) -> anyhow::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("**WIRE-") else { continue };
        let Some(number) = rest.split_once("**").and_then(|(number, _)| number.parse::<u64>().ok()) else {
            bail!("no number in {line:?}");
        };
        ensure!(number == found.len() as u64 + 1, "WIRE-{number} is out of order");
        found.insert(number);
    }
    ensure!(!found.is_empty(), "WIRE.md has no requirements");
    Ok(found)
}

/// `WIRE-12` in text, or `wire_12_` in a test's name.
fn citations(source: &str) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for mark in ["WIRE-", "fn wire_"] {
        for (at, _) in source.match_indices(mark) {
            let rest = &source[at + mark.len()..];
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            found.extend(rest[..digits].parse::<u64>());
        }
    }
    found
}

/// Below a folder `tests`, or a file `tests.rs`.
fn is_test(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs") || path.iter().any(|part| part == "tests")
}

/// Every `.rs` and `.txt` file below a folder.
pub(crate) fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "txt") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_requirement_of_the_wire_is_cited_by_a_test() {
        run(&crate::root()).unwrap();
    }

    #[test]
    fn citations_are_found_in_text_and_in_names() {
        assert_eq!(citations("// WIRE-3, WIRE-14\nfn wire_15_x() {} WIRE-x"), BTreeSet::from([3, 14, 15]));
        assert!(is_test(Path::new("crates/a/tests/b.rs")) && is_test(Path::new("crates/a/src/b/tests.rs")));
        assert!(!is_test(Path::new("crates/a/src/b.rs")));
    }

    #[test]
    fn requirements_are_numbered_without_a_gap() {
        assert_eq!(required("**WIRE-1** a\nb\n**WIRE-2** c").unwrap(), BTreeSet::from([1, 2]));
        assert!(required("**WIRE-2** a").is_err());
        assert!(required("nothing").is_err());
    }
}
