//! Agents that are not here: those that were lost and may come back, and those that a young relay has not seen yet.
//!
//! An agent of a service is here one process of a machine that serves it: a process with two links is lost with the
//! last of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use hopline_names::{InstanceId, MachineName, ServiceName};

/// Service, instance and machine. The machine is part of it because an instance id is what the edge says: a machine
/// that takes another's id must not touch what is known of the other. It is `Some` in every entry; `None` sorts before
/// all of them and begins a range.
type Agent = (ServiceName, InstanceId, Option<MachineName>);

/// The agents that were lost without a goodbye less than `hold` ago.
#[derive(Debug, Default)]
pub(super) struct Lost {
    agents: BTreeMap<Agent, LostAgent>,
    /// The same agents in the order of their loss. `hold` is one number, so this is the order of `until` too.
    by_age: BTreeMap<u64, Agent>,
    by_machine: BTreeMap<MachineName, BTreeSet<Agent>>,
    next_age: u64,
}

#[derive(Debug)]
struct LostAgent {
    age: u64,
    until: Instant,
}

impl Lost {
    /// Remembers an agent as lost. Returns the service of the oldest one if that had to be forgotten for it.
    pub(super) fn insert(
        &mut self,
        service: ServiceName,
        instance: InstanceId,
        machine: &MachineName,
        until: Instant,
        max: usize,
    ) -> Option<ServiceName> {
        let agent = (service, instance, Some(machine.clone()));
        // To be lost again it was announced again, and an announce forgets what its machine had lost.
        debug_assert!(!self.agents.contains_key(&agent));
        let age = self.next_age;
        self.next_age += 1;
        self.by_age.insert(age, agent.clone());
        self.by_machine.entry(machine.clone()).or_default().insert(agent.clone());
        self.agents.insert(agent, LostAgent { age, until });
        if self.agents.len() > max { self.remove_oldest() } else { None }
    }

    /// Forgets the agents of a machine: it has said what it serves now. Returns their services.
    pub(super) fn forget_machine(&mut self, machine: &MachineName) -> Vec<ServiceName> {
        let gone: Vec<Agent> = self.by_machine.get(machine).into_iter().flatten().cloned().collect();
        gone.iter().for_each(|agent| self.remove(agent));
        gone.into_iter().map(|(service, ..)| service).collect()
    }

    /// Until when an open of the service waits: the end of the latest loss of an agent that would do.
    pub(super) fn until(
        &self,
        service: &ServiceName,
        instance: Option<InstanceId>,
        now: Instant,
    ) -> Option<Instant> {
        let from = (service.clone(), instance.unwrap_or(InstanceId::MIN), None);
        let last = instance.unwrap_or(InstanceId::MAX);
        let would_do = self.agents.range(from..).take_while(|((of, id, _), _)| of == service && *id <= last);
        would_do.map(|(_, lost)| lost.until).max().filter(|until| now < *until)
    }

    /// When the oldest loss is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let (_, oldest) = self.by_age.first_key_value()?;
        self.agents.get(oldest).map(|lost| lost.until)
    }

    /// Forgets the losses that are over; gives their services.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ServiceName> {
        let mut over = Vec::new();
        while self.next_end().is_some_and(|until| until <= now) {
            over.extend(self.remove_oldest());
        }
        over
    }

    /// The agents of a service that may come back, with their machines.
    pub(super) fn of(&self, service: &ServiceName) -> impl Iterator<Item = (InstanceId, &MachineName)> {
        let from = (service.clone(), InstanceId::MIN, None);
        let of_service = self.agents.range(from..).take_while(move |((of, ..), _)| of == service);
        of_service.filter_map(|((_, instance, machine), _)| Some((*instance, machine.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    /// All tables speak of the same agents.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        assert_eq!(self.by_age.len(), self.agents.len());
        assert_eq!(self.by_machine.values().map(BTreeSet::len).sum::<usize>(), self.agents.len());
        assert!(self.by_machine.values().all(|agents| !agents.is_empty()));
        assert!(self.agents.iter().all(|(agent, lost)| self.by_age.get(&lost.age) == Some(agent)));
    }

    fn remove_oldest(&mut self) -> Option<ServiceName> {
        let (_, oldest) = self.by_age.first_key_value()?;
        let oldest = oldest.clone();
        self.remove(&oldest);
        Some(oldest.0)
    }

    fn remove(&mut self, agent: &Agent) {
        let Some(lost) = self.agents.remove(agent) else { return };
        self.by_age.remove(&lost.age);
        let Some(machine) = &agent.2 else { return };
        if let Some(of_machine) = self.by_machine.get_mut(machine) {
            of_machine.remove(agent);
            if of_machine.is_empty() {
                self.by_machine.remove(machine);
            }
        }
    }
}

/// The agents that were seen since the start, until `hold` after it. Then none is awaited any more.
#[derive(Debug)]
pub(super) struct Seen {
    agents: BTreeSet<(ServiceName, InstanceId)>,
    until: Instant,
}

impl Seen {
    pub(super) const fn new(until: Instant) -> Self {
        Self { agents: BTreeSet::new(), until }
    }

    /// Notes an agent. Returns false if there is no room for it: it is then awaited as if it were not here, which costs
    /// an open up to `hold` and never refuses it too early.
    pub(super) fn note(
        &mut self,
        service: &ServiceName,
        instance: InstanceId,
        max: usize,
        now: Instant,
    ) -> bool {
        if self.until <= now {
            return true;
        }
        let agent = (service.clone(), instance);
        if self.agents.len() >= max && !self.agents.contains(&agent) {
            return false;
        }
        self.agents.insert(agent);
        true
    }

    /// Until when an open of the service waits for an agent that has not come yet.
    pub(super) fn until(
        &self,
        service: &ServiceName,
        instance: Option<InstanceId>,
        now: Instant,
    ) -> Option<Instant> {
        let from = (service.clone(), instance.unwrap_or(InstanceId::MIN));
        let to = (service.clone(), instance.unwrap_or(InstanceId::MAX));
        let seen = self.agents.range(from..=to).next().is_some();
        (now < self.until && !seen).then_some(self.until)
    }

    /// When the set is of no more use.
    pub(super) fn next_end(&self) -> Option<Instant> {
        (!self.agents.is_empty()).then_some(self.until)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if self.until <= now {
            self.agents.clear();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }
}
