//! The status address, shared by relay and edge: what a process knows about itself, said to people and programs.
//!
//! **The main decision: the status address only reads, and it is closed to the network.** It changes nothing, so
//! it needs no secret; and since it needs no secret it must not be reachable by strangers: it listens on loopback
//! or on a unix socket (0600), never elsewhere. A web page on another site could still reach loopback through the
//! user's browser (DNS rebinding), so a request whose `Host` is neither an IP address, `localhost` nor a configured
//! name is refused. Someone who looks must never slow what they look at: connections are few (64), short (one
//! request, 30 s in all) and their headers small, and one snapshot is taken at a time and written off the threads that
//! carry traffic.
//!
//! Parts:
//!
//! - [`status`]: the words of `/status`, written and read by the same types, so that they cannot drift apart;
//! - [`Server`]: serves the page, `/status`, `/metrics`, `/healthz` and `/readyz` for a [`Source`];
//! - [`metrics`]: the same status for a machine that scrapes it;
//! - [`client`]: reads the status of a running process, for `hopline status`;
//! - [`text`]: the same status for people, in 80 columns.

pub mod client;
mod limits;
pub mod metrics;
mod page;
mod server;
pub mod status;
pub mod text;

pub use limits::LIMITS;
pub use server::{
    Address, CONNECTION_TIMEOUT, HEADER_TIMEOUT, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS, ServeError,
    Server, Source,
};
