//! Limits that meet whom they are meant for, and nobody else.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hopline_admin::status::{Budget, LinkState, ServiceState};
use rustix::process::Signal;
use socket2::{Domain, Socket, Type};

use crate::harness::{AT_ONCE, Kind, PATIENCE, World, WorldOptions, hopline, until};

/// Connections to the relay that say nothing, from one address.
fn silent(relay: SocketAddr, from: Ipv4Addr, count: usize) -> Vec<Socket> {
    let connect = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((IpAddr::V4(from), 0)).into()).unwrap();
        socket.connect(&relay.into()).unwrap();
        socket
    };
    (0..count).map(connect).collect()
}

/// 300 silent connections from one address: joins and edges come in at once, from another address and from the same.
#[test]
fn silent_connections_keep_nobody_out() {
    for from in [Ipv4Addr::new(127, 0, 9, 9), Ipv4Addr::LOCALHOST] {
        let mut world = World::start(WorldOptions { relay_host: "127.0.8.4", ..WorldOptions::default() });
        let silent = silent(world.relay.address, from, 300);
        let began = Instant::now();
        let edge = world.another("agent-2", &["--publish", "*"], "services:\n  more: { tcp: { tcp: 9 } }\n");
        world.sidecar.process.kill();
        world.restart_sidecar();
        world.works(&world.slots[0]);
        // Three processes were started meanwhile; the handshakes' own bound is 10 s.
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        let reached = world.relay.status().limits_reached;
        assert!(reached.get("max_handshakes").is_some_and(|count| *count >= 44), "{reached:?}");
        world.relay.process.logged("too many connections that are no links yet");
        drop((edge, silent));
    }
}

/// Connections count as handshakes until they are links, or gone.
#[test]
fn a_link_is_no_handshake_any_more() {
    let world = World::start(WorldOptions::default());
    let under_way = |expected: u64| {
        until(&format!("{expected} handshakes"), AT_ONCE, || {
            let handshakes = world.relay.status().budgets.handshakes;
            (handshakes == Budget { used: expected, limit: 256 }).then_some(())
        });
    };
    // Agent and sidecar have linked.
    under_way(0);
    let silent = silent(world.relay.address, Ipv4Addr::LOCALHOST, 3);
    under_way(3);
    drop(silent);
    under_way(0);
}

