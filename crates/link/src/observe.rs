//! What a pool or node tells whoever counts.

use std::fmt;
use std::time::Duration;

use hopline_link_proto::{Abort, LinkEnd, Peer};

use crate::error::OpenFailed;
use crate::pool::DialFailed;

/// Something happened. Names of peers are authenticated ones, so their number is bounded by who may connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observation<'a> {
    /// A link is up.
    LinkUp {
        /// The peer's authenticated name.
        peer: &'a str,
        /// What its hello said.
        hello: &'a Peer,
        /// This side dialled it.
        dialled: bool,
    },
    /// A link is over.
    LinkDown {
        /// The peer's name.
        peer: &'a str,
        /// How it ended.
        end: &'a LinkEnd,
        /// How long it had been up.
        after: Duration,
    },
    /// A ping has waited 2 s for its answer: no new session goes that way until the peer is heard again.
    LinkSuspect {
        /// The peer's name.
        peer: &'a str,
    },
    /// The peer takes no new sessions on a link; another is dialled.
    PeerDrains {
        /// The peer's name.
        peer: &'a str,
    },
    /// A dial failed.
    DialFailed {
        /// The peer's name.
        peer: &'a str,
        /// Why.
        error: &'a DialFailed,
    },
    /// A connection came in and did not become a link.
    AcceptFailed {
        /// Why.
        error: &'a DialFailed,
    },
    /// An open was answered, or failed.
    Opened {
        /// The peer's name.
        peer: &'a str,
        /// The outcome.
        result: Result<(), &'a OpenFailed>,
        /// From the call to the outcome.
        took: Duration,
    },
    /// The peer opened a session.
    Accepted {
        /// The peer's name.
        peer: &'a str,
    },
    /// A forwarded session is over.
    Forwarded {
        /// Why, if not clean.
        abort: Option<&'a Abort>,
        /// Bytes from the side that opened.
        forth: u64,
        /// Bytes the other way.
        back: u64,
    },
}

impl Observation<'_> {
    /// A stable word for each kind: a metric's label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::LinkUp { .. } => "link_up",
            Self::LinkDown { .. } => "link_down",
            Self::LinkSuspect { .. } => "link_suspect",
            Self::PeerDrains { .. } => "peer_drains",
            Self::DialFailed { .. } => "dial_failed",
            Self::AcceptFailed { .. } => "accept_failed",
            Self::Opened { result: Ok(()), .. } => "opened",
            Self::Opened { result: Err(_), .. } => "open_failed",
            Self::Accepted { .. } => "accepted",
            Self::Forwarded { abort: None, .. } => "forwarded",
            Self::Forwarded { abort: Some(_), .. } => "forward_aborted",
        }
    }
}

/// Hears of everything that a pool or node does; every closure `|observation| { ... }` is one.
///
/// It is called where things happen, with no lock held: it counts, and returns at once.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn observe(&self, observation: &Observation<'_>);
}

impl<F: Fn(&Observation<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, observation: &Observation<'_>) {
        self(observation);
    }
}

/// Nobody counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn observe(&self, _: &Observation<'_>) {}
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
