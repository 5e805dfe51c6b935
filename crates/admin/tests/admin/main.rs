//! The status server and its client, on real sockets.

// The attribute tells clippy that helpers are test code too.
#[cfg(test)]
mod client;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod server;
#[cfg(test)]
mod statuses;
#[cfg(test)]
mod support;
