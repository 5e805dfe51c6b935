//! The running edge: what it is made of, and how it starts, drains and stops.

mod reload;

use std::sync::Arc;
use std::time::Duration;

use hopline_admin::Address;
use hopline_config::{EdgeConfig, Endpoint, MappingConfig};
use hopline_dns::{Resolver, Sources};
use hopline_identity::Machine;
use hopline_link::{Code, close_all};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use reload::{Reloaded, RenewError};

use crate::agent::Agent;
use crate::links::{self, Uplinks};
use crate::local::LocalStream;
use crate::sidecar::Sidecar;
use crate::status;
use crate::trail::Trails;

/// Sessions that have arrived by some link, and that the agent has not taken yet.
const ARRIVALS: usize = 64;
/// How long the cut at a drain's deadline may take to be counted.
const CUT: Duration = Duration::from_millis(100);
/// How long goodbyes may take when the edge stops.
const GOODBYE: Duration = Duration::from_secs(1);

/// Why an edge does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither the file nor `hopline join` named a relay.
    #[error("no relay is known: name one with `relay:`, or run `hopline join` first")]
    NoRelay,
    /// A relay's address, as `hopline join` stored it.
    #[error("relay {address:?}: {error}")]
    Relay {
        /// The address.
        address: String,
        /// What is wrong with it.
        error: String,
    },
    /// The status address can't be one, however often it is tried.
    #[error(transparent)]
    Status(#[from] hopline_admin::ServeError),
}

/// A running edge. Dropping it stops it without a goodbye; see [`Edge::shutdown`].
#[derive(Debug)]
pub struct Edge {
    config: EdgeConfig,
    uplinks: Arc<Uplinks>,
    sidecar: Arc<Sidecar>,
    agent: Arc<Agent>,
    status: watch::Receiver<Option<Address>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Edge {
    /// [`Edge::launch`] and [`Edge::open`] in one. Sessions may have begun before this resolves: whoever may have to stop
    /// it in between takes the two, since a start that is dropped cuts them without a reason.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn start(config: EdgeConfig, machine: Machine) -> Result<Self, StartError> {
        let edge = Self::launch(config, machine).await?;
        edge.open().await;
        Ok(edge)
    }

    /// Keeps links to the relays, and serves until [`Edge::shutdown`]. No mapping's socket is open yet. Dropped before it
    /// resolves, it has carried nothing.
    ///
    /// A status address that can't be opened is tried again.
    ///
    /// # Errors
    /// See [`StartError`]; nothing runs then.
    pub async fn launch(config: EdgeConfig, machine: Machine) -> Result<Self, StartError> {
        let relays = relays(&config, &machine)?;
        let resolver = Resolver::new(Sources { servers: config.dns.clone(), ..Sources::default() });
        let trails = Trails::default();
        let (arrivals, arrived) = mpsc::channel(ARRIVALS);
        let uplinks = Arc::new(Uplinks::new(relays, &config, machine, resolver.clone(), arrivals));
        let sidecar = Arc::new(Sidecar::new(&uplinks, trails.clone(), resolver.clone()));
        let agent = Arc::new(Agent::new(&config.services, &uplinks, trails, resolver));
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let source =
            status::StatusSource::new(Arc::clone(&uplinks), Arc::clone(&sidecar), Arc::clone(&agent));
        let status = match &config.status {
            Some(wanted) => status::serve(wanted, source, stopped, &mut tasks).await?,
            None => watch::channel(None).1,
        };
        tasks.spawn(Arc::clone(&agent).run(arrived));
        for uplink in uplinks.all() {
            tasks.spawn(links::run(Arc::clone(&uplinks), Arc::clone(uplink)));
        }
        Ok(Self { config, uplinks, sidecar, agent, status, stop, tasks })
    }

    /// Opens the mappings' sockets, once a link is up or after half a second. A mapping whose socket can't be opened does
    /// not stop the others: its state says so, and it is tried again. Cancel safe: what is not open then stays closed.
    pub async fn open(&self) {
        self.sidecar.apply(&self.config.connect).await;
    }

    /// The status address, with the real port; `None` where there is none, or it could not be opened yet.
    #[must_use]
    pub fn status_addr(&self) -> Option<Address> {
        self.status.borrow().clone()
    }

    /// Where a mapping listens, with the real port: `unix:PATH` or `HOST:PORT`. `None` if there is no such mapping,
    /// or its socket is not open.
    #[must_use]
    pub fn listens(&self, mapping: &str) -> Option<String> {
        self.sidecar.listens(mapping)
    }

    /// Why a mapping's socket is not the one that the file asks for; `None` while it is.
    #[must_use]
    pub fn trouble(&self, mapping: &str) -> Option<String> {
        self.sidecar.trouble(mapping)
    }

    /// Waits until a link to a relay is up and everything was announced on it.
    pub async fn ready(&self) {
        self.uplinks.ready().await;
    }

    /// Carries one connection of the caller's to a service, as a mapping does for an application; resolves when it
    /// is over. Where the edge has no mapping of the name, `mapping` is one, and its socket is never opened.
    ///
    /// # Errors
    /// How it ended, unless clean.
    pub async fn connect(
        &self,
        mapping: MappingConfig,
        stream: LocalStream,
    ) -> Result<(), hopline_link::Abort> {
        self.sidecar.carry(mapping, stream).await
    }

    /// Takes no new sessions from now on: the relays are told, sockets close, and what is open keeps its bytes until
    /// `deadline`, when it ends with `drain_deadline`. Resolves when no session is left, at the latest at the deadline;
    /// then call [`Edge::shutdown`]. Cancel safe: the drain goes on.
    pub async fn drain(&self, deadline: Duration) {
        tracing::info!(?deadline, "draining");
        self.uplinks.begin_drain(deadline);
        let quiet = async {
            self.sidecar.none_carried().await;
            self.agent.none_served().await;
        };
        // A moment more, so that the cut comes from the links, with its reason.
        if tokio::time::timeout(deadline + CUT, quiet).await.is_err() {
            tracing::warn!("some sessions did not end with the drain");
        }
    }

    /// Stops: sockets close, each session ends with `shutdown` at both its ends, links say goodbye.
    pub async fn shutdown(mut self) {
        self.stop.send_replace(true);
        let links = self.uplinks.leave();
        if !close_all(&links, Code::SHUTDOWN, "the edge stops", GOODBYE).await {
            tracing::warn!("some links did not take their goodbye in time");
        }
        self.sidecar.stop().await;
        self.tasks.shutdown().await;
        tracing::info!("edge stopped");
    }
}

fn relays(config: &EdgeConfig, machine: &Machine) -> Result<Vec<Endpoint>, StartError> {
    if !config.relay.is_empty() {
        return Ok(config.relay.clone());
    }
    let parse = |address: &String| {
        address.parse().map_err(|error: hopline_config::AddressError| StartError::Relay {
            address: address.clone(),
            error: error.to_string(),
        })
    };
    let stored: Vec<Endpoint> = machine.relays().iter().map(parse).collect::<Result<_, _>>()?;
    if stored.is_empty() { Err(StartError::NoRelay) } else { Ok(stored) }
}
