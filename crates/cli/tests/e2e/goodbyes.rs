//! Processes that leave, in order or killed: what is open ends with a reason, never with a clean end, and what comes
//! back works again.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ends::reason_at;
use crate::harness::{Ended, Kind, Process, World, WorldOptions, until};

/// A process that was asked to end is gone by then.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// An open TCP session, and its end at both sides by something that happens on the way.
fn cut(world: &World, happens: impl FnOnce(&World)) -> Duration {
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    app.write_all(b"hello").unwrap();
    assert_eq!(server.chunk(5), b"hello");
    server.write_all(b"there").unwrap();
    assert_eq!(app.chunk(5), b"there");
    happens(world);
    let began = Instant::now();
    assert_eq!(app.drain(), (Vec::new(), Ended::Reset), "the application");
    assert_eq!(server.drain(), (Vec::new(), Ended::Reset), "the server");
    began.elapsed()
}

fn terminate(process: &Process) {
    process.signal(Signal::TERM);
    let status = process.wait_exit(GONE_WITHIN);
    assert_eq!(status.code(), Some(0));
}

fn service_reason(world: &World, service: &str, reason: &str, hop: u64) {
    until(&format!("{reason} at hop {hop} at the agent"), Duration::from_secs(5), || {
        let error = world.service(service).last_error?;
        (error.reason == reason && error.hop == hop).then_some(())
    });
}

/// SIGTERM of each of the three: `shutdown` at both ends of an open session, with the right hop.
#[test]
fn p17_sigterm_ends_sessions_with_a_reason() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.1", ..WorldOptions::default() });
    cut(&world, |world| terminate(&world.sidecar.process));
    service_reason(&world, "t0", "shutdown", 2);
    world.restart_sidecar();

    cut(&world, |world| terminate(&world.agent.process));
    reason_at(&world, "t0", "shutdown", 2);
    world.restart_agent();

    cut(&world, |world| terminate(&world.relay.process));
    reason_at(&world, "t0", "shutdown", 1);
    service_reason(&world, "t0", "shutdown", 1);
    world.restart_relay();
    world.works(&world.slots[0]);
}

/// `kill -9` of the agent and of the relay (F121, F218): the kernel closes their sockets, and that is told as
/// `conn_lost` with the hop; the path works again once they are back.
#[test]
fn p15_killed_processes() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.2", ..WorldOptions::default() });
    let took = cut(&world, |world| world.agent.process.kill());
    assert!(took < Duration::from_secs(1), "{took:?}");
    reason_at(&world, "t0", "conn_lost", 1);
    world.restart_agent();
    world.works(&world.slots[0]);

    let took = cut(&world, |world| world.relay.process.kill());
    assert!(took < Duration::from_secs(1), "{took:?}");
    reason_at(&world, "t0", "conn_lost", 0);
    service_reason(&world, "t0", "conn_lost", 0);
    // P7: an open that is made while the relay is away is held, and carried once it is back.
    let mut early = world.slots[0].dial(Kind::Tcp);
    world.restart_relay();
    let mut server = world.slots[0].accept();
    server.write_all(b"held").unwrap();
    assert_eq!(early.chunk(4), b"held");
    world.agent.wait_ready();
    world.sidecar.wait_ready();
    world.works(&world.slots[0]);

    world.sidecar.process.kill();
    world.restart_sidecar();
    world.works(&world.slots[0]);
    drop(early);
}
