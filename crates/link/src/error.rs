//! Why a read or write of a session failed, and why an open did.

use std::io;
use std::time::Duration;

use hopline_link_proto::{Abort, Code, LinkEnd, OpenError, SessionId};

use crate::shared::LinkState;

/// What is inside the [`io::Error`] of a session's reads and writes.
///
/// | variant | [`io::ErrorKind`] | the session |
/// |---|---|---|
/// | `DeadPeer` | `ConnectionAborted` | is over |
/// | `Aborted` with `conn_lost` | `ConnectionAborted` | is over |
/// | `Aborted` with any other code | `ConnectionReset` | is over |
/// | `AfterEnd` | `BrokenPipe` | lives: its end was called |
/// | `ReadDeadline`, `WriteDeadline` | `TimedOut` | lives: set a new deadline and go on |
///
/// `TimedOut` is always a deadline of this handle: an abort that says `timeout` is a reset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The peer of the session's own link fell silent and was declared dead. Sessions that cross further links read
    /// such a death there as [`SessionError::Aborted`] with `conn_lost` and the number of links between.
    #[error("the peer is dead: silent for {:.1} s", silent.as_secs_f64())]
    DeadPeer {
        /// For how long nothing had been heard from it.
        silent: Duration,
    },
    /// Either side gave up, or a link on the way was lost.
    #[error(transparent)]
    Aborted(#[from] Abort),
    /// A write after the end.
    #[error("write after the end of the session")]
    AfterEnd,
    /// The read deadline has passed; what arrives is kept for a read under a new one.
    #[error("the read deadline has passed")]
    ReadDeadline,
    /// The write deadline has passed; nothing of the call's bytes was taken.
    #[error("the write deadline has passed")]
    WriteDeadline,
}

impl SessionError {
    /// The reason inside an error of a session's read or write; `None` for an error that is not a session's.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The reason as an abort, to pass it on; `None` while the session lives.
    #[must_use]
    pub fn abort(&self) -> Option<Abort> {
        match self {
            Self::DeadPeer { silent } => Some(LinkEnd::DeadPeer { silent: *silent }.abort()),
            Self::Aborted(abort) => Some(abort.clone()),
            Self::AfterEnd | Self::ReadDeadline | Self::WriteDeadline => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::DeadPeer { .. } => io::ErrorKind::ConnectionAborted,
            Self::Aborted(abort) if abort.code == Code::CONN_LOST => io::ErrorKind::ConnectionAborted,
            Self::Aborted(_) => io::ErrorKind::ConnectionReset,
            Self::AfterEnd => io::ErrorKind::BrokenPipe,
            Self::ReadDeadline | Self::WriteDeadline => io::ErrorKind::TimedOut,
        }
    }

    /// What a failed call of the core means to the session's handle.
    pub(crate) fn from_core(state: &LinkState, id: SessionId, abort: Abort) -> Self {
        if state.link.abort_reason(id).is_none() {
            // The core refuses nothing else of a session that lives.
            return Self::AfterEnd;
        }
        match state.link.end_of_link() {
            Some(end @ LinkEnd::DeadPeer { silent }) if end.abort() == abort => {
                Self::DeadPeer { silent: *silent }
            }
            _ => Self::Aborted(abort),
        }
    }
}

impl From<SessionError> for io::Error {
    fn from(error: SessionError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// Why an open that waits for its answer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFailed {
    /// The far side, or a hop on the way, refused it or was lost. `abort.hops` says where.
    #[error("refused: {0}")]
    Refused(Abort),
    /// Nothing has gone out.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// No answer within the caller's time. What had gone out was aborted with `timeout`.
    #[error("no answer within {:.1} s", within.as_secs_f64())]
    TimedOut {
        /// The caller's time.
        within: Duration,
    },
}
