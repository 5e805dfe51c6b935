//! What can be wrong with a state folder; shared by every operation that reads or writes one.

use std::io;
use std::path::{Path, PathBuf};

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
    #[error("{path} is damaged ({fault}); restore it from a backup")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; never its contents.
        fault: String,
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
    /// The authority's ten years are over.
    #[error(
        "the certificate authority in {path} has expired; start a new state folder and join every machine again"
    )]
    AuthorityExpired {
        /// The certificate.
        path: PathBuf,
    },
    /// No relay has ever used this folder.
    #[error("{folder} holds no relay state (ca.pem is missing); is --state right?")]
    NotRelayState {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder belongs to the other kind of process; both keep a `ca.pem`.
    #[error("{folder} holds {found}: keep the state of a relay and of a machine in two folders")]
    OtherKind {
        /// The folder.
        folder: PathBuf,
        /// The file that says so.
        found: &'static str,
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
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, fault: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), fault: fault.into() }
    }

    pub(crate) fn crypto(action: &'static str, reason: &impl ToString) -> Self {
        Self::Crypto { action, reason: reason.to_string() }
    }
}
