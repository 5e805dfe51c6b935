//! The socket of one mapping name, for as long as the name is in the file: opened, watched, opened again, moved.
//!
//! A mapping's entry may change, its socket file may vanish under it, its address may be busy. One task for each name
//! sees to all of it by one rule: *the new socket first, then the old one goes*. As long as the wanted socket can't be
//! opened the one that there is serves on, the status says what is wrong, and it is tried again.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_config::{Listen, MappingConfig};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, timeout_at};

use super::{Mapping, Shared};
use crate::inspect::TICK;
use crate::local::{BindError, ListenerHealth, LocalListener, LocalStream, group};

/// How often a socket is looked after: whether its file is still there, and, where it is not open, whether it can be.
pub(crate) const LOOK: Duration = Duration::from_secs(2);

/// For so long after the edge's start the sockets wait for its first link: an open that comes at once finds it, and it
/// has its descriptor before applications have theirs.
const LINK_FIRST: Duration = Duration::from_millis(500);

/// What there is of a mapping's socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct SocketState {
    /// The socket that accepts, if there is one.
    pub(crate) socket: Option<Socket>,
    /// Why the socket that the file asks for is not open, and since when.
    pub(crate) trouble: Option<(String, Instant)>,
}

/// The socket of a mapping, while it is open.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    /// `unix:PATH` or `HOST:PORT`.
    pub(crate) listens: String,
    pub(crate) health: ListenerHealth,
}

/// Whether a socket could be opened.
pub(crate) type Opened = Result<(), BindError>;

/// What is asked of the task of a mapping name.
pub(crate) enum Order {
    /// The entry of the name from now on. Its socket is looked after at once, whether it is another one or not.
    Serve(Arc<Mapping>, oneshot::Sender<Opened>),
    /// The socket that there is goes, though the wanted one is not open: another mapping needs its address.
    Release(oneshot::Sender<()>),
    /// The name is gone: the socket closes; connections that came by it run on.
    Close(oneshot::Sender<()>),
}

/// What a listener is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    listen: Listen,
    mode: u32,
    group: Option<String>,
}

impl Wanted {
    fn of(config: &MappingConfig) -> Self {
        Self { listen: config.listen.clone(), mode: config.mode, group: config.group.clone() }
    }
}

struct Open {
    listener: LocalListener,
    wanted: Wanted,
}

/// An attempt to open a socket, and who waits for it.
struct Attempt {
    wanted: Wanted,
    opening: Pin<Box<dyn Future<Output = Result<LocalListener, BindError>> + Send>>,
    waiting: Vec<oneshot::Sender<Opened>>,
    /// The open socket was in its way, and has been let go of.
    without_old: bool,
}

/// The task of a mapping name.
pub(crate) struct Listening {
    mapping: Arc<Mapping>,
    state: watch::Sender<SocketState>,
    shared: Arc<Shared>,
    open: Option<Open>,
    attempt: Option<Attempt>,
    sessions: JoinSet<()>,
}

enum Turn {
    Accepted(LocalStream),
    Tried(Result<LocalListener, BindError>),
    Ordered(Option<Order>),
    Look,
    Inspect,
    Woken,
    Leave,
}

impl Listening {
    pub(super) fn new(mapping: Arc<Mapping>, shared: Arc<Shared>) -> Self {
        let state = mapping.socket.clone();
        Self { mapping, state, shared, open: None, attempt: None, sessions: JoinSet::new() }
    }

