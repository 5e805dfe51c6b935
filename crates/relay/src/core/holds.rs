//! The held opens: how many there are, and which are to be routed again.
//!
//! The open itself (its session, its header) stays with the server; here is what the limits and the wake-ups need.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use hopline_names::{MachineName, ServiceName};

use super::types::{HoldId, LinkId};

#[derive(Debug)]
pub(super) struct Hold {
    /// The dialler's link.
    pub(super) from: LinkId,
    /// The dialler's machine.
    pub(super) machine: MachineName,
    /// The service that is dialled.
    pub(super) service: ServiceName,
    /// When waiting is over.
    pub(super) until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    by_id: BTreeMap<HoldId, Hold>,
    by_service: BTreeSet<(ServiceName, HoldId)>,
    by_link: BTreeSet<(LinkId, HoldId)>,
    /// The ones that still wait; one that is in `ready` for its time is not here.
    by_until: BTreeSet<(Instant, HoldId)>,
    /// To be routed again, oldest first. A set, so that it is never longer than there are held opens.
    ready: BTreeSet<HoldId>,
    of_machine: BTreeMap<MachineName, usize>,
    next_id: u64,
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn len_of(&self, machine: &MachineName) -> usize {
        self.of_machine.get(machine).copied().unwrap_or(0)
    }

    pub(super) fn get(&self, id: HoldId) -> Option<&Hold> {
        self.by_id.get(&id)
    }

    pub(super) fn insert(&mut self, hold: Hold) -> HoldId {
        let id = HoldId(self.next_id);
        self.next_id += 1;
        self.by_service.insert((hold.service.clone(), id));
        self.by_link.insert((hold.from, id));
        self.by_until.insert((hold.until, id));
        *self.of_machine.entry(hold.machine.clone()).or_insert(0) += 1;
        self.by_id.insert(id, hold);
        id
    }

    pub(super) fn remove(&mut self, id: HoldId) -> bool {
        let Some(hold) = self.by_id.remove(&id) else { return false };
        self.by_link.remove(&(hold.from, id));
        self.by_until.remove(&(hold.until, id));
        self.by_service.remove(&(hold.service, id));
        self.ready.remove(&id);
        if let Some(count) = self.of_machine.get_mut(&hold.machine) {
            *count -= 1;
            if *count == 0 {
                self.of_machine.remove(&hold.machine);
            }
        }
        true
    }

    pub(super) fn remove_of_link(&mut self, from: LinkId) {
        for id in self.of_link(from) {
            self.remove(id);
        }
    }

    /// Keeps an open that was routed again and has to wait on.
    pub(super) fn wait_on(&mut self, id: HoldId, until: Instant) {
        if let Some(hold) = self.by_id.get_mut(&id) {
            self.by_until.remove(&(hold.until, id));
            hold.until = until;
            self.by_until.insert((until, id));
            self.ready.remove(&id);
        }
    }

    /// The opens of this service are to be routed again.
    pub(super) fn wake_service(&mut self, service: &ServiceName) {
        let from = (service.clone(), HoldId(0));
        let ids = self.by_service.range(from..).take_while(|(of, _)| of == service);
        self.ready.extend(ids.map(|(_, id)| *id));
    }

    /// The opens from this link are to be routed again.
    pub(super) fn wake_link(&mut self, from: LinkId) {
        let ids = self.of_link(from);
        self.ready.extend(ids);
    }

    /// The opens whose time is over are to be routed again.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.by_until.first() {
            if now < until {
                return;
            }
            self.by_until.pop_first();
            self.ready.insert(id);
        }
    }

    pub(super) fn next_end(&self) -> Option<Instant> {
        self.by_until.first().map(|(until, _)| *until)
    }

    pub(super) fn pop_ready(&mut self) -> Option<HoldId> {
        self.ready.pop_first()
    }

    fn of_link(&self, from: LinkId) -> Vec<HoldId> {
        self.by_link.range((from, HoldId(0))..=(from, HoldId(u64::MAX))).map(|(_, id)| *id).collect()
    }

    /// All tables speak of the same held opens.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self) {
        let count = self.by_id.len();
        assert_eq!((self.by_service.len(), self.by_link.len()), (count, count));
        assert!(self.by_until.len() <= count && self.ready.iter().all(|id| self.by_id.contains_key(id)));
        for (id, hold) in &self.by_id {
            assert!(self.by_service.contains(&(hold.service.clone(), *id)));
            assert!(self.by_link.contains(&(hold.from, *id)));
            assert!(self.by_until.contains(&(hold.until, *id)) || self.ready.contains(id));
        }
        assert!(self.of_machine.values().all(|count| *count > 0));
        assert_eq!(self.of_machine.values().sum::<usize>(), count);
    }
}
