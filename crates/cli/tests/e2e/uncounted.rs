//! Links that are lost with sessions on them: whatever the relay counts a session as is taken back, whichever of its
//! two links ends first and however it ends.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::access;
use crate::harness::{Conn, Edge, PATIENCE, Process, World, WorldOptions, carry, until};

/// Sessions of each of the two sidecars.
const SESSIONS: usize = 22;
/// More than is kept of a young session, so that it is not taken up again on another path.
const OLD: usize = 80 << 10;
/// The relay notices a closed connection at once.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);

/// How links are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Kill,
    Interrupt,
    Reset,
}

/// Which links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Sidecars,
    Agents,
}

/// A way to the relay whose connections can be reset.
struct Way {
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Way {
    fn to(relay: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut far = tokio::net::TcpStream::connect(relay).await.unwrap();
                    for stream in [&near, &far] {
                        socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self { address, runtime: Some(runtime) }
    }

    /// Resets all connections, at both ends.
    fn reset(&mut self) {
        drop(self.runtime.take());
    }
}

/// Two sidecars and two agents; each sidecar has sessions at both.
struct Doubled {
    world: World,
    other_sidecar: Edge,
    other_agent: Edge,
    ways: Vec<Way>,
    sessions: Vec<(Conn, Conn)>,
}

impl Doubled {
    fn start(side: Side, loss: Loss) -> Self {
        let mut world = World::start(WorldOptions {
            relay_file: "log: { access: true }\n",
            log: "info",
            ..WorldOptions::default()
        });
        let port = world.slots[0].server.local_addr().unwrap().port();
        let mut ways = Vec::new();
        let mut relay = || {
            if loss != Loss::Reset {
                return String::new();
            }
            ways.push(Way::to(world.relay.address));
            format!("relay: [\"{}\"]\n", ways[ways.len() - 1].address)
        };
        let (of_sidecar, of_agent) = match side {
            Side::Sidecars => (relay(), String::new()),
            Side::Agents => (String::new(), relay()),
        };
        let more = relay();
        let serves = format!("{of_agent}services:\n  t0: {{ tcp: {{ tcp: {port} }} }}\n");
        let other_agent = world.another("agent-2", &["--publish", "*"], &serves);
        let dials = format!("{of_sidecar}connect:\n  t0: {{ listen: \"127.0.0.1:0\" }}\n");
        let other_sidecar = world.another("sidecar-2", &["--dial", "*"], &dials);
        if !more.is_empty() {
            let name = if side == Side::Sidecars { "sidecar" } else { "agent" };
            let path = world.folder().join(format!("{name}.yaml"));
            let file = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, format!("{more}{file}")).unwrap();
            match side {
                Side::Sidecars => {
                    world.sidecar.process.kill();
                    world.restart_sidecar();
                }
                Side::Agents => {
                    world.agent.process.kill();
                    world.restart_agent();
                }
            }
        }
        let mut doubled = Self { world, other_sidecar, other_agent, ways, sessions: Vec::new() };
        doubled.open();
        doubled
    }

    /// Sessions through both sidecars to both agents, in use and too old to be taken up again.
    fn open(&mut self) {
        let other: SocketAddr = self.other_sidecar.status().mappings[0].listen.parse().unwrap();
        until("both agents are known at both sidecars", PATIENCE, || {
            let both = [&self.world.sidecar, &self.other_sidecar];
            let known =
                |edge: &Edge| edge.status().mappings.iter().any(|of| of.name == "t0" && of.agents.len() == 2);
            both.into_iter().all(known).then_some(())
        });
        let slot = &self.world.slots[0];
        for address in [slot.address(), other] {
            for _ in 0..SESSIONS {
                let app = Conn::connect(address);
                self.sessions.push((app, slot.accept()));
            }
        }
        for (app, server) in &mut self.sessions {
            carry(app, server, OLD);
            carry(server, app, OLD);
        }
        assert_eq!(self.world.relay.status().sessions.open, 2 * SESSIONS as u64);
        assert_eq!(self.loads().into_iter().sum::<u64>(), 2 * SESSIONS as u64);
        assert!(self.loads().iter().all(|load| *load > 0), "{:?}", self.loads());
    }

    /// Sessions that the relay counts for each agent of the service.
    fn loads(&self) -> Vec<u64> {
        let services = self.world.relay.status().services;
        let of = services.into_iter().filter(|service| service.name == "t0");
        of.flat_map(|service| service.agents).map(|agent| agent.sessions).collect()
    }

    fn lose(&mut self, side: Side, loss: Loss) {
        let processes: [&Process; 2] = match side {
            Side::Sidecars => [&self.world.sidecar.process, &self.other_sidecar.process],
            Side::Agents => [&self.world.agent.process, &self.other_agent.process],
        };
        match loss {
            Loss::Kill => processes.into_iter().for_each(Process::kill),
            Loss::Interrupt => processes.into_iter().for_each(|process| process.signal(Signal::INT)),
            Loss::Reset => self.ways.iter_mut().for_each(Way::reset),
        }
    }

    fn nothing_is_counted(&self) {
        let mut left = (0, Vec::new());
        let counted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("nothing is counted", COUNTED_WITHIN, || {
                left = (self.world.relay.status().sessions.open, self.loads());
                (left.0 == 0 && left.1.iter().all(|load| *load == 0)).then_some(())
            });
        }));
        assert!(counted.is_ok(), "open sessions, and sessions of each agent: {left:?}");
    }
}

