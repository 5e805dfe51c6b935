//! What a sidecar's status says of the hop that is not its own.

use hopline_admin::status::{FarAgent, FarState};

use crate::harness::{PATIENCE, World, WorldOptions, until};

/// The one agent of `t0`, once it is as expected.
fn agent(world: &World, what: &str, state: FarState) -> FarAgent {
    until(what, PATIENCE, || {
        let agents = world.mapping("t0").agents;
        agents.into_iter().find(|agent| agent.machine == "agent" && agent.state == state)
    })
}

/// The relay tells what it knows of the agent's link, its figures fresh for who asks, and what becomes of it.
#[test]
fn the_far_hop_is_told() {
    let mut world = World::start(WorldOptions {
        mappings: "  nobody: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let up = agent(&world, "the agent is known", FarState::Up);
    assert_eq!(up.relay, "relay-a");
    assert!(up.last_heard_ms.is_some() && up.age_ms < 2_000, "{up:?}");
    world.works(&world.slots[0]);
    assert_eq!(world.mapping("nobody").agents, []);

    world.agent.process.pause();
    let suspect = agent(&world, "its silence is told", FarState::Suspect);
    assert!(suspect.last_heard_ms.is_some_and(|heard| heard > 1_000), "{suspect:?}");
    world.agent.process.resume();
    agent(&world, "and its return", FarState::Up);

    world.agent.process.kill();
    let lost = agent(&world, "its loss is told", FarState::Lost);
    assert_eq!((lost.rtt_us, lost.last_heard_ms), (None, None));
    world.restart_agent();
    agent(&world, "and the next one", FarState::Up);
}
