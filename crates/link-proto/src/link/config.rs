//! How one end of a link is set up.

use crate::limits::{Limits, MAX_BODY, MAX_CREDIT, MAX_NAME};
use crate::liveness::Liveness;

/// Which side of the carrier this is. The dialer's sessions have odd ids, and its liveness setting is the one
/// that a listener without a setting of its own adopts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Dialer,
    /// The side that accepted.
    Listener,
}

/// How one end of a link is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which side this is.
    pub side: Side,
    /// This side's liveness. `None` on a listener adopts the dialer's; on a dialer it is the default preset.
    pub liveness: Option<Liveness>,
    /// Random per process start: tells a restarted process from the one before.
    pub instance: [u8; 16],
    /// What this side calls itself in its hello, at most 255 bytes. A claim only; proof is the carrier's business.
    pub name: String,
    /// What the peer may make this side hold.
    pub limits: Limits,
    /// Where session ids begin, in sessions opened; 0 but in tests of the ids' end.
    pub first_session: u64,
}

impl Config {
    /// The defaults for a side.
    #[must_use]
    pub fn new(side: Side, instance: [u8; 16], name: impl Into<String>) -> Self {
        Self {
            side,
            liveness: None,
            instance,
            name: name.into(),
            limits: Limits::default(),
            first_session: 0,
        }
    }
}

/// A [`Config`] that can't work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The name is longer than 255 bytes.
    #[error("a link's name has at most 255 bytes")]
    Name,
    /// Not `0 < early_credit <= first_window <= max_window < 2^31`.
    #[error("windows must rise from early_credit, above 0, over first_window to max_window, below 2^31")]
    Windows,
    /// Headers have at most 4,096 bytes.
    #[error("header_bytes is at most 4096")]
    Header,
}

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        if self.name.len() > MAX_NAME {
            return Err(ConfigError::Name);
        }
        if limits.early_credit == 0
            || limits.early_credit > limits.first_window
            || limits.first_window > limits.max_window
            || u64::from(limits.max_window) > MAX_CREDIT
        {
            return Err(ConfigError::Windows);
        }
        if limits.header_bytes as usize > MAX_BODY {
            return Err(ConfigError::Header);
        }
        Ok(())
    }
}
