//! One process of the binary, with its log.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, until};

/// Lines of a log that a failed test prints.
const TAIL: usize = 120;

/// The binary, cut off from the environment of whoever runs the tests.
pub(crate) fn hopline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hopline"));
    for variable in ["RUST_LOG", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME", "NO_COLOR", "COLUMNS"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command that ends by itself.
pub(crate) fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    hopline().args(args).output().unwrap()
}

/// A running process; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    log: PathBuf,
    /// Where its stderr is a pipe: whether that is read.
    tap: Option<Arc<Tap>>,
}

/// Reads a process's stderr into its log, or leaves it alone.
#[derive(Debug, Default)]
struct Tap {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Tap {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.opened.notify_all();
    }

    fn copy(&self, mut from: impl Read, mut to: impl Write) {
        let mut buffer = [0; 4 << 10];
        loop {
            drop(self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap());
            match from.read(&mut buffer) {
                Ok(n @ 1..) => to.write_all(&buffer[..n]).unwrap(),
                _ => return,
            }
        }
    }
}

impl Process {
    /// Starts `command`, with its stderr in a file of `folder`.
    pub(crate) fn spawn(name: &str, folder: &Path, mut command: Command) -> Self {
        let log = (0..).map(|n| folder.join(format!("{name}.{n}.log"))).find(|path| !path.exists()).unwrap();
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { name: name.to_owned(), pid: child.id(), child: Mutex::new(child), log, tap: None }
    }

    /// The same with a pipe for its stderr, which is read until [`Process::stop_reading`].
    pub(crate) fn spawn_piped(name: &str, folder: &Path, mut command: Command) -> Self {
        let (from, to) = std::io::pipe().unwrap();
        command.stderr(to);
        let log = folder.join(format!("{name}.piped.log"));
        let (tap, file) = (Arc::<Tap>::default(), File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        let of_thread = Arc::clone(&tap);
        std::thread::spawn(move || of_thread.copy(from, file));
        Self { name: name.to_owned(), pid: child.id(), child: Mutex::new(child), log, tap: Some(tap) }
    }

    /// Leaves what it writes to its stderr where it is.
    pub(crate) fn stop_reading(&self) {
        self.tap.as_ref().unwrap().set(true);
    }

    pub(crate) fn read_on(&self) {
        self.tap.as_ref().unwrap().set(false);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Waits until a line of the log holds `word`; gives what follows it, up to the next white space.
    pub(crate) fn logged(&self, word: &str) -> String {
        until(&format!("{}: {word:?} in the log", self.name), PATIENCE, || {
            assert!(self.is_running(), "{} has ended:\n{}", self.name, self.log());
            let log = self.log();
            let (_, rest) = log.split_once(word)?;
            // The whole line is there.
            let (line, _) = rest.split_once('\n')?;
            Some(line.split_whitespace().next().unwrap_or_default().to_owned())
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        self.child().try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Stops it where it stands, until [`Process::resume`]. It does nothing any more when this returns.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        until(&format!("{} is paused", self.name), PATIENCE, || {
            let mut threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
            let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
                // A thread may end in this moment.
                let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
            };
            threads.all(is_stopped).then_some(())
        });
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn wait_exit(&self, limit: Duration) -> ExitStatus {
        until(&format!("{} ends", self.name), limit, || self.child().try_wait().unwrap())
    }

    /// `kill -9`; the process is gone when this returns.
    pub(crate) fn kill(&self) {
        let mut child = self.child();
        // It fails only on a process that has ended.
        let _ = child.kill();
        child.wait().unwrap();
    }

    /// Open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap().count()
    }

    /// For a test that fails.
    pub(crate) fn print_log(&self) {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(TAIL);
        eprintln!("--- {} (process {}), last {TAIL} lines of its log", self.name, self.pid);
        for line in &lines[from..] {
            eprintln!("{line}");
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}
