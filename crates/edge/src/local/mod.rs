//! The sidecar's local sockets: where applications connect. Knows nothing of links and sessions.
//!
//! - [`LocalListener`]: one mapping's socket, unix or TCP;
//! - [`LocalStream`]: one application's connection;
//! - [`gone`] and [`end_of_stream`]: whether an application has only ended its direction, or has left.

mod gone;
pub mod group;
pub(crate) mod listener;
mod stream;

pub use gone::{StreamEnd, end_of_stream, gone};
pub use listener::{AcceptTrouble, BindError, BindFault, ListenSpec, ListenerHealth, LocalListener, spec};
pub use stream::LocalStream;
