//! Which links serve which names now.

use std::collections::BTreeMap;
use std::ops::Bound;

use hopline_names::{InstanceId, ServiceName};
use hopline_route_proto::{Protocol, ServiceState};

use super::types::LinkId;

/// One service on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) instance: InstanceId,
    pub(super) protocol: Protocol,
    pub(super) state: ServiceState,
}

impl Registration {
    pub(super) fn is_up(&self) -> bool {
        self.state == ServiceState::Up
    }
}

/// The registrations of links that are up, not leaving and of the newest instance of their machine. No name is
/// without a link.
#[derive(Debug, Default)]
pub(super) struct Registry {
    services: BTreeMap<ServiceName, BTreeMap<LinkId, Registration>>,
    total: usize,
}

impl Registry {
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Registers, or changes a registration; returns the one before.
    pub(super) fn insert(
        &mut self,
        service: ServiceName,
        link: LinkId,
        new: Registration,
    ) -> Option<Registration> {
        let old = self.services.entry(service).or_default().insert(link, new);
        self.total += usize::from(old.is_none());
        old
    }

    pub(super) fn remove(&mut self, service: &ServiceName, link: LinkId) -> Option<Registration> {
        let links = self.services.get_mut(service)?;
        let old = links.remove(&link)?;
        if links.is_empty() {
            self.services.remove(service);
        }
        self.total -= 1;
        Some(old)
    }

    /// The registrations of a service, by link.
    pub(super) fn of(&self, service: &ServiceName) -> impl Iterator<Item = (LinkId, &Registration)> {
        self.services.get(service).into_iter().flatten().map(|(link, registration)| (*link, registration))
    }

    /// The services behind that name, or all, by name.
    pub(super) fn after(
        &self,
        name: Option<&ServiceName>,
    ) -> impl Iterator<Item = (&ServiceName, &BTreeMap<LinkId, Registration>)> + use<'_> {
        self.services
            .range::<ServiceName, _>((name.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded))
    }
}
