//! What a relay's own keys change, at the start and after a reload.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ends::reason_at;
use crate::harness::{AT_ONCE, Kind, World, WorldOptions, until};
use crate::obeyed::{refused_after, took};

/// `hold:` of a relay, also none at all: how long opens wait for an agent that was lost, and for one that a young relay
/// has not met yet.
#[test]
fn a_relay_holds_as_long_as_asked() {
    let cases = [("hold: 1500ms\n", Duration::from_millis(1_500)), ("hold: 0s\n", Duration::ZERO)];
    for (file, hold) in cases {
        let world = World::start(WorldOptions { relay_file: file, ..WorldOptions::default() });
        world.works(&world.slots[0]);
        let killed = Instant::now();
        world.agent.process.kill();
        until("the relay knows", AT_ONCE, || (world.relay.status().links.len() == 1).then_some(()));
        refused_after(world.slots[0].dial(Kind::Tcp));
        took(file, killed.elapsed(), hold);
        reason_at(&world, "t0", "offline", 1);
    }
}

/// SIGHUP: what is lost, asked or dialled from now on is by the new file.
#[test]
fn a_reload_is_obeyed_by_a_relay() {
    const BEFORE: &str = "hold: 20s\nanswer_timeout: 20s\nkeepalive: nat\n";
    const AFTER: &str = "hold: 1s\nanswer_timeout: 700ms\nkeepalive: datacenter\n";
    let mut world = World::start(WorldOptions { relay_file: BEFORE, ..WorldOptions::default() });
    std::fs::write(world.folder().join("relay-a.yaml"), AFTER).unwrap();
    world.relay.process.signal(Signal::HUP);
    world.relay.process.logged("config file reloaded");

    world.agent.process.pause();
    took("answer_timeout", refused_after(world.slots[0].dial(Kind::Tcp)), Duration::from_millis(700));
    reason_at(&world, "t0", "timeout", 1);
    world.agent.process.resume();
    world.works(&world.slots[0]);

    let killed = Instant::now();
    world.agent.process.kill();
    until("the relay knows", AT_ONCE, || (world.relay.status().links.len() == 1).then_some(()));
    refused_after(world.slots[0].dial(Kind::Tcp));
    took("hold", killed.elapsed(), Duration::from_secs(1));
    reason_at(&world, "t0", "offline", 1);

    world.restart_agent();
    let mut liveness: Vec<_> =
        world.relay.status().links.into_iter().map(|link| (link.machine, link.liveness)).collect();
    liveness.sort();
    let links = [("agent", "datacenter"), ("sidecar", "nat")]
        .map(|(machine, of)| (machine.to_owned(), of.to_owned()));
    assert_eq!(liveness, links, "the link that was up keeps its own");
}
