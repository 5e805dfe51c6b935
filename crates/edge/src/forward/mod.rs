//! The forward hop: from the agent to the server of a published service.

pub mod dial;
