//! Real TLS over loopback: joins, links, impostors, and the files that are left behind.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test panics on whatever it does not expect, helpers included"
)]

mod clock;
mod common;
mod folder;
mod impostors;
mod join;
