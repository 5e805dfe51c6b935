//! What the relay's status address shows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use hopline_admin::status::{
    AbortCount, AgentState, Budget, Bytes, LinkState, RelayAgent, RelayLink, RelayService, RelayState,
    RelayStatus, Role, SessionCounts, Status, link_ends, seconds,
};
use hopline_link::{Info, Mux};
use hopline_route_proto::ServiceState;

use crate::core::{AgentStatus, LinkId, LinkPhase, LinkStatus, ServiceStatus};
use crate::hub::{Hub, LinkEntry, State};
use crate::metrics;

/// Links or services of one turn: well below a millisecond, after which traffic has its own.
const AT_ONCE: usize = 256;

#[derive(Debug)]
pub(crate) struct Source(pub(crate) Arc<Hub>);

/// A link as its own lock guards it.
struct LinkFigures {
    info: Info,
    suspect: bool,
}

impl LinkFigures {
    fn of(mux: &Mux) -> Self {
        Self { info: mux.info(), suspect: mux.watch().borrow().suspect }
    }
}

impl Source {
    /// The status, with the links' figures by `figures`.
    ///
    /// The router's lock is held to copy what it guards, a few links or services at a time. No link is asked under it:
    /// each has a lock of its own, under which its traffic goes.
    async fn take(&self, figures: impl Fn(&Mux) -> LinkFigures + Sync) -> Status {
        let hub = &self.0;
        // Links and the sum of those that are over in one step, so that each is counted once.
        let (mut status, mut carried, muxes) = hub.peek(|state| {
            let mut carried = hub.counted.carried();
            for (limit, count) in state.router.counters().by_limit() {
                carried.add_limit(limit, count);
            }
            let mux = |(id, link): (&LinkId, &LinkEntry)| (*id, link.address, link.mux.clone());
            (self.of_router(state), carried, state.links.iter().map(mux).collect::<Vec<_>>())
        });
        for some in muxes.chunks(AT_ONCE) {
            let known: Vec<_> =
                hub.peek(|state| some.iter().map(|(id, ..)| state.router.link(*id)).collect());
            for ((_, address, mux), link) in some.iter().zip(known) {
                let LinkFigures { info, suspect } = figures(mux);
                carried.add(&info.counters);
                // It has ended meanwhile: what it carried counts all the same.
                let Some(link) = link else { continue };
                let link = link_status(&link, *address, &info, suspect);
                let windows = &mut status.budgets.window_bytes;
                *windows = windows.plus(link.window_bytes);
                status.links.push(link);
            }
            tokio::task::yield_now().await;
        }
        status.services = self.services().await;
        carried.add_limit("max_handshakes", hub.handshakes.evicted());
        status.limits_reached = carried.limits;
        match hub.listens() {
            Ok(all) => status.listen = all.iter().map(ToString::to_string).collect(),
            Err(error) => status.listen_error = Some(error),
        }
        status.bytes = carried.bytes;
        Status::Relay(status)
    }

    async fn services(&self) -> Vec<RelayService> {
        let mut services = Vec::new();
        let mut after = None;
        loop {
            let some: Vec<_> =
                self.0.peek(|state| state.router.services_after(after.as_ref()).take(AT_ONCE).collect());
            let Some(last) = some.last() else { return services };
            after = Some(last.name.clone());
            services.extend(some.iter().map(service));
            tokio::task::yield_now().await;
        }
    }

    /// What does not grow with links or services.
    fn of_router(&self, state: &State) -> RelayStatus {
        let hub = &self.0;
        RelayStatus {
            role: Role::Relay,
            name: hub.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: seconds(hub.started.elapsed()),
            state: if hub.is_draining() { RelayState::Draining } else { RelayState::Up },
            listen: Vec::new(),
            listen_error: None,
            links: Vec::new(),
            services: Vec::new(),
            sessions: SessionCounts { open: state.sessions.open, total: state.sessions.total },
            opens: (&hub.counted.opens).into(),
            aborts: AbortCount::all(&hub.counted.aborts),
            bytes: Bytes::default(),
            link_ends: link_ends(&hub.counted.ends),
            budgets: metrics::budgets(&state.router, &hub.handshakes),
            limits_reached: BTreeMap::new(),
        }
    }
}

impl hopline_admin::Source for Source {
    async fn status(&self) -> Status {
        self.take(LinkFigures::of).await
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.is_draining() {
            return Err("the relay is on its way out".to_owned());
        }
        self.0.listens().map(drop)
    }
}

fn service(service: &ServiceStatus) -> RelayService {
    let agent = |agent: &AgentStatus| RelayAgent {
        machine: agent.machine.to_string(),
        state: match (agent.phase, agent.state) {
            (LinkPhase::Leaving | LinkPhase::Replaced, _) => AgentState::Draining,
            (LinkPhase::Active, ServiceState::Up) => AgentState::Up,
            (LinkPhase::Active, ServiceState::Down) => AgentState::Down,
        },
        sessions: agent.sessions,
    };
    RelayService { name: service.name.to_string(), agents: service.agents.iter().map(agent).collect() }
}

