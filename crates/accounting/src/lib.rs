//! What a process keeps account of while it carries sessions: counters, and one log line per session that is over.
//!
//! **The main decision: a counter is a fixed set of integers, one for each word of a closed list.** Nothing that a peer
//! chooses makes an entry, so memory and series are bounded whatever the traffic, and counting is one atomic addition:
//! no lock, no allocation, nothing that the data path could wait for. Edge and relay count here; `admin` reads the
//! counters when somebody asks for `/status` or `/metrics`.
//!
//! - [`AbortCounter`], [`OpenCounter`], [`ByteCounter`], [`EndCounter`]: sessions, opens, bytes and links;
//! - [`access`]: the access line;
//! - [`log_lines`]: log lines that could not be written.

pub mod access;
mod counters;
pub mod log_lines;

pub use counters::{AbortCounter, ByteCounter, EndCounter, HOPS, OpenCounter, hop};
