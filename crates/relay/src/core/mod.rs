//! The relay's routing core, pure: links, registrations and opens come in, decisions come out.
//!
//! # The main decision
//!
//! Who serves what is known from the links that are up *now*, and from nothing else. A registration lives with the
//! link that it came on and is bound to the machine that the link proved and to the start of the process (instance)
//! that announced it. So there is no lease to renew and nothing to clean up later: a link that goes takes its
//! registrations along, and a process that starts anew takes the place of its predecessor at once, though the
//! predecessor's link may look alive for as long as its liveness bound.
//!
//! Two memories make up for what this forgets too soon, both bounded and both over after `hold`: agents that were
//! lost without a goodbye, and agents that a relay which has just started has not seen yet. An open for such a
//! service waits, because in all likelihood its agent is on its way back.
//!
//! A service that its agent calls down is, but for the words of a refusal, as if it were not registered. So an agent
//! counts as *seen* when it first serves, and as *lost* only if it served: one that said down, or goodbye, or was
//! succeeded by a newer process of its machine, is not waited for. Where several agents of one service went, an
//! open waits while any of them may come back.
//!
//! # How to use it
//!
//! No clock, no I/O, no task, no lock. What depends on time takes `now`, which must not go back. After each call that
//! changes something, and after [`Router::handle_timeout`], call [`Router::poll_event`] until it gives `None`, then
//! [`Router::poll_timeout`] for the time of the next `handle_timeout`. The same calls with the same seed
//! give the same answers.

mod absent;
mod announce;
mod holds;
mod interests;
mod limits;
mod registry;
mod route;
mod standby;
mod types;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hopline_names::{Grants, InstanceId, MachineName, ServiceName};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use absent::{Lost, Seen};
use holds::Holds;
use interests::Interests;
use registry::{Registration, Registry};
use standby::Standby;

pub use limits::{Counters, LIMITS, RouterConfig};
pub use types::{
    Agent, AgentStatus, AgentsOf, AnnounceError, Announced, Event, Gauges, HoldId, LinkEnd, LinkId,
    LinkPhase, LinkStatus, LinkUpError, Refused, Route, ServiceStatus,
};

/// The routing core of one relay process. See the [module](self) for what it decides and how to call it.
#[derive(Debug)]
pub struct Router {
    config: RouterConfig,
    /// `ChaCha8`: its output is fixed by a specification, so a seed replays in every version.
    rng: ChaCha8Rng,
    links: BTreeMap<LinkId, Link>,
    /// The machines that have a link.
    machines: BTreeMap<MachineName, Machine>,
    registry: Registry,
    lost: Lost,
    seen: Seen,
    holds: Holds,
    interests: Interests,
    standby: Standby,
    counters: Counters,
}

#[derive(Debug)]
struct Link {
    machine: MachineName,
    grants: Grants,
    since: Instant,
    phase: LinkPhase,
    instance: Option<InstanceId>,
    version: String,
    revision: u64,
    /// The names registered on this link: its entries in the registry.
    services: BTreeSet<ServiceName>,
    sessions: u64,
    /// A ping has waited for its answer for too long: new sessions go elsewhere, or wait.
    suspect: bool,
    /// Its process dials and goes.
    passing: bool,
    /// It waits until the newer process of its machine has gone.
    stands_by: bool,
}

#[derive(Debug, Default)]
struct Machine {
    links: BTreeSet<LinkId>,
    /// The newest instance that has announced.
    current: Option<InstanceId>,
    /// The ones before it, oldest first. They must not win again while the newer one is here, or two processes under one
    /// name would throw each other out for ever.
    superseded: VecDeque<InstanceId>,
}

