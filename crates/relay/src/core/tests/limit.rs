//! Each limit at its edge, with its counter.

use hopline_route_proto::{ControlMessage as _, RelayToEdge};

use super::*;

/// A relay older than `hold`, with one thing changed.
fn sim(change: impl FnOnce(&mut RouterConfig)) -> Sim {
    let mut config = RouterConfig::default();
    change(&mut config);
    let mut sim = Sim::with_config(config);
    sim.pass(HOLD);
    sim
}

#[test]
fn links() {
    let mut sim = sim(|config| config.max_links = 2);
    let first = sim.up("a", &[], &[]);
    sim.up("b", &[], &[]);
    let error = sim.router.link_up(LinkId(9), name("c"), Grants::default(), sim.now).unwrap_err();
    assert_eq!((error, error.code()), (LinkUpError::TooMany(2), Code::OVERLOAD));
    let error = sim.router.link_up(first, name("a"), Grants::default(), sim.now).unwrap_err();
    assert_eq!((error, error.code()), (LinkUpError::Duplicate(first), Code::INTERNAL));
    sim.bye(first);
    assert_eq!(sim.router.link_up(LinkId(9), name("c"), Grants::default(), sim.now), Ok(()));
    assert_eq!(sim.router.counters().max_links, 1);
}

#[test]
fn links_of_one_machine() {
    let mut sim = sim(|config| config.max_links_per_machine = 2);
    sim.up("a", &[], &[]);
    sim.up("a", &[], &[]);
    let error = sim.router.link_up(LinkId(9), name("a"), Grants::default(), sim.now).unwrap_err();
    assert_eq!((error, error.code()), (LinkUpError::TooManyOfMachine(2), Code::OVERLOAD));
    sim.up("b", &[], &[]);
    assert_eq!(sim.router.counters().max_links_per_machine, 1);
}

#[test]
fn links_that_dial_and_go() {
    let mut sim = sim(|config| (config.max_links_per_machine, config.max_passing_links_per_machine) = (4, 2));
    let passing: Vec<LinkId> = (0..3).map(|_| sim.up("a", &[], &["*"])).collect();
    assert_eq!(sim.router.set_passing(passing[0]), Ok(()));
    assert_eq!(sim.router.set_passing(passing[1]), Ok(()));
    let error = sim.router.set_passing(passing[2]).unwrap_err();
    assert_eq!((error, error.code()), (LinkUpError::TooManyPassing(2), Code::OVERLOAD));
    sim.bye(passing[2]);
    // The process that stays has its places still.
    sim.agent("a", 1, &["ledger"]);
    sim.up("a", &[], &[]);
    sim.bye(passing[0]);
    let next = sim.up("a", &[], &["*"]);
    assert_eq!(sim.router.set_passing(next), Ok(()));
    assert_eq!(sim.router.counters().max_passing_links_per_machine, 1);
}

#[test]
fn an_added_service_takes_no_place_that_is_taken() {
    let mut sim = sim(|config| config.max_services_per_announce = 2);
    let agent = sim.agent("a", 1, &["s2", "s3"]);
    let announced = sim.serve(agent, 1, &["s1", "s2", "s3"]);
    let refused: Vec<_> = announced.refused.iter().map(|r| (r.name.as_str(), r.code)).collect();
    assert_eq!(refused, [("s1", Code::OVERLOAD)]);
    let dialler = sim.dialler();
    for service in ["s2", "s3"] {
        assert_eq!(forwarded(sim.open(dialler, service)), agent);
    }
    // One that goes makes room.
    assert_eq!(sim.serve(agent, 1, &["s1", "s3"]).refused, []);
}

#[test]
fn services_of_one_announce() {
    let mut sim = sim(|config| config.max_services_per_announce = 2);
    let agent = sim.up("a", &["*"], &[]);
    let announced = sim.serve(agent, 1, &["s1", "s2", "s3", "s4"]);
    let refused: Vec<_> = announced.refused.iter().map(|r| (r.name.as_str(), r.code)).collect();
    assert_eq!(refused, [("s3", Code::OVERLOAD), ("s4", Code::OVERLOAD)]);
    assert_eq!(sim.router.gauges().registrations, 2);
    assert_eq!(sim.router.counters().max_services_per_announce, 2);
}

#[test]
fn registrations() {
    let mut sim = sim(|config| config.max_registrations = 3);
    let first = sim.agent("a", 1, &["s1", "s2"]);
    let second = sim.up("b", &["*"], &[]);
    let announced = sim.serve(second, 2, &["s1", "s2"]);
    assert_eq!((announced.refused[0].name.as_str(), announced.refused[0].code), ("s2", Code::OVERLOAD));
    // At the limit, what is registered may still change, and what goes makes room.
    let down = vec![ad("s1", ServiceState::Down), ad("s2", ServiceState::Up)];
    assert_eq!(sim.announce(first, 1, down).unwrap().refused, []);
    sim.serve(first, 1, &["s2"]);
    assert_eq!(sim.serve(second, 2, &["s1", "s2"]).refused, []);
    assert_eq!(sim.router.gauges().registrations, 3);
    assert_eq!(sim.router.counters().max_registrations, 1);
}

