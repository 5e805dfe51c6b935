//! The edge: sidecar mappings, agent services, links to the relay.

pub mod forward;
pub mod local;
