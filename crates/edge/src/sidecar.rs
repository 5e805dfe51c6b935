//! The sidecar: a local socket for each remote service.

mod listening;
mod mapping;
mod opening;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hopline_config::MappingConfig;
use hopline_dns::Resolver;
use hopline_link::Abort;
use hopline_route_proto::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::figures::Sessions;
use crate::links::Uplinks;
use crate::local::{BindFault, LocalStream};
use crate::pump::replay::ReplayMemory;
use crate::trail::Trails;
pub(crate) use listening::SocketState;
use listening::{Listening, Opened, Order};
pub(crate) use mapping::Mapping;

/// How long a new list waits for its sockets. What takes longer (a group of LDAP, a host name) goes on behind it.
const PATIENCE: Duration = Duration::from_secs(4);
/// Orders that may wait for the task of a name.
const ORDERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Sidecar {
    mappings: Mutex<BTreeMap<String, Served>>,
    shared: Arc<Shared>,
    /// The tasks of the names.
    tasks: Mutex<JoinSet<()>>,
}

/// What all mappings have in common.
#[derive(Debug)]
struct Shared {
    uplinks: Arc<Uplinks>,
    resolver: Resolver,
    /// What the agent of this process has dialled.
    trails: Trails,
    memory: ReplayMemory,
    /// Connections of applications that are carried, whatever became of their mapping.
    carried: Sessions,
}

/// A mapping, and the task that sees to its socket.
#[derive(Debug, Clone)]
struct Served {
    mapping: Arc<Mapping>,
    orders: mpsc::Sender<Order>,
}

/// What a new list of mappings changes.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// What could not be opened; it is tried again.
    pub(crate) errors: Vec<String>,
    pub(crate) added: Vec<String>,
    pub(crate) changed: Vec<String>,
    pub(crate) removed: Vec<String>,
}

/// A mapping whose task has been told what to serve.
struct Told {
    served: Served,
    /// Where it listened before, as written, if that has changed.
    before: Option<String>,
    opened: oneshot::Receiver<Opened>,
}

impl Served {
    async fn serve(&self, before: Option<String>) -> Told {
        let (opened, waiting) = oneshot::channel();
        // It is there for as long as the edge is.
        let _ = self.orders.send(Order::Serve(Arc::clone(&self.mapping), opened)).await;
        Told { served: self.clone(), before, opened: waiting }
    }

    async fn tell(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, waiting) = oneshot::channel();
        let _ = self.orders.send(order(done)).await;
        let _ = waiting.await;
    }
}

impl Sidecar {
    pub(crate) fn new(uplinks: &Arc<Uplinks>, trails: Trails, resolver: Resolver) -> Self {
        let (memory, carried) = (ReplayMemory::default(), Sessions::default());
        let shared = Arc::new(Shared { uplinks: Arc::clone(uplinks), resolver, trails, memory, carried });
        Self { mappings: Mutex::default(), shared, tasks: Mutex::default() }
    }

    /// Makes the mappings those of `configs`. A mapping that is gone closes its socket, and its connections run on. One
    /// whose entry has changed keeps the socket that it has until the new one is open. What is the same is not touched,
    /// but its socket is looked after at once. Resolves when each socket has been tried.
    pub(crate) async fn apply(&self, configs: &[MappingConfig]) -> Change {
        let mut change = Change::default();
        let before = self.lock().clone();
        for (name, served) in &before {
            if !configs.iter().any(|config| config.service.as_str() == name) {
                change.removed.push(name.clone());
                self.lock().remove(name);
                // Another mapping may want its address.
                served.tell(Order::Close).await;
            }
        }
        let mut told = Vec::new();
        for config in configs {
            let name = config.service.to_string();
            let known = before.get(&name);
            if let Some(served) = known.filter(|served| served.mapping.config == *config) {
                told.push(served.serve(None).await);
                continue;
            }
            let mapping = Arc::new(Mapping::new(config.clone(), known.map(|served| &*served.mapping)));
            let listen = known.map(|served| served.mapping.config.listen.to_string());
            let orders = match known {
                Some(served) => {
                    change.changed.push(name.clone());
                    served.orders.clone()
                }
                None => {
                    change.added.push(name.clone());
                    self.begin(&mapping)
                }
            };
            let served = Served { mapping, orders };
            self.lock().insert(name, served.clone());
            told.push(served.serve(listen).await);
        }
        self.tell_interest();
        change.errors = settle(told).await;
        change
    }

