//! Two processes of one machine: the older one stands by until the newer has gone.

use super::*;

impl Sim {
    /// An announce of a process that was sent away once; whether it has to stand by.
    fn yields(&mut self, link: LinkId, id: u8, services: &[&str]) -> bool {
        let announce = Announce {
            revision: 1,
            instance: vec![id; 16].into(),
            services: services.iter().map(|service| ad(service, ServiceState::Up)).collect(),
            yields: true,
            ..Announce::default()
        };
        let announced = self.router.announce(link, &announce, self.now).unwrap();
        assert_eq!(announced.replaced, []);
        announced.stands_by
    }

    fn restored(&mut self) -> Vec<LinkId> {
        drop(self.events());
        std::mem::take(&mut self.restored)
    }

    /// The older process 1 was replaced by 2, and is back to stand by; its link.
    fn stood_by(&mut self, newer: LinkId) -> LinkId {
        let older = self.up("db-1", &["*"], &["*"]);
        assert!(self.yields(older, 1, &["ledger"]));
        let dialler = self.dialler();
        assert_eq!(forwarded(self.open(dialler, "ledger")), newer);
        assert_eq!(refused(self.open(older, "ledger")), Code::UNAUTHORIZED);
        older
    }
}

#[test]
fn it_comes_back_when_the_newer_one_has_gone() {
    for goodbye in [true, false] {
        let mut sim = Sim::new();
        let newer = sim.agent("db-1", 2, &["ledger"]);
        let older = sim.stood_by(newer);
        let dialler = sim.dialler();
        // Saying it again changes nothing.
        assert!(sim.yields(older, 1, &["ledger", "audit"]));
        assert_eq!(sim.restored(), []);
        if goodbye {
            sim.bye(newer);
        } else {
            sim.lose(newer);
            assert_eq!(sim.restored(), [], "its network may be back in a moment");
            held(sim.open(dialler, "ledger"));
            sim.pass(HOLD / 2);
        }
        assert_eq!(sim.restored(), [older], "goodbye: {goodbye}");
        assert!(!sim.yields(older, 1, &["ledger"]));
        assert_eq!(forwarded(sim.open(dialler, "ledger")), older);
        assert_eq!(forwarded(sim.open(older, "ledger")), older, "it may dial too");
    }
}

#[test]
fn leaving_is_going() {
    let mut sim = Sim::new();
    let newer = sim.agent("db-1", 2, &["ledger"]);
    let older = sim.stood_by(newer);
    sim.router.link_leaving(newer);
    assert_eq!(sim.restored(), [older]);
}

#[test]
fn an_interruption_of_the_newer_ones_network_changes_nothing() {
    let mut sim = Sim::new();
    let newer = sim.agent("db-1", 2, &["ledger"]);
    let older = sim.stood_by(newer);
    sim.lose(newer);
    sim.pass(HOLD / 4);
    let again = sim.agent("db-1", 2, &["ledger"]);
    sim.pass(HOLD);
    assert_eq!(sim.restored(), []);
    assert!(sim.yields(older, 1, &["ledger"]));
    let dialler = sim.dialler();
    assert_eq!(forwarded(sim.open(dialler, "ledger")), again);
}

#[test]
fn the_newer_one_wins_when_it_comes_back_late() {
    let mut sim = Sim::new();
    let newer = sim.agent("db-1", 2, &["ledger"]);
    let older = sim.stood_by(newer);
    sim.lose(newer);
    sim.pass(HOLD);
    assert_eq!(sim.restored(), [older]);
    assert!(!sim.yields(older, 1, &["ledger"]));
    let again = sim.up("db-1", &["*"], &[]);
    assert_eq!(sim.serve(again, 2, &["ledger"]).replaced, [older]);
    let dialler = sim.dialler();
    assert_eq!(forwarded(sim.open(dialler, "ledger")), again);
}

#[test]
fn a_relay_that_remembers_nothing_lets_the_newer_one_win() {
    // The older one is first.
    let mut sim = Sim::young();
    let older = sim.up("db-1", &["*"], &["*"]);
    assert!(!sim.yields(older, 1, &["ledger"]));
    let newer = sim.up("db-1", &["*"], &[]);
    assert_eq!(sim.serve(newer, 2, &["ledger"]).replaced, [older]);
    sim.bye(older);
    assert_eq!(sim.restored(), []);
    // The newer one is first.
    let mut sim = Sim::young();
    let newer = sim.agent("db-1", 2, &["ledger"]);
    sim.stood_by(newer);
}

#[test]
fn of_two_that_yield_one_serves() {
    let mut sim = Sim::new();
    let (first, second) = (sim.up("db-1", &["*"], &[]), sim.up("db-1", &["*"], &[]));
    assert!(!sim.yields(first, 1, &["ledger"]));
    assert!(sim.yields(second, 2, &["ledger"]));
    sim.bye(first);
    assert_eq!(sim.restored(), [second]);
    // A new one goes before both.
    let newest = sim.up("db-1", &["*"], &[]);
    assert!(!sim.yields(second, 2, &["ledger"]));
    assert_eq!(sim.serve(newest, 3, &["ledger"]).replaced, [second]);
}

#[test]
fn what_stands_by_and_goes_leaves_nothing() {
    let mut sim = Sim::new();
    let newer = sim.agent("db-1", 2, &["ledger"]);
    let older = sim.stood_by(newer);
    sim.lose(newer);
    sim.bye(older);
    sim.pass(HOLD);
    assert_eq!(sim.restored(), []);
    assert_eq!(sim.router.poll_timeout(), None);
}
