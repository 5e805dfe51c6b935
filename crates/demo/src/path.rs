//! The path under the rows: relay, agent and sidecar, started as the binary starts them. The only module that
//! knows their crates.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use tokio::time::Instant;

use crate::blackhole::Blackhole;

/// The service as the sidecar's unix mapping names it.
pub(crate) const SERVICE: &str = "demo";
/// A mapping whose service nobody publishes.
pub(crate) const NOBODY: &str = "nobody";

/// A running path; [`Path::shutdown`] ends it in order.
#[derive(Debug)]
pub struct Path {
    /// The sidecar's unix socket for the service.
    pub socket: PathBuf,
    /// The sidecar's TCP mapping of the same service.
    pub tcp: SocketAddr,
    /// The sidecar's unix socket for a service that nobody publishes.
    pub nobody: PathBuf,
    /// The sidecar's status page, `http://HOST:PORT`.
    pub status: String,
    /// Stands between agent and relay.
    pub hop: Blackhole,
    /// From when on the relay refuses a name that it has never seen, instead of holding the open.
    pub offline_from: Instant,
}

impl Path {
    /// Starts relay, agent and sidecar with all their files in `folder`; the agent forwards to `server`.
    ///
    /// # Errors
    ///
    /// When a part does not start, with the part's name.
    #[expect(clippy::unused_async, reason = "relay and edge are started here once their crates are there")]
    pub async fn start(_folder: &std::path::Path, _server: SocketAddr) -> anyhow::Result<Self> {
        bail!("the relay and the edge are not built yet")
    }

    /// Ends the edges, then the relay.
    #[expect(clippy::unused_async, reason = "relay and edge are stopped here once their crates are there")]
    pub async fn shutdown(self) {}
}
