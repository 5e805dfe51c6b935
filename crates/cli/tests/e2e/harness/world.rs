//! A whole path: a relay, an agent and a sidecar, joined by tokens, with many services.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hopline_admin::status::{
    EdgeStatus, LinkState, Mapping, MappingState, RelayStatus, Service, ServiceState, Status,
};
use socket2::SockRef;
use tempfile::TempDir;

use super::{Conn, PATIENCE, Process, hopline, run, schema, until};

/// Services of the shared path: each test takes those that it needs and nobody takes them again.
const SHARED_SLOTS: usize = 64;
/// After the last close, for everything of it to be gone (I4).
const SETTLE: Duration = Duration::from_secs(5);
const LOOPBACK: std::net::Ipv4Addr = std::net::Ipv4Addr::LOCALHOST;

/// How an application connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Unix,
    Tcp,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::Unix, Self::Tcp];
}

/// What a path is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorldOptions {
    /// Servers, each published under two names: one for a unix socket, one for a TCP mapping.
    pub(crate) slots: usize,
    /// `RUST_LOG` of all three.
    pub(crate) log: &'static str,
    /// `keepalive:` of both edges.
    pub(crate) keepalive: &'static str,
    /// How long a drain takes, of all three.
    pub(crate) drain: &'static str,
    /// Further lines under the agent's `services:`.
    pub(crate) services: &'static str,
    /// Further lines under the sidecar's `connect:`.
    pub(crate) mappings: &'static str,
    /// Further keys of each slot's mappings.
    pub(crate) mapping_keys: &'static str,
    /// What the sidecar may dial.
    pub(crate) dial: &'static [&'static str],
    /// Further lines at the top of the sidecar's file.
    pub(crate) sidecar_keys: &'static str,
    /// Further lines at the top of the agent's file.
    pub(crate) agent_keys: &'static str,
    /// What the agent is started by, which runs what follows it.
    pub(crate) agent_by: &'static [&'static str],
    /// The relay's config file.
    pub(crate) relay_file: &'static str,
    /// The address on which the relay listens: of its own for a relay that has to come back to its port.
    pub(crate) relay_host: &'static str,
    /// Whether the stderr of each process is a pipe.
    pub(crate) piped: bool,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            slots: 1,
            log: "hopline_relay=debug,hopline_edge=debug,hopline_link=debug,info",
            keepalive: "default",
            drain: "10s",
            services: "",
            mappings: "",
            mapping_keys: "",
            dial: &["*"],
            sidecar_keys: "",
            agent_keys: "",
            agent_by: &[],
            relay_file: "",
            relay_host: "127.0.0.1",
            piped: false,
        }
    }
}

/// The command as the last words of another.
fn by(words: &[&str], command: Command) -> Command {
    let [program, first @ ..] = words else { return command };
    let mut outer = Command::new(program);
    outer.args(first).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// A server's socket, and the two ways of an application to it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) server: TcpListener,
    unix: PathBuf,
    tcp: SocketAddr,
    number: usize,
}

impl Slot {
    /// The service's name, which is also the mapping's.
    pub(crate) fn name(&self, kind: Kind) -> String {
        name(kind, self.number)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.unix
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.tcp
    }

    /// An application connects.
    pub(crate) fn dial(&self, kind: Kind) -> Conn {
        let conn = match kind {
            Kind::Unix => Conn::Unix(UnixStream::connect(&self.unix).unwrap()),
            Kind::Tcp => Conn::connect(self.tcp),
        };
        conn.patient()
    }

    /// The server takes the next connection.
    pub(crate) fn accept(&self) -> Conn {
        Conn::Tcp(self.server.accept().unwrap().0).patient()
    }

    /// Both ends of a session that is known to be answered: until then its end may take a shorter way.
    pub(crate) fn answered_pair(&self, kind: Kind) -> (Conn, Conn) {
        let (mut app, mut server) = self.pair(kind);
        server.write_all(b"!").unwrap();
        assert_eq!(app.chunk(1), b"!");
        (app, server)
    }

    /// Both ends of one session: the application's and the server's.
    pub(crate) fn pair(&self, kind: Kind) -> (Conn, Conn) {
        let app = self.dial(kind);
        (app, self.accept())
    }
}

fn name(kind: Kind, number: usize) -> String {
    match kind {
        Kind::Unix => format!("u{number}"),
        Kind::Tcp => format!("t{number}"),
    }
}

#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) state: PathBuf,
    pub(crate) admin: String,
}

#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) process: Process,
    pub(crate) state: PathBuf,
    pub(crate) admin: String,
}