impl Router {
    /// A router that starts now: for `hold` from `now` on it waits for services that it has not seen.
    #[must_use]
    pub fn new(config: RouterConfig, seed: u64, now: Instant) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            links: BTreeMap::new(),
            machines: BTreeMap::new(),
            registry: Registry::default(),
            lost: Lost::default(),
            seen: Seen::new(now + config.hold),
            holds: Holds::default(),
            interests: Interests::default(),
            standby: Standby::default(),
            counters: Counters::default(),
            config,
        }
    }

    /// An edge's link is up; its machine name is proved.
    ///
    /// # Errors
    ///
    /// [`LinkUpError`]: the link is to be ended with its code; the router does not know it.
    pub fn link_up(
        &mut self,
        id: LinkId,
        machine: MachineName,
        grants: Grants,
        now: Instant,
    ) -> Result<(), LinkUpError> {
        if self.links.contains_key(&id) {
            return Err(LinkUpError::Duplicate(id));
        }
        if self.links.len() >= self.config.max_links {
            self.counters.max_links += 1;
            return Err(LinkUpError::TooMany(self.links.len()));
        }
        let of_machine = self.machines.get(&machine).map_or(0, |machine| machine.links.len());
        if of_machine >= self.config.max_links_per_machine {
            self.counters.max_links_per_machine += 1;
            return Err(LinkUpError::TooManyOfMachine(of_machine));
        }
        self.machines.entry(machine.clone()).or_default().links.insert(id);
        let link = Link {
            machine,
            grants,
            since: now,
            phase: LinkPhase::Active,
            instance: None,
            version: String::new(),
            revision: 0,
            services: BTreeSet::new(),
            sessions: 0,
            suspect: false,
            passing: false,
            stands_by: false,
        };
        self.links.insert(id, link);
        Ok(())
    }

    /// The link is of a process that dials and goes. Such links leave some of their machine's places free.
    ///
    /// # Errors
    ///
    /// [`LinkUpError::TooManyPassing`]: the link is to be ended with its code.
    pub fn set_passing(&mut self, id: LinkId) -> Result<(), LinkUpError> {
        let Some(machine) = self.links.get(&id).map(|link| link.machine.clone()) else { return Ok(()) };
        let links = self.machines.get(&machine).into_iter().flat_map(|machine| &machine.links);
        let passing = links.filter(|other| self.links.get(other).is_some_and(|link| link.passing)).count();
        if passing >= self.config.max_passing_links_per_machine {
            self.counters.max_passing_links_per_machine += 1;
            return Err(LinkUpError::TooManyPassing(passing));
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.passing = true;
        }
        Ok(())
    }

    /// The policy for the machine of this link has changed. What the machine may not publish any more is withdrawn;
    /// what it may publish in addition is taken at its next announce. Returns the names withdrawn.
    pub fn set_grants(&mut self, id: LinkId, grants: Grants) -> Vec<ServiceName> {
        let Some(link) = self.links.get_mut(&id) else { return Vec::new() };
        link.grants = grants;
        let withdrawn: Vec<ServiceName> =
            link.services.iter().filter(|service| !link.grants.may_publish(service)).cloned().collect();
        for service in &withdrawn {
            link.services.remove(service);
            self.registry.remove(service, id);
            self.interests.note(service);
        }
        self.interests.note_link(id);
        self.holds.wake_link(id);
        withdrawn
    }

    /// How long agents that are lost from now on are waited for. What is waited for already keeps its time.
    pub fn set_hold(&mut self, hold: Duration) {
        self.config.hold = hold;
    }

    /// The link has fallen silent, or was heard again. While an agent's link is silent, opens for it go to other links
    /// of the name, or wait: what goes out on a path that is dead can't be sent again.
    pub fn set_suspect(&mut self, id: LinkId, suspect: bool) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.suspect = suspect;
        for service in &link.services {
            self.interests.note(service);
            if !suspect {
                self.holds.wake_service(service);
            }
        }
    }

    /// The edge of this link is on its way out: it gets no new sessions, and its services are not waited for.
    pub fn link_leaving(&mut self, id: LinkId) {
        self.withdraw_all(id);
        let Some(link) = self.links.get_mut(&id) else { return };
        link.stands_by = false;
        if link.phase == LinkPhase::Active {
            link.phase = LinkPhase::Leaving;
        }
        let machine = link.machine.clone();
        self.restore(&machine);
    }

    /// The link has ended: its registrations and its held opens are gone. A second call does nothing.
    pub fn link_down(&mut self, id: LinkId, end: LinkEnd, now: Instant) {
        let withdrawn = self.withdraw_all(id);
        self.holds.remove_of_link(id);
        self.interests.remove_link(id);
        for (service, _) in &withdrawn {
            // Who waited for this link to be heard again is to be told what else there is.
            self.holds.wake_service(service);
        }
        let Some(link) = self.links.remove(&id) else { return };
        if let Some(machine) = self.machines.get_mut(&link.machine) {
            machine.links.remove(&id);
            if machine.links.is_empty() {
                self.machines.remove(&link.machine);
            }
        }
        match end {
            LinkEnd::Goodbye => self.restore(&link.machine),
            LinkEnd::Lost => self.restore_at(&link.machine, now),
        }
        if end == LinkEnd::Lost {
            for (service, registration) in withdrawn {
                self.note_lost(service, &registration, &link.machine, now);
            }
        }
    }

    /// A session was opened on the link, as [`Route::Forward`] said.
    pub fn session_started(&mut self, to: LinkId) {
        if let Some(link) = self.links.get_mut(&to) {
            link.sessions += 1;
        }
    }

    /// Such a session has ended. Once the link is down this does nothing: its count went with it.
    pub fn session_ended(&mut self, to: LinkId) {
        let Some(link) = self.links.get_mut(&to) else { return };
        match link.sessions.checked_sub(1) {
            Some(sessions) => link.sessions = sessions,
            None => self.counters.unmatched_session_ends += 1,
        }
    }

    /// The next thing that the server should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        let again = self.holds.pop_ready().map(Event::RouteAgain);
        let again = again.or_else(|| self.standby.pop_ready().map(Event::Restored));
        again.or_else(|| self.interests.pop_ready().map(Event::AgentsChanged))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None`: not before something else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ends =
            [self.holds.next_end(), self.lost.next_end(), self.seen.next_end(), self.standby.next_end()];
        ends.into_iter().flatten().min()
    }

    /// Time has passed. Early calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        for service in self.lost.expire(now) {
            self.interests.note(&service);
        }
        self.seen.expire(now);
        for machine in self.standby.expire(now) {
            self.restore(&machine);
        }
        self.holds.expire(now);
    }

    /// The services that somebody serves, by name, with their agents by link: those behind `after`, or all.
    pub fn services_after(
        &self,
        after: Option<&ServiceName>,
    ) -> impl Iterator<Item = ServiceStatus> + use<'_> {
        let agent = move |(id, registration): (&LinkId, &Registration)| {
            self.links.get(id).map(|link| AgentStatus {
                link: *id,
                machine: link.machine.clone(),
                instance: registration.instance,
                protocol: registration.protocol,
                state: registration.state,
                phase: link.phase,
                sessions: link.sessions,
            })
        };
        let service = move |(name, agents): (&ServiceName, &BTreeMap<LinkId, Registration>)| ServiceStatus {
            name: name.clone(),
            agents: agents.iter().filter_map(agent).collect(),
        };
        self.registry.after(after).map(service)
    }

    /// A link, while it is there.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<LinkStatus> {
        self.links.get(&id).map(|link| LinkStatus {
            link: id,
            machine: link.machine.clone(),
            phase: link.phase,
            instance: link.instance,
            version: link.version.clone(),
            services: link.services.len(),
            sessions: link.sessions,
            since: link.since,
        })
    }

    /// How much the router holds now.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            links: self.links.len(),
            registrations: self.registry.total(),
            lost: self.lost.len(),
            seen: self.seen.len(),
            held: self.holds.len(),
        }
    }

    /// How often limits were met.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes all registrations of a link away.
    fn withdraw_all(&mut self, id: LinkId) -> Vec<(ServiceName, Registration)> {
        let services = self.links.get_mut(&id).map(|link| std::mem::take(&mut link.services));
        let mut withdrawn = Vec::new();
        for service in services.into_iter().flatten() {
            if let Some(registration) = self.registry.remove(&service, id) {
                self.interests.note(&service);
                withdrawn.push((service, registration));
            }
        }
        withdrawn
    }

    /// A registration went with its link, without a goodbye.
    fn note_lost(
        &mut self,
        service: ServiceName,
        registration: &Registration,
        machine: &MachineName,
        now: Instant,
    ) {
        // Another link of the machine may serve it still. What is registered is of its newest instance.
        let elsewhere = self.registry.of(&service).any(|(id, other)| {
            other.is_up() && self.links.get(&id).is_some_and(|link| link.machine == *machine)
        });
        if elsewhere || !registration.is_up() {
            return;
        }
        let until = now + self.config.hold;
        self.interests.note(&service);
        let max = self.config.max_lost;
        if let Some(forgotten) = self.lost.insert(service, registration.instance, machine, until, max) {
            self.interests.note(&forgotten);
            self.counters.max_lost += 1;
        }
    }
}

#[cfg(test)]
mod tests;
