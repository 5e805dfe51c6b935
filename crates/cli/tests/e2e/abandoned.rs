//! Applications that give up, are reset or end their direction in the middle: while their open is held, while their
//! upload is stuck.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ends::fill;
use crate::harness::{Conn, Ended, Kind, PATIENCE, World, WorldOptions, pattern, shared, until};

/// A trip, on a busy machine.
const TRIP: Duration = Duration::from_millis(700);

/// Waits until an application's connection is at the sidecar, and its open held.
fn held(world: &World, kind: Kind, open: u64) {
    let name = world.slots[0].name(kind);
    until("the open is held", PATIENCE, || (world.mapping(&name).sessions.open == open).then_some(()));
}

/// An application that writes and closes, or ends its direction, while its open is held: what it wrote arrives when the
/// relay is back, and behind it the end.
#[test]
fn what_was_said_while_an_open_was_held_arrives() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.31", ..WorldOptions::default() });
    world.relay.process.kill();
    let mut waiting = Vec::new();
    for kind in Kind::BOTH {
        let [mut closes, mut ends] = [world.slots[0].dial(kind), world.slots[0].dial(kind)];
        closes.write_all(&pattern(31, 3_000)).unwrap();
        drop(closes);
        ends.write_all(&pattern(32, 3_000)).unwrap();
        ends.end();
        waiting.push(ends);
        held(&world, kind, 2);
    }
    world.restart_relay();
    let (mut closed, mut ended) = (0, 0);
    for _ in 0..4 {
        let mut server = world.slots[0].accept();
        let said = server.read_to_eof();
        if said == pattern(31, 3_000) {
            closed += 1;
        } else {
            assert!(said == pattern(32, 3_000), "other bytes: {}", said.len());
            ended += 1;
            server.write_all(b"answer").unwrap();
        }
    }
    assert_eq!((closed, ended), (2, 2));
    for mut app in waiting {
        assert_eq!(app.read_to_eof(), b"answer");
    }
    world.settled(&world.slots[0]);
}

/// One that is reset while its open is held leaves nothing behind, and no server hears of it.
#[test]
fn an_open_that_was_reset_while_it_was_held_goes_nowhere() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.32", ..WorldOptions::default() });
    world.relay.process.kill();
    let mut given_up = world.slots[0].dial(Kind::Tcp);
    given_up.write_all(b"never mind").unwrap();
    let silent = world.slots[0].dial(Kind::Unix);
    held(&world, Kind::Tcp, 1);
    held(&world, Kind::Unix, 1);
    given_up.reset();
    drop(silent);
    held(&world, Kind::Tcp, 0);
    held(&world, Kind::Unix, 0);
    world.restart_relay();
    world.works(&world.slots[0]);
    assert_eq!(world.service("t0").sessions.total, 1);
    assert_eq!(world.service("u0").sessions.total, 1);
}

/// The application of an upload that is stuck, for nobody reads it, resets its connection: its server learns it at once.
#[test]
fn the_server_of_a_stuck_upload_learns_at_once_that_its_application_has_reset() {
    let world = shared();
    let slot = world.slot();
    for _ in 0..3 {
        let (mut app, server) = slot.answered_pair(Kind::Tcp);
        fill(&mut app);
        let began = Instant::now();
        app.reset();
        is_told(&server, began);
    }
    world.settled(slot);
}

/// The same of one that is killed: on a unix socket too, once nothing has moved for a second.
#[test]
fn the_server_of_a_stuck_upload_learns_at_once_that_its_application_was_killed() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, mut server) = slot.answered_pair(kind);
        fill(&mut app);
        // It has not read this when it dies, so that its kernel tells a reset on TCP.
        server.write_all(b"unread").unwrap();
        std::thread::sleep(Duration::from_millis(1_200));
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("1000").stdin(Stdio::from(OwnedFd::from(app))).spawn().unwrap();
        drop(sleep);
        let began = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        is_told(&server, began);
        world.settled(slot);
    }
}

/// What the kernel tells of a connection that was reset, to one who does not read it.
fn is_told(server: &Conn, began: Instant) {
    let Conn::Tcp(stream) = server else { panic!("a server's connection is TCP") };
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&limit)).unwrap(), 1, "it was not told at all");
    let took = began.elapsed();
    assert!(took < TRIP, "it was told after {took:?}");
    let (_, ended) = server.handle().drain();
    assert_eq!(ended, Ended::Reset);
}

/// An upload that is closed behind its last byte while nobody reads arrives whole, if somebody reads soon after.
#[test]
fn a_close_behind_the_last_byte_waits_for_a_slow_reader() {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let (mut app, server) = slot.answered_pair(kind);
        let sent = fill(&mut app);
        // The last of it waits in the application's own socket.
        drop(app);
        std::thread::sleep(Duration::from_millis(100));
        let (bytes, ended) = server.handle().drain();
        assert_eq!((bytes.len(), ended), (sent, Ended::Eof), "{kind:?}");
        drop(server);
        world.settled(slot);
    }
}
