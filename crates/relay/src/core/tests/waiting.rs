//! Which opens wait, for how long, and what ends their waiting.

use super::*;

#[test]
fn a_young_relay_waits_for_what_it_has_not_seen() {
    let mut sim = Sim::young();
    let began = sim.now;
    let dialler = sim.dialler();
    sim.pass(Duration::from_secs(4));
    let (hold, until) = held(sim.open(dialler, "ledger"));
    assert_eq!(until, began + HOLD);
    // What it has seen and that went with a goodbye is not waited for.
    let agent = sim.agent("db-1", 1, &["audit"]);
    sim.bye(agent);
    assert_eq!(refused(sim.open(dialler, "audit")), Code::OFFLINE);
    // A certain instance is waited for though another has come.
    sim.agent("db-2", 2, &["ledger"]);
    assert_eq!(held(sim.open_at(dialler, "ledger", 3)).1, began + HOLD);
    assert_eq!(sim.events(), [hold]);

    sim.pass(HOLD - Duration::from_secs(4) - MS);
    assert_eq!(held(sim.open(dialler, "files")).1, began + HOLD);
    sim.pass(MS);
    assert_eq!(refused(sim.open(dialler, "files")), Code::OFFLINE);
}

#[test]
fn a_young_relay_waits_while_it_has_seen_a_service_only_down() {
    let mut sim = Sim::young();
    let began = sim.now;
    let dialler = sim.dialler();
    let agent = sim.up("db-1", &["*"], &[]);
    sim.announce(agent, 1, vec![ad("ledger", ServiceState::Down)]).unwrap();
    // Another agent of the service, one that serves it, may be on its way still.
    let (hold, until) = held(sim.open(dialler, "ledger"));
    assert_eq!(until, began + HOLD);
    let other = sim.agent("db-2", 2, &["ledger"]);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(forwarded(sim.router.route_held(hold, &header("ledger"), sim.now)), other);
}

#[test]
fn an_agent_that_was_lost_is_waited_for() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let lost_at = sim.now;
    sim.pass(HOLD - MS);
    let (hold, until) = held(sim.open(dialler, "ledger"));
    assert_eq!(until, lost_at + HOLD);
    assert_eq!(sim.events(), []);
    sim.pass(MS);
    assert_eq!(sim.events(), [hold], "its time is over");
    assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::OFFLINE);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    assert_eq!(sim.router.gauges(), Gauges { links: 1, ..Gauges::default() });
    assert_eq!(sim.router.poll_timeout(), None);
}

#[test]
fn an_agent_that_said_goodbye_is_not_waited_for() {
    let mut sim = Sim::new();
    let dialler = sim.dialler();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    sim.bye(agent);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    // Withdrawn before the link was lost.
    let agent = sim.agent("db-1", 2, &["ledger"]);
    sim.serve(agent, 2, &[]);
    sim.lose(agent);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    // Down before the link was lost: it served nothing.
    let agent = sim.agent("db-1", 3, &["ledger"]);
    sim.announce(agent, 3, vec![ad("ledger", ServiceState::Down)]).unwrap();
    sim.lose(agent);
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    // Never published.
    assert_eq!(refused(sim.open(dialler, "nobody")), Code::OFFLINE);
}

#[test]
fn a_held_open_goes_out_when_the_service_is_back() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger", "audit"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let (first, _) = held(sim.open(dialler, "ledger"));
    let (other, _) = held(sim.open(dialler, "audit"));
    let (second, _) = held(sim.open(dialler, "ledger"));
    sim.pass(Duration::from_secs(2));
    let back = sim.up("db-1", &["*"], &[]);
    assert_eq!(sim.events(), [], "a link alone is no service");
    sim.serve(back, 1, &["ledger", "audit"]);
    assert_eq!(sim.events(), [first, other, second], "oldest first, each once");
    for (hold, service) in [(first, "ledger"), (other, "audit"), (second, "ledger")] {
        assert_eq!(forwarded(sim.router.route_held(hold, &header(service), sim.now)), back);
    }
    assert_eq!(sim.router.gauges(), Gauges { links: 2, registrations: 2, ..Gauges::default() });
    sim.pass(HOLD);
    assert_eq!(sim.events(), [], "what went out is not waited for");
}

