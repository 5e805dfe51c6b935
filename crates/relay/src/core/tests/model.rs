//! Random operations against a model that is too simple to be wrong: lists, searched from end to end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const SERVICES: [&str; 3] = ["s0", "s1", "s2"];
const MACHINES: [&str; 3] = ["m0", "m1", "m2"];

/// A set of the services, as bits.
type Set = u8;

#[derive(Debug, Clone)]
enum Op {
    Up {
        machine: usize,
        publish: Set,
        dial: Set,
    },
    Down {
        link: Index,
        lost: bool,
    },
    /// The services named, and which of them are up.
    Announce {
        link: Index,
        instance: u8,
        services: Set,
        up: Set,
    },
    Leaving {
        link: Index,
    },
    Grants {
        link: Index,
        publish: Set,
        dial: Set,
    },
    Open {
        from: Index,
        service: usize,
        agent: Option<u8>,
        again: bool,
        relay_hops: u64,
    },
    Interest {
        link: Index,
        services: Set,
    },
    GiveUp {
        hold: Index,
    },
    Started {
        link: Index,
    },
    Ended {
        link: Index,
    },
    Pass {
        ms: u64,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    let index = any::<Index>;
    let mostly = || prop_oneof![3 => Just(7), 1 => 0u8..8];
    prop_oneof![
        3 => (0..3usize, mostly(), mostly()).prop_map(|(machine, publish, dial)| Op::Up { machine, publish, dial }),
        2 => (index(), prop::bool::weighted(0.7)).prop_map(|(link, lost)| Op::Down { link, lost }),
        6 => (index(), 1..5u8, mostly(), mostly())
            .prop_map(|(link, instance, services, up)| Op::Announce { link, instance, services, up }),
        1 => index().prop_map(|link| Op::Leaving { link }),
        1 => (index(), mostly(), mostly()).prop_map(|(link, publish, dial)| Op::Grants { link, publish, dial }),
        8 => (
            index(),
            0..3usize,
            prop::option::weighted(0.4, 1..5u8),
            any::<bool>(),
            prop_oneof![9 => Just(0), 1 => 1..3u64],
        )
            .prop_map(|(from, service, agent, again, relay_hops)| {
                Op::Open { from, service, agent, again, relay_hops }
            }),
        2 => (index(), mostly()).prop_map(|(link, services)| Op::Interest { link, services }),
        1 => index().prop_map(|hold| Op::GiveUp { hold }),
        3 => index().prop_map(|link| Op::Started { link }),
        3 => index().prop_map(|link| Op::Ended { link }),
        4 => prop_oneof![0..200u64, 200..12_000u64].prop_map(|ms| Op::Pass { ms }),
    ]
}

struct ModelLink {
    id: LinkId,
    machine: usize,
    publish: Set,
    dial: Set,
    phase: LinkPhase,
    instance: Option<u8>,
    services: Set,
    up: Set,
    sessions: u64,
    interest: Set,
}

struct ModelLost {
    service: usize,
    instance: u8,
    machine: usize,
    until: Instant,
}

#[derive(Default, Clone)]
struct ModelMachine {
    current: Option<u8>,
    older: Vec<u8>,
}

struct Model {
    links: Vec<ModelLink>,
    machines: Vec<ModelMachine>,
    lost: Vec<ModelLost>,
    seen: Vec<(usize, u8)>,
    young_until: Instant,
}

#[derive(Debug, PartialEq)]
enum Expected {
    Forward(BTreeSet<LinkId>),
    Refuse(Code),
    Hold(Instant),
}

const fn has(set: Set, service: usize) -> bool {
    set & (1 << service) != 0
}

impl Model {
    fn at(&mut self, id: LinkId) -> &mut ModelLink {
        self.links.iter_mut().find(|link| link.id == id).unwrap()
    }

