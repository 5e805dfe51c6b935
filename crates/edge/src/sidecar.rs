//! The sidecar: a local socket for each remote service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hopline_config::{EdgeConfig, Listen, MappingConfig};
use hopline_link::{Abort, Code};
use tokio::task::JoinSet;

use crate::StartError;
use crate::fault::{LastFault, Sessions};
use crate::local::{BindError, ListenSpec, ListenerHealth, LocalListener, LocalStream};
use crate::opening::Opening;
use crate::pump::{Broken, Connection, pump};
use crate::uplinks::Uplinks;

/// How long until a socket that could not be opened is tried again.
const BIND_AGAIN: Duration = Duration::from_secs(5);

/// One mapping and its figures.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) config: MappingConfig,
    pub(crate) sessions: Sessions,
    pub(crate) fault: LastFault,
    socket: Mutex<Option<Socket>>,
}

/// The socket of a mapping, while it is open.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    /// `unix:PATH` or `HOST:PORT`.
    pub(crate) listens: String,
    pub(crate) health: ListenerHealth,
}

impl Mapping {
    pub(crate) fn socket(&self) -> Option<Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn opened(&self, listener: &LocalListener) {
        let listens = match (listener.unix_path(), listener.tcp_addresses().first()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => address.to_string(),
            (None, None) => self.config.listen.to_string(),
        };
        tracing::info!(mapping = %self.config.service, %listens, "mapping open");
        let socket = Socket { listens, health: listener.health() };
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }
}

#[derive(Debug)]
pub(crate) struct Sidecar {
    mappings: BTreeMap<String, Arc<Mapping>>,
}

/// A mapping's socket, or how to open it.
#[derive(Debug)]
pub(crate) struct Bound {
    mapping: Arc<Mapping>,
    spec: ListenSpec,
    listener: Option<LocalListener>,
}

impl Sidecar {
    /// Opens the sockets of all mappings.
    pub(crate) async fn bind(config: &EdgeConfig) -> Result<(Self, Vec<Bound>), StartError> {
        let mut mappings = BTreeMap::new();
        let mut bound = Vec::new();
        let mut errors: Vec<BindError> = Vec::new();
        for config in &config.connect {
            let mapping = Arc::new(Mapping {
                config: config.clone(),
                sessions: Sessions::default(),
                fault: LastFault::default(),
                socket: Mutex::new(None),
            });
            let spec = listen_spec(config)?;
            let listener = match LocalListener::bind(config.service.as_str(), &spec).await {
                Ok(listener) => {
                    mapping.opened(&listener);
                    Some(listener)
                }
                Err(error) => {
                    mapping.fault.note(&Abort::new(Code::INTERNAL, error.to_string()));
                    errors.push(error);
                    None
                }
            };
            mappings.insert(config.service.to_string(), Arc::clone(&mapping));
            bound.push(Bound { mapping, spec, listener });
        }
        if !errors.is_empty() && errors.len() == bound.len() && config.services.is_empty() {
            return Err(StartError::Bind(errors));
        }
        for error in errors {
            tracing::error!("{error}; trying again every {} s", BIND_AGAIN.as_secs());
        }
        Ok((Self { mappings }, bound))
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values().map(AsRef::as_ref)
    }

    pub(crate) fn listens(&self, mapping: &str) -> Option<String> {
        Some(self.mappings.get(mapping)?.socket()?.listens)
    }

    /// Carries one connection that did not come by a socket of ours.
    pub(crate) async fn carry(
        &self,
        service: &str,
        stream: LocalStream,
        uplinks: &Uplinks,
    ) -> Result<(), Abort> {
        match self.mappings.get(service) {
            Some(mapping) => mapping.carry(stream, uplinks).await,
            None => Err(Abort::new(Code::NOT_FOUND, "no such mapping")),
        }
    }
}

fn listen_spec(config: &MappingConfig) -> Result<ListenSpec, StartError> {
    Ok(match &config.listen {
        Listen::Tcp { host, port } => ListenSpec::Tcp { host: host.clone(), port: *port },
        Listen::Unix(path) => ListenSpec::Unix {
            path: path.clone(),
            mode: config.mode,
            gid: config.group.as_deref().map(|group| gid(config.service.as_str(), group)).transpose()?,
            make_folder: path
                .parent()
                .and_then(|folder| folder.file_name())
                .is_some_and(|name| name == "hopline"),
        },
    })
}

/// A group's number, by its name or as it stands.
fn gid(mapping: &str, group: &str) -> Result<u32, StartError> {
    let missing = || StartError::Group { mapping: mapping.to_owned(), group: group.to_owned() };
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let file = std::fs::read_to_string("/etc/group").map_err(|_| missing())?;
    let found = file.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    found.ok_or_else(missing)
}

/// Accepts a mapping's connections until the edge is on its way out; those that are open then run on.
pub(crate) async fn serve(sidecar: Arc<Sidecar>, bound: Bound, uplinks: Arc<Uplinks>) {
    // Keeps the other mappings' figures alive for as long as any socket is.
    let _sidecar = sidecar;
    let Bound { mapping, spec, listener } = bound;
    let mut listener = match listener {
        Some(listener) => listener,
        None => bind_later(&mapping, &spec).await,
    };
    let mut tasks = JoinSet::new();
    let mut leaving = uplinks.leaving();
    loop {
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            _ = leaving.wait_for(Option::is_some) => break,
        };
        let (mapping, uplinks) = (Arc::clone(&mapping), Arc::clone(&uplinks));
        tasks.spawn(async move {
            // The application learns it from its connection, people from the status.
            let _ = mapping.carry(stream, &uplinks).await;
        });
        while tasks.try_join_next().is_some() {}
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn bind_later(mapping: &Mapping, spec: &ListenSpec) -> LocalListener {
    loop {
        tokio::time::sleep(BIND_AGAIN).await;
        match LocalListener::bind(mapping.config.service.as_str(), spec).await {
            Ok(listener) => {
                mapping.opened(&listener);
                return listener;
            }
            Err(error) => mapping.fault.note(&Abort::new(Code::INTERNAL, error.to_string())),
        }
    }
}

impl Mapping {
    /// One application's connection, from its accept to its end.
    async fn carry(&self, stream: LocalStream, uplinks: &Uplinks) -> Result<(), Abort> {
        let _open = self.sessions.begin();
        let deadline = Instant::now() + self.config.open_timeout;
        let connection = Connection::new(stream);
        let Some(stream) = connection.stream() else { return Ok(()) };
        let opened = match Opening::new(uplinks, stream, self.config.service.as_str(), deadline) {
            Ok(opening) => opening.run().await,
            Err(abort) => Err(Broken::Session(abort)),
        };
        let result = match opened {
            Ok((session, inbound)) => pump(connection, inbound, &session).await,
            Err(broken) => Err(broken),
        };
        match result {
            // An application that resets its own connection has no fault to be told of.
            Ok(()) | Err(Broken::Local(_)) => Ok(()),
            Err(Broken::Session(abort)) => {
                self.fault.note(&abort);
                Err(abort)
            }
        }
    }
}
