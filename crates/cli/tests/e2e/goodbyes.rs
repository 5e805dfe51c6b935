//! Processes that leave, in order or killed: what is open ends with a reason, never with a clean end, and what comes
//! back works again.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use hopline_admin::status::LinkState;
use rustix::process::Signal;

use crate::ends::{reason_at, service_reason_at};
use crate::harness::{
    AT_ONCE, Conn, Ended, Kind, PATIENCE, Process, World, WorldOptions, grow_old, hopline, pattern, run,
    until,
};

/// A process that was asked to end is gone by then.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(1);

/// An open TCP session in use.
fn session(world: &World) -> (Conn, Conn) {
    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    still_works(&mut app, &mut server);
    (app, server)
}

fn still_works(app: &mut Conn, server: &mut Conn) {
    app.write_all(b"hello").unwrap();
    assert_eq!(server.chunk(5), b"hello");
    server.write_all(b"there").unwrap();
    assert_eq!(app.chunk(5), b"there");
}

/// Both ends of a session read a cut, at once.
fn both_are_reset(ends: (Conn, Conn)) {
    both_are_reset_within(ends, AT_ONCE);
}

/// Both ends of a session read a cut by then.
fn both_are_reset_within((mut app, mut server): (Conn, Conn), limit: Duration) {
    assert_eq!(app.drain_within(limit), (Vec::new(), Ended::Reset), "the application");
    assert_eq!(server.drain_at_once(), (Vec::new(), Ended::Reset), "the server");
}

/// SIGINT says goodbye now.
fn interrupt(process: &Process) {
    process.signal(Signal::INT);
    assert_eq!(process.wait_exit(GONE_WITHIN).code(), Some(0));
}

/// A signal while an edge still starts: the mapping that is open carries a session, the next one's address waits for a
/// silent name server. The session ends as at any other time.
#[test]
fn p17_a_signal_during_the_start_ends_sessions_with_a_reason() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let world = World::start(WorldOptions::default());
    let file = world.folder().join("slow.yaml");
    let text = format!(
        "dns: [\"{}\"]\ndrain: 1s\nconnect:\n  t0: {{ listen: \"127.0.0.1:0\" }}\n  \
         zz: {{ listen: \"zz.internal:7\", expose: true }}\n",
        silent.local_addr().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = hopline();
        command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
        let process = Process::spawn("slow", world.folder(), command);
        let mut app = Conn::connect(process.logged("mapping open mapping=t0 listens="));
        let mut server = world.slots[0].accept();
        still_works(&mut app, &mut server);
        process.signal(signal);
        both_are_reset_within((app, server), DRAIN + GONE_WITHIN);
        assert_eq!(process.wait_exit(GONE_WITHIN).code(), Some(0));
        let reason = if signal == Signal::INT { "shutdown" } else { "drain_deadline" };
        service_reason_at(&world, "t0", reason, 2);
        assert!(!process.log().contains("mapping=zz"), "it had not started:\n{}", process.log());
    }
}

/// SIGTERM of each of the three, with a session that does not end by itself within the drain: it works until then,
/// is cut with `drain_deadline` at both its ends, and the process exits 0.
#[test]
fn p6_sigterm_drains_and_cuts() {
    let options = WorldOptions { relay_host: "127.0.7.1", drain: "1s", ..WorldOptions::default() };
    let mut world = World::start(options);
    drained(&world, &world.sidecar.process);
    service_reason_at(&world, "t0", "drain_deadline", 2);
    world.restart_sidecar();

    drained(&world, &world.agent.process);
    reason_at(&world, "t0", "drain_deadline", 2);
    world.restart_agent();

    drained(&world, &world.relay.process);
    reason_at(&world, "t0", "drain_deadline", 1);
    service_reason_at(&world, "t0", "drain_deadline", 1);
    world.restart_relay();
    world.works(&world.slots[0]);
    // With nothing open it goes at once.
    world.settled(&world.slots[0]);
    for process in [&world.sidecar.process, &world.agent.process, &world.relay.process] {
        let began = Instant::now();
        process.signal(Signal::TERM);
        assert_eq!(process.wait_exit(GONE_WITHIN).code(), Some(0));
        assert!(began.elapsed() < DRAIN, "{:?} with nothing to wait for", began.elapsed());
    }
}

fn drained(world: &World, process: &Process) {
    let (mut app, mut server) = session(world);
    let began = Instant::now();
    process.signal(Signal::TERM);
    process.logged("draining");
    still_works(&mut app, &mut server);
    both_are_reset_within((app, server), DRAIN + GONE_WITHIN);
    let took = began.elapsed();
    assert!((DRAIN..DRAIN + GONE_WITHIN).contains(&took), "{took:?}");
    assert_eq!(process.wait_exit(GONE_WITHIN).code(), Some(0));
}