fn link_status(link: &LinkStatus, address: SocketAddr, info: &Info, suspect: bool) -> RelayLink {
    RelayLink {
        machine: link.machine.to_string(),
        address: address.to_string(),
        state: match link.phase {
            LinkPhase::Leaving => LinkState::Draining,
            LinkPhase::Replaced => LinkState::Standby,
            LinkPhase::Active if suspect => LinkState::Suspect,
            LinkPhase::Active => LinkState::Up,
        },
        rtt_us: info.round_trip.and_then(|trip| u64::try_from(trip.as_micros()).ok()),
        liveness: info.liveness.to_string(),
        last_heard_ms: u64::try_from(info.last_heard.as_millis()).ok(),
        sessions: u64::from(info.sessions),
        window_bytes: Budget { used: info.window_bytes, limit: info.window_budget },
        instance: link.instance.map(|instance| format!("{instance}")).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use hopline_admin::Source as _;
    use hopline_identity::MachineIdentity;
    use hopline_link::{Config, Side};
    use hopline_names::{Grants, MachineName};
    use tempfile::TempDir;

    use super::*;
    use crate::{Relay, RelayConfig};

    /// More than are asked in one turn.
    const LINKS: usize = AT_ONCE + 8;

    /// A relay with so many links in memory. Their far ends are to be kept.
    async fn relay_with_links(folder: &TempDir, links: usize) -> (Relay, Vec<Mux>) {
        let config = RelayConfig { listen: "127.0.0.1:0".to_owned(), ..RelayConfig::new(folder.path()) };
        let relay = Relay::start(config).await.unwrap();
        let mut far = Vec::new();
        for number in 0..links {
            let (near_end, far_end) = tokio::io::duplex(4 << 10);
            let config = |side| Config::new(side, [side as u8; 16], "machine");
            let mux = Mux::spawn(near_end, config(Side::Listener)).unwrap();
            far.push(Mux::spawn(far_end, config(Side::Dialer)).unwrap());
            mux.up().await.unwrap();
            let machine: MachineName = format!("machine-{number}").parse().unwrap();
            let (name, grants) = (machine.clone(), Grants::default());
            let identity = MachineIdentity { name, key_sha256: String::new(), grants };
            let id = relay.hub.new_link_id();
            relay.hub.with(|state| {
                state.router.link_up(id, machine, Grants::default(), Instant::now()).unwrap();
                let (address, agents_changed) = (([127, 0, 0, 1], 1).into(), Arc::default());
                let entry = LinkEntry { mux, identity, address, control: None, agents_changed };
                state.links.insert(id, entry);
            });
        }
        (relay, far)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_link_that_is_slow_to_say_how_it_is_holds_up_no_routing() {
        let folder = TempDir::new().unwrap();
        let (relay, _far) = relay_with_links(&folder, LINKS).await;
        // Each link answers only once the router has had a turn meanwhile.
        let slow = |mux: &Mux| {
            let (hub, (done, routed)) = (Arc::clone(&relay.hub), mpsc::channel());
            let routing = std::thread::spawn(move || {
                hub.with(|state| state.router.handle_timeout(Instant::now()));
                done.send(()).unwrap();
            });
            routed.recv_timeout(Duration::from_secs(10)).expect("the router waits for a link");
            routing.join().unwrap();
            LinkFigures::of(mux)
        };
        let Status::Relay(status) = Source(Arc::clone(&relay.hub)).take(slow).await else {
            panic!("not a relay's")
        };
        assert_eq!(status.links.len(), LINKS);
        assert!(status.links.iter().all(|link| link.state == LinkState::Up && link.window_bytes.limit > 0));
        assert_eq!(status.budgets.links.used, LINKS as u64);
        relay.shutdown().await;
    }

    /// How long a turn of the router waits beside a `/status` in a loop, and how long one takes: `--ignored --nocapture`.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "it measures"]
    async fn what_a_status_of_many_links_takes_from_routing() {
        let folder = TempDir::new().unwrap();
        let (relay, _far) = relay_with_links(&folder, 10_000).await;
        let hub = Arc::clone(&relay.hub);
        let turns = |count: usize| {
            let hub = Arc::clone(&hub);
            let turn = move || {
                let began = Instant::now();
                hub.with(|state| state.router.handle_timeout(began));
                let took = began.elapsed();
                std::thread::sleep(Duration::from_micros(500));
                took
            };
            tokio::task::spawn_blocking(move || {
                let mut took: Vec<_> = (0..count).map(|_| turn()).collect();
                took.sort_unstable();
                [took[count / 2], took[count * 99 / 100], took[count - 1]]
            })
        };
        let alone = turns(2_000).await.unwrap();
        let mut statuses = Vec::new();
        let beside = turns(2_000);
        while !beside.is_finished() {
            let began = Instant::now();
            drop(Source(Arc::clone(&hub)).status().await);
            statuses.push(began.elapsed());
        }
        statuses.sort_unstable();
        let middle = statuses[statuses.len() / 2];
        println!("a turn of the router, median, p99, longest: alone {alone:?}");
        println!("beside {} statuses of {middle:?}: {:?}", statuses.len(), beside.await.unwrap());
        relay.shutdown().await;
    }
}
