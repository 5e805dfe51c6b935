//! Time in which nothing happens: processes that are paused, readers that do not read, connections that are idle.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use hopline_admin::status::MappingState;

use crate::ends::{fill, reason_at};
use crate::harness::{
    Conn, Ended, Kind, PATIENCE, Process, World, WorldOptions, descriptors, pattern, shared, until,
};

/// F4: the application has said everything, and ended, long before its open is answered. F26: opens that were given
/// up meanwhile leave nothing behind, at either end.
#[test]
fn f4_everything_said_before_the_answer() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let (request, reply) = (pattern(4, 200 << 10), pattern(5, 200 << 10));
    for kind in Kind::BOTH {
        world.agent.process.pause();
        let mut app = slot.dial(kind);
        let given_up: Vec<Conn> = (0..20).map(|_| slot.dial(kind)).collect();
        for mut app in given_up {
            app.write_all(b"never mind").unwrap();
            app.reset();
        }
        thread::scope(|scope| {
            let mut writer = app.handle();
            let request = &request;
            // More than is read before the answer: the end waits in the socket.
            scope.spawn(move || {
                writer.write_all(request).unwrap();
                writer.end();
            });
            world.agent.process.resume();
            // Those that were given up may have come as far as the server, and end by themselves.
            loop {
                let mut server = slot.accept();
                let (bytes, _) = server.drain();
                if bytes == *request {
                    server.write_all(&reply).unwrap();
                    break;
                }
                assert!(b"never mind".starts_with(&bytes), "{} bytes of nobody's", bytes.len());
            }
            assert!(app.read_to_eof() == reply, "{kind:?}: another reply");
        });
        world.settled(slot);
        while slot.server.set_nonblocking(true).is_ok() && slot.server.accept().is_ok() {}
        slot.server.set_nonblocking(false).unwrap();
        world.works(slot);
    }
}

/// F44, F68: sessions whose readers take nothing hold up no other session of the same link (P16).
#[test]
fn p16_stuck_readers_hold_up_nobody_else() {
    const STUCK: usize = 40;
    let _share = descriptors(2 * 2 * STUCK);
    let world = shared();
    let (stuck_slot, slot) = (world.slot(), world.slot());
    let (mut app, mut server) = slot.pair(Kind::Unix);
    let mut stuck = Vec::new();
    for kind in Kind::BOTH {
        for _ in 0..STUCK {
            let (app, mut server) = stuck_slot.pair(kind);
            server.set_patience(Duration::from_millis(1));
            let piece = [1; 64 << 10];
            // Until its socket takes no more; the rest of the path fills from there.
            while server.write(&piece).is_ok() {}
            stuck.push((app, server));
        }
    }
    let began = Instant::now();
    for number in 0..200_u64 {
        let bytes = pattern(number, 1 << 10);
        app.write_all(&bytes).unwrap();
        assert!(server.chunk(bytes.len()) == bytes);
        server.write_all(&bytes).unwrap();
        assert!(app.chunk(bytes.len()) == bytes);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "200 round trips took {:?}", began.elapsed());
    world.works(slot);
    drop(stuck);
    world.settled(stuck_slot);
}

/// Connections in every state in which nothing can be done cost no CPU: nobody asks in a loop.
#[test]
fn idle_sessions_cost_nothing() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let mut kept = Vec::new();
    for kind in Kind::BOTH {
        let idle = slot.pair(kind);
        let app_ended = slot.pair(kind);
        app_ended.0.end();
        let server_ended = slot.pair(kind);
        server_ended.1.end();
        let (mut app, server) = slot.pair(kind);
        fill(&mut app);
        let app_stuck = (app, server);
        let (app, mut server) = slot.pair(kind);
        fill(&mut server);
        let server_stuck = (app, server);
        // Ended one way, full the other way, in both combinations.
        let (mut app, server) = slot.pair(kind);
        server.end();
        fill(&mut app);
        let one = (app, server);
        let (app, mut server) = slot.pair(kind);
        app.end();
        fill(&mut server);
        let other = (app, server);
        kept.extend([idle, app_ended, server_ended, app_stuck, server_stuck, one, other]);
    }
    assert_eq!(world.relay.status().sessions.open, 14);
    let before = world.processes().map(cpu);
    thread::sleep(Duration::from_secs(2));
    let after = world.processes().map(cpu);
    for ((process, before), after) in world.processes().iter().zip(before).zip(after) {
        let used = after - before;
        assert!(used < Duration::from_millis(200), "process {} used {used:?} in 2 s", process.pid());
    }
    drop(kept);
    world.settled(slot);
}

/// CPU time that a process has used.
fn cpu(process: &Process) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap();
    // Behind the name, which may hold anything: utime and stime are the 12th and 13th from there, in 10 ms.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>();
    Duration::from_millis(ticks * 10)
}

/// P7: while the relay is away opens are held; after `hold` they are refused at once, and the status says so.
#[test]
fn p7_held_no_longer_than_hold() {
    let world = World::start(WorldOptions { sidecar_keys: "hold: 1s\n", ..WorldOptions::default() });
    world.relay.process.kill();
    let mut held = world.slots[0].dial(Kind::Tcp);
    held.write_all(b"held").unwrap();
    assert_eq!(held.drain_within(Duration::from_secs(3)), (Vec::new(), Ended::Reset));
    let degraded = || (world.mapping("t0").state == MappingState::Degraded).then_some(());
    until("the mapping is degraded", PATIENCE, degraded);
    let mut refused = world.slots[0].dial(Kind::Tcp);
    assert_eq!(refused.drain_at_once(), (Vec::new(), Ended::Reset));
    reason_at(&world, "t0", "conn_lost", 0);
}
