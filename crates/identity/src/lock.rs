//! The right to change a state folder, and the wait for it.
//!
//! Nobody waits inside the kernel: a lock that another process holds for an hour would cost a thread for an hour, and
//! could not be given up. Who waits looks again after a pause instead, says after a second what it waits for, and can
//! be dropped at any time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::StateError;
use crate::files;

/// How long a lock is waited for in silence.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// The pause before the second look; it doubles from look to look.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The right to change a state folder: one holder at a time, over all processes and threads.
///
/// The kernel drops it with its holder, so a crash leaves no stale lock. The file itself stays.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Blocks the thread until nobody else holds it.
    pub(crate) fn wait(folder: &Path) -> Result<Self, StateError> {
        let mut wait = Wait::new(folder);
        loop {
            if let Some(lock) = Self::try_take(folder)? {
                return Ok(lock);
            }
            std::thread::sleep(wait.pause());
        }
    }

    /// Waits until nobody else holds it, and holds up no thread meanwhile. Cancel safe.
    pub(crate) async fn free(folder: &Path) -> Result<Self, StateError> {
        let mut wait = Wait::new(folder);
        loop {
            if let Some(lock) = Self::try_take(folder)? {
                return Ok(lock);
            }
            tokio::time::sleep(wait.pause()).await;
        }
    }

    /// `None` when somebody else holds it.
    pub(crate) fn try_take(folder: &Path) -> Result<Option<Self>, StateError> {
        let path = lock_path(folder);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(files::NO_WAIT)
            .open(&path)
            .map_err(|source| StateError::io("open", &path, source))?;
        files::give_to_owner(folder, &file)
            .map_err(|source| StateError::io("change the owner of", &path, source))?;
        match file.try_lock() {
            // Whoever deletes the file in between would let a second holder in.
            Ok(()) if is_still(&path, &file) => Ok(Some(Self { _file: file })),
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(StateError::io("lock", &path, source)),
        }
    }
}

/// Whoever holds a folder's lock now, as a person reads it: `process 4711 (flock)`, or `another process`.
pub(crate) fn holder(folder: &Path) -> String {
    let found = std::fs::metadata(lock_path(folder)).ok().and_then(|metadata| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        holder_in(&locks, metadata.dev(), metadata.ino())
    });
    match found {
        Some(pid) if pid == std::process::id() => "this process itself".to_owned(),
        Some(pid) => {
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let command: String = command.trim().chars().filter(|c| !c.is_control()).collect();
            if command.is_empty() { format!("process {pid}") } else { format!("process {pid} ({command})") }
        }
        None => "another process".to_owned(),
    }
}

pub(crate) fn lock_path(folder: &Path) -> PathBuf {
    folder.join("lock")
}

/// One wait: how long it has lasted, and whether it was spoken of.
struct Wait<'a> {
    folder: &'a Path,
    began: Instant,
    pause: Duration,
    said: bool,
}

impl<'a> Wait<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, began: Instant::now(), pause: FIRST_PAUSE, said: false }
    }

    /// How long to pause before the next look; says once what is waited for.
    fn pause(&mut self) -> Duration {
        if !self.said && self.began.elapsed() >= SAY_AFTER {
            self.said = true;
            let (path, holder) = (lock_path(self.folder), holder(self.folder));
            tracing::warn!("waiting for the lock {}, which {holder} holds", path.display());
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

fn is_still(path: &Path, file: &File) -> bool {
    let same = |there: std::fs::Metadata, here: std::fs::Metadata| {
        (there.dev(), there.ino()) == (here.dev(), here.ino())
    };
    let both = || -> io::Result<bool> { Ok(same(std::fs::metadata(path)?, file.metadata()?)) };
    both().unwrap_or(false)
}

/// The process that holds a `flock` on a file, in the words of `/proc/locks`:
/// `1: FLOCK  ADVISORY  WRITE 4711 fe:01:1048604 0 EOF`. Those that wait have an arrow behind the number.
///
/// Some file systems show another device there than `stat` does, so the inode alone counts if only one lock has it.
fn holder_in(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let ino = ino.to_string();
    let mut same_inode = Vec::new();
    for line in locks.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { continue };
        let Some((on, inode)) = file.rsplit_once(':') else { continue };
        // 0 or -1: a process of another namespace.
        let Some(pid) = pid.parse::<u32>().ok().filter(|pid| *pid > 0) else { continue };
        if inode != ino {
            continue;
        }
        if on == device {
            return Some(pid);
        }
        same_inode.push(pid);
    }
    if let [pid] = same_inode[..] { Some(pid) } else { None }
}

#[cfg(test)]
mod tests;
