//! Processes that stand by: two run under one machine's name (a copied folder, a forgotten terminal), and the older one
//! waits, on a link of its own, until the newer has gone.
//!
//! The older one says of itself that it yields. So a relay that has just started, and remembers nothing, does not let it
//! take over from the newer one, whichever of the two comes first; and the two never take turns.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use hopline_names::{InstanceId, MachineName};

use super::Router;
use super::types::{LinkId, LinkPhase};

/// Who is to be restored, and when.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// Machines whose process was lost: it may come back, as after an interruption of its network.
    due: BTreeMap<MachineName, Instant>,
    ready: VecDeque<LinkId>,
}

impl Standby {
    pub(super) fn pop_ready(&mut self) -> Option<LinkId> {
        self.ready.pop_front()
    }

    pub(super) fn next_end(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    pub(super) fn expire(&mut self, now: Instant) -> Vec<MachineName> {
        let over: Vec<MachineName> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(machine, _)| machine.clone()).collect();
        for machine in &over {
            self.due.remove(machine);
        }
        over
    }
}

impl Router {
    /// Whether the process that yields has to wait, because another one speaks for the machine. If not, it may take over: the
    /// one that spoke last is gone, and would win again when it comes back.
    pub(super) fn stand_by(&mut self, id: LinkId, instance: InstanceId) -> bool {
        let Some(name) = self.links.get(&id).map(|link| link.machine.clone()) else { return false };
        let current = self.machines.get(&name).and_then(|machine| machine.current);
        let waits = current != Some(instance) && self.speaks(&name);
        if let Some(link) = self.links.get_mut(&id) {
            link.stands_by = waits;
            if waits {
                (link.phase, link.instance) = (LinkPhase::Replaced, Some(instance));
                self.holds.wake_link(id);
            } else if link.phase == LinkPhase::Replaced {
                link.phase = LinkPhase::Active;
            }
        }
        if !waits && let Some(machine) = self.machines.get_mut(&name) {
            machine.superseded.retain(|older| *older != instance);
            if machine.current != Some(instance) {
                machine.current = None;
            }
        }
        waits
    }

    /// Whether a newer process has taken over from this link's, which does not stand by: the link is to end.
    #[must_use]
    pub fn is_sent_away(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.phase == LinkPhase::Replaced && !link.stands_by)
    }

    /// Whether the newest process of a machine has a link that serves.
    fn speaks(&self, machine: &MachineName) -> bool {
        let Some(of) = self.machines.get(machine) else { return false };
        of.links.iter().filter_map(|id| self.links.get(id)).any(|link| {
            link.phase == LinkPhase::Active && link.instance.is_some() && link.instance == of.current
        })
    }

    /// A link of the machine was lost: if its process does not come back, another one is restored.
    pub(super) fn restore_at(&mut self, machine: &MachineName, now: Instant) {
        if self.stands_by_of(machine).is_some() && !self.speaks(machine) {
            // Opens for it are held for as long as `hold`: they are not to be refused meanwhile.
            self.standby.due.insert(machine.clone(), now + self.config.hold / 2);
        }
    }

    /// Nobody speaks for the machine any more: the youngest process that stands by is restored.
    pub(super) fn restore(&mut self, machine: &MachineName) {
        if self.speaks(machine) {
            return;
        }
        let Some(youngest) = self.stands_by_of(machine) else { return };
        self.standby.due.remove(machine);
        let Some(link) = self.links.get_mut(&youngest) else { return };
        link.stands_by = false;
        link.phase = LinkPhase::Active;
        self.standby.ready.push_back(youngest);
    }

    fn stands_by_of(&self, machine: &MachineName) -> Option<LinkId> {
        let links = self.machines.get(machine)?.links.iter();
        links.rev().find(|id| self.links.get(id).is_some_and(|link| link.stands_by)).copied()
    }
}
