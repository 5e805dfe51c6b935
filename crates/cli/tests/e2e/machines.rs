//! Machines that are removed, and machines that run twice.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use hopline_admin::status::{LinkState, ServiceState};
use rustix::process::Signal;

use crate::ends::{reason_at, service_reason_at};
use crate::harness::{Conn, Edge, Ended, Kind, PATIENCE, World, WorldOptions, grow_old, run, until};

fn remove(state: &Path, name: &str) -> Output {
    run(["machine", "remove", "--state", state.to_str().unwrap(), name])
}

/// How many machines have links at the relay.
fn linked(world: &World, machine: &str) -> usize {
    world.relay.status().links.iter().filter(|link| link.machine == machine).count()
}

/// `machine remove`: links end within a second, sessions with a reason, others are not touched; it can't link again, and
/// is told why; its name is free.
#[test]
fn a_removed_machine_loses_its_links_at_once() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let port = world.slots[1].server.local_addr().unwrap().port();
    let other_agent = world.another(
        "agent-2",
        &["--publish", "*"],
        &format!("services:\n  other: {{ tcp: {{ tcp: {port} }} }}\n"),
    );
    let other =
        world.another("sidecar-2", &["--dial", "*"], "connect:\n  other: { listen: \"127.0.0.1:0\" }\n");
    let address: SocketAddr = other.status().mappings[0].listen.parse().unwrap();
    let mut kept = Conn::connect(address);
    let mut kept_server = world.slots[1].accept();
    crate::harness::carry(&mut kept, &mut kept_server, 5);

    let (mut app, mut server) = world.slots[0].pair(Kind::Tcp);
    grow_old(&mut app, &mut server);
    let began = Instant::now();
    assert!(remove(&world.relay.state, "agent").status.success());
    assert_eq!(app.drain(), (Vec::new(), Ended::Reset));
    assert_eq!(server.drain(), (Vec::new(), Ended::Reset));
    until("its link is gone", PATIENCE, || (linked(&world, "agent") == 0).then_some(()));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    reason_at(&world, "t0", "unauthorized", 1);
    service_reason_at(&world, "t0", "unauthorized", 1);

    // It tries again, and is told why not; no line for each time.
    world.agent.process.logged("machine agent was removed from this relay");
    world.agent.process.signal(Signal::TERM);
    assert_eq!(world.agent.process.wait_exit(PATIENCE).code(), Some(0));
    let mut world = world;
    let again = start_again(&mut world);
    again.process.logged("this relay does not know machine agent");
    assert_eq!(linked(&world, "agent"), 0);
    let error = again.status().links[0].last_error.clone().unwrap();
    assert_eq!(error.reason, "unauthorized", "{error:?}");

    // The others have noticed nothing.
    crate::harness::carry(&mut kept, &mut kept_server, 5);
    assert_eq!(linked(&world, "sidecar"), 1);
    assert!(other_agent.process.is_running());
    let listed = run(["machine", "list", "--state", world.relay.state.to_str().unwrap()]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("agent-2") && !listed.lines().any(|line| line.starts_with("agent ")), "{listed}");
}

/// The agent's process once more, which gets no link.
fn start_again(world: &mut World) -> Edge {
    world.spawn_again("agent")
}

/// Without a relay it just takes effect; what is no machine is named.
#[test]
fn a_machine_is_removed_while_the_relay_is_away() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.8.1", ..WorldOptions::default() });
    world.works(&world.slots[0]);
    world.relay.process.kill();
    assert!(remove(&world.relay.state, "sidecar").status.success());
    let unknown = remove(&world.relay.state, "sidecar");
    assert_eq!(unknown.status.code(), Some(1));
    let text = String::from_utf8(unknown.stderr).unwrap();
    assert!(text.contains("there is no machine \"sidecar\" here; see: hopline machine list"), "{text}");
    world.restart_relay();
    world.agent.wait_ready();
    world.sidecar.process.logged("this relay does not know machine sidecar");
    assert_eq!(linked(&world, "sidecar"), 0);
}

/// What a machine may do is read again too.
#[test]
fn a_record_that_has_changed_counts_at_once() {
    let world = World::start(WorldOptions::default());
    world.works(&world.slots[0]);
    let record = world.relay.state.join("machines/sidecar.json");
    let text = std::fs::read_to_string(&record).unwrap();
    let new = record.with_extension("new");
    std::fs::write(&new, text.replace("\"*\"", "\"t*\"")).unwrap();
    std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::rename(&new, &record).unwrap();
    world.relay.process.logged("what the machine may do has changed");
    let (mut app, _server) = world.slots[0].pair(Kind::Tcp);
    std::io::Write::write_all(&mut app, b"still").unwrap();
    assert_eq!(world.slots[0].dial(Kind::Unix).drain().0, b"");
    reason_at(&world, "u0", "not_found", 1);
}

