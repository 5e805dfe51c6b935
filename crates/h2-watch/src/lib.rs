//! HTTP/2 and gRPC, read in passing: counters, hints, and a cut that says why.
//!
//! A sidecar carries an application's connection and may look at it. This crate is the looking, and its one decision is
//! that looking can't go wrong for the bytes: it is given references, it gives back numbers. It reads heads of frames
//! and header blocks; of bodies it reads the five bytes that say how long a message is, and skips the rest. It keeps no
//! path, no value, no message: a field that matters is reduced to a class or a number when it is read ("is a path",
//! "grpc-go", "2,999,986 µs"). Where it can't follow it gives up on that connection, for good, and says so.
//!
//! [`MappingWatch`] stands for one `connect:` entry. It makes a [`Watcher`] for each connection, which takes the bytes
//! of both directions in any pieces, and folds what they counted into [`Counters`] and [`Hint`]s. [`Watcher::explain`]
//! gives the bytes with which a cut can end each open call as UNAVAILABLE with the reason.
//!
//! Pure: no I/O, no clock, no task, no lock. What both ends can make it hold is bounded by [`Limits`].

mod advice;
mod connection;
mod evidence;
mod explain;
mod field;
mod flow;
mod hints;
mod hpack;
mod limits;
mod mapping;
mod pings;
mod reader;
mod status;
mod stream;
mod tally;
#[cfg(feature = "testkit")]
pub mod testkit;
mod watcher;

pub use self::evidence::HintKind;
pub use self::explain::Cause;
pub use self::field::Implementation;
pub use self::hints::{Hint, QUIET};
pub use self::limits::Limits;
pub use self::mapping::{Inspected, MappingWatch};
pub use self::status::Status;
pub use self::tally::{Counters, Histogram};
pub use self::watcher::{EndedBy, GaveUp, Inspect, Watcher};
