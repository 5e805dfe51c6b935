//! The edge: the process beside applications and servers. It has the sidecar role, the agent role, or both.
//!
//! # The main decision: a byte pipe with a memory of why
//!
//! What an application says to its local socket is carried, never read: the edge waits for no whole frame of
//! anything, and what it has got goes on at once, before the far side has even answered. What the edge adds is at
//! the ends. An end stays an end, a reset becomes an abort and an abort a reset, so that a cut is never taken for
//! a clean close; and every fault is kept with its reason and its hop, for `/status`.
//!
//! # The rooms
//!
//! Each imports those that stand below it, and none imports another by way of others: `cargo xtask modules` says so.
//!
//! - `edge`: starts, drains, reloads and stops the rest;
//! - `status`: what the status address shows of the rooms below;
//! - `sidecar`, `agent`: the two roles, each with its sockets or services and its sessions. They say to `links` what the
//!   relays are to be told, and the agent is given what arrives;
//! - `links`: one link to each relay, dialled again for as long as the edge runs. It knows no role;
//! - `pump`: the session beside its connection, the same for both roles, and how a young session outlives its path;
//! - `inspect`: what applications say, read in passing; `trail`: how a loop is found; `figures`: what is counted of a
//!   mapping or a service;
//! - [`local`]: the sidecar's sockets; [`dial`]: TCP to a server or a relay.

mod agent;
pub mod dial;
mod edge;
mod figures;
mod inspect;
mod limits;
mod links;
pub mod local;
mod pump;
mod sidecar;
mod status;
mod trail;

pub use edge::{Edge, Reloaded, RenewError, StartError};
pub use limits::LIMITS;
pub use local::{BindError, LocalStream};
