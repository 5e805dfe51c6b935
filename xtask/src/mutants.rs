//! Changes of the product, one at a time, each of which a test must notice: `mutants/*.patch`.
//!
//! A patch is applied to a copy of the work tree, the tests that it names are built and run there, and one of them must
//! fail. Then the next one. Whatever lives must say in the patch why it may.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// A test that still runs after this hangs by the change, and has noticed it.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at whether a test has ended.
const LOOK: Duration = Duration::from_millis(100);

/// One patch: what stands before its diff.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mutant {
    name: String,
    /// What it breaks.
    what: String,
    tests: Vec<Test>,
    /// Why no test notices it.
    lives: Option<String>,
}

/// `Test: PACKAGE TARGET NAME`: the target is `lib`, `bin`, or an integration test of that package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    package: String,
    target: String,
    name: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// This test failed.
    Caught(String),
    Lives,
    /// The patch says why it lives, and it does.
    Listed,
    /// The patch says that it lives, and a test noticed.
    CaughtThough(String),
    /// The change can't be judged: the code has moved, or does not compile with it.
    Stale(String),
}

/// Runs the mutants whose names begin so, all if none is given.
///
/// # Errors
///
/// When one lives that does not say why, or can't be judged, or a test is red without any change.
pub(crate) fn run(root: &Path, only: &[String], list: bool) -> anyhow::Result<()> {
    let folder = root.join("mutants");
    let all = read(&folder)?;
    let chosen: Vec<&Mutant> = all
        .iter()
        .filter(|mutant| only.is_empty() || only.iter().any(|word| mutant.name.starts_with(word.as_str())))
        .collect();
    ensure!(!chosen.is_empty(), "no patch in {} has such a name", folder.display());
    if list {
        for mutant in chosen {
            say(&format!("{:48} {}", mutant.name, line(mutant)));
        }
        return Ok(());
    }
    let tree = Tree::copy(root)?;
    as_it_is(&tree, &chosen)?;
    let mut bad = Vec::new();
    for mutant in chosen {
        let began = Instant::now();
        let verdict = tree.judge(&folder, mutant)?;
        let (word, good) = match &verdict {
            Verdict::Caught(by) => (format!("caught by {by}"), true),
            Verdict::Listed => {
                (format!("lives, as listed: {}", mutant.lives.as_deref().unwrap_or_default()), true)
            }
            Verdict::Lives => ("LIVES".to_owned(), false),
            Verdict::CaughtThough(by) => {
                (format!("listed as living, but CAUGHT by {by}: name the test"), false)
            }
            Verdict::Stale(why) => (format!("STALE: {why}"), false),
        };
        say(&format!("{}: {word} ({:.0?})", mutant.name, began.elapsed()));
        if !good {
            bad.push(mutant.name.clone());
        }
    }
    ensure!(bad.is_empty(), "not as they must be: {}", bad.join(", "));
    Ok(())
}

/// The faults of the patches' heads that can be seen without applying them: for `cargo xtask docs`.
pub(crate) fn faults(root: &Path, tests: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let mut wrong = Vec::new();
    for mutant in read(&root.join("mutants"))? {
        for test in mutant.tests {
            let function = test.name.rsplit("::").next().unwrap_or_default();
            if !tests.contains(function) {
                wrong.push(format!("mutants/{}.patch: no test {function}", mutant.name));
            }
        }
    }
    Ok(wrong)
}

fn line(mutant: &Mutant) -> String {
    let tests: Vec<&str> = mutant.tests.iter().map(|test| test.name.as_str()).collect();
    match &mutant.lives {
        Some(why) => format!("{} (lives: {why})", mutant.what),
        None => format!("{} ({})", mutant.what, tests.join(", ")),
    }
}

fn read(folder: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "patch"));
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            parse(&name, &text)
        })
        .map(|mutant| mutant.context("a mutant"))
        .collect()
}

/// The head of a patch, up to its diff.
fn parse(name: &str, text: &str) -> anyhow::Result<Mutant> {
    let (head, diff) = text.split_at(text.find("\n--- ").with_context(|| format!("{name}: no diff"))?);
    ensure!(diff.contains("\n+++ "), "{name}: no diff");
    let mut mutant = Mutant { name: name.to_owned(), ..Mutant::default() };
    for line in head.lines() {
        if let Some(what) = line.strip_prefix("What: ") {
            what.trim().clone_into(&mut mutant.what);
        } else if let Some(why) = line.strip_prefix("Lives: ") {
            mutant.lives = Some(why.trim().to_owned());
        } else if let Some(test) = line.strip_prefix("Test: ") {
            let [package, target, name] = test.split_whitespace().collect::<Vec<_>>()[..] else {
                bail!("{name}: not `Test: PACKAGE TARGET NAME`: {line:?}");
            };
            let [package, target, name] = [package, target, name].map(str::to_owned);
            mutant.tests.push(Test { package, target, name });
        }
    }
    ensure!(!mutant.what.is_empty(), "{name}: no line `What: ...`");
    ensure!(
        mutant.lives.is_some() || !mutant.tests.is_empty(),
        "{name}: neither `Test: PACKAGE TARGET NAME` nor `Lives: WHY`"
    );
    Ok(mutant)
}

/// Every test that is named must be green without a change.
fn as_it_is(tree: &Tree, mutants: &[&Mutant]) -> anyhow::Result<()> {
    let tests: BTreeSet<&Test> = mutants.iter().flat_map(|mutant| &mutant.tests).collect();
    for test in tests {
        if !tree.build(test)? {
            bail!("{} {} does not build as it is", test.package, test.target);
        }
        ensure!(tree.passes(test)?, "{} is red as it is, without any change", test.name);
    }
    Ok(())
}

