//! The router in virtual time.

mod interests;
mod limit;
mod model;
mod opens;
mod purity;
mod registrations;
mod standby;
mod waiting;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hopline_link_proto::Code;
use hopline_names::{Grants, InstanceId, NameError, Pattern, SessionId};
use hopline_route_proto::{AgentState, Announce, Protocol, RoutingHeader, ServiceAd, ServiceState};

use super::*;

const HOLD: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

/// The agents of one service, as a link was told.
type Told = Vec<(InstanceId, AgentState)>;

/// A router, a clock that only the test moves, and the short forms of what tests say.
struct Sim {
    router: Router,
    now: Instant,
    next_link: u64,
    /// The links that are to be told of changed agents.
    to_tell: BTreeSet<LinkId>,
    /// The links that are to be told that they may serve again.
    restored: Vec<LinkId>,
}

impl Router {
    fn links(&self) -> Vec<LinkStatus> {
        self.links.keys().filter_map(|id| self.link(*id)).collect()
    }

    fn services(&self) -> Vec<ServiceStatus> {
        self.services_after(None).collect()
    }
}

impl Sim {
    /// A relay that has been up for longer than `hold`.
    fn new() -> Self {
        let mut sim = Self::young();
        sim.pass(HOLD);
        sim
    }

    /// A relay that has started now.
    fn young() -> Self {
        Self::with_config(RouterConfig::default())
    }

    fn with_config(config: RouterConfig) -> Self {
        let seed = std::env::var("HOPLINE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("HOPLINE_SEED={seed}");
        let now = start();
        Self {
            router: Router::new(config, seed, now),
            now,
            next_link: 0,
            to_tell: BTreeSet::new(),
            restored: Vec::new(),
        }
    }

    /// Lets time pass, with each timeout handled when it is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.router.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.router.handle_timeout(self.now);
            assert!(self.router.poll_timeout().is_none_or(|next| next > due), "a handled timeout is over");
        }
        self.now = end;
    }

    fn up(&mut self, machine: &str, publish: &[&str], dial: &[&str]) -> LinkId {
        let id = LinkId(self.next_link);
        self.next_link += 1;
        self.router.link_up(id, name(machine), grants(publish, dial), self.now).unwrap();
        id
    }

    /// A machine that may dial everything.
    fn dialler(&mut self) -> LinkId {
        self.up("web-1", &[], &["*"])
    }

    /// A link of a machine that may publish everything and serves these names, under this instance.
    fn agent(&mut self, machine: &str, instance: u8, services: &[&str]) -> LinkId {
        let id = self.up(machine, &["*"], &[]);
        assert_eq!(self.serve(id, instance, services).refused, []);
        id
    }

    fn serve(&mut self, link: LinkId, instance: u8, services: &[&str]) -> Announced {
        let ads = services.iter().map(|service| ad(service, ServiceState::Up)).collect();
        self.announce(link, instance, ads).unwrap()
    }

    fn announce(
        &mut self,
        link: LinkId,
        id: u8,
        services: Vec<ServiceAd>,
    ) -> Result<Announced, AnnounceError> {
        let announce = Announce {
            revision: 1,
            instance: vec![id; 16].into(),
            version: "0.1.0".to_owned(),
            services,
            yields: false,
        };
        self.router.announce(link, &announce, self.now)
    }

    fn lose(&mut self, link: LinkId) {
        self.router.link_down(link, LinkEnd::Lost, self.now);
    }

    fn bye(&mut self, link: LinkId) {
        self.router.link_down(link, LinkEnd::Goodbye, self.now);
    }

    fn open(&mut self, from: LinkId, service: &str) -> Route {
        self.router.route(from, &header(service), self.now)
    }

    fn open_at(&mut self, from: LinkId, service: &str, agent: u8) -> Route {
        self.router.route(from, &header_at(service, agent), self.now)
    }

    fn events(&mut self) -> Vec<HoldId> {
        let mut holds = Vec::new();
        while let Some(event) = self.router.poll_event() {
            match event {
                Event::RouteAgain(id) => holds.push(id),
                Event::AgentsChanged(link) => drop(self.to_tell.insert(link)),
                Event::Restored(link) => self.restored.push(link),
            }
        }
        holds
    }

    /// What these links are told now: link, service, agents.
    fn told(&mut self) -> Vec<(LinkId, String, Told)> {
        drop(self.events());
        let mut told = Vec::new();
        for link in std::mem::take(&mut self.to_tell) {
            loop {
                let services = self.router.take_agents(link, 2);
                if services.is_empty() {
                    break;
                }
                for of in services {
                    let agents = of.agents.iter().map(|agent| (agent.instance, agent.state)).collect();
                    told.push((link, of.service.to_string(), agents));
                }
            }
        }
        told
    }
}

/// A fixed point of the clock that tests count from. The core itself asks no clock.
fn start() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// A service or a machine.
fn name<T: std::str::FromStr<Err = NameError>>(text: &str) -> T {
    text.parse().unwrap()
}

fn instance(id: u8) -> InstanceId {
    InstanceId::new([id; 16])
}

fn grants(publish: &[&str], dial: &[&str]) -> Grants {
    let globs = |texts: &[&str]| texts.iter().map(|text| Pattern::new(text).unwrap()).collect();
    Grants { publish: globs(publish), dial: globs(dial) }
}

fn ad(service: &str, state: ServiceState) -> ServiceAd {
    ServiceAd { name: service.to_owned(), protocol: Protocol::Tcp.into(), state: state.into() }
}

fn header(service: &str) -> RoutingHeader {
    RoutingHeader::session(name(service), SessionId::new([5; 16]))
}

/// For one agent and no other.
fn header_at(service: &str, agent: u8) -> RoutingHeader {
    let mut header = preferring(service, agent);
    header.again = Some(0);
    header
}

/// For one agent rather than another.
fn preferring(service: &str, agent: u8) -> RoutingHeader {
    let mut header = header(service);
    header.agent = Some(instance(agent));
    header
}

/// Where the open goes; fails if it goes nowhere.
#[track_caller]
fn forwarded(route: Route) -> LinkId {
    let Route::Forward { to, .. } = route else { panic!("not forwarded: {route:?}") };
    to
}

/// The reason of the refusal; fails if it is none.
#[track_caller]
fn refused(route: Route) -> Code {
    let Route::Refuse { code, .. } = route else { panic!("not refused: {route:?}") };
    code
}

/// The held open and until when it waits; fails if it is not held.
#[track_caller]
fn held(route: Route) -> (HoldId, Instant) {
    let Route::Hold { id, until } = route else { panic!("not held: {route:?}") };
    (id, until)
}