/// The path. Dropped, its processes are killed; if that is because a test fails, their logs are printed.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) relay: Relay,
    pub(crate) agent: Edge,
    pub(crate) sidecar: Edge,
    pub(crate) slots: Vec<Slot>,
    taken: AtomicUsize,
    options: WorldOptions,
    // Last, so that the processes end before their folder goes.
    folder: TempDir,
}

impl World {
    pub(crate) fn start(options: WorldOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let relay = Relay::start(folder.path(), &options, "relay-a", 0);
        let agent = join(folder.path(), &relay, "agent", &["--publish", "*"]);
        let dial: Vec<&str> = options.dial.iter().flat_map(|glob| ["--dial", *glob]).collect();
        let sidecar = join(folder.path(), &relay, "sidecar", &dial);
        let servers: Vec<TcpListener> = (0..options.slots).map(|_| server()).collect();
        let ports: Vec<u16> = servers.iter().map(|server| server.local_addr().unwrap().port()).collect();
        write(folder.path(), "agent", &agent_file(&options, folder.path(), &ports));
        write(folder.path(), "sidecar", &sidecar_file(&options, folder.path()));
        let agent = Edge::spawn(folder.path(), &options, "agent", agent);
        let sidecar = Edge::spawn(folder.path(), &options, "sidecar", sidecar);
        let mut world =
            Self { relay, agent, sidecar, slots: Vec::new(), taken: AtomicUsize::new(0), options, folder };
        world.agent.wait_ready();
        world.sidecar.wait_ready();
        world.slots = world.slots_of(servers);
        world
    }

    fn slots_of(&self, servers: Vec<TcpListener>) -> Vec<Slot> {
        let mappings = self.sidecar.status().mappings;
        let slot = |(number, server)| Slot {
            server,
            unix: socket(self.folder.path(), number),
            tcp: find(&mappings, &name(Kind::Tcp, number)).listen.parse().unwrap(),
            number,
        };
        servers.into_iter().enumerate().map(slot).collect()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn processes(&self) -> [&Process; 3] {
        [&self.relay.process, &self.agent.process, &self.sidecar.process]
    }

    /// One of the mappings of the sidecar.
    pub(crate) fn mapping(&self, name: &str) -> Mapping {
        find(&self.sidecar.status().mappings, name)
    }

    /// One of the services of the agent.
    pub(crate) fn service(&self, name: &str) -> Service {
        let services = self.agent.status().services;
        services.into_iter().find(|service| service.name == name).unwrap()
    }

    /// A slot that no other test has.
    pub(crate) fn slot(&self) -> &Slot {
        &self.slots[self.taken.fetch_add(1, Ordering::Relaxed)]
    }

    /// Waits until nothing of a slot's sessions is left at either edge (I4).
    pub(crate) fn settled(&self, slot: &Slot) {
        for kind in Kind::BOTH {
            let name = slot.name(kind);
            until(&format!("the sessions of {name} are gone"), SETTLE, || {
                (self.mapping(&name).sessions.open == 0).then_some(())
            });
            until(&format!("the sessions of {name} are gone at the agent"), SETTLE, || {
                (self.service(&name).sessions.open == 0).then_some(())
            });
        }
    }

    /// One session there and back: the path works.
    pub(crate) fn works(&self, slot: &Slot) {
        for kind in Kind::BOTH {
            let (mut app, mut server) = slot.pair(kind);
            app.write_all(b"works?").unwrap();
            assert_eq!(server.chunk(6), b"works?");
            server.write_all(b"yes").unwrap();
            server.end();
            assert_eq!(app.read_to_eof(), b"yes");
            app.end();
            assert_eq!(server.read_to_eof(), b"");
        }
    }

    /// Joins one more machine and starts its edge. `text` is its file, but for what each edge's file begins with.
    pub(crate) fn another(&self, name: &str, grants: &[&str], text: &str) -> Edge {
        let state = join(self.folder.path(), &self.relay, name, grants);
        let text = format!("{}{text}", head(&self.options, self.folder.path(), name));
        write(self.folder.path(), name, &text);
        let edge = Edge::spawn(self.folder.path(), &self.options, name, state);
        edge.wait_ready();
        edge
    }

    /// A second process of a machine, from a copy of its folder and of its file.
    pub(crate) fn second(&self, name: &str) -> Edge {
        let copy =
            (2..).map(|n| format!("{name}-copy-{n}")).find(|copy| !self.folder.path().join(copy).exists());
        let copy = copy.unwrap();
        let (from, state) = (self.folder.path().join(name), self.folder.path().join(&copy));
        std::fs::create_dir(&state).unwrap();
        for file in std::fs::read_dir(&from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), state.join(file.file_name())).unwrap();
        }
        let text = std::fs::read_to_string(from.with_extension("yaml")).unwrap();
        let text = text.replace(&format!("{name}-admin.sock"), &format!("{copy}-admin.sock"));
        write(self.folder.path(), &copy, &text);
        let edge = Edge::spawn(self.folder.path(), &self.options, &copy, state);
        edge.wait_ready();
        edge
    }

    /// Writes the file of [`World::another`] anew.
    pub(crate) fn rewrite(&self, name: &str, text: &str) {
        let text = format!("{}{text}", head(&self.options, self.folder.path(), name));
        write(self.folder.path(), name, &text);
    }

    /// A process of a machine once more, without waiting for anything.
    pub(crate) fn spawn_again(&self, name: &str) -> Edge {
        Edge::spawn(self.folder.path(), &self.options, name, self.folder.path().join(name))
    }

    /// Starts the agent again, after it has ended.
    pub(crate) fn restart_agent(&mut self) {
        let state = self.agent.state.clone();
        self.agent = Edge::spawn(self.folder.path(), &self.options, "agent", state);
        self.agent.wait_ready();
    }

    /// Starts the sidecar again, after it has ended.
    pub(crate) fn restart_sidecar(&mut self) {
        let state = self.sidecar.state.clone();
        self.sidecar = Edge::spawn(self.folder.path(), &self.options, "sidecar", state);
        self.sidecar.wait_ready();
        let servers = std::mem::take(&mut self.slots).into_iter().map(|slot| slot.server).collect();
        self.slots = self.slots_of(servers);
    }

    /// The relay's process once more, on its port, without waiting for anything.
    pub(crate) fn spawn_relay(&self) -> Process {
        Relay::spawn(self.folder.path(), &self.options, "relay-a", self.relay.address.port())
    }

    /// Starts the relay again on its port, after it has ended.
    pub(crate) fn restart_relay(&mut self) {
        self.relay = Relay::start(self.folder.path(), &self.options, "relay-a", self.relay.address.port());
    }

    fn print_logs(&self) {
        for process in self.processes() {
            process.print_log();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.print_logs();
        }
    }
}

