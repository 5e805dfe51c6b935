//! Cleans up behind a lab that dies: a process of its own session waits for the end of its stdin, which only the lab
//! holds, and then removes what the lab has left.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::leftovers;

/// The watching process. Dropping it lets it finish.
#[derive(Debug)]
pub(crate) struct Janitor(Child);

impl Janitor {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let child = Command::new("setsid")
            .arg(own)
            .args(["janitor", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the janitor")?;
        Ok(Self(child))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The janitor's own life.
pub(crate) fn run(lab: u32) {
    let mut nothing = Vec::new();
    // An error is the end of the pipe too.
    let _ = std::io::stdin().read_to_end(&mut nothing);
    leftovers::remove_all_of(lab);
}
