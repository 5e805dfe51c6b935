//! A disk that fails when a test wants it to: below one folder, from the nth change on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

static FAULTS: Mutex<Vec<Fault>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Fault {
    folder: PathBuf,
    /// Changes that still go well.
    good: usize,
    met: bool,
}

/// The disk below a folder fails for as long as this lives.
#[derive(Debug)]
pub(crate) struct Failing(PathBuf);

impl Failing {
    /// Lets so many changes below `folder` go well, and no further one.
    pub(crate) fn after(folder: &Path, good: usize) -> Self {
        faults().push(Fault { folder: folder.to_owned(), good, met: false });
        Self(folder.to_owned())
    }

    /// Whether a change has failed.
    pub(crate) fn met(&self) -> bool {
        faults().iter().any(|fault| fault.folder == self.0 && fault.met)
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        faults().retain(|fault| fault.folder != self.0);
    }
}

pub(super) fn fault(action: &'static str, path: &Path) -> io::Result<()> {
    for fault in faults().iter_mut().filter(|fault| path.starts_with(&fault.folder)) {
        match fault.good.checked_sub(1) {
            Some(good) => fault.good = good,
            None => {
                fault.met = true;
                return Err(if action == "sync" { Errno::IO } else { Errno::NOSPC }.into());
            }
        }
    }
    Ok(())
}

fn faults() -> MutexGuard<'static, Vec<Fault>> {
    FAULTS.lock().unwrap_or_else(PoisonError::into_inner)
}