impl Relay {
    fn spawn(folder: &Path, options: &WorldOptions, name: &str, port: u16) -> Process {
        let admin = format!("unix:{}", admin_socket(folder, name).display());
        let listen = format!("{}:{port}", options.relay_host);
        let mut command = hopline();
        command.args(["relay", "--name", name, "--listen", &listen, "--admin", &admin]);
        write(folder, name, options.relay_file);
        command.arg("-c").arg(folder.join(name).with_extension("yaml"));
        command.args(["--drain", options.drain, "--state"]);
        command.arg(folder.join(name)).env("RUST_LOG", options.log);
        spawn(name, folder, options, command)
    }

    /// The relay of this name on a port; 0 takes a free one.
    pub(super) fn start(folder: &Path, options: &WorldOptions, name: &str, port: u16) -> Self {
        let state = folder.join(name);
        let admin = format!("unix:{}", admin_socket(folder, name).display());
        let process = Self::spawn(folder, options, name, port);
        let listens = process.logged("relay listens listen=");
        // Of two, one: edges dial its port of loopback.
        let address: SocketAddr = listens.trim_matches('"').split(',').next().unwrap().parse().unwrap();
        let address = if address.ip().is_unspecified() {
            SocketAddr::from((LOOPBACK, address.port()))
        } else {
            address
        };
        Self { process, address, state, admin }
    }

    pub(crate) fn status(&self) -> RelayStatus {
        match status(&self.admin) {
            Status::Relay(status) => status,
            Status::Edge(_) => panic!("the relay shows the status of an edge"),
        }
    }
}

impl Edge {
    pub(super) fn spawn(folder: &Path, options: &WorldOptions, name: &str, state: PathBuf) -> Self {
        let mut command = hopline();
        command.arg("up").arg("-c").arg(folder.join(name).with_extension("yaml"));
        command.arg("--state").arg(&state).env("RUST_LOG", options.log);
        let admin = format!("unix:{}", admin_socket(folder, name).display());
        if name == "agent" {
            command = by(options.agent_by, command);
        }
        Self { process: spawn(name, folder, options, command), state, admin }
    }

    pub(crate) fn status(&self) -> EdgeStatus {
        match status(&self.admin) {
            Status::Edge(status) => status,
            Status::Relay(_) => panic!("the edge shows the status of a relay"),
        }
    }

    /// Waits until a link is up, every socket open and every service registered. Not until all is well: nobody may serve
    /// what is dialled.
    pub(crate) fn wait_ready(&self) {
        until(&format!("{} is ready", self.admin), PATIENCE, || {
            assert!(self.process.is_running(), "the edge has ended:\n{}", self.process.log());
            try_status(&self.admin).filter(is_ready).map(drop)
        });
    }
}

