//! What was measured, and on what: for the report's head.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::shell;
use crate::world::Programs;

/// The head of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) commit: String,
    pub(crate) hopline: String,
    pub(crate) date: String,
    pub(crate) system: String,
    pub(crate) kernel: String,
    pub(crate) processors: String,
    /// The load average when the runs began, in older passes also when they had ended: other work on the machine makes
    /// figures late. Each run says its own.
    #[serde(default)]
    pub(crate) load: String,
    /// The kernel's TCP.
    #[serde(default)]
    pub(crate) congestion: String,
    /// Language and version.
    pub(crate) applications: Vec<(String, String)>,
}

impl Machine {
    /// Reads it off this machine.
    ///
    /// # Errors
    ///
    /// When `hopline --version` fails.
    pub(crate) fn read(root: &Path, programs: &Programs) -> anyhow::Result<Self> {
        let line = |path: &str, start: &str| -> String {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or("unknown");
            line.trim_matches([' ', '\t', ':', '"']).to_owned()
        };
        let memory: u64 =
            line("/proc/meminfo", "MemTotal:").trim_end_matches(" kB").parse().unwrap_or_default();
        let count = std::thread::available_parallelism().map_or(0, usize::from);
        let hopline = programs.hopline.display().to_string();
        Ok(Self {
            commit: commit(root),
            hopline: shell::run(&[&hopline, "--version"])?.trim().to_owned(),
            date: now(),
            system: line("/etc/os-release", "PRETTY_NAME="),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            processors: format!("{count} × {}, {} MiB", line("/proc/cpuinfo", "model name"), memory / 1_024),
            load: load(),
            congestion: fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            applications: programs
                .apps
                .iter()
                .map(|app| (app.name.to_owned(), app.version.clone()))
                .collect(),
        })
    }
}

/// Date and time, to the minute; empty if `date` can't say it.
pub(crate) fn now() -> String {
    shell::run(&["date", "--utc", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default().trim().to_owned()
}

/// The load average of the last minute.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// The last commit that changed the product, and whether its sources differ from it. Commits that change only the lab or
/// pages leave results true.
fn commit(root: &Path) -> String {
    let root = root.display().to_string();
    let git = |words: &[&str]| {
        shell::run(&[&["git", "-C", &root], words, &["--", "crates", "Cargo.toml", "Cargo.lock"]].concat())
    };
    let Ok(commit) = git(&["log", "-1", "--format=%h"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain"]).unwrap_or_default();
    let mark = if changed.is_empty() { "" } else { " with changes" };
    format!("{}{mark}", commit.trim())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Machine;

    pub(crate) fn machine() -> Machine {
        Machine {
            commit: "abc".to_owned(),
            hopline: "hopline 1".to_owned(),
            date: "2026-11-30 07:26 UTC".to_owned(),
            system: "Debian".to_owned(),
            kernel: "6".to_owned(),
            processors: "2".to_owned(),
            load: "0.1".to_owned(),
            congestion: "cubic".to_owned(),
            applications: vec![("go".to_owned(), "grpc-go 1".to_owned())],
        }
    }
}
