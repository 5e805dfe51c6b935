//! Ends of streams: each of the two halves of a connection ends by itself, at both ends of the path.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use hopline_admin::status::LastError;

use crate::harness::{Conn, Ended, Kind, World, pattern, shared};

/// A server that thinks for a while.
const SILENCE: Duration = Duration::from_secs(3);

/// F1: the application ends its direction; the answer comes whole, long after.
#[test]
fn f1_reply_after_the_applications_end() {
    let world = shared();
    thread::scope(|scope| {
        for (kind, slot) in Kind::BOTH.map(|kind| (kind, world.slot())) {
            let world = &*world;
            scope.spawn(move || {
                let (mut app, mut server) = slot.pair(kind);
                reply_after_end(&mut app, &mut server, SILENCE);
                drop((app, server));
                world.settled(slot);
                assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
            });
        }
    });
}

/// Request, end, silence, reply, end: nothing of it is lost and nothing is reset.
pub(crate) fn reply_after_end(app: &mut Conn, server: &mut Conn, silence: Duration) {
    let (request, reply) = (pattern(1, 1 << 10), pattern(2, 1 << 20));
    app.write_all(&request).unwrap();
    app.end();
    assert_eq!(server.read_to_eof(), request);
    // The silence is what is tried here: nothing may come meanwhile.
    server.set_patience(silence);
    assert!(server.read(&mut [0]).is_ok_and(|n| n == 0));
    app.set_patience(silence);
    let error = app.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    app.set_patience(crate::harness::PATIENCE);
    server.set_patience(crate::harness::PATIENCE);
    thread::scope(|scope| {
        scope.spawn(|| {
            server.write_all(&reply).unwrap();
            server.end();
        });
        assert!(app.read_to_eof() == reply, "the reply is another");
    });
}

/// F4, F5: HTTP/1.0 with a half-close after the request, which is long before the server has accepted.
#[test]
fn f5_http_with_half_close() {
    const REQUESTS: usize = 100;
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let body = pattern(5, 3_000);
        let answer = [b"HTTP/1.0 200 OK\r\n\r\n".as_slice(), &body].concat();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..REQUESTS {
                    let mut server = slot.accept();
                    assert_eq!(server.read_to_eof(), b"GET / HTTP/1.0\r\n\r\n");
                    server.write_all(&answer).unwrap();
                }
            });
            for number in 0..REQUESTS {
                let mut app = slot.dial(kind);
                app.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
                app.end();
                assert!(app.read_to_eof() == answer, "{kind:?}: answer {number} is another");
            }
        });
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).sessions.total, REQUESTS as u64);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// F7, F32: the server closes first; the application reads the end, and nothing stays behind once it closes too.
#[test]
fn f7_server_closes_first() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.pair(kind);
        server.write_all(b"bye").unwrap();
        drop(server);
        assert_eq!(app.read_to_eof(), b"bye");
        assert_eq!(world.mapping(&slot.name(kind)).sessions.open, 1, "{kind:?}: half closed is open");
        drop(app);
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// One step of [`f13_every_order_of_ends`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    AppEnds,
    ServerEnds,
    AppReads,
    ServerReads,
}

/// F13: the four halves of a connection close in each of their 24 orders, with data in flight: each end sends more
/// than fits into a window before it ends, and reading may begin before or after anything else.
#[test]
fn f13_every_order_of_ends() {
    let world = shared();
    let mut tried = 0;
    for kind in Kind::BOTH {
        let slot = world.slot();
        for order in orders() {
            let (app, server) = slot.pair(kind);
            close_in_order(&app, &server, &order);
            tried += 1;
        }
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
        assert_eq!(world.service(&slot.name(kind)).last_error, None);
    }
    assert_eq!(tried, 48);
}

fn orders() -> Vec<[Step; 4]> {
    let steps = [Step::AppEnds, Step::ServerEnds, Step::AppReads, Step::ServerReads];
    let mut orders = Vec::new();
    for a in steps {
        for b in steps {
            for c in steps {
                for d in steps {
                    let order = [a, b, c, d];
                    if steps.iter().all(|step| order.contains(step)) {
                        orders.push(order);
                    }
                }
            }
        }
    }
    orders
}

