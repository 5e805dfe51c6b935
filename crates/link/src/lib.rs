//! The tokio driver of a link: one loop per link, sessions as `AsyncRead + AsyncWrite`, splices.
//!
//! # The main decision: one lock per link, and no task but its driver
//!
//! All protocol logic lives in [`hopline_link_proto::Link`], which is pure. This crate puts one such core behind
//! one mutex, shared by the link's driver and the handles of its sessions. Nothing waits while it holds the lock:
//! a call changes the core's state, collects whom to wake, lets go and wakes. The driver is one future that reads
//! the carrier, tells the core the time, and writes what the core gives; no protocol decision is made in it.
//!
//! A [`splice()`] needs no task either: it runs inside the drivers of its two links, when an event of either of its
//! sessions says that something can move. Two locks are then held, always in the same order.
//!
//! # Cancel safety
//!
//! Every async method here may be dropped at any await and called again: nothing is lost but the waiting.
//! [`Session::write_bytes`] is the one that takes its argument with it; it says so.
//!
//! ```
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use hopline_link::{Mux, Config, Side};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! let (here, there) = tokio::io::duplex(64 << 10);
//! let dialer = Mux::spawn(here, Config::new(Side::Dialer, [1; 16], "here"))?;
//! let listener = Mux::spawn(there, Config::new(Side::Listener, [2; 16], "there"))?;
//! dialer.up().await?;
//!
//! let mut ours = dialer.open(&b"what it is for"[..])?;
//! ours.write_all(b"hello").await?;
//! let mut theirs = listener.accept().await.ok_or("link is down")?;
//! theirs.answer(&b""[..]);
//! let mut five = [0; 5];
//! theirs.read_exact(&mut five).await?;
//! assert_eq!(&five, b"hello");
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
//! ```

mod auth;
mod backoff;
mod carrier;
mod deadline;
mod driver;
mod error;
mod forward;
mod halves;
#[cfg(test)]
mod models;
mod mux;
mod node;
mod observe;
mod pool;
mod session;
mod shared;
mod splice;
mod sync;
#[cfg(feature = "tls")]
mod tls;

pub use auth::{AuthError, Authenticate, Authenticated, Role, TrustedNames};
pub use backoff::Backoff;
pub use carrier::{BoxCarrier, BoxFuture, Carrier, Dial, tcp, tune_tcp, unix};
pub use driver::Driver;
pub use error::{OpenFailed, SessionError};
pub use forward::forward;
pub use halves::{ReadHalf, ReuniteError, WriteHalf};
pub use hopline_link_proto::{
    Abort, Code, Config, ConfigError, Counters, Limits, LinkEnd, Liveness, LivenessError, OpenError, Peer,
    SessionCounters, SessionId, Side, SpliceEnd,
};
pub use mux::{Info, LinkFailed, Mux, Status, close_all};
pub use node::{Arrived, Listen, Node, NodeBuilder, NodeConfig};
pub use observe::{Observation, Observer, Unobserved};
pub use pool::{DialFailed, Pool, PoolBuilder, PoolConfig};
pub use session::Session;
pub use splice::{SpliceOutcome, SpliceSide, Spliced, splice};
#[cfg(feature = "tls")]
pub use tls::MutualTls;
