//! One module for each command.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod dial;
pub(crate) mod join;
pub(crate) mod machine;
pub(crate) mod relay;
pub(crate) mod renewal;
pub(crate) mod status;
pub(crate) mod token;
pub(crate) mod up;
