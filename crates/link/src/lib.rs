//! A stream multiplexer for proxies, tunnels and RPC fabrics: many two-way byte streams over one connection that
//! knows when its peer is gone.
//!
//! A **link** is one authenticated connection between two processes, over any carrier that reads and writes. It
//! carries **sessions**, each an `AsyncRead + AsyncWrite` with credit of its own, so a reader that stops holds up
//! itself alone. A hop that **splices** two sessions passes bytes, credit, ends, acknowledgements and aborts between
//! two links, so a chain of links behaves as one.
//!
//! # The one big idea: a hop watches itself, and every end says where it began
//!
//! No deadline, keepalive or idle limit crosses a hop. Each link asks its own peer, when it hears nothing, whether it
//! lives, and declares it dead within a stated bound ([`Liveness`]: 15 s by default). Whatever ends a session before
//! its own end travels as an [`Abort`]: a [`Code`] from one closed list (or your own, [`Code::app`]), a message, and
//! the number of links it has crossed, which is the index of the hop that it comes from. A cut never looks like a
//! clean end: [`Session::finish`] says that the far *reader*, however many links away, has taken every byte.
//!
//! # Quick start
//!
//! ```
//! use hopline_link::{Config, Mux, Side};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let (here, there) = tokio::io::duplex(64 << 10); // or two ends of a TcpStream
//! let client = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "client"))?;
//! let server = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "server"))?;
//! tokio::spawn(async move {
//!     while let Some(mut session) = server.accept().await {
//!         session.answer("");
//!         let mut name = String::new();
//!         session.read_to_string(&mut name).await?;
//!         session.write_all(format!("hello, {name}").as_bytes()).await?;
//!         session.shutdown().await?;
//!     }
//!     Ok::<_, std::io::Error>(())
//! });
//! let mut session = client.open_within("greet", std::time::Duration::from_secs(5)).await?;
//! session.write_all(b"world").await?;
//! session.shutdown().await?;
//! let mut greeting = String::new();
//! session.read_to_string(&mut greeting).await?;
//! assert_eq!(greeting, "hello, world");
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```
//!
//! `examples/` goes on from there, and each runs as a test: deadlines across two hops, a dead middle hop, a
//! relay in sixty lines.
//!
//! # What to take
//!
//! | you have | take |
//! |---|---|
//! | one connection | [`Mux`]: open with a header, accept, drain, close |
//! | a peer to keep connected | a new [`Mux`] whenever [`Mux::closed`] resolves, paced by a [`Backoff`] |
//! | a session to carry on | [`splice()`] |
//! | a network that you don't trust | TLS as the carrier: a [`Mux`] takes whatever reads and writes |
//! | metrics | [`Mux::info`], [`Session::counters`], [`Mux::watch`] |
//!
//! # Deadlines and giving up
//!
//! - The dialing side picks the liveness of a link: `Liveness::NAT`, or `"nat,timeout=40s".parse()`. A listener with
//!   no setting of its own adopts it.
//! - An open is bounded by who opens: [`Mux::open_within`].
//! - [`Session::set_read_deadline`] and [`Session::set_write_deadline`] are local, as on a socket: `TimedOut`, and the
//!   session lives.
//! - [`Session::abort`] ends a session at both ends, through every hop, behind the bytes that went before.
//!
//! A peer that died is [`SessionError::DeadPeer`] for the sessions of its own link, and across further links an
//! abort with `conn_lost` and the hop.
//!
//! # Cancel safety
//!
//! Every async method may be dropped at any await, and called again; `tests/api/cancel.rs` drops each of them. What
//! dropping means:
//!
//! | methods | dropped while they wait |
//! |---|---|
//! | [`Mux::up`], [`Mux::closed`], [`Mux::driver_done`], [`Mux::accept`], [`Session::answered`], [`Session::aborted`], [`Session::writable`], [`Session::sending`] | nothing has happened |
//! | [`Session::read_bytes`], reads and writes of `AsyncRead` and `AsyncWrite` | no byte is lost or sent twice; `write_all` and `read_exact` are loops of tokio's and forget how far they came |
//! | [`Session::write_bytes`] | nothing of its argument was written, and it is dropped |
//! | [`Session::finish`] | the end is sent all the same; call it again to wait |
//! | [`Mux::open_within`] | the open is aborted with `peer_reset` |
//! | [`Spliced`] | joined sessions stay joined |
//! | [`close_all`] | the goodbye goes on |
//!
//! # The main decision inside: one lock per link, and no task but its driver
//!
//! All protocol logic lives in [`hopline_link_proto::Link`], which is pure. This crate puts one such core behind
//! one mutex, shared by the link's driver and the handles of its sessions. Nothing waits while it holds the lock:
//! a call changes the core's state, collects whom to wake, lets go and wakes. The driver is one future that reads
//! the carrier, tells the core the time, and writes what the core gives; no protocol decision is made in it.
//!
//! A splice needs no task either: it runs inside the drivers of its two links, when an event of either of its
//! sessions says that something can move. Two locks are then held, always in the same order. `models.rs` tries every
//! order of these meetings under loom.
//!
//! # Foreign types
//!
//! Public signatures name types of `bytes` and `tokio`. What goes over the carrier is in `WIRE.md`.

mod backoff;
mod carrier;
mod deadline;
mod driver;
mod error;
mod halves;
mod inbox;
#[cfg(test)]
mod models;
mod mux;
mod session;
mod shared;
mod splice;
mod sync;

pub use backoff::Backoff;
pub use carrier::{reset_if_dead, tune_tcp};
pub use driver::Driver;
pub use error::{OpenFailed, SessionError};
pub use halves::{ReadHalf, ReuniteError, WriteHalf};
pub use hopline_link_proto::{
    Abort, Code, Config, ConfigError, Counters, EndCause, Limits, LinkEnd, Liveness, LivenessError,
    OpenError, Peer, Reason, SessionCounters, SessionId, Side, SpliceEnd,
};
pub use mux::{Info, LinkFailed, Mux, Status, close_all};
pub use session::Session;
pub use splice::{SpliceOutcome, SpliceSide, Spliced, splice};