    fn expected(&self, from: LinkId, header: &RoutingHeader, now: Instant) -> Expected {
        let Some(dialler) = self.links.iter().find(|link| link.id == from) else {
            return Expected::Refuse(Code::CONN_LOST);
        };
        let service = SERVICES.iter().position(|s| *s == header.service().unwrap().as_str()).unwrap();
        if dialler.phase == LinkPhase::Replaced {
            return Expected::Refuse(Code::UNAUTHORIZED);
        }
        if header.relay_hops > 1 {
            return Expected::Refuse(Code::PROTOCOL);
        }
        if !has(dialler.dial, service) {
            return Expected::Refuse(Code::NOT_FOUND);
        }
        let fits = |id: u8| header.agent.is_none_or(|agent| agent == instance(id));
        let serves =
            |link: &&ModelLink| has(link.services & link.up, service) && fits(link.instance.unwrap());
        let candidates: Vec<&ModelLink> = self.links.iter().filter(serves).collect();
        if !candidates.is_empty() {
            // Of two, the fuller is never taken: so never the one that is fuller than all others.
            let fullest = candidates.iter().map(|link| link.sessions).max().unwrap();
            let alone =
                candidates.len() > 1 && candidates.iter().filter(|l| l.sessions == fullest).count() == 1;
            let fits = candidates.iter().filter(|link| !alone || link.sessions < fullest);
            return Expected::Forward(fits.map(|link| link.id).collect());
        }
        let others = |link: &ModelLink| has(link.services & link.up, service);
        if header.agent.is_some() && header.again.is_none() && self.links.iter().any(others) {
            return Expected::Refuse(Code::OFFLINE);
        }
        let lost = self.lost.iter().filter(|l| l.service == service && fits(l.instance)).map(|l| l.until);
        let young = !self.seen.iter().any(|(s, id)| *s == service && fits(*id));
        let ends = lost.chain(young.then_some(self.young_until));
        ends.filter(|until| now < *until).max().map_or(Expected::Refuse(Code::OFFLINE), Expected::Hold)
    }

    fn announce(
        &mut self,
        id: LinkId,
        instance: u8,
        services: Set,
        up: Set,
        now: Instant,
    ) -> Option<Vec<LinkId>> {
        let link = self.at(id);
        let (machine, publish) = (link.machine, link.publish);
        if link.phase != LinkPhase::Active || link.instance.is_some_and(|known| known != instance) {
            return None;
        }
        if self.machines[machine].older.contains(&instance) {
            self.at(id).phase = LinkPhase::Replaced;
            return None;
        }
        let mut replaced = Vec::new();
        if self.machines[machine].current != Some(instance) {
            let older = self.machines[machine].current.replace(instance);
            self.machines[machine].older.extend(older);
            for link in self.links.iter_mut().filter(|link| link.machine == machine) {
                if link.phase != LinkPhase::Replaced && link.instance.is_some_and(|known| known != instance) {
                    (link.phase, link.services, link.up) = (LinkPhase::Replaced, 0, 0);
                    replaced.push(link.id);
                }
            }
        }
        self.lost.retain(|lost| lost.machine != machine);
        let link = self.at(id);
        link.instance = Some(instance);
        link.services = services & publish;
        link.up = up & link.services;
        let up = link.up;
        if now < self.young_until {
            self.seen.extend((0..3).filter(|service| has(up, *service)).map(|service| (service, instance)));
        }
        Some(replaced)
    }

