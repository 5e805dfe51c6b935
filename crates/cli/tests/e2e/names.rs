//! Names behind a name server that says nothing (P22).

use std::fs;
use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Conn, Kind, PATIENCE, World, WorldOptions, until};
use crate::obeyed::reload;

/// Opens a second of the service whose name nobody resolves.
const RATE: u32 = 100;
/// For how long.
const SOAK: Duration = Duration::from_secs(4);

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// The median and the slowest of what other services and the status take.
fn beside(world: &World, until: Instant) -> (Duration, Duration) {
    let slot = world.slot();
    let mut all = Vec::new();
    while Instant::now() < until || all.len() < 20 {
        let began = Instant::now();
        let (mut app, mut server) = slot.pair(Kind::Tcp);
        app.write_all(b"?").unwrap();
        assert_eq!(server.chunk(1), b"?");
        assert!(world.agent.status().services.len() > 1);
        all.push(began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    all.sort();
    (all[all.len() / 2], all[all.len() - 1])
}

#[test]
fn p22_a_silent_name_server_holds_up_nothing_but_what_needs_it() {
    // Bound, and never read.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let dns = format!("dns: [\"{}\"]\n", silent.local_addr().unwrap());
    let world = World::start(WorldOptions {
        slots: 3,
        agent_keys: Box::leak(dns.into_boxed_str()),
        services: "  named: { tcp: { forward: \"db.internal:5432\" } }\n",
        mappings: "  named: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let address = world.mapping("named").listen;
    let (_, baseline) = beside(&world, Instant::now() + Duration::from_secs(1));
    let threads_before = threads(world.agent.process.pid());
    let done = AtomicBool::new(false);
    let end = Instant::now() + SOAK;
    let (slowest, opens, most) = std::thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let mut open = Vec::new();
            while !done.load(Ordering::Relaxed) {
                open.push(TcpStream::connect(&address).unwrap());
                std::thread::sleep(Duration::from_secs(1) / RATE);
            }
            open.len()
        });
        let (_, slowest) = beside(&world, end);
        let most = threads(world.agent.process.pid());
        done.store(true, Ordering::Relaxed);
        (slowest, opener.join().unwrap(), most)
    });
    assert!(opens > 100, "{opens} opens");
    // No thread waits for a name; a status may have one of its own.
    assert!(most <= threads_before + 8, "{most} threads, {threads_before} before");
    // With getaddrinfo: 4.9 s. A loaded machine may take some, not that.
    let bound = (baseline * 10).max(Duration::from_secs(2));
    assert!(slowest < bound, "{slowest:?} beside {opens} opens, {baseline:?} without");
    let reason = until("the reason is told", PATIENCE, || {
        world.service("named").last_error.filter(|error| error.reason == "dial_failed")
    });
    let words = format!("no answer from the name server {}", silent.local_addr().unwrap());
    assert!(reason.message.contains(&words), "{reason:?}");
}

/// A name server that says no is told from one that says nothing; the hosts file and `localhost` need none.
#[test]
fn names_that_need_no_name_server_work_without_one() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let server = std::net::TcpListener::bind("localhost:0").unwrap();
    let dns = format!("dns: [\"{}\"]\n", silent.local_addr().unwrap());
    let port = server.local_addr().unwrap().port();
    let service = format!("  named: {{ tcp: {{ forward: \"localhost:{port}\" }} }}\n");
    let world = World::start(WorldOptions {
        agent_keys: Box::leak(dns.into_boxed_str()),
        services: Box::leak(service.into_boxed_str()),
        mappings: "  named: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let mut app = TcpStream::connect(world.mapping("named").listen).unwrap();
    app.write_all(b"to").unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    let mut bytes = [0; 2];
    std::io::Read::read_exact(&mut accepted, &mut bytes).unwrap();
    assert_eq!(&bytes, b"to");
}

/// SIGHUP: the name servers of the new file are asked, and no longer those of the old one.
#[test]
fn a_reloads_name_servers_are_asked() {
    let servers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let keys = servers.each_ref().map(|server| {
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        format!("dns: [\"{}\"]\n", server.local_addr().unwrap())
    });
    let world = World::start(WorldOptions {
        agent_keys: Box::leak(keys[0].clone().into_boxed_str()),
        services: "  first: { tcp: { forward: \"first.internal:1\" } }\n  second: { tcp: { forward: \"second.internal:1\" } }\n",
        mappings: "  first: { listen: \"127.0.0.1:0\" }\n  second: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let asked = |server: usize, name: &str| {
        let _app = Conn::connect(world.mapping(name).listen);
        let mut question = [0; 512];
        let read = servers[server].recv(&mut question).expect("a question");
        let label = [&[u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
        assert!(question[..read].windows(label.len()).any(|window| window == label), "{name}");
    };
    asked(0, "first");
    reload(&world, "agent", |text| text.replace(&keys[0], &keys[1]));
    asked(1, "second");
}