/// 60 parallel `hopline dial` of one machine work, and its own `hopline up` gets its link beside them.
#[test]
fn sixty_dials_of_one_machine_leave_its_own_process_a_link() {
    const DIALS: usize = 60;
    const WAVE: usize = 6;
    let mut world = World::start(WorldOptions::default());
    let slot = &world.slots[0];
    let dial = |number: usize| {
        let mut command = hopline();
        command.args(["dial", "t0", "--open-timeout", "60s", "--listen", "-", "--state"]);
        command
            .arg(&world.sidecar.state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{number:04}").unwrap();
        (child, stdin)
    };
    let (mut dials, mut servers) = (Vec::new(), Vec::new());
    // Started a few at a time, for a busy machine; none ends before all are there.
    for first in (0..DIALS).step_by(WAVE) {
        dials.extend((first..first + WAVE).map(dial));
        for _ in 0..WAVE {
            let mut server = slot.accept();
            let said = server.chunk(5);
            server.write_all(&said).unwrap();
            servers.push(server);
        }
        for (number, (child, _)) in dials.iter_mut().enumerate().skip(first) {
            let mut back = [0; 5];
            child.stdout.as_mut().unwrap().read_exact(&mut back).unwrap();
            assert_eq!(back, *format!("{number:04}\n").as_bytes());
        }
    }
    // All of them are there when the machine's own process comes.
    let links = world.relay.status().links.iter().filter(|link| link.machine == "sidecar").count();
    assert_eq!(links, DIALS + 1);
    world.sidecar.process.signal(Signal::TERM);
    assert_eq!(world.sidecar.process.wait_exit(PATIENCE).code(), Some(0));
    let began = Instant::now();
    world.restart_sidecar();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for (mut child, _) in dials {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(servers);
    world.works(&world.slots[0]);
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{n:04}{}", "x".repeat(59))).collect()
}

fn services(names: &[String], port: u16) -> String {
    let mut text = String::from("services:\n");
    for name in names {
        writeln!(text, "  {name}: {{ tcp: {{ tcp: {port} }} }}").unwrap();
    }
    text
}

/// As many services with the longest names as a file may have: all are published, one of them is dialled, and a reload
/// to ten, and back, works. Mappings of as many.
#[test]
fn long_lists_are_published() {
    const MANY: usize = 4_096;
    let world = World::start(WorldOptions::default());
    let port = world.slots[0].server.local_addr().unwrap().port();
    let all = names(MANY);
    let agent = world.another("agent-2", &["--publish", "*"], &services(&all, port));
    let relay = |expected: usize| {
        until(&format!("{expected} services"), PATIENCE, || {
            let services = world.relay.status().services;
            (services.iter().filter(|service| service.name.len() == 63).count() == expected).then_some(())
        });
    };
    relay(MANY);
    assert!(agent.status().services.iter().all(|service| service.state == ServiceState::Up));
    let last = &all[MANY - 1];
    let dialling = format!("connect:\n  {last}: {{ listen: \"127.0.0.1:0\" }}\n");
    let sidecar = world.another("sidecar-2", &["--dial", "*"], &dialling);
    let works = |sidecar: &crate::harness::Edge| {
        let address: SocketAddr = sidecar.status().mappings[0].listen.parse().unwrap();
        let mut app = TcpStream::connect(address).unwrap();
        app.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut server = world.slots[0].accept();
        app.write_all(b"hello").unwrap();
        assert_eq!(server.chunk(5), b"hello");
    };
    works(&sidecar);
    for count in [10, 1_025, MANY] {
        world.rewrite("agent-2", &services(&all[MANY - count..], port));
        agent.process.signal(Signal::HUP);
        relay(count);
        works(&sidecar);
    }
    assert_eq!(agent.status().links[0].state, LinkState::Up);
    assert!(!agent.process.log().contains("link lost"), "{}", agent.process.log());
}

/// The relay listens on IPv4 and IPv6 by default, and at `[::]` of any port.
#[test]
fn a_relay_listens_on_both_versions_of_ip() {
    let world = World::start(WorldOptions { relay_host: "[::]", ..WorldOptions::default() });
    world.works(&world.slots[0]);
    let port = world.relay.address.port();
    for host in ["127.0.0.1", "::1"] {
        let host: IpAddr = host.parse().unwrap();
        TcpStream::connect(SocketAddr::new(host, port)).unwrap();
    }
    let listen = world.relay.status().listen;
    assert_eq!(listen, [format!("[::]:{port}"), format!("0.0.0.0:{port}")]);
    let links = world.relay.status().links;
    assert!(links.iter().all(|link| !link.address.contains("ffff")), "{links:?}");
}

/// An address that is busy, or that comes up late: the relay waits for it, says so once, is not ready, and then listens.
#[test]
fn a_relay_waits_for_its_address() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.8.5", ..WorldOptions::default() });
    world.relay.process.kill();
    let busy = std::net::TcpListener::bind(world.relay.address).unwrap();
    let relay = world.spawn_relay();
    relay.logged("can't listen on");
    let state = run_status(&world);
    assert!(state.contains("can't listen on") && state.contains("tried again each second"), "{state}");
    std::thread::sleep(Duration::from_millis(2_500));
    let log = relay.log();
    assert_eq!(log.lines().filter(|line| line.contains("can't listen")).count(), 1, "{log}");
    assert!(relay.is_running());
    drop(busy);
    relay.logged("relay listens listen=");
    world.relay.process = relay;
    world.agent.wait_ready();
    world.sidecar.wait_ready();
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    crate::harness::carry(&mut app, &mut server, 5);
}

fn run_status(world: &World) -> String {
    let shown = crate::harness::run(["status", &world.relay.admin]);
    assert_eq!(shown.status.code(), Some(1));
    // As one line, however it is broken.
    String::from_utf8(shown.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}