    fn down(&mut self, id: LinkId, lost: bool, now: Instant) {
        let at = self.links.iter().position(|link| link.id == id).unwrap();
        let gone = self.links.remove(at);
        let rest: Vec<&ModelLink> = self.links.iter().filter(|link| link.machine == gone.machine).collect();
        if rest.is_empty() {
            self.machines[gone.machine] = ModelMachine::default();
        }
        for service in 0..3 {
            if lost && has(gone.up, service) && !rest.iter().any(|link| has(link.up, service)) {
                let (instance, machine) = (gone.instance.unwrap(), gone.machine);
                self.lost.retain(|l| (l.service, l.instance, l.machine) != (service, instance, machine));
                self.lost.push(ModelLost { service, instance, machine, until: now + HOLD });
            }
        }
    }
}

struct Both {
    sim: Sim,
    model: Model,
    held: Vec<(HoldId, LinkId, RoutingHeader)>,
    /// What each link knows of the agents that it wants to know of.
    told: BTreeMap<(LinkId, String), Told>,
}

impl Both {
    fn new(seed: u64) -> Self {
        let mut sim = Sim::young();
        sim.router = Router::new(RouterConfig::default(), seed, sim.now);
        let model = Model {
            links: Vec::new(),
            machines: vec![ModelMachine::default(); MACHINES.len()],
            lost: Vec::new(),
            seen: Vec::new(),
            young_until: sim.now + HOLD,
        };
        Self { sim, model, held: Vec::new(), told: BTreeMap::new() }
    }

