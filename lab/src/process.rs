//! Processes on hosts: started with their output in files or read line by line, signalled, and ended with their handle.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::hosts::Net;
use crate::shell::until;

/// A process on a host. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What a process is started with.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Words before the program, on the host: `nice`, `prlimit`.
    pub(crate) before: Vec<String>,
    /// Variables of its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Whether its stdin and stdout are pipes of ours; else stdin is empty and stdout goes to the log.
    pub(crate) piped: bool,
}

impl Process {
    /// Starts a program on a host. What it says goes to `FOLDER/NAME.log`, behind what is there.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start(
        net: &Net,
        host: &str,
        name: &str,
        folder: &Path,
        words: &[String],
        how: &Start,
    ) -> anyhow::Result<Self> {
        Self::start_in(net.enter(host), name, folder, words, how)
    }

    /// The same behind the words that enter a namespace.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start_in(
        enter: Vec<String>,
        name: &str,
        folder: &Path,
        words: &[String],
        how: &Start,
    ) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log)?;
        let mut all = enter;
        all.extend(how.before.iter().cloned());
        all.extend(words.iter().cloned());
        let (program, arguments) = all.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command.args(arguments).envs(how.environment.iter().cloned()).stderr(file.try_clone()?);
        if how.piped {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            command.stdin(Stdio::null()).stdout(file);
        }
        let child = command.spawn().with_context(|| format!("cannot start {name}: {}", all.join(" ")))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    /// Its name in the lab, such as `relay`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The process id: that of the program itself, since all words before it are replaced by it.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its piped stdin and stdout; once.
    ///
    /// # Errors
    ///
    /// When they are no pipes, or taken.
    pub(crate) fn pipes(&mut self) -> anyhow::Result<(ChildStdin, ChildStdout)> {
        self.child
            .stdin
            .take()
            .zip(self.child.stdout.take())
            .with_context(|| format!("{} has no pipes", self.name))
    }

    /// Sends a signal.
    ///
    /// # Errors
    ///
    /// When the process is gone.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        kill_process(pid, signal).with_context(|| format!("signal to {}", self.name))
    }

    /// Waits until the process has ended and gives its exit code; none when a signal ended it.
    ///
    /// # Errors
    ///
    /// When it still runs after `patience`.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<i32>> {
        let what = format!("the end of {}", self.name);
        let child = &mut self.child;
        until(&what, patience, || child.try_wait().ok().flatten()).map(|status| status.code())
    }

    /// Whether it runs.
    pub(crate) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines that it said.
    pub(crate) fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
