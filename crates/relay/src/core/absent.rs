//! Agents that are not here: those that were lost and may come back, and those that a young relay has not seen yet.
//!
//! An agent of a service is a (service, instance) pair: an instance with two links is lost with the last of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use hopline_route_proto::{InstanceId, Name};

type Agent = (Name, InstanceId);

/// The agents that were lost without a goodbye less than `hold` ago.
#[derive(Debug, Default)]
pub(super) struct Lost {
    agents: BTreeMap<Agent, LostAgent>,
    /// The same agents in the order of their loss. `hold` is one number, so this is the order of `until` too.
    by_age: BTreeMap<u64, Agent>,
    by_machine: BTreeMap<Name, BTreeSet<Agent>>,
    next_age: u64,
}

#[derive(Debug)]
struct LostAgent {
    machine: Name,
    age: u64,
    until: Instant,
}

impl Lost {
    /// Remembers an agent as lost. Returns true if the oldest one had to be forgotten for it.
    pub(super) fn insert(&mut self, agent: Agent, machine: Name, until: Instant, max: usize) -> bool {
        self.remove(&agent);
        let age = self.next_age;
        self.next_age += 1;
        self.by_age.insert(age, agent.clone());
        self.by_machine.entry(machine.clone()).or_default().insert(agent.clone());
        self.agents.insert(agent, LostAgent { machine, age, until });
        let full = self.agents.len() > max;
        if full && let Some((_, oldest)) = self.by_age.first_key_value() {
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        full
    }

    fn remove(&mut self, agent: &Agent) {
        let Some(lost) = self.agents.remove(agent) else { return };
        self.by_age.remove(&lost.age);
        if let Some(of_machine) = self.by_machine.get_mut(&lost.machine) {
            of_machine.remove(agent);
            if of_machine.is_empty() {
                self.by_machine.remove(&lost.machine);
            }
        }
    }

    /// Forgets the agents of a machine: it has said what it serves now. Returns their services.
    pub(super) fn forget_machine(&mut self, machine: &Name) -> Vec<Name> {
        let gone: Vec<Agent> = self.by_machine.get(machine).into_iter().flatten().cloned().collect();
        gone.iter().for_each(|agent| self.remove(agent));
        gone.into_iter().map(|(service, _)| service).collect()
    }

    /// Until when an open of the service waits: the end of the latest loss of an agent that would do.
    pub(super) fn until(
        &self,
        service: &Name,
        instance: Option<InstanceId>,
        now: Instant,
    ) -> Option<Instant> {
        let ends =
            agents(service, instance, |range| self.agents.range(range).map(|(_, lost)| lost.until).max());
        ends.filter(|until| now < *until)
    }

    /// When the oldest loss is over.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let (_, oldest) = self.by_age.first_key_value()?;
        self.agents.get(oldest).map(|lost| lost.until)
    }

    /// Forgets the losses that are over.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.next_end().is_some_and(|until| until <= now) {
            let Some((_, oldest)) = self.by_age.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }
}

/// The agents that were seen since the start, until `hold` after it. Then none is awaited any more.
#[derive(Debug)]
pub(super) struct Seen {
    agents: BTreeSet<Agent>,
    until: Instant,
}

impl Seen {
    pub(super) const fn new(until: Instant) -> Self {
        Self { agents: BTreeSet::new(), until }
    }

    /// Notes an agent. Returns false if there is no room for it: it is then awaited as if it were not here, which costs
    /// an open up to `hold` and never refuses it too early.
    pub(super) fn note(&mut self, service: &Name, instance: InstanceId, max: usize, now: Instant) -> bool {
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
        service: &Name,
        instance: Option<InstanceId>,
        now: Instant,
    ) -> Option<Instant> {
        let seen = agents(service, instance, |range| self.agents.range(range).next().is_some());
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

/// Calls `look` with the range of the agents that would do: those of the service, or the one instance alone.
fn agents<T>(
    service: &Name,
    instance: Option<InstanceId>,
    look: impl FnOnce(std::ops::RangeInclusive<Agent>) -> T,
) -> T {
    let (from, to) = instance.map_or((InstanceId::MIN, InstanceId::MAX), |instance| (instance, instance));
    look((service.clone(), from)..=(service.clone(), to))
}