/// A copied state folder: a second process of the agent's machine. The first one is sent away, and stays away with one
/// line and a finding, through a restart of the relay too; it is back when the newer has gone.
#[test]
fn the_older_of_two_processes_stands_by() {
    let world = World::start(WorldOptions { relay_host: "127.0.8.2", ..WorldOptions::default() });
    world.works(&world.slots[0]);
    let newer = world.second("agent");
    until("the older one is sent away", PATIENCE, || stands_by(&world.agent).then_some(()));
    world.agent.process.logged("a newer process of this machine has taken over: this one stays away");
    world.works(&world.slots[0]);
    let lines = |process: &crate::harness::Process| {
        process.log().lines().filter(|line| !line.contains("DEBUG")).count()
    };
    // It is back to stand by, which the relay shows.
    until("it stands by at the relay", Duration::from_secs(40), || {
        let links = world.relay.status().links;
        links.iter().any(|link| link.machine == "agent" && link.state == LinkState::Standby).then_some(())
    });
    world.relay.process.logged("an older process of this machine stands by");
    let (at_relay, at_older, at_newer) =
        (lines(&world.relay.process), lines(&world.agent.process), lines(&newer.process));
    let shown = run(["status", &world.relay.admin]);
    let shown = unbroken(&shown);
    assert!(shown.contains("an older process of agent stands by"), "{shown}");
    let shown = run(["status", &world.agent.admin]);
    assert_eq!(shown.status.code(), Some(1));
    let shown = unbroken(&shown);
    assert!(shown.contains("a newer process of agent has taken over"), "{shown}");

    // The newer one serves, and nobody says a word.
    world.works(&world.slots[0]);
    let served = newer.status().services.iter().map(|service| service.sessions.total).sum::<u64>();
    assert!(served > 0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        (lines(&world.relay.process), lines(&world.agent.process), lines(&newer.process)),
        (at_relay, at_older, at_newer)
    );

    // The newer one leaves: the older one is back at once.
    newer.process.signal(Signal::TERM);
    assert_eq!(newer.process.wait_exit(PATIENCE).code(), Some(0));
    until("the older one serves again", Duration::from_secs(5), || is_up(&world.agent).then_some(()));
    world.works(&world.slots[0]);

    // A third one wins at once; it is killed, and the older one is back within a bounded time.
    let third = world.second("agent");
    until("the older one is sent away again", PATIENCE, || stands_by(&world.agent).then_some(()));
    until("it stands by at the relay", Duration::from_secs(40), || {
        let links = world.relay.status().links;
        links.iter().any(|link| link.machine == "agent" && link.state == LinkState::Standby).then_some(())
    });
    third.process.kill();
    until("the older one serves again", Duration::from_secs(15), || is_up(&world.agent).then_some(()));
    world.works(&world.slots[0]);
}

/// A relay that restarts remembers nothing: the two do not begin to take turns.
#[test]
fn a_relay_that_restarts_lets_the_newer_process_win() {
    let mut world = World::start(WorldOptions { relay_host: "127.0.8.3", ..WorldOptions::default() });
    let newer = world.second("agent");
    until("the older one is sent away", PATIENCE, || stands_by(&world.agent).then_some(()));
    world.relay.process.kill();
    world.restart_relay();
    until("the newer one serves", PATIENCE, || is_up(&newer).then_some(()));
    until("the older one stands by", Duration::from_secs(45), || {
        let links = world.relay.status().links;
        links.iter().any(|link| link.machine == "agent" && link.state == LinkState::Standby).then_some(())
    });
    assert!(is_up(&newer) && stands_by(&world.agent));
    world.works(&world.slots[0]);
    let log = world.relay.process.log();
    assert!(log.lines().filter(|line| line.contains("takes over")).count() <= 1, "{log}");
}

/// What was printed, as one line.
fn unbroken(shown: &Output) -> String {
    String::from_utf8_lossy(&shown.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn stands_by(edge: &Edge) -> bool {
    let status = edge.status();
    status.links[0].state == LinkState::Standby
        || status.links[0].last_error.as_ref().is_some_and(|error| error.message.contains("newer process"))
}

fn is_up(edge: &Edge) -> bool {
    let status = edge.status();
    status.links[0].state == LinkState::Up
        && status.services.iter().all(|service| service.state == ServiceState::Up)
}