#[test]
fn an_agent_that_comes_back_without_the_service_ends_the_waiting() {
    // As the same process, and as a new one.
    for id in [1, 2] {
        let mut sim = Sim::new();
        let agent = sim.agent("db-1", 1, &["ledger", "audit"]);
        let dialler = sim.dialler();
        sim.lose(agent);
        let (hold, _) = held(sim.open(dialler, "ledger"));
        sim.agent("db-1", id, &["audit"]);
        assert_eq!(sim.events(), [hold]);
        assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::OFFLINE);
        assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    }
}

#[test]
fn a_session_of_a_process_that_was_succeeded_does_not_wait() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let (hold, _) = held(sim.open_at(dialler, "ledger", 1));
    sim.agent("db-1", 2, &["ledger"]);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(refused(sim.router.route_held(hold, &header_at("ledger", 1), sim.now)), Code::OFFLINE);
}

#[test]
fn any_of_several_lost_agents_is_waited_for() {
    let mut sim = Sim::new();
    let [first, second, third] = [1, 2, 3].map(|n| sim.agent(&format!("db-{n}"), n, &["ledger"]));
    let dialler = sim.dialler();
    sim.lose(first);
    sim.pass(Duration::from_secs(1));
    sim.lose(second);
    let last_loss = sim.now;
    sim.pass(Duration::from_secs(1));
    assert_eq!(forwarded(sim.open(dialler, "ledger")), third, "nothing waits while one serves");
    sim.bye(third);
    assert_eq!(held(sim.open(dialler, "ledger")).1, last_loss + HOLD);
    assert_eq!(held(sim.open_at(dialler, "ledger", 1)).1, last_loss + HOLD - Duration::from_secs(1));
    // The one that is back and says "down" is not the one that is waited for.
    let back = sim.up("db-2", &["*"], &[]);
    sim.announce(back, 2, vec![ad("ledger", ServiceState::Down)]).unwrap();
    assert_eq!(held(sim.open(dialler, "ledger")).1, last_loss + HOLD - Duration::from_secs(1));
    let back = sim.agent("db-1", 1, &["ledger"]);
    assert_eq!(forwarded(sim.open(dialler, "ledger")), back);
}

#[test]
fn waiting_goes_on_when_the_agent_is_lost_again() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let (hold, first_until) = held(sim.open(dialler, "ledger"));
    sim.pass(Duration::from_secs(3));
    let back = sim.agent("db-1", 1, &["ledger"]);
    sim.lose(back);
    assert_eq!(sim.events(), [hold]);
    let (same, until) = held(sim.router.route_held(hold, &header("ledger"), sim.now));
    assert_eq!((same, until), (hold, first_until + Duration::from_secs(3)));
    assert_eq!(sim.router.gauges().held, 1);
    sim.pass(HOLD - MS);
    assert_eq!(sim.events(), []);
    sim.pass(MS);
    assert_eq!(sim.events(), [hold]);
}

#[test]
fn a_held_open_ends_with_its_dialler() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    let other = sim.up("web-2", &[], &["*"]);
    sim.lose(agent);
    let (given_up, _) = held(sim.open(dialler, "ledger"));
    let (orphan, _) = held(sim.open(dialler, "ledger"));
    let (kept, _) = held(sim.open(other, "ledger"));
    sim.router.hold_ended(given_up);
    sim.router.hold_ended(given_up);
    assert_eq!(sim.router.gauges().held, 2);
    sim.lose(dialler);
    assert_eq!(sim.router.gauges().held, 1);
    sim.agent("db-1", 1, &["ledger"]);
    assert_eq!(sim.events(), [kept]);
    assert_eq!(refused(sim.router.route_held(orphan, &header("ledger"), sim.now)), Code::CONN_LOST);
}