    /// Serves until the name is gone or the edge is on its way out; sessions that are open then run on.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut leaving = self.shared.uplinks.leaving();
        let (mut looks, mut ticks) = (interval(LOOK), interval(TICK));
        let closed = loop {
            let inspection = Arc::clone(&self.mapping.inspection);
            let turn = tokio::select! {
                biased;
                _ = leaving.wait_for(Option::is_some) => Turn::Leave,
                order = orders.recv() => Turn::Ordered(order),
                tried = tried(&mut self.attempt) => Turn::Tried(tried),
                _ = looks.tick() => Turn::Look,
                _ = ticks.tick(), if inspection.is_busy() => Turn::Inspect,
                // It comes from a task that was spawned below, after the look above.
                () = inspection.woken(), if !inspection.is_busy() => Turn::Woken,
                stream = accepted(&mut self.open) => Turn::Accepted(stream),
            };
            match turn {
                Turn::Accepted(stream) => self.carry(stream),
                Turn::Tried(tried) => self.tried(tried),
                Turn::Look => self.look(Vec::new()),
                Turn::Inspect => {
                    let service = self.mapping.config.service.as_str();
                    inspection.tick(self.shared.uplinks.round_trip(service));
                }
                Turn::Woken => {}
                Turn::Ordered(Some(Order::Serve(mapping, opened))) => {
                    self.mapping = mapping;
                    self.look(vec![opened]);
                }
                Turn::Ordered(Some(Order::Release(released))) => {
                    self.close();
                    // Nobody waits for it any more where the order came from a task that is gone.
                    let _ = released.send(());
                }
                Turn::Ordered(Some(Order::Close(closed))) => break Some(closed),
                Turn::Ordered(None) | Turn::Leave => break None,
            }
        };
        self.attempt = None;
        self.close();
        if let Some(closed) = closed {
            let _ = closed.send(());
        }
        while self.sessions.join_next().await.is_some() {}
    }

    fn carry(&mut self, stream: LocalStream) {
        let (mapping, shared) = (Arc::clone(&self.mapping), Arc::clone(&self.shared));
        self.sessions.spawn(async move {
            // The application learns it from its connection, people from the status.
            let _ = mapping.carry(stream, &shared).await;
        });
        while self.sessions.try_join_next().is_some() {}
    }

    /// Looks whether the wanted socket is open and can be found; begins to open it if not.
    fn look(&mut self, mut waiting: Vec<oneshot::Sender<Opened>>) {
        let wanted = Wanted::of(&self.mapping.config);
        if let Some(open) = self.open.as_ref().filter(|open| open.wanted == wanted) {
            match open.listener.lost() {
                None => {
                    self.attempt = None;
                    self.state.send_modify(|state| state.trouble = None);
                    return reply(waiting, || Ok(()));
                }
                Some(lost) => self.trouble(&format!("mapping {}: {lost}", self.mapping.config.service)),
            }
        }
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.wanted == wanted) {
            attempt.waiting.append(&mut waiting);
            return;
        }
        self.attempt = Some(self.begin(wanted, waiting, false));
    }

    fn begin(&self, wanted: Wanted, waiting: Vec<oneshot::Sender<Opened>>, without_old: bool) -> Attempt {
        let (name, of) = (self.mapping.config.service.to_string(), wanted.clone());
        let shared = Arc::clone(&self.shared);
        let opening = async move {
            let _ = timeout_at((shared.uplinks.started + LINK_FIRST).into(), shared.uplinks.ready()).await;
            let fault = |fault| BindError { mapping: name.clone(), fault };
            let gid = match &of.group {
                Some(group) => Some(group::gid(group).await.map_err(fault)?),
                None => None,
            };
            LocalListener::open(&name, &crate::local::spec(&of.listen, of.mode, gid), &shared.resolver).await
        };
        Attempt { wanted, opening: Box::pin(opening), waiting, without_old }
    }

    /// An attempt is over.
    fn tried(&mut self, tried: Result<LocalListener, BindError>) {
        let Some(Attempt { wanted, waiting, without_old, .. }) = self.attempt.take() else { return };
        let error = match tried {
            Ok(listener) => {
                self.opened(listener, wanted);
                return reply(waiting, || Ok(()));
            }
            Err(error) => error,
        };
        // The old socket holds the address that the new one shares with it, as with 127.0.0.1 and 0.0.0.0.
        let in_the_way = |open: &Open| open.listener.is_in_the_way(&error.fault);
        if !without_old && self.open.as_ref().is_some_and(in_the_way) {
            self.close();
            self.attempt = Some(self.begin(wanted, waiting, true));
            return;
        }
        self.trouble(&error.to_string());
        let mut error = Some(error);
        // One at most waits: orders come one after another.
        reply(waiting, || error.take().map_or(Ok(()), Err));
    }

    fn opened(&mut self, listener: LocalListener, wanted: Wanted) {
        let listens = match (listener.unix_path(), listener.tcp_addresses().first()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => address.to_string(),
            (None, None) => wanted.listen.to_string(),
        };
        tracing::info!(mapping = %self.mapping.config.service, %listens, "mapping open");
        let socket = Socket { listens, health: listener.health() };
        self.state.send_replace(SocketState { socket: Some(socket), trouble: None });
        // Only now the old one goes.
        self.open = Some(Open { listener, wanted });
    }

    fn close(&mut self) {
        self.open = None;
        self.state.send_modify(|state| state.socket = None);
    }

    /// Says what is wrong, once for as long as it is the same.
    fn trouble(&self, message: &str) {
        let serving = self.open.as_ref().filter(|open| open.listener.lost().is_none());
        let listens = serving.and_then(|_| Some(self.state.borrow().socket.as_ref()?.listens.clone()));
        let meanwhile = listens.map(|listens| format!("; {listens} serves on meanwhile")).unwrap_or_default();
        let message = format!("{message}{meanwhile}");
        if self.state.borrow().trouble.as_ref().is_some_and(|(known, _)| *known == message) {
            return;
        }
        tracing::error!("{message}; trying again every {} s", LOOK.as_secs());
        self.state.send_modify(|state| state.trouble = Some((message, Instant::now())));
    }
}

fn interval(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn reply(waiting: Vec<oneshot::Sender<Opened>>, mut result: impl FnMut() -> Opened) {
    for waiting in waiting {
        // Who has gone needs no answer.
        let _ = waiting.send(result());
    }
}

async fn tried(attempt: &mut Option<Attempt>) -> Result<LocalListener, BindError> {
    match attempt {
        Some(attempt) => attempt.opening.as_mut().await,
        None => pending().await,
    }
}

async fn accepted(open: &mut Option<Open>) -> LocalStream {
    match open {
        Some(open) => open.listener.accept().await,
        None => pending().await,
    }
}
