//! The agent's dial: for how long it goes on, and what the sidecar reads when it has failed.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::ends::reason_at;
use crate::harness::{Conn, Ended, PATIENCE, World, WorldOptions};

/// A server whose queue of connections is full: Linux drops every further SYN, until the first one is accepted.
struct Busy {
    listener: Socket,
    _filler: TcpStream,
    port: u16,
}

impl Busy {
    fn start() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(0).unwrap();
        listener.set_read_timeout(Some(PATIENCE)).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let filler = TcpStream::connect(address).unwrap();
        Self { listener, _filler: filler, port: address.port() }
    }

    fn accept(&self) -> Conn {
        Conn::Tcp(self.listener.accept().unwrap().0.into()).patient()
    }
}

/// A path to it, whose mapping has this open timeout.
fn world(server: &Busy, open_timeout: &str) -> World {
    World::start(WorldOptions {
        services: format!("  busy: {{ tcp: {{ tcp: {} }} }}\n", server.port).leak(),
        mappings: format!("  busy: {{ listen: \"127.0.0.1:0\", open_timeout: {open_timeout} }}\n").leak(),
        ..WorldOptions::default()
    })
}

fn connect(world: &World) -> Conn {
    Conn::connect(world.mapping("busy").listen)
}

/// A server that takes more than 10 s to accept is reached: the dial's bound is the open's.
#[test]
fn a_server_that_is_slow_to_accept_is_reached_within_the_open_timeout() {
    let server = Busy::start();
    let world = world(&server, "40s");
    let mut app = connect(&world);
    app.write_all(b"hello").unwrap();
    // What is waited for here is the dial's default bound, which must not count.
    thread::sleep(Duration::from_millis(10_500));
    drop(server.accept());
    let mut accepted = server.accept();
    assert_eq!(accepted.chunk(5), b"hello");
    accepted.write_all(b"late").unwrap();
    assert_eq!(app.chunk(4), b"late");
}

/// Where nothing answers, the sidecar reads the dial's own failure, hop included, and not that its time is over.
#[test]
fn a_silent_server_is_named_before_the_open_timeout() {
    let server = Busy::start();
    let world = world(&server, "1s");
    let began = Instant::now();
    assert_eq!(connect(&world).drain(), (Vec::new(), Ended::Reset));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    reason_at(&world, "busy", "dial_failed", 2);
}
