//! Why a name has no addresses.

use std::time::Duration;

/// Why a name has no addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// A name server has said that there is no such name, or that it has no address.
    #[error("the name server {server} has no address of {asked}")]
    NotFound {
        /// Who said so.
        server: String,
        /// The names that were asked for: as written and with each search domain, in order.
        asked: String,
    },
    /// No name server has answered.
    #[error("no answer from the name server {servers} within {:.1} s", .within.as_secs_f64())]
    Silent {
        /// Who was asked.
        servers: String,
        /// For how long.
        within: Duration,
    },
    /// A name server has answered with a failure of its own.
    #[error("the name server failed: {failures}")]
    Failed {
        /// Who said what.
        failures: String,
    },
    /// The name can't be one.
    #[error("{host:?} is no host name: {problem}")]
    Name {
        /// As given.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An IPv6 address with a zone that this machine does not have.
    #[error("{host}: there is no network interface {zone:?}")]
    Zone {
        /// As given.
        host: String,
        /// The part behind the percent sign.
        zone: String,
    },
    /// As many as may already wait for the same name.
    #[error("{} lookups of {host} wait for its name server already", crate::MAX_WAITING)]
    Crowded {
        /// The name.
        host: String,
    },
    /// The query was dropped before its answer.
    #[error("the lookup of {host} was interrupted")]
    Interrupted {
        /// The name.
        host: String,
    },
}

impl ResolveError {
    /// Whether a name server has said it: not so a silent one, one that fails, or a limit of our own.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Name { .. } | Self::Zone { .. })
    }
}
