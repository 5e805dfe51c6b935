//! Opens that nobody takes: the local connection fails at once, and `/status` says why.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ends::{reason_at, service_reason_at};
use crate::harness::{Conn, Ended, PATIENCE, World, WorldOptions, until};

/// P8, and the reasons of the closed list: a name that the sidecar may not dial, one that the agent's `allow:` keeps
/// from it, and one whose agent has said goodbye.
#[test]
fn p8_refused_at_once() {
    let mut world = World::start(WorldOptions {
        services: "  guarded: { tcp: { tcp: 9 }, allow: [somebody-else, \"batch-*\"] }\n",
        mappings: "  guarded: { listen: \"127.0.0.1:0\" }\n  not-granted: { listen: \"127.0.0.1:0\" }\n",
        dial: &["u*", "t*", "guarded"],
        ..WorldOptions::default()
    });
    refused_at_once(&world, "not-granted");
    reason_at(&world, "not-granted", "not_found", 1);
    refused_at_once(&world, "guarded");
    reason_at(&world, "guarded", "unauthorized", 2);
    service_reason_at(&world, "guarded", "unauthorized", 0);
    let at_agent = world.service("guarded").last_error.unwrap().message;
    assert!(at_agent.contains("sidecar"), "{at_agent}");

    world.works(&world.slots[0]);
    world.agent.process.signal(Signal::TERM);
    assert!(world.agent.process.wait_exit(Duration::from_secs(2)).success());
    refused_at_once(&world, "t0");
    reason_at(&world, "t0", "offline", 1);
    let refused = world.relay.status().opens.refused;
    assert_eq!((refused["not_found"], refused["unauthorized"], refused["offline"]), (1, 1, 1));
    // F196: it is back, and so are its services.
    world.restart_agent();
    world.works(&world.slots[0]);
}

fn refused_at_once(world: &World, mapping: &str) {
    let began = Instant::now();
    let mut app = Conn::connect(world.mapping(mapping).listen);
    assert_eq!(app.drain_at_once(), (Vec::new(), Ended::Reset));
    assert!(began.elapsed() < Duration::from_secs(1), "{mapping}: after {:?}", began.elapsed());
    until("its session is over", PATIENCE, || (world.mapping(mapping).sessions.open == 0).then_some(()));
}
