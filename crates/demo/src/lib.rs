//! `hopline demo`: a gRPC service, a whole path around it in one process, and a table of promises measured.
//!
//! The main decision: **the demo is an application, not a test of the inside.** It starts a relay, two edges
//! and a gRPC server in the way that the binary starts them, and then knows of them only what any
//! application on the machine knows: a unix socket, a TCP port, and the address of a status page that it
//! reads over HTTP. What it prints was seen from there.
//!
//! ```text
//! rows (tonic client) -- unix socket, TCP -- sidecar edge -- relay -- blackhole -- agent edge -- service
//!        '--------------------------- the same calls, directly ---------------------------------'
//! ```
//!
//! - [`serve`] is the service: calls that answer, stream, hash, never return, and `Report`, by which the
//!   client learns when a handler's context ended.
//! - `rows` measures one promise each. Where a promise is a matter of milliseconds, the same call is made
//!   directly too, and a row says how many tries it took: the promise's number is not loosened for a busy
//!   machine.
//! - [`Blackhole`] is the dead hop: a TCP proxy that can be told to swallow every byte.
//! - `--break ROW` shows that the row can turn red. It puts one real fault where that row looks (a proxy that
//!   delays, cuts, flips a bit or connects twice; a hop that does not die); the measuring stays the same.
//! - `path` starts and stops everything in between, and is the only module that knows relay and edge.

mod blackhole;
mod clock;
mod fault;
mod path;
pub mod proto;
mod records;
mod rows;
mod run;
mod server;
mod service;
mod status;
mod table;
mod target;

pub use blackhole::Blackhole;
pub use clock::now_us;
pub use path::Path;
pub use rows::Row;
pub use run::{DemoOptions, run};
pub use server::{Listener, MAX_MESSAGE, ServeError, serve};
pub use target::Target;
