//! Resets and cuts: they pass from end to end as what they are.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::ends::{fill, reason_at, service_reason_at};
use crate::harness::{Conn, Ended, Kind, PATIENCE, World, WorldOptions, pattern, shared, until};

/// F14: the server announces more than it sends, and resets.
#[test]
fn f14_servers_reset_is_never_an_end() {
    let sent = pattern(14, 100 << 10);
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        // Everything was read before: then comes the reset, at once.
        let (mut app, mut server) = slot.pair(kind);
        server.write_all(&sent).unwrap();
        assert!(app.chunk(sent.len()) == sent);
        server.reset();
        let (rest, ended) = app.drain_at_once();
        assert!(rest.is_empty());
        reset_as_far_as_possible(kind, ended);
        // The reset follows the bytes at once: some may be lost, as directly, but none is another.
        let (mut app, mut server) = slot.answered_pair(kind);
        server.write_all(&sent).unwrap();
        server.reset();
        let (bytes, ended) = app.drain_at_once();
        assert!(sent.starts_with(&bytes), "other bytes");
        reset_as_far_as_possible(kind, ended);
        world.settled(slot);
        reason_at(&world, &slot.name(kind), "peer_reset", 2);
        service_reason_at(&world, &slot.name(kind), "peer_reset", 0);
    }
}

/// A unix socket has no reset (P17).
fn reset_as_far_as_possible(kind: Kind, ended: Ended) {
    if kind == Kind::Tcp {
        assert_eq!(ended, Ended::Reset);
    }
}

/// F14, the other way: the application resets, before or after the server has heard anything of it.
#[test]
fn f14_applications_reset_reaches_the_server() {
    let sent = pattern(15, 100 << 10);
    let world = shared();
    let slot = world.slot();
    let (mut app, mut server) = slot.pair(Kind::Tcp);
    app.write_all(&sent).unwrap();
    assert!(server.chunk(sent.len()) == sent);
    app.reset();
    assert_eq!(server.drain_at_once(), (Vec::new(), Ended::Reset));
    let (app, mut server) = slot.answered_pair(Kind::Tcp);
    app.reset();
    assert_eq!(server.drain_at_once().1, Ended::Reset);
    world.settled(slot);
    // Who leaves has no fault to be told of, and the service has none.
    assert_eq!(world.mapping(&slot.name(Kind::Tcp)).last_error, None);
    assert_eq!(world.service(&slot.name(Kind::Tcp)).last_error, None);
}

/// F16: the server answers early, while the application still uploads, and closes with bytes of it unread. Its
/// answer arrives whole, as it does directly. Behind it comes a reset; or an end, if nothing was unread in the
/// moment of the close.
#[test]
fn f16_early_answer_is_not_lost() {
    const UPLOAD: usize = 10 << 20;
    let answer = pattern(16, 64 << 10);
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        for _ in 0..10 {
            let (mut app, mut server) = slot.pair(kind);
            let mut upload = app.handle();
            thread::scope(|scope| {
                scope.spawn(move || {
                    // It may break off at any point: nobody reads it to its end.
                    let _ = upload.write_all(&vec![1; UPLOAD]);
                });
                server.chunk(1 << 20);
                server.write_all(&answer).unwrap();
                drop(server);
                let (bytes, _) = app.drain();
                assert!(bytes == answer, "{kind:?}: {} of {} bytes", bytes.len(), answer.len());
            });
        }
        world.settled(slot);
    }
}

/// F58: the application goes while its server reads nothing. Nothing stays behind, and the server, once it reads,
/// finds a cut.
#[test]
fn f58_server_that_does_not_read() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.pair(kind);
        fill(&mut app);
        app.reset();
        world.settled(slot);
        assert_eq!(server.drain().1, Ended::Reset, "{kind:?}");
    }
}

/// F58, the other way: the server goes while the application reads nothing.
#[test]
fn f58_application_that_does_not_read() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.pair(kind);
        fill(&mut server);
        server.reset();
        world.settled(slot);
        reset_as_far_as_possible(kind, app.drain().1);
    }
}

/// F17: nobody listens where the agent dials.
#[test]
fn f17_closed_port() {
    // A port that was free a moment ago: bound, but never listened on, so that nobody else takes it.
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let port = taken.local_addr().unwrap().as_socket().unwrap().port();
    let services = format!("  closed: {{ tcp: {{ forward: \"127.0.0.1:{port}\" }} }}\n");
    let world = World::start(WorldOptions {
        services: services.leak(),
        mappings: "  closed: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let address = world.mapping("closed").listen;
    for _ in 0..20 {
        let began = Instant::now();
        let mut app = Conn::connect(&address);
        assert_eq!(app.drain(), (Vec::new(), Ended::Reset));
        assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
    }
    reason_at(&world, "closed", "dial_failed", 2);
    service_reason_at(&world, "closed", "dial_failed", 0);
    // F214: the server comes back on its port, and the next session reaches it.
    taken.listen(8).unwrap();
    let server = std::net::TcpListener::from(taken);
    let mut app = Conn::connect(&address);
    Conn::Tcp(server.accept().unwrap().0).write_all(b"back").unwrap();
    assert_eq!(app.read_to_eof(), b"back");
}

/// F22, F23: one session of 50 is reset by its server; the others and the listener do not notice.
#[test]
fn f22_one_reset_among_many() {
    const SESSIONS: u8 = 50;
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let mut pairs: Vec<_> = (0..SESSIONS).map(|_| slot.pair(kind)).collect();
        let (mut victim, server) = pairs.swap_remove(7);
        server.reset();
        reset_as_far_as_possible(kind, victim.drain_at_once().1);
        for (number, (app, server)) in (0..).zip(&mut pairs) {
            app.write_all(&[number]).unwrap();
            assert_eq!(server.chunk(1), [number]);
            server.write_all(&[number + 100]).unwrap();
            assert_eq!(app.chunk(1), [number + 100]);
        }
        world.works(slot);
        // One that has just ended counts until its other end has the last bytes.
        until("only the others are open", PATIENCE, || {
            (world.mapping(&slot.name(kind)).sessions.open == u64::from(SESSIONS) - 1).then_some(())
        });
        drop(pairs);
        world.settled(slot);
    }
}

/// F212: the application's process is killed. Its server hears of it at once: a unix socket tells a full close, a
/// TCP socket resets if it held bytes that were never read.
#[test]
fn f212_application_is_killed() {
    let world = shared();
    for (kind, unread) in [(Kind::Unix, false), (Kind::Unix, true), (Kind::Tcp, true)] {
        let slot = world.slot();
        let (mut app, mut server) = slot.answered_pair(kind);
        if unread {
            // The second byte has come as far as the application's socket when it has read the first.
            server.write_all(b"12").unwrap();
            app.chunk(1);
        }
        // The one holder of the application's socket is this process, which never reads it.
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("1000").stdin(Stdio::from(OwnedFd::from(app))).spawn().unwrap();
        // Its end of the socket is gone from here with the command.
        drop(sleep);
        child.kill().unwrap();
        child.wait().unwrap();
        let killed = Instant::now();
        let ended = if unread { Ended::Reset } else { Ended::Eof };
        assert_eq!(server.drain(), (Vec::new(), ended), "{kind:?}, {unread}");
        // Behind the end comes the reset, as soon as the end has arrived.
        server.write_until_broken();
        assert!(killed.elapsed() < Duration::from_secs(1), "{kind:?}: told after {:?}", killed.elapsed());
        world.settled(slot);
    }
}
