//! What a machine may do.

use crate::name::{Pattern, ServiceName};

/// What a machine may do, by the relay's policy. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Grants {
    /// The services that it may publish.
    pub publish: Vec<Pattern>,
    /// The services that it may dial.
    pub dial: Vec<Pattern>,
}

impl Grants {
    /// Whether the machine may publish this service.
    #[must_use]
    pub fn may_publish(&self, service: &ServiceName) -> bool {
        self.publish.iter().any(|pattern| pattern.matches(service.as_str()))
    }

    /// Whether the machine may dial this service.
    #[must_use]
    pub fn may_dial(&self, service: &ServiceName) -> bool {
        self.dial.iter().any(|pattern| pattern.matches(service.as_str()))
    }
}