/// A server that has said everything and closed, and an application that has not got it yet: a drain of the agent ends
/// when the last bytes have left, and cuts none of them.
#[test]
fn p6_a_drain_waits_for_the_last_bytes() {
    let mut world = World::start(WorldOptions { drain: "10s", ..WorldOptions::default() });
    // What fits into the first windows on the way, and what does not.
    for last in [32 << 10, 160 << 10, 1 << 20] {
        let (mut app, mut server) = session(&world);
        grow_old(&mut app, &mut server);
        app.end();
        assert_eq!(server.read_to_eof(), b"");
        world.sidecar.process.pause();
        let said = pattern(3, last);
        thread::scope(|scope| {
            scope.spawn(|| {
                server.write_all(&said).unwrap();
                drop(server);
            });
            world.agent.process.signal(Signal::TERM);
            // What must not happen meanwhile is that the agent leaves with bytes in hand.
            thread::sleep(Duration::from_millis(300));
            world.sidecar.process.resume();
            assert!(app.drain() == (said.clone(), Ended::Eof), "of {last} bytes");
        });
        assert_eq!(world.agent.process.wait_exit(GONE_WITHIN).code(), Some(0));
        world.restart_agent();
    }
}

/// SIGINT of each of the three, and a second SIGTERM: `shutdown` at both ends of an open session, at once.
#[test]
fn p17_sigint_ends_sessions_with_a_reason() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.2", ..WorldOptions::default() });
    let open = session(&world);
    interrupt(&world.sidecar.process);
    both_are_reset(open);
    service_reason_at(&world, "t0", "shutdown", 2);
    world.restart_sidecar();

    let open = session(&world);
    interrupt(&world.agent.process);
    both_are_reset(open);
    reason_at(&world, "t0", "shutdown", 2);
    world.restart_agent();

    let open = session(&world);
    world.relay.process.signal(Signal::TERM);
    until("the sidecar knows of the drain", PATIENCE, || {
        (world.sidecar.status().links[0].state == LinkState::Draining).then_some(())
    });
    // P7: the only relay drains, so this is held until one is there.
    let mut early = world.slots[0].dial(Kind::Tcp);
    world.relay.process.signal(Signal::TERM);
    assert_eq!(world.relay.process.wait_exit(GONE_WITHIN).code(), Some(0));
    both_are_reset(open);
    reason_at(&world, "t0", "shutdown", 1);
    service_reason_at(&world, "t0", "shutdown", 1);
    world.restart_relay();
    let mut server = world.slots[0].accept();
    still_works(&mut early, &mut server);
}

/// A session that is too old to be taken up again on another path.
fn old_session(world: &World) -> (Conn, Conn) {
    let (mut app, mut server) = session(world);
    grow_old(&mut app, &mut server);
    (app, server)
}

/// `kill -9` of the agent and of the relay (F121, F218): the kernel closes their sockets, and that is told as
/// `conn_lost` with the hop; the path works again once they are back.
#[test]
fn p15_killed_processes() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.7.3", ..WorldOptions::default() });
    let (mut app, _server) = old_session(&world);
    world.agent.process.kill();
    let killed = Instant::now();
    assert_eq!(app.drain(), (Vec::new(), Ended::Reset));
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    reason_at(&world, "t0", "conn_lost", 1);
    world.restart_agent();
    world.works(&world.slots[0]);

    let open = old_session(&world);
    world.relay.process.kill();
    let killed = Instant::now();
    both_are_reset(open);
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    until("without a link it is not healthy", PATIENCE, || {
        (run(["status", &world.sidecar.admin]).status.code() == Some(1)).then_some(())
    });
    reason_at(&world, "t0", "conn_lost", 0);
    service_reason_at(&world, "t0", "conn_lost", 0);
    // P7: an open that is made while the relay is away is held, and carried once it is back.
    let mut early = world.slots[0].dial(Kind::Tcp);
    world.restart_relay();
    let mut server = world.slots[0].accept();
    still_works(&mut early, &mut server);
    // The agent is back too, by itself.
    world.agent.wait_ready();
    world.sidecar.wait_ready();
    world.works(&world.slots[0]);

    let (_app, mut server) = old_session(&world);
    world.sidecar.process.kill();
    assert_eq!(server.drain_at_once(), (Vec::new(), Ended::Reset));
    service_reason_at(&world, "t0", "conn_lost", 1);
    world.restart_sidecar();
    world.works(&world.slots[0]);
}
