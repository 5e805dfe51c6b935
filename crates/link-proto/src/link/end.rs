//! How a link ends, and what a peer can do to end it.

use std::time::Duration;

use crate::code::{Code, words};
use crate::frame::{Abort, FrameError};

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// Nothing was heard for the liveness bound.
    DeadPeer {
        /// For how long it had been silent.
        silent: Duration,
    },
    /// The peer said goodbye.
    Goodbye(Abort),
    /// This side said goodbye.
    Closed(Abort),
    /// The carrier ended or failed without a goodbye.
    CarrierLost {
        /// What the carrier said.
        message: String,
        /// For how long it had been silent.
        silent: Duration,
    },
    /// The peer broke a rule of the wire.
    Protocol(ProtocolError),
    /// The peer's hello did not come in time.
    NoHello,
}

words! {
    /// How a link ended, as it is counted.
    EndCause {
        /// Its peer fell silent.
        DeadPeer = "dead_peer",
        /// Its connection broke.
        CarrierLost = "carrier_lost",
        /// The peer said goodbye.
        Goodbye = "goodbye",
        /// This side said goodbye.
        Closed = "closed",
        /// The peer broke a rule of the wire.
        Protocol = "protocol",
        /// No hello came.
        NoHello = "no_hello",
    }
}

impl std::fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DeadPeer { silent } => write!(f, "silent for {:.1} s", silent.as_secs_f64()),
            Self::Goodbye(abort) => write!(f, "peer said goodbye ({}): {}", abort.code, abort.message),
            Self::Closed(abort) => write!(f, "closed ({}): {}", abort.code, abort.message),
            Self::CarrierLost { message, .. } => write!(f, "connection lost: {message}"),
            Self::Protocol(error) => write!(f, "{error}"),
            Self::NoHello => f.write_str("no hello in time"),
        }
    }
}

impl LinkEnd {
    /// What it is counted as.
    #[must_use]
    pub const fn cause(&self) -> EndCause {
        match self {
            Self::DeadPeer { .. } => EndCause::DeadPeer,
            Self::CarrierLost { .. } => EndCause::CarrierLost,
            Self::Goodbye(_) => EndCause::Goodbye,
            Self::Closed(_) => EndCause::Closed,
            Self::Protocol(_) => EndCause::Protocol,
            Self::NoHello => EndCause::NoHello,
        }
    }

    /// What each session of the link reads: the link's end as a reason.
    #[must_use]
    pub fn abort(&self) -> Abort {
        let millis = |silent: &Duration| u64::try_from(silent.as_millis()).ok();
        match self {
            Self::DeadPeer { silent } | Self::CarrierLost { silent, .. } => {
                Abort { silent_ms: millis(silent), ..Abort::new(Code::CONN_LOST, self.to_string()) }
            }
            Self::Goodbye(abort) | Self::Closed(abort) => abort.clone(),
            Self::Protocol(error) => Abort::new(error.code(), self.to_string()),
            Self::NoHello => Abort::new(Code::CONN_LOST, self.to_string()),
        }
    }
}

/// A rule of the wire that the peer broke; each ends the link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Bytes that are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The first frame was not a hello, or a second hello came.
    #[error("hello out of place")]
    Hello,
    /// An open whose id is not the next of its side.
    #[error("open with session id {0} out of order")]
    OpenOrder(u64),
    /// More opens than this side's hello allows, and as many again that were being refused.
    #[error("open of session {0}, far beyond what this side allows at once")]
    TooManyOpens(u64),
    /// A frame for a session that was never opened.
    #[error("frame for session {0}, which was never opened")]
    NeverOpened(u64),
    /// An answer to a session that awaits none.
    #[error("answer to session {0}, which awaits none")]
    Answer(u64),
    /// More bytes than were granted.
    #[error("session {0} sent more than its credit")]
    Credit(u64),
    /// Credit beyond what a window may be.
    #[error("session {0} was granted more than 2^31 - 1 bytes")]
    CreditOverflow(u64),
    /// Data or an end after the end.
    #[error("session {0} sent after its end")]
    AfterEnd(u64),
    /// An acceptor's end before its answer.
    #[error("session {0} was ended before it was answered")]
    EndBeforeAnswer(u64),
    /// An acknowledgement of an end that was not sent.
    #[error("session {0} acknowledged an end that was not sent")]
    EndAck(u64),
    /// Pings far beyond what a watch needs.
    #[error("more pings than the interval explains")]
    PingFlood,
}

impl ProtocolError {
    /// What the goodbye says: `protocol`, or `overload` for what is legal but far too much.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::PingFlood => Code::OVERLOAD,
            Self::Frame(_)
            | Self::Hello
            | Self::OpenOrder(_)
            | Self::TooManyOpens(_)
            | Self::NeverOpened(_)
            | Self::Answer(_)
            | Self::Credit(_)
            | Self::CreditOverflow(_)
            | Self::AfterEnd(_)
            | Self::EndBeforeAnswer(_)
            | Self::EndAck(_) => Code::PROTOCOL,
        }
    }
}
