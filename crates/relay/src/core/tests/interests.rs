//! Who is told of the agents of a service, and the opens that prefer one.

use AgentState::{Down, Lost, Suspect, Up};

use super::*;

fn services(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_dialler_is_told_of_what_it_asked_for_and_of_each_change() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger", "files"]);
    let dialler = sim.dialler();
    assert_eq!(sim.told(), []);
    sim.router.set_interest(dialler, &services(&["ledger", "audit", "Not a name"]));
    let expected = [("audit", vec![]), ("ledger", vec![(instance(1), Up)])];
    let expected: Vec<_> =
        expected.into_iter().map(|(name, agents)| (dialler, name.to_owned(), agents)).collect();
    assert_eq!(sim.told(), expected);
    assert_eq!(sim.told(), [], "once");

    let ledger = |agents: &[(u8, AgentState)]| {
        let agents = agents.iter().map(|(id, state)| (instance(*id), *state)).collect();
        vec![(dialler, "ledger".to_owned(), agents)]
    };
    let second = sim.agent("db-2", 2, &["ledger"]);
    assert_eq!(sim.told(), ledger(&[(1, Up), (2, Up)]));
    sim.router.set_suspect(agent, true);
    assert_eq!(sim.told(), ledger(&[(2, Up), (1, Suspect)]), "the best first");
    sim.router.set_suspect(agent, false);
    assert_eq!(sim.told(), ledger(&[(1, Up), (2, Up)]));
    sim.announce(second, 2, vec![ad("ledger", ServiceState::Down)]).unwrap();
    assert_eq!(sim.told(), ledger(&[(1, Up), (2, Down)]));
    sim.router.link_leaving(agent);
    assert_eq!(sim.told(), ledger(&[(2, Down)]));
    sim.announce(second, 2, vec![ad("ledger", ServiceState::Up)]).unwrap();
    assert_eq!(sim.told(), ledger(&[(2, Up)]));
    sim.lose(second);
    assert_eq!(sim.told(), ledger(&[(2, Lost)]));
    sim.pass(HOLD);
    assert_eq!(sim.told(), ledger(&[]), "it is waited for no longer");
}

#[test]
fn who_may_not_dial_a_name_learns_nothing_of_it() {
    let mut sim = Sim::new();
    sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.up("web-1", &[], &["audit"]);
    sim.router.set_interest(dialler, &services(&["ledger"]));
    assert_eq!(sim.told(), [(dialler, "ledger".to_owned(), vec![])]);
    sim.router.set_grants(dialler, grants(&[], &["*"]));
    assert_eq!(sim.told(), [(dialler, "ledger".to_owned(), vec![(instance(1), Up)])]);
}

#[test]
fn an_open_that_prefers_an_agent_waits_for_it_only_while_there_is_no_other() {
    let mut sim = Sim::new();
    let first = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    let preferring = preferring("ledger", 1);
    assert_eq!(forwarded(sim.router.route(dialler, &preferring, sim.now)), first);
    sim.lose(first);
    let (hold, _) = held(sim.router.route(dialler, &preferring, sim.now));
    let second = sim.agent("db-2", 2, &["ledger"]);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(refused(sim.router.route_held(hold, &preferring, sim.now)), Code::OFFLINE);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), second, "asked again, it goes to the other");
    held(sim.open_at(dialler, "ledger", 1));
}

#[test]
fn names_beyond_the_limit_are_counted() {
    let mut sim = Sim::with_config(RouterConfig { max_interests_per_link: 2, ..RouterConfig::default() });
    let dialler = sim.dialler();
    sim.router.set_interest(dialler, &services(&["a", "b", "a", "c"]));
    assert_eq!(sim.told().len(), 2);
    assert_eq!(sim.router.counters().max_interests_per_link, 1);
}