#[test]
fn refusals_in_one_answer() {
    let mut sim = sim(|_| ());
    let agent = sim.up("a", &[], &[]);
    // As many bad names as a control message has room for.
    let ads: Vec<ServiceAd> = (0..20_000).map(|_| ServiceAd::default()).collect();
    let announced = sim.announce(agent, 1, ads).unwrap();
    assert_eq!((announced.refused.len(), announced.refused_total), (256, 20_000));
    assert_eq!(sim.router.counters().max_refusals_per_announce, 1);

    // The longest answer fits a control message.
    let long = "x".repeat(5_000);
    let ads: Vec<ServiceAd> = (0..300).map(|_| ad(&long, ServiceState::Up)).collect();
    let announced = sim.announce(agent, 1, ads).unwrap();
    assert!(announced.refused.iter().all(|refused| refused.name.len() == 63 && refused.message.len() < 120));
    let frame = RelayToEdge::Announced(announced.to_message()).to_frame().unwrap();
    assert!(frame.len() < 50_000, "{}", frame.len());
}

#[test]
fn names_are_cut_between_characters() {
    let mut sim = sim(|_| ());
    let agent = sim.up("a", &[], &[]);
    let announced = sim.announce(agent, 1, vec![ad(&"\u{20ac}".repeat(30), ServiceState::Up)]).unwrap();
    assert_eq!(announced.refused[0].name, "\u{20ac}".repeat(21));
}

#[test]
fn past_instances() {
    let mut sim = sim(|config| config.max_superseded = 2);
    for id in 1..=4 {
        sim.agent("a", id, &[]);
    }
    assert_eq!(sim.router.counters().max_superseded, 1);
    let late = sim.up("a", &["*"], &[]);
    assert_eq!(sim.announce(late, 2, vec![]), Err(AnnounceError::Replaced));
    // The one that was forgotten counts as new: the price of the limit.
    let late = sim.up("a", &["*"], &[]);
    assert!(sim.announce(late, 1, vec![]).is_ok());
}

#[test]
fn lost_agents() {
    let mut sim = sim(|config| config.max_lost = 2);
    let dialler = sim.dialler();
    for (id, service) in [(1, "s1"), (2, "s2"), (3, "s3")] {
        let agent = sim.agent(service, id, &[service]);
        sim.lose(agent);
        sim.pass(MS);
    }
    assert_eq!(sim.router.gauges().lost, 2);
    assert_eq!(sim.router.counters().max_lost, 1);
    assert_eq!(refused(sim.open(dialler, "s1")), Code::OFFLINE, "the oldest is forgotten");
    held(sim.open(dialler, "s2"));
    held(sim.open(dialler, "s3"));
}

#[test]
fn seen_agents() {
    let mut sim = Sim::with_config(RouterConfig { max_seen: 2, ..RouterConfig::default() });
    let dialler = sim.dialler();
    let agent = sim.agent("a", 1, &["s1", "s2", "s3"]);
    sim.serve(agent, 1, &["s1", "s2"]);
    assert_eq!((sim.router.gauges().seen, sim.router.counters().max_seen), (2, 1));
    sim.bye(agent);
    assert_eq!(refused(sim.open(dialler, "s1")), Code::OFFLINE);
    held(sim.open(dialler, "s3"));
    sim.pass(HOLD);
    assert_eq!(sim.router.gauges().seen, 0, "of no more use");
    sim.agent("b", 2, &["s1", "s2", "s3"]);
    assert_eq!((sim.router.gauges().seen, sim.router.counters().max_seen), (0, 1));
}

#[test]
fn held_opens() {
    let mut sim = sim(|config| {
        config.max_held = 3;
        config.max_held_per_machine = 2;
    });
    let agent = sim.agent("a", 1, &["ledger"]);
    let (first, second) = (sim.dialler(), sim.dialler());
    let (third, fourth) = (sim.up("web-2", &[], &["*"]), sim.up("web-3", &[], &["*"]));
    sim.lose(agent);
    let (hold, _) = held(sim.open(first, "ledger"));
    held(sim.open(second, "ledger"));
    assert_eq!(refused(sim.open(first, "ledger")), Code::OVERLOAD, "both links are of one machine");
    held(sim.open(third, "ledger"));
    assert_eq!(refused(sim.open(fourth, "ledger")), Code::OVERLOAD);
    let counters = sim.router.counters();
    assert_eq!((counters.max_held, counters.max_held_per_machine), (1, 1));
    // One that is held already needs no second place.
    held(sim.router.route_held(hold, &header("ledger"), sim.now));
    sim.router.hold_ended(hold);
    held(sim.open(fourth, "ledger"));
    assert_eq!(sim.router.gauges().held, 3);
}

#[test]
fn at_most_4096_opens_are_held() {
    let mut sim = sim(|_| ());
    let agent = sim.agent("a", 1, &["ledger"]);
    let diallers = [sim.up("web-1", &[], &["*"]), sim.up("web-2", &[], &["*"]), sim.up("web-3", &[], &["*"])];
    sim.lose(agent);
    for _ in 0..2_048 {
        held(sim.open(diallers[0], "ledger"));
        held(sim.open(diallers[1], "ledger"));
    }
    assert_eq!(refused(sim.open(diallers[2], "ledger")), Code::OVERLOAD);
    sim.agent("a", 1, &["ledger"]);
    assert_eq!(sim.events().len(), 4_096);
}

#[test]
fn the_version_text() {
    let mut sim = sim(|_| ());
    let agent = sim.up("a", &[], &[]);
    let announce =
        Announce { instance: vec![1; 16].into(), version: "v".repeat(1_000), ..Announce::default() };
    sim.router.announce(agent, &announce, sim.now).unwrap();
    assert_eq!(sim.router.links()[0].version.len(), 64);
}