fn spawn(name: &str, folder: &Path, options: &WorldOptions, command: Command) -> Process {
    if options.piped {
        Process::spawn_piped(name, folder, command)
    } else {
        Process::spawn(name, folder, command)
    }
}

/// A field of a process's `/status`, as it was sent.
pub(crate) fn status_field(address: &str, field: &str) -> serde_json::Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(hopline_admin::client::fetch(address)).unwrap()[field].take()
}

fn is_ready(status: &Status) -> bool {
    let Status::Edge(edge) = status else { return false };
    edge.links.iter().any(|link| link.state == LinkState::Up)
        && edge.mappings.iter().all(|mapping| mapping.state == MappingState::Ready)
        && edge.services.iter().all(|service| service.state == ServiceState::Up)
}

/// `/status` at an address.
pub(crate) fn status(address: &str) -> Status {
    // A process that is starved of CPU may not answer at once.
    until(&format!("a status at {address}"), PATIENCE, || try_status(address))
}

fn try_status(address: &str) -> Option<Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let value = runtime.block_on(hopline_admin::client::fetch(address)).ok()?;
    assert_eq!(schema::faults(&value), Vec::<String>::new(), "{value}");
    Some(Status::from_value(value).unwrap())
}

fn find(mappings: &[Mapping], name: &str) -> Mapping {
    mappings.iter().find(|mapping| mapping.name == name).unwrap().clone()
}

/// Makes a token and redeems it; gives the machine's folder.
pub(super) fn join(folder: &Path, relay: &Relay, machine: &str, grants: &[&str]) -> PathBuf {
    let address = relay.address.to_string();
    let state = relay.state.to_str().unwrap();
    let token = run(["token", "create", "--state", state, "--relay", &address].iter().chain(grants));
    assert!(token.status.success(), "{token:?}");
    let file = folder.join(machine).with_extension("token");
    write_secret(&file, &token.stdout);
    let state = folder.join(machine);
    let joined = run([
        "join".as_ref(),
        file.as_os_str(),
        "--name".as_ref(),
        machine.as_ref(),
        "--state".as_ref(),
        state.as_os_str(),
    ]);
    assert!(joined.status.success(), "{joined:?}");
    state
}

/// A file that only its owner can read.
pub(crate) fn write_secret(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

/// A server's socket on a free port, whose accepts give up.
pub(super) fn server() -> TcpListener {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&server).set_read_timeout(Some(PATIENCE)).unwrap();
    server
}

pub(super) fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name).with_extension("yaml"), text).unwrap();
}

fn socket(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("u{number}.sock"))
}

fn admin_socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-admin.sock"))
}

pub(super) fn head(options: &WorldOptions, folder: &Path, name: &str) -> String {
    let admin = admin_socket(folder, name);
    let WorldOptions { keepalive, drain, .. } = options;
    format!("status: \"unix:{}\"\nkeepalive: \"{keepalive}\"\ndrain: {drain}\n", admin.display())
}

fn agent_file(options: &WorldOptions, folder: &Path, ports: &[u16]) -> String {
    let mut text = head(options, folder, "agent");
    write!(text, "{}services:\n{}", options.agent_keys, options.services).unwrap();
    for (number, port) in ports.iter().enumerate() {
        for kind in Kind::BOTH {
            writeln!(text, "  {}: {{ tcp: {{ tcp: {port} }} }}", name(kind, number)).unwrap();
        }
    }
    text
}

fn sidecar_file(options: &WorldOptions, folder: &Path) -> String {
    let mut text = head(options, folder, "sidecar");
    write!(text, "{}connect:\n{}", options.sidecar_keys, options.mappings).unwrap();
    for number in 0..options.slots {
        let socket = socket(folder, number);
        let keys = options.mapping_keys;
        writeln!(text, "  u{number}: {{ listen: \"unix:{}\"{keys} }}", socket.display()).unwrap();
        writeln!(text, "  t{number}: {{ listen: \"127.0.0.1:0\"{keys} }}").unwrap();
    }
    text
}

/// A hold on the path that tests share.
#[derive(Debug)]
pub(crate) struct Shared(Arc<World>);

/// The path that tests share; it lives for as long as one of them does.
pub(crate) fn shared() -> Shared {
    static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let world = shared.upgrade().unwrap_or_else(|| {
        Arc::new(World::start(WorldOptions { slots: SHARED_SLOTS, ..WorldOptions::default() }))
    });
    *shared = Arc::downgrade(&world);
    Shared(world)
}

impl Deref for Shared {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.print_logs();
        }
    }
}
