//! What can be wrong with a state folder; shared by every operation that reads or writes one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::denied::Denied;

/// A state folder could not be read or written. Each text is one line and names the file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file that others could read or change.
    #[error("{path} has mode {mode:04o}, so others could read or change it; run: chmod 600 {path}")]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The operating system refused this user.
    #[error("cannot {action} {path}: permission denied: {denied}")]
    Denied {
        /// What was tried, a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Whose it is, who asks, and what to do.
        denied: Denied,
    },
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// A file is empty, cut off or not what its name says.
    #[error("{path} is damaged ({fault}); {remedy}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; never its contents.
        fault: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Another process has held the folder's lock for longer than this one may wait.
    #[error("{path} was still locked by {holder} after {} s; nothing was changed", waited.as_secs())]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Who holds it, as far as the system tells.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// One of the two files of the certificate authority is gone. A new one would disown every machine.
    #[error(
        "{present} is there but {missing} is missing; restore it from a backup (if no machine ever joined: delete {present})"
    )]
    AuthorityIncomplete {
        /// The file that is there.
        present: PathBuf,
        /// The file that is not.
        missing: PathBuf,
    },
    /// Tokens or machines are there, but the authority that they belong to is gone.
    #[error(
        "{folder} holds tokens or machines but neither ca.pem nor ca.key; restore both from a backup, or start with an empty folder"
    )]
    AuthorityLost {
        /// The state folder.
        folder: PathBuf,
    },
    /// The authority's ten years are over, by this machine's clock.
    #[error(
        "the certificate authority in {path} expired on {on}, and this machine's clock says {now}; set the clock if it is wrong, else start a new state folder and join every machine again"
    )]
    AuthorityExpired {
        /// The certificate.
        path: PathBuf,
        /// The date, UTC.
        on: String,
        /// Today, by the clock.
        now: String,
    },
    /// No relay has ever used this folder.
    #[error(
        "{folder} holds no relay state (ca.pem is missing): give the folder of the relay with --state, or start the relay first: hopline relay --state {folder}"
    )]
    NotRelayState {
        /// The folder.
        folder: PathBuf,
    },
    /// There is no such folder.
    #[error(
        "{folder} does not exist: give the folder of the relay with --state (its default differs from user to user), or start the relay first: hopline relay --state {folder}"
    )]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// Something else has the folder's name.
    #[error("{path} is a file, not a folder; give the state folder with --state")]
    NotAFolder {
        /// What is there.
        path: PathBuf,
    },
    /// The folder belongs to the other kind of process; both keep a `ca.pem`.
    #[error("{folder} holds {found}: keep the state of a relay and of a machine in two folders")]
    OtherKind {
        /// The folder.
        folder: PathBuf,
        /// The file that says so.
        found: &'static str,
    },
    /// A newer program has written the folder in a way that this one does not know.
    #[error(
        "{folder} was written by a newer hopline (state version {found}, this program knows {known}); run that version, or upgrade this one"
    )]
    Newer {
        /// The folder.
        folder: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// The cryptographic library failed; nothing that an input can cause.
    #[error("cannot {action}: {reason}")]
    Crypto {
        /// What was tried, a verb phrase.
        action: &'static str,
        /// The library's text.
        reason: String,
    },
}

impl StateError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::Denied { action, path: path.to_owned(), denied: Denied::find(action, path) };
        }
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, fault: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), fault: fault.into(), remedy: "restore it from a backup" }
    }

    pub(crate) fn crypto(action: &'static str, reason: &impl ToString) -> Self {
        Self::Crypto { action, reason: reason.to_string() }
    }

    /// The same, with another remedy for what is damaged.
    pub(crate) fn or_else(self, other: &'static str) -> Self {
        if let Self::Damaged { path, fault, .. } = self {
            Self::Damaged { path, fault, remedy: other }
        } else {
            self
        }
    }
}
