//! What surrounds a file: its name, and the variables that defaults depend on.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The surroundings of a file. Passed in, so that this crate reads no environment.
#[derive(Clone, Debug)]
pub struct Env {
    pub(crate) file: Arc<str>,
    pub(crate) runtime_dir: Option<PathBuf>,
    pub(crate) working_dir: Option<PathBuf>,
}

impl Env {
    /// `file` is the name that faults begin with; no file of that name needs to exist.
    #[must_use]
    pub fn new(file: &str) -> Self {
        // A fault is one line, whatever the file is called.
        Self { file: file.escape_debug().to_string().into(), runtime_dir: None, working_dir: None }
    }

    /// Sets the value of `XDG_RUNTIME_DIR`, below which sockets lie by default.
    ///
    /// An empty or relative one counts as not set, as its specification says.
    #[must_use]
    pub fn runtime_dir(mut self, dir: impl AsRef<OsStr>) -> Self {
        let dir = Path::new(dir.as_ref());
        self.runtime_dir = dir.is_absolute().then(|| dir.to_owned());
        self
    }

    /// Sets the folder below which relative paths lie.
    #[must_use]
    pub fn working_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.working_dir = Some(dir.as_ref().to_owned());
        self
    }
}
