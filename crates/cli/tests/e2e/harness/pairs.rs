//! Two of everything: relays of one authority, agents of the same services, sidecars with the same mappings. So whatever
//! chooses between two, waits for one of them or names one of them is seen to choose, wait for and name the right one.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use hopline_admin::status::{LinkState, Mapping, Service};
use rustix::process::Signal;
use tempfile::TempDir;

use super::world::{Edge, Relay, head, join, server, write};
use super::{AT_ONCE, Conn, PATIENCE, Process, WorldOptions, until};

/// Names of the relays.
pub(crate) const RELAYS: [&str; 2] = ["relay-a", "relay-b"];
/// Machines that publish.
pub(crate) const AGENTS: [&str; 2] = ["agent-a", "agent-b"];
/// Machines that dial.
pub(crate) const SIDECARS: [&str; 2] = ["sidecar-a", "sidecar-b"];
/// Names of the services, and of the mappings: a unix socket, and one of TCP.
pub(crate) const SERVICES: [&str; 2] = ["first", "second"];

/// The two relays, agents, sidecars, services and mappings. Dropped, the processes are killed; if that is because a test
/// fails, their logs are printed.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(crate) relays: [Relay; 2],
    pub(crate) agents: [Edge; 2],
    pub(crate) sidecars: [Edge; 2],
    /// By agent, then by service: which of the two has a session shows by its server.
    servers: [[TcpListener; 2]; 2],
    /// Where the TCP mappings of the sidecars listen.
    tcp: Mutex<[Option<SocketAddr>; 2]>,
    options: [WorldOptions; 2],
    // Last, so that the processes end before their folder goes.
    folder: TempDir,
}