#[test]
fn a_held_open_of_a_process_that_was_replaced_is_refused() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let old = sim.up("web-1", &[], &["*"]);
    sim.serve(old, 5, &[]);
    sim.lose(agent);
    let (hold, _) = held(sim.open(old, "ledger"));
    let new = sim.up("web-1", &[], &["*"]);
    assert_eq!(sim.serve(new, 6, &[]).replaced, [old]);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::UNAUTHORIZED);
}

#[test]
fn a_held_open_of_a_process_that_turns_out_to_be_the_older_one_is_refused() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    for id in [5, 6] {
        let link = sim.up("web-1", &[], &["*"]);
        sim.serve(link, id, &[]);
    }
    sim.lose(agent);
    let late = sim.up("web-1", &[], &["*"]);
    let (hold, _) = held(sim.open(late, "ledger"));
    assert_eq!(sim.announce(late, 5, vec![]), Err(AnnounceError::Replaced));
    assert_eq!(sim.events(), [hold]);
    assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::UNAUTHORIZED);
}

#[test]
fn a_late_timeout_does_not_prolong_the_waiting() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let (hold, until) = held(sim.open(dialler, "ledger"));
    sim.now = until;
    assert_eq!(refused(sim.open(dialler, "ledger")), Code::OFFLINE);
    assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::OFFLINE);
}

#[test]
fn routing_a_held_open_early_answers_for_what_woke_it() {
    let mut sim = Sim::new();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    let dialler = sim.dialler();
    sim.lose(agent);
    let (hold, _) = held(sim.open(dialler, "ledger"));
    let back = sim.agent("db-1", 1, &["ledger"]);
    sim.lose(back);
    // Woken; routed before the server asked what there is.
    held(sim.router.route_held(hold, &header("ledger"), sim.now));
    assert_eq!(sim.events(), []);
}

#[test]
fn an_agent_that_is_lost_twice_is_remembered_once() {
    let mut sim = Sim::new();
    for _ in 0..2 {
        let links = [1, 1].map(|id| sim.agent("db-1", id, &["ledger"]));
        links.into_iter().for_each(|link| sim.lose(link));
        sim.pass(MS);
    }
    assert_eq!(sim.router.gauges().lost, 1);
    sim.router.lost.assert_consistent();
}

#[test]
fn a_silent_agent_gets_no_opens_until_it_is_heard_or_another_comes() {
    let mut sim = Sim::new();
    let dialler = sim.dialler();
    let agent = sim.agent("db-1", 1, &["ledger"]);
    sim.router.set_suspect(agent, true);
    let (hold, until) = held(sim.open(dialler, "ledger"));
    assert_eq!(until, sim.now + HOLD);
    // Heard again.
    sim.router.set_suspect(agent, false);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(forwarded(sim.router.route_held(hold, &header("ledger"), sim.now)), agent);
    // Another link of the same instance: a silent one is passed over.
    sim.router.set_suspect(agent, true);
    let (hold, _) = held(sim.open(dialler, "ledger"));
    let newer = sim.agent("db-1", 1, &["ledger"]);
    assert_eq!(sim.events(), [hold]);
    for _ in 0..20 {
        assert_eq!(forwarded(sim.open(dialler, "ledger")), newer);
    }
    assert_eq!(forwarded(sim.router.route_held(hold, &header("ledger"), sim.now)), newer);
    // Gone for good: who waited is told at once.
    sim.bye(newer);
    let (hold, _) = held(sim.open(dialler, "ledger"));
    sim.bye(agent);
    assert_eq!(sim.events(), [hold]);
    assert_eq!(refused(sim.router.route_held(hold, &header("ledger"), sim.now)), Code::OFFLINE);
}
