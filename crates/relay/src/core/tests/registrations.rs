//! Who may serve what: announces, instances, links that come and go.

use super::*;

fn codes(announced: &Announced) -> Vec<(&str, Code)> {
    announced.refused.iter().map(|refused| (refused.name.as_str(), refused.code)).collect()
}

#[test]
fn a_name_that_may_not_be_published_is_refused_and_the_others_count() {
    let mut sim = Sim::new();
    let agent = sim.up("db-1", &["ledger-*", "audit"], &[]);
    let announced = sim.serve(agent, 1, &["ledger-eu", "secret", "audit", "audits"]);
    assert_eq!(codes(&announced), [("secret", Code::UNAUTHORIZED), ("audits", Code::UNAUTHORIZED)]);
    assert_eq!(announced.refused_total, 2);
    let dialler = sim.dialler();
    assert_eq!(forwarded(sim.open(dialler, "ledger-eu")), agent);
    assert_eq!(forwarded(sim.open(dialler, "audit")), agent);
    assert_eq!(refused(sim.open(dialler, "secret")), Code::OFFLINE);
}

#[test]
fn a_bad_name_and_a_second_one_are_refused_alone() {
    let mut sim = Sim::new();
    let agent = sim.up("db-1", &["*"], &[]);
    let long = "x".repeat(100);
    let ads = ["Bad", "", &long, "ledger", "ledger"].map(|service| ad(service, ServiceState::Up));
    let announced = sim.announce(agent, 1, ads.to_vec()).unwrap();
    let cut = "x".repeat(63);
    let expected = ["Bad", "", &cut, "ledger"].map(|service| (service, Code::PROTOCOL));
    assert_eq!(codes(&announced), expected);
    assert_eq!(sim.router.links()[0].services, 1);
}

#[test]
fn an_announce_is_the_full_list() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger", "audit"]);
    let dialler = sim.dialler();
    sim.serve(agent, 1, &["audit", "files"]);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    assert_eq!(forwarded(sim.open(dialler, "audit")), agent);
    assert_eq!(forwarded(sim.open(dialler, "files")), agent);
    let before = (sim.router.services(), sim.router.gauges());
    sim.serve(agent, 1, &["audit", "files"]);
    assert_eq!((sim.router.services(), sim.router.gauges()), before, "a second time does nothing");
    sim.serve(agent, 1, &[]);
    assert_eq!(sim.router.services(), []);
}

#[test]
fn the_newest_instance_wins_at_once() {
    let mut sim = Sim::new();
    let old = sim.up("db-1", &["*"], &["*"]);
    sim.serve(old, 1, &["ledger", "audit"]);
    let old_too = sim.agent("db-1", 1, &["ledger"]);
    let other = sim.agent("db-2", 3, &["audit"]);
    let dialler = sim.dialler();

    let new = sim.up("db-1", &["*"], &[]);
    assert_ne!(forwarded(sim.open(dialler, "ledger")), new, "a link alone says nothing");
    let announced = sim.serve(new, 2, &["ledger"]);
    assert_eq!(announced.replaced, [old, old_too]);
    for _ in 0..20 {
        assert_eq!(forwarded(sim.open(dialler, "ledger")), new);
        assert_eq!(forwarded(sim.open(dialler, "audit")), other);
    }
    // The old links are there until the server ends them. They can do nothing.
    let phases: Vec<LinkPhase> = sim.router.links().iter().map(|link| link.phase).collect();
    let (active, replaced) = (LinkPhase::Active, LinkPhase::Replaced);
    assert_eq!(phases, [replaced, replaced, active, active, active]);
    assert_eq!(refused(sim.open(old, "audit")), Code::UNAUTHORIZED);
    assert_eq!(sim.announce(old, 1, vec![]), Err(AnnounceError::Replaced));
    assert_eq!(refused(sim.open_at(dialler, "ledger", 1)), Code::OFFLINE);
    // Their end takes nothing of the new instance along.
    sim.lose(old);
    sim.lose(old_too);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), new);
    assert_eq!(sim.router.gauges().lost, 0);
    // A second announce replaces nobody again.
    assert_eq!(sim.serve(new, 2, &["ledger"]).replaced, []);
}

#[test]
fn an_older_instance_does_not_win_again() {
    let mut sim = Sim::new();
    let old = sim.agent("db-1", 1, &["ledger"]);
    let new = sim.agent("db-1", 2, &["ledger"]);
    let dialler = sim.dialler();
    sim.bye(old);
    let again = sim.up("db-1", &["*"], &["*"]);
    let error = sim.announce(again, 1, vec![ad("ledger", ServiceState::Up)]).unwrap_err();
    assert_eq!((error, error.code()), (AnnounceError::Replaced, Code::UNAUTHORIZED));
    assert_eq!(refused(sim.open(again, "ledger")), Code::UNAUTHORIZED);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), new);
    // When the newer one is gone and no link of the machine is left, nobody is older than anybody.
    sim.bye(again);
    sim.bye(new);
    let back = sim.agent("db-1", 1, &["ledger"]);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), back);
}