impl Pairs {
    /// Every edge has a link to both relays, and every agent is registered at both. `hosts` are addresses of 127/8 that no
    /// other test uses, so that a relay can come back to its port.
    pub(crate) fn start(hosts: [&'static str; 2], options: WorldOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        let options = hosts.map(|relay_host| WorldOptions { relay_host, ..options });
        let first = Relay::start(path, &options[0], RELAYS[0], 0);
        let agents = AGENTS.map(|name| join(path, &first, name, &["--publish", "*"]));
        let sidecars = SIDECARS.map(|name| join(path, &first, name, &["--dial", "*"]));
        copy_folder(&path.join(RELAYS[0]), &path.join(RELAYS[1]));
        let second = Relay::start(path, &options[1], RELAYS[1], 0);
        let relays = [first, second];
        let known = format!("relay: [\"{}\", \"{}\"]\n", relays[0].address, relays[1].address);
        let servers = AGENTS.map(|_| SERVICES.map(|_| server()));
        for (name, servers) in AGENTS.iter().zip(&servers) {
            let mut text = head(&options[0], path, name);
            write!(text, "{known}{}services:\n{}", options[0].agent_keys, options[0].services).unwrap();
            for (service, server) in SERVICES.iter().zip(servers) {
                let port = server.local_addr().unwrap().port();
                writeln!(text, "  {service}: {{ tcp: {{ tcp: {port} }} }}").unwrap();
            }
            write(path, name, &text);
        }
        for name in SIDECARS {
            let mut text = head(&options[0], path, name);
            write!(text, "{known}{}connect:\n{}", options[0].sidecar_keys, options[0].mappings).unwrap();
            let [unix, tcp] = SERVICES;
            let keys = options[0].mapping_keys;
            let socket = socket(path, name, unix);
            writeln!(text, "  {unix}: {{ listen: \"unix:{}\"{keys} }}", socket.display()).unwrap();
            writeln!(text, "  {tcp}: {{ listen: \"127.0.0.1:0\"{keys} }}").unwrap();
            write(path, name, &text);
        }
        let spawn = |name, state| Edge::spawn(path, &options[0], name, state);
        let [a, b] = agents;
        let agents = [spawn(AGENTS[0], a), spawn(AGENTS[1], b)];
        let [a, b] = sidecars;
        let sidecars = [spawn(SIDECARS[0], a), spawn(SIDECARS[1], b)];
        let pairs = Self { relays, agents, sidecars, servers, tcp: Mutex::default(), options, folder };
        pairs.wait_settled();
        pairs
    }

    /// Waits until every edge has both its links, and each sidecar knows of both agents at both relays.
    pub(crate) fn wait_settled(&self) {
        for edge in self.agents.iter().chain(&self.sidecars) {
            edge.wait_ready();
            until("both links are up", PATIENCE, || {
                edge.status().links.iter().all(|link| link.state == LinkState::Up).then_some(())
            });
        }
        for sidecar in 0..2 {
            for service in SERVICES {
                until("both agents are known at both relays", PATIENCE, || {
                    (self.mapping(sidecar, service).agents.len() == 4).then_some(())
                });
            }
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn mapping(&self, sidecar: usize, service: &str) -> Mapping {
        let mappings = self.sidecars[sidecar].status().mappings;
        mappings.into_iter().find(|mapping| mapping.name == service).unwrap()
    }

    pub(crate) fn service(&self, agent: usize, service: &str) -> Service {
        let services = self.agents[agent].status().services;
        services.into_iter().find(|of| of.name == service).unwrap()
    }

    /// The socket of a server.
    pub(crate) fn server(&self, agent: usize, service: usize) -> &TcpListener {
        &self.servers[agent][service]
    }

    /// The path of a sidecar's unix socket.
    pub(crate) fn socket(&self, sidecar: usize) -> PathBuf {
        socket(self.folder(), SIDECARS[sidecar], SERVICES[0])
    }

    /// An application connects.
    pub(crate) fn dial(&self, sidecar: usize, service: usize) -> Conn {
        if service == 0 {
            return Conn::Unix(UnixStream::connect(self.socket(sidecar)).unwrap()).patient();
        }
        Conn::connect(self.address(sidecar))
    }

    /// An application tries to connect.
    pub(crate) fn try_dial(&self, sidecar: usize, service: usize) -> io::Result<Conn> {
        if service == 0 {
            return Ok(Conn::Unix(UnixStream::connect(self.socket(sidecar))?).patient());
        }
        Ok(Conn::Tcp(TcpStream::connect(self.address(sidecar))?).patient())
    }

    /// The address of a sidecar's TCP mapping.
    fn address(&self, sidecar: usize) -> SocketAddr {
        let mut known = self.tcp.lock().unwrap();
        *known[sidecar].get_or_insert_with(|| self.mapping(sidecar, SERVICES[1]).listen.parse().unwrap())
    }

    /// The next connection to either server of a service, and the agent that dialled.
    pub(crate) fn accept(&self, service: usize) -> (usize, Conn) {
        until("a server has a connection", AT_ONCE, || self.accepted(service))
    }

    /// A connection that a server of the service has by now.
    pub(crate) fn accepted(&self, service: usize) -> Option<(usize, Conn)> {
        (0..2).find_map(|agent| {
            let listener = &self.servers[agent][service];
            listener.set_nonblocking(true).unwrap();
            let (stream, _) = listener.accept().ok()?;
            Some((agent, Conn::Tcp(stream).patient()))
        })
    }

    /// An answered session: the agent that it came to, the application's end and the server's.
    pub(crate) fn session(&self, sidecar: usize, service: usize) -> (usize, Conn, Conn) {
        let mut app = self.dial(sidecar, service);
        let (agent, mut server) = self.accept(service);
        server.write_all(b"!").unwrap();
        assert_eq!(app.chunk(1), b"!");
        (agent, app, server)
    }

    /// Sessions of a sidecar, until each of the agents has one; in the agents' order.
    pub(crate) fn session_at_each(&self, sidecar: usize, service: usize) -> [(Conn, Conn); 2] {
        let mut found = [None, None];
        until("both agents have a session", PATIENCE, || {
            let (agent, app, server) = self.session(sidecar, service);
            found[agent] = Some((app, server));
            found.iter().all(Option::is_some).then_some(())
        });
        found.map(Option::unwrap)
    }

    /// Restarts a relay on its port, after it has ended.
    pub(crate) fn restart_relay(&mut self, relay: usize) {
        let port = self.relays[relay].address.port();
        self.relays[relay] = Relay::start(self.folder.path(), &self.options[relay], RELAYS[relay], port);
    }

    /// Restarts an agent, after it has ended.
    pub(crate) fn restart_agent(&mut self, agent: usize) {
        let state = self.agents[agent].state.clone();
        self.agents[agent] = Edge::spawn(self.folder.path(), &self.options[0], AGENTS[agent], state);
    }

    /// Restarts a sidecar, after it has ended.
    pub(crate) fn restart_sidecar(&mut self, sidecar: usize) {
        let state = self.sidecars[sidecar].state.clone();
        self.tcp.lock().unwrap()[sidecar] = None;
        self.sidecars[sidecar] = Edge::spawn(self.folder.path(), &self.options[0], SIDECARS[sidecar], state);
    }

    /// Waits until nobody counts a session any more: nothing leaks, whoever began.
    pub(crate) fn none_open(&self, what: &str) {
        for relay in self.relays.iter().filter(|relay| relay.process.is_running()) {
            until(&format!("{what}: {} counts no session", relay.admin), AT_ONCE, || {
                let status = relay.status();
                let of_agents = status.services.iter().flat_map(|service| &service.agents);
                let counted = status.sessions.open + of_agents.map(|agent| agent.sessions).sum::<u64>();
                (counted == 0 && status.budgets.held_opens.used == 0).then_some(())
            });
        }
        for edge in self.agents.iter().chain(&self.sidecars).filter(|edge| edge.process.is_running()) {
            until(&format!("{what}: {} counts no session", edge.admin), AT_ONCE, || {
                let status = edge.status();
                let mappings = status.mappings.iter().map(|mapping| mapping.sessions.open);
                let services = status.services.iter().map(|service| service.sessions.open);
                (mappings.chain(services).sum::<u64>() == 0).then_some(())
            });
        }
    }

    pub(crate) fn processes(&self) -> [&Process; 6] {
        let [[a, b], [c, d], [e, f]] = [
            self.relays.each_ref().map(|relay| &relay.process),
            self.agents.each_ref().map(|edge| &edge.process),
            self.sidecars.each_ref().map(|edge| &edge.process),
        ];
        [a, b, c, d, e, f]
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in self.processes() {
                process.print_log();
            }
        }
    }
}

/// Asks a process to drain, and waits until it does, or has done.
pub(crate) fn begin_drain(process: &Process) {
    process.signal(Signal::TERM);
    until("it drains", AT_ONCE, || process.log().contains("draining").then_some(()));
}

/// Both ways work.
pub(crate) fn exchange(app: &mut Conn, server: &mut Conn) {
    app.write_all(b"to").unwrap();
    assert_eq!(server.chunk(2), b"to");
    server.write_all(b"fro").unwrap();
    assert_eq!(app.chunk(3), b"fro");
}

/// Reads to the end of a connection, which must come within `limit`; whether it was a clean one is the caller's matter.
pub(crate) fn ends_within(conn: &mut Conn, what: &str, limit: Duration) {
    conn.set_patience(limit);
    let mut buffer = [0; 4 << 10];
    loop {
        match conn.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                panic!("{what}: not within {limit:?}")
            }
            Err(_) => break,
        }
    }
}

fn socket(folder: &Path, sidecar: &str, service: &str) -> PathBuf {
    folder.join(format!("{sidecar}-{service}.sock"))
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