    /// The task of a new name.
    fn begin(&self, mapping: &Arc<Mapping>) -> mpsc::Sender<Order> {
        let (orders, received) = mpsc::channel(ORDERS);
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // What served a mapping that is gone, and is over, is let go of.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(Listening::new(Arc::clone(mapping), Arc::clone(&self.shared)).run(received));
        orders
    }

    /// Ends every socket and what came by them.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }

    pub(crate) fn mappings(&self) -> Vec<Arc<Mapping>> {
        self.lock().values().map(|served| Arc::clone(&served.mapping)).collect()
    }

    /// The replay buffers of this sidecar's sessions.
    pub(crate) fn memory(&self) -> &ReplayMemory {
        &self.shared.memory
    }

    /// Waits until no connection is carried, those of mappings that a reload has taken away included.
    pub(crate) async fn none_carried(&self) {
        self.shared.carried.none_open().await;
    }

    /// The relays are to tell this edge of the services that it dials.
    fn tell_interest(&self) {
        let interest = || Interest { services: self.lock().keys().cloned().collect() };
        self.shared.uplinks.set_interest(interest);
    }

    pub(crate) fn trouble(&self, mapping: &str) -> Option<String> {
        let state = self.lock().get(mapping)?.mapping.socket.borrow().clone();
        Some(state.trouble?.0)
    }

    pub(crate) fn listens(&self, mapping: &str) -> Option<String> {
        let state = self.lock().get(mapping)?.mapping.socket.borrow().clone();
        Some(state.socket?.listens)
    }

    /// Carries one connection that did not come by a socket of ours: by a mapping that has none.
    pub(crate) async fn carry(&self, config: MappingConfig, stream: LocalStream) -> Result<(), Abort> {
        let name = config.service.to_string();
        let mapping = {
            let mut mappings = self.lock();
            let served = mappings.entry(name).or_insert_with(|| {
                // Nobody sees to a socket: there is none.
                Served { mapping: Arc::new(Mapping::new(config, None)), orders: mpsc::channel(1).0 }
            });
            Arc::clone(&served.mapping)
        };
        self.tell_interest();
        mapping.carry(stream, &self.shared).await
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Served>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until each socket has been tried; says what could not be opened. Mappings that take each other's addresses are
/// told again once those have moved that could, and those that wait for each other in a ring let go of what they have.
async fn settle(mut told: Vec<Told>) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut rings = 1;
    loop {
        let count = told.len();
        let (failed, mut errors) = outcomes(told, deadline).await;
        let moved = failed.len() < count;
        let held: Vec<String> = failed.iter().filter_map(|served| served.1.clone()).collect();
        let waits = |served: &Served| held.contains(&served.mapping.config.listen.to_string());
        if !failed.iter().any(|(served, _, busy)| *busy && waits(served)) {
            errors.extend(failed.iter().map(|(served, ..)| trouble(served)));
            return errors;
        }
        if !moved {
            if rings == 0 {
                errors.extend(failed.iter().map(|(served, ..)| trouble(served)));
                return errors;
            }
            rings -= 1;
            for (served, ..) in
                failed.iter().filter(|(served, before, busy)| *busy && before.is_some() && waits(served))
            {
                served.tell(Order::Release).await;
            }
        }
        told = Vec::new();
        for (served, before, _) in failed {
            told.push(served.serve(before).await);
        }
    }
}

/// Those that could not be opened, with where they were before and whether the address is busy, and a line for each that
/// takes longer.
async fn outcomes(told: Vec<Told>, deadline: Instant) -> (Vec<(Served, Option<String>, bool)>, Vec<String>) {
    let (mut failed, mut late) = (Vec::new(), Vec::new());
    for Told { served, before, opened } in told {
        match timeout_at(deadline, opened).await {
            Ok(Ok(Err(error))) => {
                let busy = matches!(error.fault, BindFault::InUse(_) | BindFault::Unix(_));
                failed.push((served, before, busy));
            }
            // Its task has gone with the edge.
            Ok(Ok(Ok(())) | Err(_)) => {}
            Err(_) => {
                late.push(format!("mapping {}: its socket is being opened", served.mapping.config.service))
            }
        }
    }
    (failed, late)
}

fn trouble(served: &Served) -> String {
    let state = served.mapping.socket.borrow();
    state.trouble.as_ref().map(|(message, _)| message.clone()).unwrap_or_default()
}