#[test]
fn a_new_instance_that_serves_nothing_takes_over_too() {
    let mut sim = Sim::new();
    let old = sim.agent("db-1", 1, &["ledger"]);
    let new = sim.up("db-1", &["*"], &[]);
    assert_eq!(sim.serve(new, 2, &[]).replaced, [old]);
    let dialler = sim.dialler();
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
}

#[test]
fn a_dialler_that_never_announces_is_left_alone() {
    let mut sim = Sim::new();
    let beside = sim.up("db-1", &[], &["*"]);
    sim.agent("db-1", 1, &["ledger"]);
    let new = sim.agent("db-1", 2, &["ledger"]);
    assert_eq!(forwarded(sim.open(beside, "ledger")), new);
}

#[test]
fn links_of_one_instance_add_up() {
    let mut sim = Sim::new();
    let first = sim.agent("db-1", 1, &["ledger", "audit"]);
    let second = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    let to: std::collections::BTreeSet<LinkId> =
        (0..50).map(|_| forwarded(sim.open(dialler, "ledger"))).collect();
    assert_eq!(to, [first, second].into());
    sim.lose(first);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), second);
    assert_eq!(forwarded(sim.open_at(dialler, "ledger", 1)), second);
    assert_eq!(held(sim.open(dialler, "audit")).1, sim.now + HOLD, "only the first link served it");
    sim.pass(Duration::from_secs(3));
    sim.lose(second);
    assert_eq!(held(sim.open(dialler, "ledger")).1, sim.now + HOLD, "from the loss of the last link");
}

#[test]
fn an_edge_that_leaves_gets_nothing_new() {
    let mut sim = Sim::new();
    let leaving = sim.up("db-1", &["*"], &["*"]);
    sim.serve(leaving, 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.router.link_leaving(leaving);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    assert_eq!(sim.announce(leaving, 1, vec![]), Err(AnnounceError::Leaving));
    let other = sim.agent("db-2", 2, &["audit"]);
    assert_eq!(forwarded(sim.open(leaving, "audit")), other, "what it opens itself may still go out");
    // It was a goodbye, whatever becomes of the link.
    sim.lose(leaving);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    // One that was replaced stays replaced.
    let old = sim.agent("db-3", 3, &[]);
    sim.agent("db-3", 4, &[]);
    sim.router.link_leaving(old);
    assert_eq!(sim.announce(old, 3, vec![]), Err(AnnounceError::Replaced));
}

#[test]
fn a_faulty_announce_changes_nothing() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let before = (sim.router.services(), sim.router.links());
    let announce = |revision, instance: &[u8]| Announce {
        revision,
        instance: instance.to_vec().into(),
        ..Announce::default()
    };
    let mut fault = |link, message: &Announce| {
        let error = sim.router.announce(link, message, sim.now).unwrap_err();
        (error, error.code())
    };
    let cases = [
        (agent, announce(0, &[1; 16]), AnnounceError::Stale { revision: 0, last: 1 }, Code::PROTOCOL),
        (agent, announce(2, &[2; 16]), AnnounceError::InstanceChanged, Code::PROTOCOL),
        (
            agent,
            announce(2, &[1; 15]),
            AnnounceError::Instance(hopline_names::IdError { len: 15 }),
            Code::PROTOCOL,
        ),
        (LinkId(99), announce(1, &[1; 16]), AnnounceError::UnknownLink(LinkId(99)), Code::INTERNAL),
    ];
    for (link, message, error, code) in cases {
        assert_eq!(fault(link, &message), (error, code));
    }
    assert_eq!((sim.router.services(), sim.router.links()), before);
}

#[test]
fn the_answer_says_what_was_refused_and_why() {
    let mut sim = Sim::new();
    let agent = sim.up("db-1", &["ledger"], &[]);
    let message = sim.serve(agent, 1, &["ledger", "audit"]).to_message();
    assert_eq!((message.revision, message.refused_total, message.refused.len()), (1, 1, 1));
    assert_eq!(message.refused[0].name, "audit");
    assert_eq!(message.refused[0].reason, Code::UNAUTHORIZED.number());
    assert!(!message.refused[0].message.is_empty());
}

#[test]
fn a_machine_that_takes_anothers_instance_id_touches_nothing_of_it() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let thief = sim.up("evil", &["audit"], &[]);
    assert_eq!(sim.serve(thief, 1, &["ledger", "audit"]).replaced, []);
    let dialler = sim.dialler();
    assert_eq!(forwarded(sim.open_at(dialler, "ledger", 1)), agent);
    sim.lose(agent);
    sim.serve(thief, 1, &[]);
    sim.bye(thief);
    assert_eq!(held(sim.open_at(dialler, "ledger", 1)).1, sim.now + HOLD);
}

#[test]
fn link_down_twice_or_for_nobody_does_nothing() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    sim.bye(agent);
    sim.lose(agent);
    sim.lose(LinkId(99));
    assert_eq!(sim.router.gauges(), Gauges::default());
}
