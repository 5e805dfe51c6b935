//! What the relay's tasks share: the router, the links, the opens that wait.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hopline_identity::{MachineIdentity, RelayState};
use hopline_link::{Code, Limits, LinkEnd as MuxEnd, Liveness, Mux};
use hopline_names::MachineName;
use hopline_route_proto::{Draining, RelayToEdge, Restored};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::RelayConfig;
use crate::core::{Event, HoldId, LinkEnd, LinkId, Router, RouterConfig};
use crate::handshakes::Handshakes;
use crate::metrics::Counted;
use crate::news::News;

/// Messages to one edge that may wait; more means that its edge does not read, and it can do without.
pub(crate) const CONTROL_QUEUE: usize = 64;

/// One link of the relay.
#[derive(Debug)]
pub(crate) struct LinkEntry {
    pub(crate) mux: Mux,
    /// What the machine's record said last.
    pub(crate) identity: MachineIdentity,
    pub(crate) address: SocketAddr,
    /// To the link's control session, once the edge has opened it.
    pub(crate) control: Option<mpsc::Sender<RelayToEdge>>,
    /// The router has something to tell this link of the agents that it dials.
    pub(crate) agents_changed: Arc<Notify>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) router: Router,
    pub(crate) links: BTreeMap<LinkId, LinkEntry>,
    /// Held opens: told when to ask the router again.
    pub(crate) held: BTreeMap<HoldId, oneshot::Sender<()>>,
    pub(crate) sessions: Sessions,
}

/// Sessions, now and since the start.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    pub(crate) open: u64,
    pub(crate) total: u64,
}

/// What a reload may change. Each link and each open goes by what it finds when it begins.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) liveness: Option<Liveness>,
    pub(crate) limits: Limits,
    pub(crate) answer_timeout: Option<Duration>,
}

impl Settings {
    pub(crate) fn new(config: &RelayConfig) -> Self {
        Self { liveness: config.liveness, limits: config.limits, answer_timeout: config.answer_timeout }
    }
}

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) identity: RelayState,
    pub(crate) name: MachineName,
    pub(crate) instance: [u8; 16],
    pub(crate) started: Instant,
    /// Set once the relay is on its way out.
    pub(crate) draining: AtomicBool,
    /// The last session has ended, or may have.
    pub(crate) quiet: Notify,
    /// The router's next deadline may have changed.
    pub(crate) reschedule: Notify,
    pub(crate) counted: Counted,
    pub(crate) handshakes: Arc<Handshakes>,
    /// Where edges connect; why not yet.
    listens: Mutex<Result<Vec<SocketAddr>, String>>,
    news: Mutex<News>,
    settings: Mutex<Arc<Settings>>,
    state: Mutex<State>,
    next_link: AtomicU64,
}

impl Hub {
    pub(crate) fn new(identity: RelayState, config: &RelayConfig) -> Self {
        let now = Instant::now();
        let router =
            Router::new(RouterConfig { hold: config.hold, ..RouterConfig::default() }, rand::random(), now);
        Self {
            identity,
            name: config.name.clone(),
            instance: rand::random(),
            started: now,
            draining: AtomicBool::new(false),
            quiet: Notify::new(),
            reschedule: Notify::new(),
            counted: Counted::default(),
            handshakes: Arc::default(),
            listens: Mutex::new(Ok(Vec::new())),
            news: Mutex::default(),
            settings: Mutex::new(Arc::new(Settings::new(config))),
            state: Mutex::new(State {
                router,
                links: BTreeMap::new(),
                held: BTreeMap::new(),
                sessions: Sessions::default(),
            }),
            next_link: AtomicU64::new(1),
        }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over what a reload may change; what is there already goes on as it began.
    pub(crate) fn set_settings(&self, settings: Settings, hold: Duration) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.with(|state| state.router.set_hold(hold));
    }

    /// Where edges connect, or why they can't yet.
    pub(crate) fn listens(&self) -> Result<Vec<SocketAddr>, String> {
        self.listens.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether that is another answer than the one before.
    pub(crate) fn set_listens(&self, listens: Result<Vec<SocketAddr>, String>) -> bool {
        let mut now = self.listens.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *now != listens;
        *now = listens;
        changed
    }

    /// Whether this was not said of the machine lately; notes that it is said.
    pub(crate) fn is_news(&self, machine: &str, what: &str) -> bool {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).is_new(machine, what, Instant::now())
    }

    pub(crate) fn new_link_id(&self) -> LinkId {
        LinkId(self.next_link.fetch_add(1, Ordering::Relaxed))
    }