    /// One of the links there are; or one that never was.
    fn pick(&self, index: &Index) -> Option<LinkId> {
        (!self.model.links.is_empty()).then(|| self.model.links[index.index(self.model.links.len())].id)
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Up { machine, publish, dial } => self.link_up(*machine, *publish, *dial),
            Op::Open { from, service, agent, again, relay_hops } => {
                let from = self.pick(from).unwrap_or(LinkId(u64::MAX));
                let mut header = header(SERVICES[*service]);
                (header.agent, header.relay_hops) = (agent.map(instance), *relay_hops);
                header.again = again.then_some(7);
                let expected = self.model.expected(from, &header, self.sim.now);
                let route = self.sim.router.route(from, &header, self.sim.now);
                if let Some(id) = self.check(from, &expected, route) {
                    self.held.push((id, from, header));
                }
            }
            Op::GiveUp { hold } if !self.held.is_empty() => {
                let (id, ..) = self.held.remove(hold.index(self.held.len()));
                self.sim.router.hold_ended(id);
            }
            Op::GiveUp { .. } => {}
            Op::Pass { ms } => {
                self.sim.pass(Duration::from_millis(*ms));
                let now = self.sim.now;
                self.model.lost.retain(|lost| now < lost.until);
            }
            Op::Down { link, .. }
            | Op::Announce { link, .. }
            | Op::Leaving { link }
            | Op::Grants { link, .. }
            | Op::Interest { link, .. }
            | Op::Started { link }
            | Op::Ended { link } => {
                if let Some(id) = self.pick(link) {
                    self.run_on(id, op);
                }
            }
        }
        self.settle();
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "only operations on a link come here")]
    fn run_on(&mut self, id: LinkId, op: &Op) {
        match *op {
            Op::Down { lost, .. } => {
                let end = if lost { LinkEnd::Lost } else { LinkEnd::Goodbye };
                self.sim.router.link_down(id, end, self.sim.now);
                self.model.down(id, lost, self.sim.now);
                self.held.retain(|(_, from, _)| *from != id);
            }
            Op::Announce { instance, services, up, .. } => self.announce(id, instance, services, up),
            Op::Leaving { .. } => {
                self.sim.router.link_leaving(id);
                let link = self.model.at(id);
                (link.services, link.up) = (0, 0);
                if link.phase == LinkPhase::Active {
                    link.phase = LinkPhase::Leaving;
                }
            }
            Op::Interest { services, .. } => {
                let names: Vec<String> =
                    (0..3).filter(|s| has(services, *s)).map(|s| SERVICES[s].to_owned()).collect();
                self.sim.router.set_interest(id, &names);
                self.model.at(id).interest = services;
                self.told.retain(|(link, _), _| *link != id);
            }
            Op::Grants { publish, dial, .. } => {
                self.sim.router.set_grants(id, to_grants(publish, dial));
                let link = self.model.at(id);
                (link.publish, link.dial) = (publish, dial);
                link.services &= publish;
                link.up &= publish;
            }
            Op::Started { .. } => {
                self.sim.router.session_started(id);
                self.model.at(id).sessions += 1;
            }
            Op::Ended { .. } => {
                self.sim.router.session_ended(id);
                let sessions = &mut self.model.at(id).sessions;
                *sessions = sessions.saturating_sub(1);
            }
            _ => unreachable!("an operation without a link"),
        }
    }

    fn link_up(&mut self, machine: usize, publish: Set, dial: Set) {
        if self.model.links.len() >= 12 {
            return;
        }
        let id = LinkId(self.sim.next_link);
        self.sim.next_link += 1;
        let grants = to_grants(publish, dial);
        self.sim.router.link_up(id, name(MACHINES[machine]), grants, self.sim.now).unwrap();
        self.model.links.push(ModelLink {
            id,
            machine,
            publish,
            dial,
            phase: LinkPhase::Active,
            instance: None,
            services: 0,
            up: 0,
            sessions: 0,
            interest: 0,
        });
    }

    fn announce(&mut self, id: LinkId, instance: u8, services: Set, up: Set) {
        let state = |service| if has(up, service) { ServiceState::Up } else { ServiceState::Down };
        let named = (0..3).filter(|service| has(services, *service));
        let ads: Vec<ServiceAd> = named.map(|service| ad(SERVICES[service], state(service))).collect();
        let publish = self.model.at(id).publish;
        let answer = self.sim.announce(id, instance, ads);
        match self.model.announce(id, instance, services, up, self.sim.now) {
            Some(replaced) => {
                let answer = answer.unwrap();
                assert_eq!(answer.replaced, replaced);
                assert_eq!(answer.refused_total, (services & !publish).count_ones());
                assert!(answer.refused.iter().all(|refused| refused.code == Code::UNAUTHORIZED));
            }
            None => assert!(answer.is_err()),
        }
    }

    /// Compares one answer; the id if it is a held open.
    fn check(&self, from: LinkId, expected: &Expected, route: Route) -> Option<HoldId> {
        match (route, expected) {
            (Route::Forward { to, header }, Expected::Forward(links)) => {
                assert!(links.contains(&to), "{to:?} is none of {links:?}");
                let dialler = self.model.links.iter().find(|link| link.id == from).unwrap();
                assert_eq!(header.source, Some(name(MACHINES[dialler.machine])));
                None
            }
            (Route::Refuse { code, .. }, Expected::Refuse(expected)) => {
                assert_eq!(code, *expected);
                None
            }
            (Route::Hold { id, until }, Expected::Hold(expected)) => {
                assert_eq!(until, *expected);
                Some(id)
            }
            (route, expected) => panic!("{route:?} instead of {expected:?}"),
        }
    }

    /// Does what the router asks for, then compares all that can be seen.
    fn settle(&mut self) {
        for id in self.sim.events() {
            let at = self.held.iter().position(|(held, ..)| *held == id).expect("only what is held is woken");
            let (_, from, header) = self.held[at].clone();
            let expected = self.model.expected(from, &header, self.sim.now);
            let route = self.sim.router.route_held(id, &header, self.sim.now);
            match self.check(from, &expected, route) {
                Some(same) => assert_eq!(same, id),
                None => drop(self.held.remove(at)),
            }
        }
        assert_eq!(self.sim.events(), [], "routing again wakes nobody");
        // Nobody sleeps through what he waits for.
        for (id, from, header) in &self.held {
            let expected = self.model.expected(*from, header, self.sim.now);
            assert!(matches!(expected, Expected::Hold(_)), "{id:?} should have been woken for {expected:?}");
        }
        for (link, service, agents) in self.sim.told() {
            self.told.insert((link, service), agents);
        }
        self.compare_told();
        self.compare();
    }

    /// Who wants to know knows exactly what is true.
    fn compare_told(&self) {
        self.sim.router.interests.assert_consistent();
        let mut expected = BTreeMap::new();
        for link in &self.model.links {
            for service in (0..3).filter(|service| has(link.interest, *service)) {
                let mut agents = BTreeMap::new();
                for of in self.model.links.iter().filter(|of| has(of.services, service)) {
                    let state = if has(of.up, service) { AgentState::Up } else { AgentState::Down };
                    let best = agents.entry(instance(of.instance.unwrap())).or_insert(state);
                    *best = state.min(*best);
                }
                for lost in self.model.lost.iter().filter(|lost| lost.service == service) {
                    agents.entry(instance(lost.instance)).or_insert(AgentState::Lost);
                }
                let mut agents: Vec<_> = agents.into_iter().collect();
                agents.sort_by_key(|(_, state)| *state);
                let agents = if has(link.dial, service) { agents } else { Vec::new() };
                expected.insert((link.id, SERVICES[service].to_owned()), agents);
            }
        }
        let links: BTreeSet<LinkId> = self.model.links.iter().map(|link| link.id).collect();
        let told = self.told.iter().filter(|((link, _), _)| links.contains(link));
        assert_eq!(told.map(|(at, of)| (at.clone(), of.clone())).collect::<BTreeMap<_, _>>(), expected);
    }

    fn compare(&self) {
        self.sim.router.holds.assert_consistent();
        self.sim.router.lost.assert_consistent();
        let links: Vec<_> = self.sim.router.links();
        let seen: Vec<_> = links.iter().map(|l| (l.link, l.phase, l.services as u32, l.sessions)).collect();
        let of_model = |l: &ModelLink| (l.id, l.phase, l.services.count_ones(), l.sessions);
        assert_eq!(seen, self.model.links.iter().map(of_model).collect::<Vec<_>>());
        let mut registrations = 0;
        for service in self.sim.router.services() {
            assert!(!service.agents.is_empty());
            registrations += service.agents.len();
            let index = SERVICES.iter().position(|s| *s == service.name.as_str()).unwrap();
            for agent in service.agents {
                let link = self.model.links.iter().find(|link| link.id == agent.link).unwrap();
                assert!(has(link.services & link.publish, index));
                assert_eq!(link.instance.map(instance), Some(agent.instance));
                assert_eq!(self.model.machines[link.machine].current, link.instance, "the newest only");
                assert_eq!(agent.state == ServiceState::Up, has(link.up, index));
            }
        }
        let gauges = self.sim.router.gauges();
        let expected = self.model.links.iter().map(|link| link.services.count_ones() as usize).sum::<usize>();
        assert_eq!((registrations, gauges.registrations), (expected, expected));
        assert_eq!((gauges.lost, gauges.held), (self.model.lost.len(), self.held.len()));
    }

    /// After all links are down and the time of waiting is over, nothing is left.
    fn end(&mut self) {
        while let Some(link) = self.model.links.first() {
            let (id, lost) = (link.id, link.id.0.is_multiple_of(2));
            self.run_on(id, &Op::Down { link: any_index(), lost });
            self.settle();
        }
        self.run(&Op::Pass { ms: 10_000 });
        assert_eq!(self.sim.router.gauges(), Gauges::default());
        assert_eq!(self.sim.router.poll_timeout(), None);
        assert_eq!((self.sim.router.services().len(), self.sim.router.links().len()), (0, 0));
    }
}

/// An index that nobody looks at.
fn any_index() -> Index {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    any::<Index>().new_tree(&mut runner).unwrap().current()
}

fn to_grants(publish: Set, dial: Set) -> Grants {
    let names = |set| -> Vec<&str> { (0..3).filter(|s| has(set, *s)).map(|s| SERVICES[s]).collect() };
    grants(&names(publish), &names(dial))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn the_router_does_as_the_model(seed: u64, ops in vec(any_op(), 1..120)) {
        let mut both = Both::new(seed);
        for op in &ops {
            both.run(op);
        }
        both.end();
    }
}
