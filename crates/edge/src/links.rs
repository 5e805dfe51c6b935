//! The links of this edge: which are up, and who waits for one.
//!
//! Nothing here knows a role. What is announced and asked for on each link is set from outside
//! ([`Uplinks::publish`], [`Uplinks::set_interest`]), and the sessions that arrive go to a channel.

mod control;
mod counts;
mod uplink;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hopline_config::{EdgeConfig, Endpoint};
use hopline_dns::Resolver;
use hopline_identity::Machine;
use hopline_link::{Abort, Code, Liveness, Mux, Session};
use hopline_names::{InstanceId, ServiceName};
use hopline_route_proto::{AgentFact, AgentState, Interest, ServiceAd};
use rand::seq::IndexedRandom as _;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::figures::LastFault;
use counts::{Carried, LinkCounts};
pub(crate) use uplink::run;

/// Opens that may wait for a link at once (P7): applications that connect while nothing can be reached.
pub(crate) const MAX_HELD: usize = 4_096;

/// For how long the figures of agents are not asked for again.
const FRESH: Duration = Duration::from_millis(900);
/// How long whoever looks waits for them.
const ANSWERS: Duration = Duration::from_millis(200);

/// One relay, and the link to it when there is one.
#[derive(Debug)]
pub(crate) struct Uplink {
    pub(crate) relay: Endpoint,
    pub(crate) fault: LastFault,
    pub(crate) counts: LinkCounts,
    state: Mutex<UplinkState>,
}

/// What is known of an uplink.
#[derive(Debug, Default, Clone)]
pub(crate) struct UplinkState {
    /// The link, while it is up.
    pub(crate) mux: Option<Mux>,
    /// Links that this one has succeeded, as long as sessions need them.
    pub(crate) retired: Vec<Mux>,
    /// The relay's name, once it has said it.
    pub(crate) peer: Option<String>,
    /// Where the link goes.
    pub(crate) address: Option<String>,
    /// It was up once.
    pub(crate) was_up: bool,
    /// Everything was announced and answered on this link.
    pub(crate) announced: bool,
    /// The relay has a newer process of this machine: what it said.
    pub(crate) stands_by: Option<String>,
    /// Names that the relay does not let this machine publish.
    pub(crate) refused: Vec<String>,
    /// Who serves what this edge dials, as far as the relay has said on this link.
    pub(crate) agents: BTreeMap<String, Vec<AgentFact>>,
    /// When the relay said so last.
    pub(crate) agents_told: Option<Instant>,
    /// What the links before this one have carried.
    pub(crate) before: Carried,
}

impl UplinkState {
    /// The link is over: what it has carried is kept, and it counts no more as one that is there.
    pub(crate) fn count_out(&mut self, mux: &Mux) {
        self.before.add(&mux.info().counters);
        self.mux.take_if(|other| other.is_same(mux));
        self.retired.retain(|other| !other.is_same(mux));
    }

    /// What all links of the uplink have carried.
    pub(crate) fn carried(&self) -> Carried {
        let mut carried = self.before.clone();
        for mux in self.mux.iter().chain(&self.retired) {
            carried.add(&mux.info().counters);
        }
        carried
    }
}

impl Uplink {
    /// The relay's name; its address as configured until it has said it.
    pub(crate) fn name(&self) -> String {
        self.lock().peer.clone().unwrap_or_else(|| self.relay.to_string())
    }

    pub(crate) fn state(&self) -> UplinkState {
        self.lock().clone()
    }

