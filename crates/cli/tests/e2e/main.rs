//! The real binary, end to end: relay, agent and sidecar are processes of their own, the applications and servers
//! at their ends are sockets of this test. Names like F14 are rows of the field reports that a test covers, P and I
//! the promises and invariants of the design.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

mod abandoned;
mod access;
mod attacked;
mod cli;
mod counts;
mod deadlines;
mod dialling;
mod ends;
mod far;
mod garbage;
mod given_up;
mod goodbyes;
mod grpc;
mod harness;
mod inspect;
mod joining;
mod limits;
mod load;
mod logs;
mod loops;
mod machines;
mod memory;
mod names;
mod obeyed;
mod pairs;
mod refusals;
mod relay_keys;
mod reload;
mod resets;
mod returns;
mod secrets;
mod series;
mod signals;
mod silent;
mod slow_accept;
mod soak;
mod sockets;
mod state;
mod status_host;
mod terminal;
mod uncounted;
mod urgent;
mod waiting;
mod young;
