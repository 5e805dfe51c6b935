//! The sidecar: a local socket for each remote service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hopline_config::{Listen, MappingConfig};
use hopline_link::{Abort, Code};
use hopline_route_proto::Interest;
use tokio::sync::watch;

use crate::StartError;
use crate::local::{BindError, ListenSpec, LocalListener, LocalStream};
use crate::mapping::{BIND_AGAIN, Mapping};
use crate::uplinks::Uplinks;

/// A mapping that is to be served, with its socket if that could be opened.
pub(crate) type Bound = (Arc<Mapping>, Option<LocalListener>);

#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    mappings: Mutex<BTreeMap<String, Arc<Mapping>>>,
    /// Counts the lists that there were.
    revision: watch::Sender<u64>,
}

/// What a new list of mappings changes.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) bound: Vec<Bound>,
    pub(crate) errors: Vec<BindError>,
    pub(crate) added: Vec<String>,
    pub(crate) changed: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl Sidecar {
    /// Makes the mappings those of `configs`. Only what differs is touched: a mapping that is gone or has changed
    /// closes its socket, and its connections run on; a new or changed one opens its socket.
    ///
    /// # Errors
    /// A group that does not exist; nothing is changed then.
    pub(crate) async fn apply(&self, configs: &[MappingConfig]) -> Result<Change, StartError> {
        let mut wanted = BTreeMap::new();
        for config in configs {
            wanted.insert(config.service.to_string(), (config, listen_spec(config)?));
        }
        let mut change = Change::default();
        let before = self.lock().clone();
        for (name, mapping) in &before {
            match wanted.get(name) {
                Some((config, _)) if **config == mapping.config => {
                    wanted.remove(name);
                    continue;
                }
                Some(_) => change.changed.push(name.clone()),
                None => change.removed.push(name.clone()),
            }
            mapping.close().await;
            self.lock().remove(name);
        }
        for (name, (config, spec)) in wanted {
            if !before.contains_key(&name) {
                change.added.push(name.clone());
            }
            let mapping = Mapping::new(config.clone(), spec, before.get(&name).map(Arc::as_ref));
            let mapping = Arc::new(mapping);
            let listener = mapping.bind().await.map_err(|error| change.errors.push(error)).ok();
            self.lock().insert(name, Arc::clone(&mapping));
            change.bound.push((mapping, listener));
        }
        self.revision.send_modify(|revision| *revision += 1);
        for error in &change.errors {
            tracing::error!("{error}; trying again every {} s", BIND_AGAIN.as_secs());
        }
        Ok(change)
    }

    pub(crate) fn mappings(&self) -> Vec<Arc<Mapping>> {
        self.lock().values().cloned().collect()
    }

    /// Changes when there is a new list of mappings.
    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// What the relays are to tell this edge of: the services that it dials.
    pub(crate) fn interest(&self) -> Interest {
        Interest { services: self.lock().keys().cloned().collect() }
    }

    pub(crate) fn listens(&self, mapping: &str) -> Option<String> {
        Some(self.lock().get(mapping)?.socket()?.listens)
    }

    /// Carries one connection that did not come by a socket of ours: by a mapping that has none.
    pub(crate) async fn carry(
        &self,
        config: MappingConfig,
        stream: LocalStream,
        uplinks: &Arc<Uplinks>,
    ) -> Result<(), Abort> {
        let name = config.service.to_string();
        let spec = listen_spec(&config).map_err(|error| Abort::new(Code::INTERNAL, error.to_string()))?;
        let mapping = {
            let mut mappings = self.lock();
            let mapping = mappings.entry(name).or_insert_with(|| Arc::new(Mapping::new(config, spec, None)));
            Arc::clone(mapping)
        };
        self.revision.send_modify(|revision| *revision += 1);
        mapping.carry(stream, uplinks).await
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Mapping>>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
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
