//! Forwards that lead back to the mapping that they serve: found at once, with their reason, and nothing else suffers.

use std::time::{Duration, Instant};

use hopline_admin::status::Service;
use rustix::process::Signal;

use crate::ends::{reason_at, service_reason_at};
use crate::harness::{Conn, Ended, PATIENCE, World, WorldOptions, until};

/// Within this time a loop is found.
const AT_ONCE: Duration = Duration::from_secs(1);

/// A path with mappings of these names, each on a free port of loopback.
fn world(mappings: &[&str]) -> World {
    let lines: String =
        mappings.iter().map(|name| format!("  {name}: {{ listen: \"127.0.0.1:0\" }}\n")).collect();
    World::start(WorldOptions { mappings: lines.leak(), ..WorldOptions::default() })
}

/// Publishes each name at the agent, with the socket of a mapping as its server.
fn forward(world: &World, services: &[(&str, &str)]) {
    let path = world.folder().join("agent.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let entry = |(service, mapping): &(&str, &str)| {
        format!("  {service}: {{ tcp: {{ forward: \"{}\" }} }}\n", world.mapping(mapping).listen)
    };
    let entries: String = services.iter().map(entry).collect();
    std::fs::write(&path, text.replace("services:\n", &format!("services:\n{entries}"))).unwrap();
    world.agent.process.signal(Signal::HUP);
    until("the relay has the services", PATIENCE, || {
        let published = world.relay.status().services;
        services.iter().all(|(name, _)| published.iter().any(|service| service.name == *name)).then_some(())
    });
}

fn connect(world: &World, mapping: &str) -> Conn {
    Conn::connect(world.mapping(mapping).listen)
}

/// The application's connection is reset at once, the agent says why, and only a few opens have gone round.
fn ends_at_once(world: &World, mapping: &str) {
    let slot = &world.slots[0];
    let (mut app, mut server) = slot.answered_pair(crate::harness::Kind::Tcp);
    let began = Instant::now();
    assert_eq!(connect(world, mapping).drain(), (Vec::new(), Ended::Reset));
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());
    until("all of it is gone", PATIENCE, || (world.relay.status().sessions.open == 1).then_some(()));
    // Whichever of its services closes the loop refuses it; the resets of the sessions in between may come after that.
    let refused = |service: &Service| service.counts.opens.refused.contains_key("dial_failed");
    assert!(world.agent.status().services.iter().any(refused), "{:?}", world.agent.status().services);
    assert!(world.mapping(mapping).sessions.total < 20, "{:?}", world.mapping(mapping).sessions);
    crate::harness::carry(&mut app, &mut server, 100);
    world.works(slot);
}

/// Agent and sidecar are two processes of one host: nothing but the addresses of the connection joins them.
#[test]
fn a_forward_to_its_own_mapping_is_found_and_ended() {
    let world = world(&["ring"]);
    forward(&world, &[("ring", "ring")]);
    ends_at_once(&world, "ring");
    reason_at(&world, "ring", "dial_failed", 2);
    service_reason_at(&world, "ring", "dial_failed", 0);
    let message = world.service("ring").last_error.unwrap().message;
    assert!(message.contains("loop"), "{message}");
}

/// By way of another mapping and another service.
#[test]
fn a_loop_through_another_mapping_is_found_and_ended() {
    let world = world(&["one", "two"]);
    forward(&world, &[("one", "two"), ("two", "one")]);
    ends_at_once(&world, "one");
}

/// A chain of forwards that comes to an end is none.
#[test]
fn a_forward_to_another_services_mapping_is_no_loop() {
    let world = world(&["one"]);
    forward(&world, &[("one", "t0")]);
    let mut app = connect(&world, "one");
    let mut server = world.slots[0].accept();
    crate::harness::carry(&mut app, &mut server, 100 << 10);
    crate::harness::carry(&mut server, &mut app, 100 << 10);
    assert_eq!(world.mapping("one").last_error, None);
}