fn close_in_order(app: &Conn, server: &Conn, order: &[Step; 4]) {
    let (forth, back) = (pattern(13, 100 << 10), pattern(14, 100 << 10));
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for step in order {
            match step {
                Step::AppEnds => {
                    app.handle().write_all(&forth).unwrap();
                    app.end();
                }
                Step::ServerEnds => {
                    server.handle().write_all(&back).unwrap();
                    server.end();
                }
                Step::AppReads => readers.push((&back, scope.spawn(|| app.handle().drain()))),
                Step::ServerReads => readers.push((&forth, scope.spawn(|| server.handle().drain()))),
            }
        }
        for (sent, reader) in readers {
            let (bytes, ended) = reader.join().unwrap();
            assert_eq!(ended, Ended::Eof, "{order:?}");
            assert!(bytes == *sent, "{order:?}: other bytes");
        }
    });
}

/// An application that writes and closes, without a half-close and without reading, as `nc` or a logger does: all that
/// it wrote arrives, be the close before or after the answer, and behind it the end. On a unix socket, where a full close
/// is told from a half-close, the server is reset behind that.
#[test]
fn p1_application_that_writes_and_closes() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        for len in [1, 10 << 10, 64 << 10, 256 << 10, 2 << 20] {
            for _ in 0..5 {
                let sent = pattern(len as u64, len);
                let mut app = slot.dial(kind);
                let received = thread::scope(|scope| {
                    let reader = scope.spawn(|| slot.accept().drain());
                    app.write_all(&sent).unwrap();
                    drop(app);
                    reader.join().unwrap()
                });
                assert_eq!((received.0.len(), received.1), (len, Ended::Eof), "{kind:?}");
                assert!(received.0 == sent, "other bytes");
            }
        }
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// F35: bytes and end of the server in one segment, while the application is held up in writing.
#[test]
fn f35_end_while_the_other_direction_is_blocked() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.pair(kind);
        let sent = fill(&mut app);
        server.write_all(&[3; 31]).unwrap();
        server.end();
        assert_eq!(app.read_to_eof(), [3; 31]);
        let received = thread::scope(|scope| {
            let reader = scope.spawn(|| server.read_to_eof().len());
            app.end();
            reader.join().unwrap()
        });
        assert_eq!(received, sent);
        drop((app, server));
        world.settled(slot);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// Writes until nothing more is taken for a while; gives the count.
pub(crate) fn fill(app: &mut Conn) -> usize {
    app.set_patience(Duration::from_millis(200));
    let piece = [1; 64 << 10];
    let mut sent = 0;
    loop {
        match app.write(&piece) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                app.set_patience(crate::harness::PATIENCE);
                return sent;
            }
        }
    }
}

/// A server that closes at once, before or while the application writes its first bytes: the application learns it.
#[test]
fn f11_writer_learns_that_the_server_has_closed() {
    const MESSAGE: usize = 256 << 10;
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.pair(kind);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                app.write_until_broken();
                Instant::now()
            });
            for _ in 0..5 {
                server.chunk(MESSAGE);
            }
            drop(server);
            let closed = Instant::now();
            let took = writer.join().unwrap().saturating_duration_since(closed);
            assert!(took < Duration::from_secs(2), "{kind:?}: the writer was told after {took:?}");
        });
        drop(app);
        world.settled(slot);
        reason_at(&world, &slot.name(kind), "peer_reset", 2);
    }
}

/// Waits until a mapping's last error is this one.
pub(crate) fn reason_at(world: &World, mapping: &str, reason: &str, hop: u64) {
    reason_of(|| world.mapping(mapping).last_error, mapping, reason, hop);
}

/// Waits until the last error of a service at the agent is this one.
pub(crate) fn service_reason_at(world: &World, service: &str, reason: &str, hop: u64) {
    reason_of(|| world.service(service).last_error, service, reason, hop);
}

fn reason_of(error: impl Fn() -> Option<LastError>, name: &str, reason: &str, hop: u64) {
    let began = Instant::now();
    loop {
        let last = error();
        if last.as_ref().is_some_and(|error| error.reason == reason && error.hop == hop) {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{name}: {reason} at hop {hop} expected, not {last:?}"
        );
    }
}