    /// Changes the shared state, then wakes whom the router wants to hear: held opens, and control sessions.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        while let Some(event) = state.router.poll_event() {
            match event {
                Event::RouteAgain(id) => {
                    if let Some(waiting) = state.held.remove(&id) {
                        // A task that has given up meanwhile needs no waking.
                        let _ = waiting.send(());
                    }
                }
                Event::Restored(id) => {
                    if let Some(link) = state.links.get(&id) {
                        tracing::info!(machine = %link.identity.name, address = %link.address, "the newer process of this machine has gone: the one that stood by serves again");
                        let control = link.control.as_ref();
                        // Without its control session the link is at its end.
                        let _ = control.map(|control| control.try_send(RelayToEdge::Restored(Restored {})));
                    }
                }
                Event::AgentsChanged(id) => {
                    if let Some(link) = state.links.get(&id) {
                        link.agents_changed.notify_one();
                    }
                }
            }
        }
        drop(state);
        self.reschedule.notify_one();
        result
    }

    /// Looks only.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a link that has ended. A second call changes nothing.
    pub(crate) fn link_ended(&self, id: LinkId, mux: &Mux, end: &MuxEnd) {
        // They are final: the link is over.
        let counters = mux.info().counters;
        self.with(|state| {
            state.router.link_down(id, meant(end), Instant::now());
            // In one step, so that a status has them either by the link or by the sum.
            if state.links.remove(&id).is_some() {
                self.counted.link_ended(end, &counters);
            }
        });
    }

    /// Sends a control message, if the edge listens.
    pub(crate) fn tell(&self, id: LinkId, message: RelayToEdge) {
        let sent = self.peek(|state| {
            let control = state.links.get(&id)?.control.as_ref()?;
            control.try_send(message).ok()
        });
        if sent.is_none() {
            tracing::debug!(link = id.0, "a control message found nobody to read it");
        }
    }

    pub(crate) fn control_channel() -> (mpsc::Sender<RelayToEdge>, mpsc::Receiver<RelayToEdge>) {
        mpsc::channel(CONTROL_QUEUE)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// From now on no session is taken. Edges are told, held opens are sent elsewhere, open sessions run on until
    /// `deadline`.
    pub(crate) fn begin_drain(&self, deadline: Duration) {
        if self.draining.swap(true, Ordering::AcqRel) {
            return;
        }
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let (links, held) = self.with(|state| {
            let links: Vec<_> = state.links.iter().map(|(id, link)| (*id, link.mux.clone())).collect();
            (links, std::mem::take(&mut state.held))
        });
        for (id, mux) in links {
            self.tell(id, RelayToEdge::Draining(Draining { deadline_ms }));
            mux.drain(deadline);
        }
        for waiting in held.into_values() {
            // A task that has given up meanwhile needs no waking.
            let _ = waiting.send(());
        }
    }

    /// Waits until no session is open.
    pub(crate) async fn wait_quiet(&self) {
        loop {
            let changed = self.quiet.notified();
            if self.peek(|state| state.sessions.open == 0) {
                return;
            }
            changed.await;
        }
    }

    /// All links, for their goodbye.
    pub(crate) fn take_links(&self) -> Vec<Mux> {
        self.with(|state| std::mem::take(&mut state.links).into_values().map(|link| link.mux).collect())
    }
}

/// Whether the machine meant to leave: then its services are not waited for.
fn meant(end: &MuxEnd) -> LinkEnd {
    match end {
        // A peer that says goodbye because it did not hear us did not mean to leave.
        MuxEnd::Goodbye(abort) if abort.code == Code::CONN_LOST => LinkEnd::Lost,
        MuxEnd::Goodbye(_) | MuxEnd::Closed(_) => LinkEnd::Goodbye,
        MuxEnd::DeadPeer { .. } | MuxEnd::CarrierLost { .. } | MuxEnd::Protocol(_) | MuxEnd::NoHello => {
            LinkEnd::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use hopline_link::Abort;

    use super::*;

    #[test]
    fn who_did_not_mean_to_leave_is_waited_for() {
        let goodbye = |code| MuxEnd::Goodbye(Abort::new(code, "bye"));
        for (end, expected) in [
            (goodbye(Code::SHUTDOWN), LinkEnd::Goodbye),
            (goodbye(Code::DRAIN_DEADLINE), LinkEnd::Goodbye),
            (goodbye(Code::INTERNAL), LinkEnd::Goodbye),
            (goodbye(Code::CONN_LOST), LinkEnd::Lost),
            (MuxEnd::Closed(Abort::new(Code::SHUTDOWN, "ours")), LinkEnd::Goodbye),
            (MuxEnd::CarrierLost { message: "reset".to_owned(), silent: Duration::ZERO }, LinkEnd::Lost),
            (MuxEnd::DeadPeer { silent: Duration::from_secs(15) }, LinkEnd::Lost),
            (MuxEnd::NoHello, LinkEnd::Lost),
        ] {
            assert_eq!(meant(&end), expected, "{end}");
        }
    }
}
