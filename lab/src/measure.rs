//! What a process holds: memory, descriptors, threads, processor time; and what state a host's connections are in.

use std::fs;

use anyhow::Context as _;

use crate::hosts::Net;
use crate::process::Process;
use crate::shell;

/// A process at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Held {
    /// Resident memory.
    pub(crate) rss_kib: f64,
    pub(crate) descriptors: f64,
    /// Processor time since the start, user and system.
    pub(crate) cpu_s: f64,
}

impl Held {
    /// Reads it off the kernel.
    ///
    /// # Errors
    ///
    /// When the process is gone.
    pub(crate) fn by(process: &Process) -> anyhow::Result<Self> {
        let folder = format!("/proc/{}", process.id());
        let status = fs::read_to_string(format!("{folder}/status")).with_context(|| folder.clone())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
        let rss_kib = line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default();
        let stat = fs::read_to_string(format!("{folder}/stat"))?;
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks = |at: usize| -> f64 {
            after_name.split(' ').nth(at).and_then(|word| word.parse().ok()).unwrap_or_default()
        };
        #[expect(clippy::cast_precision_loss, reason = "some thousand descriptors")]
        let descriptors = fs::read_dir(format!("{folder}/fd"))?.count() as f64;
        // A tick is a hundredth of a second on Linux, whatever the kernel's own rate.
        Ok(Self { rss_kib, descriptors, cpu_s: (ticks(11) + ticks(12)) / 100.0 })
    }
}

/// How many TCP connections of a host are in this state, as `ss` calls it: `close-wait`, `fin-wait-2`, `established`.
///
/// # Errors
///
/// When `ss` fails.
pub(crate) fn connections(net: &Net, host: &str, state: &str) -> anyhow::Result<f64> {
    let namespace = net.namespace(host);
    let lines = shell::run(&["ip", "netns", "exec", &namespace, "ss", "-Htn", "state", state])?;
    #[expect(clippy::cast_precision_loss, reason = "some thousand connections")]
    let count = lines.lines().count() as f64;
    Ok(count)
}
