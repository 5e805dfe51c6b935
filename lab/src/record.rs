//! The record: every run, as it was measured. It is only ever added to.
//!
//! A pass of the lab is a file of `lab/record`: its head in the first line (build, date, machine, load, what was asked
//! for), then a line for each run, written when the run ends. Nothing is taken out: what is measured again has a file of
//! its own, and a page shows the newest runs of each scenario, application and way, and says what came before.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::result::Run;

/// Where the record of the pages is, in the workspace.
const FOLDER: &str = "lab/record";

/// The first line of a pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) machine: Machine,
    /// The lab's arguments.
    pub(crate) asked: String,
    /// Why it was made, where it was made again; what is not known of it.
    #[serde(default)]
    pub(crate) note: String,
}

/// One invocation of the lab.
#[derive(Debug, Clone)]
pub(crate) struct Pass {
    pub(crate) head: Head,
    pub(crate) runs: Vec<Run>,
}

/// All passes, oldest first.
#[derive(Debug)]
pub(crate) struct Record(pub(crate) Vec<Pass>);

/// A pass that is being measured.
#[derive(Debug)]
pub(crate) struct Writer {
    file: Mutex<File>,
    pub(crate) path: PathBuf,
}

impl Writer {
    /// Begins a pass in a folder; the file's name is date and build.
    ///
    /// # Errors
    ///
    /// When the file can't be made.
    pub(crate) fn begin(folder: &Path, head: &Head) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let date: String = head.machine.date.trim_end_matches(" UTC").replace(' ', "T").replace(':', "");
        let build = head.machine.commit.replace(" with changes", "-changed");
        for number in 1_u32.. {
            let path = folder.join(format!("{date}-{number}-{build}.jsonl"));
            match File::options().append(true).create_new(true).open(&path) {
                Ok(file) => {
                    let writer = Self { file: Mutex::new(file), path };
                    writer.line(head)?;
                    return Ok(writer);
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
        unreachable!("a folder with 2^32 passes of one minute")
    }

    /// Adds a run.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(crate) fn add(&self, run: &Run) -> anyhow::Result<()> {
        self.line(run)
    }

    fn line(&self, what: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_string(what)? + "\n";
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes()).with_context(|| self.path.display().to_string())
    }
}

/// Where passes go: those for the pages to `lab/record`, others to the build's folder.
pub(crate) fn folder(root: &Path, target: &Path, for_the_pages: bool) -> PathBuf {
    if for_the_pages { root.join(FOLDER) } else { target.join("lab-record") }
}

impl Record {
    /// Reads the record of the pages.
    ///
    /// # Errors
    ///
    /// When a line of it can't be read.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let folder = root.join(FOLDER);
        let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
            .with_context(|| folder.display().to_string())?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
        // The names begin with the date.
        paths.sort();
        paths.iter().map(|path| pass(path)).collect::<anyhow::Result<_>>().map(Self)
    }

    /// The newest runs of each scenario, application and way, sorted.
    pub(crate) fn current(&self) -> Vec<Run> {
        let mut newest: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
        for (number, pass) in self.0.iter().enumerate() {
            for run in &pass.runs {
                newest.insert(run.cell(), number);
            }
        }
        let of = |(number, pass): (usize, &Pass)| -> Vec<Run> {
            pass.runs.iter().filter(|run| newest.get(&run.cell()) == Some(&number)).cloned().collect()
        };
        let mut runs: Vec<Run> = self.0.iter().enumerate().flat_map(of).collect();
        runs.sort_by(|one, other| (one.cell(), one.run, &one.at).cmp(&(other.cell(), other.run, &other.at)));
        runs
    }

    /// The runs of each pass in whose place a later pass of the same build has newer ones.
    pub(crate) fn made_again(&self) -> Vec<(&Pass, Vec<Run>)> {
        let mut found = Vec::new();
        for (number, pass) in self.0.iter().enumerate() {
            let later = self.0[number + 1..].iter().filter(|later| later.build() == pass.build());
            let later: Vec<&Run> = later.flat_map(|later| &later.runs).collect();
            let again = |run: &&Run| later.iter().any(|newer| newer.cell() == run.cell());
            let runs: Vec<Run> = pass.runs.iter().filter(again).cloned().collect();
            if !runs.is_empty() {
                found.push((pass, runs));
            }
        }
        found
    }
}

impl Pass {
    pub(crate) fn build(&self) -> &str {
        &self.head.machine.commit
    }
}

/// The build of which most runs are.
pub(crate) fn main_build(runs: &[Run]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for run in runs {
        *counts.entry(run.build.as_str()).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(build, _)| build.to_owned()).unwrap_or_default()
}

fn pass(path: &Path) -> anyhow::Result<Pass> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap_or_default())
        .with_context(|| format!("{}: the first line is no head of a pass", path.display()))?;
    let mut runs = Vec::new();
    for (number, line) in lines.enumerate() {
        let mut run: Run = serde_json::from_str(line)
            .with_context(|| format!("{}:{}: no run", path.display(), number + 2))?;
        run.build.clone_from(&head.machine.commit);
        runs.push(run);
    }
    ensure!(!head.machine.commit.is_empty(), "{}: no build", path.display());
    Ok(Pass { head, runs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use crate::result::tests::run;

    fn record(folder: &Path, passes: &[(&str, &str, Vec<Run>)]) -> Record {
        for (build, date, runs) in passes {
            let machine = Machine { commit: (*build).to_owned(), date: (*date).to_owned(), ..machine() };
            let head = Head { machine, asked: "--all".to_owned(), note: String::new() };
            let writer = Writer::begin(&folder.join(FOLDER), &head).unwrap();
            for run in runs {
                writer.add(run).unwrap();
            }
        }
        Record::read(folder).unwrap()
    }

    #[test]
    fn what_is_measured_again_is_added_and_nothing_is_taken_out() {
        let folder = tempfile::tempdir().unwrap();
        let passes = [
            (
                "abc",
                "2026-11-30 07:26 UTC",
                vec![run("unix", 1, 16.0), run("unix", 2, 14.0), run("tcp", 1, 12.0)],
            ),
            ("abc", "2026-11-30 07:26 UTC", vec![run("unix", 1, 13.0)]),
            ("def", "2026-11-30 08:00 UTC", vec![run("tcp", 1, 11.0)]),
        ];
        let record = record(folder.path(), &passes);
        let now: Vec<(String, String, u32)> =
            record.current().into_iter().map(|run| (run.way, run.build, run.run)).collect();
        assert_eq!(now, [("tcp".to_owned(), "def".to_owned(), 1), ("unix".to_owned(), "abc".to_owned(), 1)]);
        let again = record.made_again();
        // Another build's runs are no repetition.
        let again: Vec<(&str, usize)> = again.iter().map(|(pass, runs)| (pass.build(), runs.len())).collect();
        assert_eq!(again, [("abc", 2)]);
        assert_eq!(record.0.iter().map(|pass| pass.runs.len()).sum::<usize>(), 5);
        assert_eq!(fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 3);
    }

    #[test]
    fn a_line_that_is_no_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        record(folder.path(), &[("abc", "2026-11-30 07:26 UTC", vec![run("unix", 1, 16.0)])]);
        let file = fs::read_dir(folder.path().join(FOLDER)).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text + "{}\n").unwrap();
        let error = format!("{:#}", Record::read(folder.path()).unwrap_err());
        assert!(error.contains("-abc.jsonl:3: no run"), "{error}");
    }
}
