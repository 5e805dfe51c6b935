//! The pages: their links lead somewhere, and the tests that they cite exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// What the last cell of a row says while no test proves it.
const NOT_YET: &str = "no test yet";

/// Before a block of code that is the whole text of a file.
const WHOLE_FILE: &str = "<!-- file: ";

/// Fails when a page links to a file that is not there or shows one as it is not, or when a row of `docs/failures.md` or
/// `docs/promises.md`, or a mutant, names nothing that proves it, or what does not exist.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for page in pages(root)? {
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let folder = page.parent().unwrap_or(root);
        for target in links(&text) {
            if !folder.join(target).exists() {
                wrong.push(format!("{}: no file {target}", page.display()));
            }
        }
        for (file, shown) in whole_files(&text) {
            let path = root.join(file);
            if fs::read_to_string(&path).with_context(|| path.display().to_string())?.trim_end() != shown {
                wrong.push(format!("{}: shows {file}, but not as it is", page.display()));
            }
        }
    }
    let path = root.join("docs/failures.md");
    let failures = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let tests = tests(&root.join("crates"))?;
    let rows = rows(&failures);
    ensure!(!rows.is_empty(), "{}: no rows", path.display());
    for (what, proof) in rows {
        let named = quoted(proof);
        if named.is_empty() && !proof.contains(NOT_YET) {
            wrong.push(format!("{}: {what:?} names no test, and does not say {NOT_YET:?}", path.display()));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(*name));
        wrong.extend(missing.map(|name| format!("{}: no test {name}", path.display())));
    }
    wrong.extend(crate::promises::faults(root, &tests)?);
    wrong.extend(crate::mutants::faults(root, &tests)?);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The pages at the top and in `docs/`.
fn pages(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in [root.to_path_buf(), root.join("docs")] {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Where the links of a page lead, as far as they stay in the repository; without the place in the page.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .map(|target| target.split('#').next().unwrap_or(target))
        .filter(|target| !target.is_empty())
        .collect()
}

/// The files that a page shows as a whole, and the text that it shows.
fn whole_files(text: &str) -> Vec<(&str, &str)> {
    fn shown(part: &str) -> Option<(&str, &str)> {
        let (file, rest) = part.split_once(" -->\n```")?;
        let (_, rest) = rest.split_once('\n')?;
        Some((file, rest.split("\n```").next()?))
    }
    text.split(WHOLE_FILE).skip(1).filter_map(shown).collect()
}

/// First and last cell of every row of the tables.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut below_head = false;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
            below_head = false;
            continue;
        };
        if row.starts_with("---") {
            below_head = true;
        } else if below_head
            && let (Some(what), Some(proof)) = (row.split('|').next(), row.rsplit('|').next())
        {
            found.push((what.trim(), proof.trim()));
        }
    }
    found
}

/// What stands between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The names of all test functions below a folder.
fn tests(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for path in crate::wire::sources(folder)? {
        let source = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        found.extend(tests_of(&source).map(str::to_owned));
    }
    Ok(found)
}

fn tests_of(source: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        }
        let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ")?.split('(').next()?;
        std::mem::take(&mut is_test).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_named_tests_are_there() {
        run(&crate::root()).unwrap();
    }

    #[test]
    fn only_links_into_the_repository_are_followed() {
        let text = "[a](b.md) [c](https://d.example/) [e](#f) ![g](h/i.md#j)";
        assert_eq!(links(text), ["b.md", "h/i.md"]);
    }

    #[test]
    fn files_are_shown_between_fences() {
        let text = "<!-- file: a/b.c -->\n```c\none\n\ntwo\n```\nand <!-- file: d -->\n```\nx\n```\n";
        assert_eq!(whole_files(text), [("a/b.c", "one\n\ntwo"), ("d", "x")]);
    }

    #[test]
    fn rows_are_what_stands_below_a_head() {
        let text = "| what | proof |\n|---|---|\n| a | `b`, `c` |\n\n| no head |\n";
        assert_eq!(rows(text), [("a", "`b`, `c`")]);
        assert_eq!(quoted("`b`, `c` and more"), ["b", "c"]);
    }

    #[test]
    fn a_function_counts_as_a_test_by_its_attribute() {
        let source = "fn helper() {}\n#[test]\nfn one() {}\n#[tokio::test(flavor = \"x\")]\n  async fn two() {}\nfn three() {}";
        assert_eq!(tests_of(source).collect::<Vec<_>>(), ["one", "two"]);
    }
}
