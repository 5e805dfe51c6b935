//! Which links want to be told who serves what, and what they have not been told yet.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use hopline_names::{InstanceId, ServiceName};
use hopline_route_proto::{AgentState, MAX_AGENTS_TOLD};

use super::Router;
use super::types::{Agent, AgentsOf, LinkId};

#[derive(Debug, Default)]
pub(super) struct Interests {
    of_link: BTreeMap<LinkId, BTreeSet<ServiceName>>,
    of_service: BTreeMap<ServiceName, BTreeSet<LinkId>>,
    /// What a link is to be told, each name once however often it changes.
    changed: BTreeMap<LinkId, BTreeSet<ServiceName>>,
    /// Links that the server is to look at, because `changed` has something for them.
    ready: BTreeSet<LinkId>,
}

impl Interests {
    fn set(&mut self, link: LinkId, names: BTreeSet<ServiceName>) {
        self.remove_link(link);
        for name in &names {
            self.of_service.entry(name.clone()).or_default().insert(link);
        }
        if !names.is_empty() {
            self.changed.insert(link, names.clone());
            self.ready.insert(link);
            self.of_link.insert(link, names);
        }
    }

    pub(super) fn remove_link(&mut self, link: LinkId) {
        self.changed.remove(&link);
        self.ready.remove(&link);
        for name in self.of_link.remove(&link).into_iter().flatten() {
            if let Some(links) = self.of_service.get_mut(&name) {
                links.remove(&link);
                if links.is_empty() {
                    self.of_service.remove(&name);
                }
            }
        }
    }

    /// The agents of this service may have changed.
    pub(super) fn note(&mut self, service: &ServiceName) {
        for link in self.of_service.get(service).into_iter().flatten() {
            self.changed.entry(*link).or_default().insert(service.clone());
            self.ready.insert(*link);
        }
    }

    /// What this link may see has changed.
    pub(super) fn note_link(&mut self, link: LinkId) {
        if let Some(names) = self.of_link.get(&link) {
            self.changed.insert(link, names.clone());
            self.ready.insert(link);
        }
    }

    pub(super) fn pop_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_first()
    }

    fn take(&mut self, link: LinkId, max: usize) -> Vec<ServiceName> {
        let Some(names) = self.changed.get_mut(&link) else { return Vec::new() };
        let taken: Vec<ServiceName> = std::iter::from_fn(|| names.pop_first()).take(max).collect();
        if names.is_empty() {
            self.changed.remove(&link);
        }
        taken
    }

    /// All tables speak of the same interests.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let pairs = self.of_link.iter().flat_map(|(link, names)| names.iter().map(move |name| (name, *link)));
        let (mut count, mut told) = (0, 0);
        for (name, link) in pairs {
            assert!(self.of_service.get(name).is_some_and(|links| links.contains(&link)));
            count += 1;
        }
        assert_eq!(self.of_service.values().map(BTreeSet::len).sum::<usize>(), count);
        for (link, names) in &self.changed {
            assert!(!names.is_empty() && self.of_link.get(link).is_some_and(|of| names.is_subset(of)));
            told += 1;
        }
        assert!(self.ready.len() <= told && self.ready.iter().all(|link| self.changed.contains_key(link)));
    }
}

impl Router {
    /// The services whose agents this link is to be told of, from now on: those, and no others.
    /// [`Event::AgentsChanged`](super::Event::AgentsChanged) follows at once and whenever one changes.
    pub fn set_interest(&mut self, id: LinkId, services: &[String]) {
        if !self.links.contains_key(&id) {
            return;
        }
        let max = self.config.max_interests_per_link;
        let mut names = BTreeSet::new();
        for name in services.iter().filter_map(|service| ServiceName::new(service).ok()) {
            if names.len() < max {
                names.insert(name);
            } else if !names.contains(&name) {
                self.counters.max_interests_per_link += 1;
                break;
            }
        }
        self.interests.set(id, names);
    }

    /// What a link was not told yet, at most `max` services of it; empty: nothing is left. To be asked until then after
    /// [`Event::AgentsChanged`](super::Event::AgentsChanged).
    ///
    /// Of a name that the link's machine may not dial there are no agents.
    pub fn take_agents(&mut self, id: LinkId, max: usize) -> Vec<AgentsOf> {
        let names = self.interests.take(id, max);
        let Some(link) = self.links.get(&id) else { return Vec::new() };
        let told = |service: ServiceName| {
            let agents = if link.grants.may_dial(&service) { self.agents_of(&service) } else { Vec::new() };
            AgentsOf { service, agents }
        };
        names.into_iter().map(told).collect()
    }

    fn agents_of(&self, service: &ServiceName) -> Vec<Agent> {
        let mut agents: BTreeMap<InstanceId, Agent> = BTreeMap::new();
        for (id, registration) in self.registry.of(service) {
            let Some(link) = self.links.get(&id) else { continue };
            let state = match (registration.is_up(), link.suspect) {
                (true, false) => AgentState::Up,
                (true, true) => AgentState::Suspect,
                (false, _) => AgentState::Down,
            };
            let (instance, machine) = (registration.instance, link.machine.clone());
            let agent = Agent { instance, machine, state, link: Some(id) };
            // Of several links of one process the best one counts.
            match agents.entry(instance) {
                Entry::Occupied(other) if other.get().state <= state => {}
                Entry::Occupied(mut other) => drop(other.insert(agent)),
                Entry::Vacant(free) => drop(free.insert(agent)),
            }
        }
        for (instance, machine) in self.lost.of(service) {
            let (machine, state) = (machine.clone(), AgentState::Lost);
            agents.entry(instance).or_insert(Agent { instance, machine, state, link: None });
        }
        let mut agents: Vec<Agent> = agents.into_values().collect();
        agents.sort_by_key(|agent| agent.state);
        agents.truncate(MAX_AGENTS_TOLD);
        agents
    }
}