/// A copy of the work tree, and what is built of it.
struct Tree {
    sources: PathBuf,
    target: PathBuf,
}

impl Tree {
    fn copy(root: &Path) -> anyhow::Result<Self> {
        let scratch = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |target| root.join(target))
            .join("mutants");
        let tree = Self { sources: scratch.join("tree"), target: scratch.join("target") };
        if tree.sources.exists() {
            fs::remove_dir_all(&tree.sources)?;
        }
        let listed = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
            .current_dir(root)
            .output()
            .context("git ls-files")?;
        ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
        for path in String::from_utf8(listed.stdout)?.split('\0').filter(|path| !path.is_empty()) {
            let (from, to) = (root.join(path), tree.sources.join(path));
            // Deleted, and not yet committed.
            if !from.exists() {
                continue;
            }
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            fs::copy(&from, &to).with_context(|| from.display().to_string())?;
        }
        Ok(tree)
    }

    fn judge(&self, folder: &Path, mutant: &Mutant) -> anyhow::Result<Verdict> {
        let patch = folder.join(format!("{}.patch", mutant.name));
        if !self.patch(&patch, &["--dry-run"])? {
            return Ok(Verdict::Stale("it does not apply".to_owned()));
        }
        ensure!(self.patch(&patch, &[])?, "{} applied in vain", patch.display());
        let verdict = self.noticed(mutant);
        ensure!(self.patch(&patch, &["--reverse"])?, "{} can't be taken back", patch.display());
        Ok(match (verdict?, &mutant.lives) {
            (Verdict::Lives, Some(_)) => Verdict::Listed,
            (Verdict::Caught(by), Some(_)) => Verdict::CaughtThough(by),
            (verdict, _) => verdict,
        })
    }

    /// What its tests say of the tree as it is now.
    fn noticed(&self, mutant: &Mutant) -> anyhow::Result<Verdict> {
        for test in &mutant.tests {
            if !self.build(test)? {
                return Ok(Verdict::Stale("it does not compile".to_owned()));
            }
            if !self.passes(test)? {
                return Ok(Verdict::Caught(test.name.clone()));
            }
        }
        Ok(Verdict::Lives)
    }

    fn patch(&self, file: &Path, how: &[&str]) -> anyhow::Result<bool> {
        let mut command = Command::new("patch");
        command.args([
            "--strip",
            "1",
            "--force",
            "--fuzz",
            "2",
            "--no-backup-if-mismatch",
            "--reject-file",
            "-",
        ]);
        command.args(how).arg("--input").arg(file).current_dir(&self.sources);
        let output = command.output().context("running patch")?;
        Ok(output.status.success())
    }

    fn cargo(&self, test: &Test) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["test", "--quiet", "--locked", "--package", &test.package]);
        match test.target.as_str() {
            "lib" => command.arg("--lib"),
            "bin" => command.arg("--bins"),
            other => command.args(["--test", other]),
        };
        // Debug information would double what is written.
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_PROFILE_DEV_DEBUG", "0");
        command.current_dir(&self.sources).stdin(Stdio::null());
        command
    }

    fn build(&self, test: &Test) -> anyhow::Result<bool> {
        let output = self.cargo(test).arg("--no-run").output().context("running cargo")?;
        Ok(output.status.success())
    }

    /// Whether a test passes, which must be one that runs.
    fn passes(&self, test: &Test) -> anyhow::Result<bool> {
        let log = self.target.join("test.log");
        let mut command = self.cargo(test);
        command.args(["--", "--exact", &test.name]).stdout(fs::File::create(&log)?).stderr(Stdio::null());
        command.process_group(0);
        let mut child = command.spawn().context("running cargo")?;
        let began = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > LIMIT {
                // Cargo's child too: the test itself.
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status()?;
                child.wait()?;
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        };
        let said = fs::read_to_string(&log)?;
        ensure!(
            said.contains("running 1 test"),
            "{} has no test of the exact name {}",
            test.package,
            test.name
        );
        Ok(status.success())
    }
}

#[expect(clippy::print_stdout, reason = "the chore's report goes to the terminal")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIFF: &str = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n";

    #[test]
    fn a_head_names_what_breaks_and_who_notices() {
        let mutant =
            parse("a", &format!("What: x is y\nTest: hopline-edge lib a::b\nTest: p e2e c\n\n{DIFF}"))
                .unwrap();
        let test = |package: &str, target: &str, name: &str| Test {
            package: package.to_owned(),
            target: target.to_owned(),
            name: name.to_owned(),
        };
        assert_eq!(mutant.tests, [test("hopline-edge", "lib", "a::b"), test("p", "e2e", "c")]);
        assert_eq!((mutant.what.as_str(), mutant.lives), ("x is y", None));
    }

    #[test]
    fn a_head_without_a_test_says_why_it_lives() {
        let lives = parse("a", &format!("What: x\nLives: no reader can tell\n\n{DIFF}")).unwrap();
        assert_eq!(lives.lives.as_deref(), Some("no reader can tell"));
        for broken in ["", "What: x\n", "Lives: y\n", "What: x\nTest: only two\n"] {
            parse("a", &format!("{broken}\n{DIFF}")).unwrap_err();
        }
        parse("a", "What: x\nLives: y\n").unwrap_err();
    }

    #[test]
    fn the_patches_can_be_read() {
        assert!(!read(&crate::root().join("mutants")).unwrap().is_empty());
    }
}
