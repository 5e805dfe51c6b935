//! The relay: the only process that listens on a network.
//!
//! # The main decision: decide in a core, carry in the link
//!
//! Who serves what, who may dial whom, which agent gets the next session and which open waits is decided by
//! [`core::Router`], which is pure. What a session carries never comes by here: once an open has its agent, the
//! two sessions are spliced inside the link crate, and this crate hears of them again when they end. So the relay
//! proper is small: it accepts carriers, proves who is at their other end, and asks the router.
//!
//! One task accepts carriers; one task for each link accepts its sessions; one for each control session speaks
//! with its edge; one small task for each session waits for its end, to count it.

mod control;
pub mod core;
mod handshakes;
mod hub;
mod limits;
mod links;
mod listen;
mod metrics;
mod news;
mod records;
mod reload;
mod routing;
mod sockets;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hopline_admin::{Address, Server};
use hopline_identity::{RelayState, StateError};
use hopline_link::{Code, Limits, Liveness, close_all};
use hopline_names::MachineName;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::hub::Hub;

pub use limits::LIMITS;
pub use reload::Reloaded;

/// How long the cut at a drain's deadline may take to be counted.
const CUT: Duration = Duration::from_millis(100);
/// How often the state folder is looked through for tokens that have expired.
const TIDY_EVERY: Duration = Duration::from_secs(60);
/// How long links get to say goodbye when the relay stops.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a relay is set up with.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Where edges connect: `HOST:PORT`, port 0 for any. `[::]` is every address of IPv6 and of IPv4.
    pub listen: String,
    /// The state folder: authority, tokens, machines. Made if it is missing.
    pub state: PathBuf,
    /// The relay's name, shown to its edges.
    pub name: MachineName,
    /// The status address.
    pub admin: Option<Address>,
    /// Host names under which the status is asked for, beside IP addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// The relay's own liveness; `None` adopts what each edge asks for.
    pub liveness: Option<Liveness>,
    /// For how long an agent's return is waited for.
    pub hold: Duration,
    /// How long an agent may take to answer an open; `None` leaves that to the sidecar.
    pub answer_timeout: Option<Duration>,
    /// How long open sessions may run on when the relay stops: what [`Relay::drain_time`] says.
    pub drain: Duration,
    /// What each link may make the relay hold.
    pub limits: Limits,
}

impl RelayConfig {
    /// The defaults: port 7443 of every address, no status address, 10 s of `hold`.
    #[must_use]
    pub fn new(state: impl Into<PathBuf>) -> Self {
        Self {
            listen: "[::]:7443".to_owned(),
            state: state.into(),
            name: MachineName::new("relay").expect("it keeps the rule"),
            admin: None,
            admin_hosts: Vec::new(),
            liveness: None,
            hold: Duration::from_secs(10),
            answer_timeout: None,
            drain: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

/// Why a relay does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
    /// The address for edges.
    #[error("can't listen on {address}: {error}")]
    Listen {
        /// As it was given.
        address: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The status address.
    #[error(transparent)]
    Admin(#[from] hopline_admin::ServeError),
}

/// A running relay. Dropping it stops it without a goodbye; see [`Relay::shutdown`].
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    hub: Arc<Hub>,
    admin: Option<Address>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Relay {
    /// Opens the state folder, listens, and runs until [`Relay::shutdown`]. An address that is busy, or that this machine
    /// does not have yet, is tried again each second.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(config: RelayConfig) -> Result<Self, StartError> {
        let state = RelayState::open_when_free(&config.state, &config.name).await?;
        let server = match &config.admin {
            Some(address) => Some(Server::bind(address).await?.allow_hosts(&config.admin_hosts)),
            None => None,
        };
        let hub = Arc::new(Hub::new(state, &config));
        let sockets = listen::bind(&hub, &config.listen)
            .await
            .map_err(|error| StartError::Listen { address: config.listen.clone(), error })?;
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(listen::run(Arc::clone(&hub), config.listen.clone(), sockets, stopped.clone()));
        tasks.spawn(records::watch(Arc::clone(&hub)));
        tasks.spawn(routing::keep_time(Arc::clone(&hub)));
        tasks.spawn(keep_tidy(hub.identity.clone()));
        let admin = server.as_ref().map(|server| server.local_addr().clone());
        if let Some(server) = server {
            let source = status::Source(Arc::clone(&hub));
            // It is served until the very end: a drain is to be seen.
            tasks.spawn(server.serve(source, std::future::pending()));
        }
        Ok(Self { config, hub, admin, stop, tasks })
    }

    /// Where edges connect, with the real port; `None` while the address can't be had. Of two, that of IPv6.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.hub.listens().ok()?.first().copied()
    }

    /// The status address, with the real port.
    #[must_use]
    pub fn admin_addr(&self) -> Option<&Address> {
        self.admin.as_ref()
    }

    /// Takes no new sessions and no new links from now on: edges are told, opens that wait are refused with
    /// `draining`, and what is open keeps its bytes until `deadline`, when it ends with `drain_deadline`. Resolves
    /// when no session is left, at the latest at the deadline; then call [`Relay::shutdown`]. Cancel safe: the drain
    /// goes on.
    pub async fn drain(&self, deadline: Duration) {
        tracing::info!(?deadline, "draining");
        self.stop.send_replace(true);
        self.hub.begin_drain(deadline);
        // A moment more, so that the cut comes from the links, with its reason.
        if tokio::time::timeout(deadline + CUT, self.hub.wait_quiet()).await.is_err() {
            tracing::warn!("some sessions did not end with the drain");
        }
    }

    /// Says goodbye on every link, so that each session ends with `shutdown` at both its ends, and stops.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        let links = self.hub.take_links();
        if !close_all(&links, Code::SHUTDOWN, "the relay stops", GOODBYE).await {
            tracing::warn!("some links did not take their goodbye in time");
        }
        // Each session has ended with its links: its task counts it, and writes its access line.
        if tokio::time::timeout(CUT, self.hub.wait_quiet()).await.is_err() {
            tracing::warn!("some sessions were not counted out");
        }
        self.tasks.shutdown().await;
        tracing::info!("relay stopped");
    }
}

/// Takes away what has expired in the state folder. A folder that can't be written now is another time's matter.
async fn keep_tidy(state: RelayState) {
    let mut looks = tokio::time::interval(TIDY_EVERY);
    loop {
        looks.tick().await;
        let state = state.clone();
        match tokio::task::spawn_blocking(move || state.tidy()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the state folder was not tidied"),
            Err(error) => tracing::error!(%error, "the state folder was not tidied"),
        }
    }
}
