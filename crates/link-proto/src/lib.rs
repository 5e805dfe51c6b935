//! One link, pure.

mod code;
mod liveness;

pub use code::Code;
pub use liveness::{Liveness, LivenessError};