    /// Looks at the state without copying it: what a link is told of agents grows with the mappings.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&UplinkState) -> T) -> T {
        look(&self.lock())
    }

    /// All links that are up.
    pub(crate) fn links(&self) -> Vec<Mux> {
        let state = self.lock();
        state.mux.iter().chain(&state.retired).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, UplinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the agent of this process publishes.
#[derive(Debug, Default)]
struct Published {
    /// Counts the lists that there were.
    revision: u64,
    services: Vec<ServiceAd>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Uplinks {
    all: Vec<Arc<Uplink>>,
    /// As it was at the start; its name never changes.
    pub(crate) machine: Machine,
    /// With the certificate that links show from now on.
    identity: watch::Sender<Machine>,
    pub(crate) instance: InstanceId,
    pub(crate) liveness: Liveness,
    /// The process dials and goes.
    pub(crate) passing: bool,
    /// A newer process of this machine has once taken over: this one takes over from nobody any more.
    yields: AtomicBool,
    pub(crate) resolver: Resolver,
    /// What every link announces.
    published: watch::Sender<Published>,
    /// What every relay is to tell this edge of; set anew also when it is to tell so again.
    interest: watch::Sender<Interest>,
    /// Where the sessions go that arrive.
    arrivals: mpsc::Sender<Session>,
    pub(crate) started: Instant,
    hold: Duration,
    held: Arc<Semaphore>,
    /// Sessions of this edge by the agent that it chose for them.
    loads: Mutex<BTreeMap<InstanceId, usize>>,
    leaving: watch::Sender<Option<Duration>>,
    /// Counts changes; the value is since when no link has been up.
    changed: watch::Sender<Option<Instant>>,
}

impl Uplinks {
    pub(crate) fn new(
        relays: Vec<Endpoint>,
        config: &EdgeConfig,
        machine: Machine,
        resolver: Resolver,
        arrivals: mpsc::Sender<Session>,
    ) -> Self {
        let uplink = |relay| {
            Arc::new(Uplink {
                relay,
                fault: LastFault::default(),
                counts: LinkCounts::default(),
                state: Mutex::default(),
            })
        };
        let now = Instant::now();
        Self {
            all: relays.into_iter().map(uplink).collect(),
            identity: watch::Sender::new(machine.clone()),
            machine,
            instance: InstanceId::new(rand::random()),
            liveness: config.keepalive,
            passing: config.passing,
            yields: AtomicBool::new(false),
            resolver,
            published: watch::Sender::default(),
            interest: watch::Sender::default(),
            arrivals,
            started: now,
            hold: config.hold,
            held: Arc::new(Semaphore::new(MAX_HELD)),
            loads: Mutex::default(),
            leaving: watch::Sender::new(None),
            changed: watch::Sender::new(Some(now)),
        }
    }

    /// This machine, with the certificate that a link is to show now.
    pub(crate) fn identity(&self) -> Machine {
        self.identity.borrow().clone()
    }

    /// Changes when the machine's certificate was renewed.
    pub(crate) fn identity_changes(&self) -> watch::Receiver<Machine> {
        self.identity.subscribe()
    }

    /// From now on links show the certificate of `machine`, and those that have shown another one are succeeded.
    pub(crate) fn renew(&self, machine: Machine) {
        self.identity.send_replace(machine);
    }

    /// Every link announces these services from now on.
    pub(crate) fn publish(&self, services: Vec<ServiceAd>) {
        self.published.send_modify(|published| {
            *published = Published { revision: published.revision + 1, services };
        });
    }

    /// Every relay tells this edge of these services from now on. Of two calls at once the later one reads later.
    pub(crate) fn set_interest(&self, read: impl FnOnce() -> Interest) {
        self.interest.send_modify(|interest| *interest = read());
    }

    /// Nothing is published.
    fn serves_nothing(&self) -> bool {
        self.published.borrow().services.is_empty()
    }

    pub(crate) fn all(&self) -> &[Arc<Uplink>] {
        &self.all
    }

    /// Whether a newer process of this machine goes before this one.
    pub(crate) fn yields(&self) -> bool {
        self.yields.load(Ordering::Acquire)
    }

    /// A relay has a newer process of this machine. Returns whether that is news of this relay.
    pub(crate) fn yield_to(&self, uplink: &Uplink, message: String) -> bool {
        self.yields.store(true, Ordering::Release);
        let mut is_news = false;
        self.change(uplink, |state| {
            state.announced = false;
            is_news = state.stands_by.replace(message).is_none();
        });
        is_news
    }

    /// Changes what is known of one uplink, and wakes who waits for a link.
    pub(crate) fn change(&self, uplink: &Uplink, change: impl FnOnce(&mut UplinkState)) {
        change(&mut uplink.lock());
        let any_up = self.all.iter().any(|uplink| uplink.lock().mux.is_some());
        self.changed.send_modify(|away| {
            *away = if any_up { None } else { Some(away.unwrap_or_else(Instant::now)) };
        });
    }

    /// A link that is up, takes sessions, and was heard lately: what goes out on a path that is dead can't be sent
    /// again, so an open rather waits until a silent link is heard again, or another is up.
    ///
    /// A relay at which this process stands by comes last: it refuses, with the reason.
    pub(crate) fn best(&self) -> Option<(Arc<Uplink>, Mux)> {
        self.usable(false).or_else(|| self.usable(true))
    }

    fn usable(&self, stands_by: bool) -> Option<(Arc<Uplink>, Mux)> {
        for uplink in &self.all {
            let mux =
                uplink.peek(|state| state.mux.clone().filter(|_| state.stands_by.is_some() == stands_by));
            let Some(mux) = mux else { continue };
            let usable = {
                let watch = mux.watch();
                let status = watch.borrow();
                status.down.is_none() && status.peer_drains_ms.is_none() && !status.suspect
            };
            if usable {
                return Some((Arc::clone(uplink), mux));
            }
        }
        None
    }

    /// A link, waiting for one until `deadline` while none has been away for longer than `hold`.
    ///
    /// # Errors
    /// `timeout` when the deadline came first, `conn_lost` when no link is expected back.
    pub(crate) async fn wait(&self, deadline: Instant) -> Result<(Arc<Uplink>, Mux), Abort> {
        let mut changed = self.changed.subscribe();
        // Counted only once it has to wait.
        let mut held = None;
        loop {
            let away = *changed.borrow_and_update();
            if let Some(best) = self.best() {
                return Ok(best);
            }
            if held.is_none() {
                held = Some(Arc::clone(&self.held).try_acquire_owned().map_err(|_| {
                    Abort::new(Code::OVERLOAD, format!("{MAX_HELD} opens wait for a link already"))
                })?);
            }
            // Up but unusable counts as just gone: its end will be noticed.
            let expected = away.unwrap_or_else(Instant::now) + self.hold;
            let until = expected.min(deadline);
            let now = Instant::now();
            if now >= until {
                let code = if deadline <= expected { Code::TIMEOUT } else { Code::CONN_LOST };
                return Err(Abort::new(code, format!("no link to a relay: {}", self.why())));
            }
            // A timeout is decided above; the sender lives in `self`.
            let _ = tokio::time::timeout_at(until.into(), changed.changed()).await;
        }
    }

    /// Waits until a link is silent, and another one is up that is not. Cancel safe.
    pub(crate) async fn superseded(&self, mux: &Mux) {
        let mut changed = self.changed.subscribe();
        let mut status = mux.watch();
        loop {
            changed.borrow_and_update();
            let is_silent = status.borrow_and_update().suspect;
            if is_silent && self.best().is_some_and(|(_, other)| !other.is_same(mux)) {
                return;
            }
            // Whichever sender is gone, the session that waits has been told of its own end.
            let more = tokio::select! {
                more = changed.changed() => more,
                more = status.changed() => more,
            };
            if more.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// An agent for a session that goes out on this link, if the relay there has named any: of two drawn at random the one
    /// with fewer sessions of this edge.
    pub(crate) fn choose_agent(self: &Arc<Self>, uplink: &Uplink, service: &ServiceName) -> Option<Load> {
        let state = uplink.lock();
        let takes = |fact: &&AgentFact| fact.agent_state() == AgentState::Up;
        let agents: Vec<&AgentFact> = state.agents.get(service.as_str())?.iter().filter(takes).collect();
        let mut loads = self.loads();
        let load = |fact: &AgentFact| fact.instance_id().map_or(0, |id| loads.get(&id).copied().unwrap_or(0));
        let fact = agents.sample(&mut rand::rng(), 2).min_by_key(|fact| load(fact))?;
        let agent = fact.instance_id().ok()?;
        *loads.entry(agent).or_default() += 1;
        Some(Load { agent, machine: fact.machine.clone(), uplinks: Arc::clone(self) })
    }

    /// Asks the relays for the figures of the agents, if they are old, and waits for a moment for the answers. Nobody asks
    /// while nobody looks: an idle link stays idle.
    pub(crate) async fn refresh_agents(&self) {
        let is_old = |uplink: &Arc<Uplink>| {
            let state = uplink.lock();
            let is_fresh = state.agents_told.is_some_and(|told| told.elapsed() < FRESH);
            state.mux.is_some() && !state.agents.is_empty() && !is_fresh
        };
        if !self.all.iter().any(is_old) {
            return;
        }
        let mut changed = self.changed.subscribe();
        self.interest.send_modify(|_| {});
        // A relay that does not answer in time is seen by the age of what it said last.
        let _ = tokio::time::timeout(ANSWERS, async {
            while self.all.iter().any(is_old) && changed.changed().await.is_ok() {}
        })
        .await;
    }

    /// Opens that wait for a link now.
    pub(crate) fn held(&self) -> usize {
        MAX_HELD - self.held.available_permits()
    }

    /// The round trip of the path to a service's agent, as far as it was measured: own link, and the one behind it, which
    /// is known once somebody has asked for the status. Without that it is the less of the two that can be said: no
    /// hint is wrong by it.
    pub(crate) fn round_trip(&self, service: &str) -> Option<Duration> {
        let (uplink, mux) = self.best()?;
        let own = mux.info().round_trip?;
        let far = uplink.lock().agents.get(service).and_then(|agents| agents.first()?.rtt_us);
        Some(own + Duration::from_micros(far.unwrap_or_default()))
    }

    fn loads(&self) -> MutexGuard<'_, BTreeMap<InstanceId, usize>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No link has been up for longer than `hold`: opens are refused.
    pub(crate) fn given_up(&self) -> bool {
        self.changed.borrow().is_some_and(|away| away.elapsed() > self.hold)
    }

    /// Why there is no link.
    fn why(&self) -> String {
        let faults: Vec<String> = self
            .all
            .iter()
            .filter_map(|uplink| Some(format!("{}: {}", uplink.relay, uplink.fault.status()?.message)))
            .collect();
        if faults.is_empty() { "none has come up yet".to_owned() } else { faults.join("; ") }
    }

    /// Waits until one link is up with everything announced.
    pub(crate) async fn ready(&self) {
        let mut changed = self.changed.subscribe();
        while !self.is_ready() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until everything is announced on this link of an uplink, or the link is over.
    pub(crate) async fn announced_on(&self, uplink: &Uplink, mux: &Mux) {
        let mut changed = self.changed.subscribe();
        let is_announced = |state: &UplinkState| {
            state.announced && state.mux.as_ref().is_some_and(|current| current.is_same(mux))
        };
        let announced = async { while !uplink.peek(is_announced) && changed.changed().await.is_ok() {} };
        tokio::select! {
            () = announced => {}
            _ = mux.closed() => {}
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.all.iter().any(|uplink| {
            let state = uplink.lock();
            state.mux.is_some() && state.announced
        })
    }

    /// Limits of all links that were met, those of links that are over included.
    pub(crate) fn limits_reached(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for uplink in &self.all {
            for (limit, count) in uplink.state().carried().limits {
                *all.entry(limit.to_owned()).or_default() += count;
            }
        }
        all
    }

    /// Tells the relays that this edge is on its way out, and takes no sessions from them any more.
    pub(crate) fn begin_drain(&self, deadline: Duration) {
        self.leaving.send_replace(Some(deadline));
        for uplink in &self.all {
            for mux in uplink.links() {
                mux.drain(deadline);
            }
        }
    }

    /// Changes when this edge is on its way out: then it says within what time.
    pub(crate) fn leaving(&self) -> watch::Receiver<Option<Duration>> {
        self.leaving.subscribe()
    }

    /// Dials and accepts nothing any more; returns the links that are up, for their goodbye.
    pub(crate) fn leave(&self) -> Vec<Mux> {
        self.leaving.send_modify(|leaving| {
            leaving.get_or_insert(Duration::ZERO);
        });
        self.all.iter().flat_map(|uplink| uplink.links()).collect()
    }
}

/// One session more at an agent that the sidecar chose, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Load {
    agent: InstanceId,
    machine: String,
    uplinks: Arc<Uplinks>,
}

impl Load {
    pub(crate) fn agent(&self) -> InstanceId {
        self.agent
    }

    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let mut loads = self.uplinks.loads();
        if let Some(load) = loads.get_mut(&self.agent) {
            *load -= 1;
            if *load == 0 {
                loads.remove(&self.agent);
            }
        }
    }
}
