//! Many sessions, large ones, and short ones; afterwards nothing is left of them.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::harness::{Conn, Kind, Slot, World, WorldOptions, descriptors, pattern, shared, until};

/// Sends everything back until each connection's end, for as long as the guard lives.
fn echo<'scope>(scope: &'scope thread::Scope<'scope, '_>, server: &TcpListener) -> Echo {
    let (server, stop) = (server.try_clone().unwrap(), std::sync::Arc::new(AtomicBool::new(false)));
    let stopping = std::sync::Arc::clone(&stop);
    let address = server.local_addr().unwrap();
    scope.spawn(move || {
        while let Ok((stream, _)) = server.accept() {
            if stopping.load(Ordering::Acquire) {
                return;
            }
            scope.spawn(move || {
                let mut conn = Conn::Tcp(stream).patient();
                let mut buffer = vec![0; 64 << 10];
                while let Ok(n @ 1..) = conn.read(&mut buffer) {
                    if conn.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Echo { stop, address }
}

struct Echo {
    stop: std::sync::Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // So that its accept returns.
        drop(std::net::TcpStream::connect(self.address));
    }
}

/// 200 sessions at once, each with bytes of its own in both directions.
#[test]
fn i1_200_sessions_at_once() {
    const SESSIONS: u64 = 100;
    // Both ends of each, and one more while its bytes are written.
    let _share = descriptors(3 * 200);
    let world = shared();
    let slot = world.slot();
    thread::scope(|scope| {
        let _echo = echo(scope, &slot.server);
        let carry = |kind, seed| {
            let bytes = pattern(seed, 60_000 + 1_000 * usize::try_from(seed).unwrap());
            let mut app = slot.dial(kind);
            let back = thread::scope(|scope| {
                let mut writer = app.handle();
                let bytes = &bytes;
                scope.spawn(move || {
                    writer.write_all(bytes).unwrap();
                    writer.end();
                });
                app.read_to_eof()
            });
            assert!(back == bytes, "{kind:?} {seed}: other bytes");
        };
        let sessions: Vec<_> = Kind::BOTH
            .into_iter()
            .flat_map(|kind| (0..SESSIONS).map(move |seed| (kind, seed)))
            .map(|(kind, seed)| scope.spawn(move || carry(kind, seed)))
            .collect();
        for session in sessions {
            session.join().unwrap();
        }
    });
    world.settled(slot);
    for kind in Kind::BOTH {
        assert_eq!(world.mapping(&slot.name(kind)).sessions.total, SESSIONS);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

/// F149, F151, scaled: one large session, in pieces of many sizes.
#[test]
fn f149_one_large_session() {
    const LENGTH: u64 = 200 << 20;
    let world = shared();
    let slot = world.slot();
    let (mut app, mut server) = slot.pair(Kind::Unix);
    let (sent, received) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut hash, mut buffer, mut length) = (Sha256::new(), vec![0; 256 << 10], 0);
            loop {
                let n = app.read(&mut buffer).unwrap();
                if n == 0 {
                    return (length, hash.finalize());
                }
                length += n as u64;
                hash.update(&buffer[..n]);
            }
        });
        let bytes = pattern(149, 1 << 20);
        let (mut hash, mut left, mut piece) = (Sha256::new(), LENGTH, 1);
        while left > 0 {
            piece = (piece * 7 + 13) % bytes.len();
            let n = piece.min(usize::try_from(left).unwrap());
            server.write_all(&bytes[..n]).unwrap();
            hash.update(&bytes[..n]);
            left -= n as u64;
        }
        server.end();
        ((LENGTH, hash.finalize()), reader.join().unwrap())
    });
    assert_eq!(sent, received);
}

/// Descriptors of all three processes, and sessions that they count as open.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: Vec<usize>,
    open: u64,
}

fn held(world: &World, slot: &Slot) -> Held {
    let mut open = world.relay.status().sessions.open;
    for kind in Kind::BOTH {
        open += world.mapping(&slot.name(kind)).sessions.open + world.service(&slot.name(kind)).sessions.open;
    }
    open += world.sidecar.status().links[0].sessions - 1;
    open += world.agent.status().links[0].sessions - 1;
    Held { descriptors: world.processes().map(crate::harness::Process::descriptors).to_vec(), open }
}

/// F10, F65: sessions one after the other leave nothing behind. F43: nor do connections that are closed at once,
/// before or after their open was answered (I4).
#[test]
fn f43_nothing_is_left_behind() {
    const SESSIONS: usize = 1_000;
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    world.works(slot);
    world.settled(slot);
    let before = held(&world, slot);
    assert_eq!(before.open, 0);
    for kind in Kind::BOTH {
        for number in 0..SESSIONS {
            let (mut app, mut server) = slot.pair(kind);
            app.write_all(&number.to_le_bytes()).unwrap();
            app.end();
            assert_eq!(server.read_to_eof(), number.to_le_bytes());
            drop(server);
            assert_eq!(app.read_to_eof(), b"");
        }
    }
    back_to(&world, slot, &before);
    thread::scope(|scope| {
        let _echo = echo(scope, &slot.server);
        for _ in 0..SESSIONS {
            drop(slot.dial(Kind::Unix));
            drop(slot.dial(Kind::Tcp));
        }
        back_to(&world, slot, &before);
    });
    world.works(slot);
}

fn back_to(world: &World, slot: &Slot, before: &Held) {
    let mut now = None;
    // The asking costs descriptors too, for a moment: several looks may be needed.
    let back = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("nothing is left", Duration::from_secs(5), || {
            now = Some(held(world, slot));
            (now.as_ref() == Some(before)).then_some(())
        });
    }));
    assert!(back.is_ok(), "{before:?} before, {now:?} after");
}