fn lost(side: Side, loss: Loss) {
    let mut doubled = Doubled::start(side, loss);
    doubled.lose(side, loss);
    doubled.nothing_is_counted();
    let lines = access::lines(&doubled.world.relay.process, 2 * SESSIONS);
    let ids: BTreeSet<_> = lines.iter().map(|line| line["session"].clone()).collect();
    assert_eq!(ids.len(), 2 * SESSIONS, "one line for each session");
    let reason = if loss == Loss::Interrupt { "shutdown" } else { "conn_lost" };
    for line in &lines {
        assert_eq!((line["reason"].as_str(), line["agent"].starts_with("agent")), (reason, true), "{line:?}");
    }

    let relay = &doubled.world.relay.process;
    let began = Instant::now();
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_exit(PATIENCE).code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(2), "a drain with nothing open took {:?}", began.elapsed());
    assert!(!relay.log().contains("did not end with the drain"), "{}", relay.log());
}

/// Mutant 35: the tasks that count died with the sidecar's link, before they had counted.
#[test]
fn killed_sidecars_leave_no_session_counted() {
    lost(Side::Sidecars, Loss::Kill);
}

#[test]
fn interrupted_sidecars_leave_no_session_counted() {
    lost(Side::Sidecars, Loss::Interrupt);
}

#[test]
fn sidecars_whose_links_are_reset_leave_no_session_counted() {
    lost(Side::Sidecars, Loss::Reset);
}

#[test]
fn killed_agents_leave_no_session_counted() {
    lost(Side::Agents, Loss::Kill);
}

#[test]
fn interrupted_agents_leave_no_session_counted() {
    lost(Side::Agents, Loss::Interrupt);
}

#[test]
fn agents_whose_links_are_reset_leave_no_session_counted() {
    lost(Side::Agents, Loss::Reset);
}

/// The relay itself is told to stop: each session still has its line.
#[test]
fn an_interrupted_relay_writes_a_line_for_each_session() {
    let doubled = Doubled::start(Side::Sidecars, Loss::Interrupt);
    let relay = &doubled.world.relay.process;
    relay.signal(Signal::INT);
    assert_eq!(relay.wait_exit(PATIENCE).code(), Some(0));
    let lines = access::lines(relay, 2 * SESSIONS);
    assert!(lines.iter().all(|line| line["reason"] == "shutdown"), "{lines:?}");
}
