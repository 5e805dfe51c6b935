//! What the system lets this process have.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit on open files as it was at the start.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the soft limit on open files to the hard one. It is low by default for the sake of programs that use
/// `select`, which this is not.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = BEFORE.set(limit.current);
    if limit.current != limit.maximum {
        // Where it fails the old one is in force, as the log says.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Says what was made of it.
pub(crate) fn log_open_files() {
    let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let before = shown(BEFORE.get().copied().flatten());
    tracing::debug!(limit = shown(getrlimit(Resource::Nofile).current), before, "limit on open files");
}
