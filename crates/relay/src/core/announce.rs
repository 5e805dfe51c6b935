//! Announces: which instance of a machine speaks for it, and which of its names are registered.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use hopline_link_proto::Code;
use hopline_names::{InstanceId, ServiceName};
use hopline_route_proto::{Announce, Protocol, ServiceAd, ServiceState};

use super::Router;
use super::limits::MAX_VERSION_LEN;
use super::registry::Registration;
use super::types::{AnnounceError, Announced, LinkId, LinkPhase, Refused, cut};

impl Router {
    /// An edge has announced all that it serves; what it announced before on this link and now doesn't is withdrawn.
    ///
    /// The first announce of an instance that its machine had not before makes it the machine's newest: it takes the
    /// place of the older one, also when it announces nothing. A process that only dials beside its machine's agent
    /// must not announce.
    ///
    /// An announce that yields takes the place of nobody: it stands by while another instance speaks for the machine.
    ///
    /// # Errors
    ///
    /// [`AnnounceError`]: nothing was registered and nothing withdrawn; the link is to be ended with its code.
    pub fn announce(
        &mut self,
        id: LinkId,
        announce: &Announce,
        now: Instant,
    ) -> Result<Announced, AnnounceError> {
        let instance = self.check_announce(id, announce)?;
        if announce.yields && self.stand_by(id, instance) {
            let (revision, refused) = (announce.revision, Vec::new());
            return Ok(Announced {
                revision,
                refused,
                refused_total: 0,
                replaced: Vec::new(),
                stands_by: true,
            });
        }
        let replaced = self.take_over(id, instance)?;
        if let Some(link) = self.links.get_mut(&id) {
            link.instance = Some(instance);
            link.revision = announce.revision;
            cut(&announce.version, MAX_VERSION_LEN).clone_into(&mut link.version);
        }
        let mut refusals =
            Refusals { list: Vec::new(), total: 0, max: self.config.max_refusals_per_announce };
        let accepted = self.judge(id, &announce.services, &mut refusals);
        self.register(id, instance, accepted, now, &mut refusals);
        if refusals.total as usize > refusals.list.len() {
            self.counters.max_refusals_per_announce += 1;
        }
        Ok(Announced {
            revision: announce.revision,
            refused: refusals.list,
            refused_total: refusals.total,
            replaced,
            stands_by: false,
        })
    }

    fn check_announce(&self, id: LinkId, announce: &Announce) -> Result<InstanceId, AnnounceError> {
        let link = self.links.get(&id).ok_or(AnnounceError::UnknownLink(id))?;
        match link.phase {
            LinkPhase::Active => {}
            LinkPhase::Leaving => return Err(AnnounceError::Leaving),
            LinkPhase::Replaced if announce.yields => {}
            LinkPhase::Replaced => return Err(AnnounceError::Replaced),
        }
        let instance = announce.instance_id()?;
        if link.instance.is_some_and(|known| known != instance) {
            return Err(AnnounceError::InstanceChanged);
        }
        if announce.revision < link.revision {
            return Err(AnnounceError::Stale { revision: announce.revision, last: link.revision });
        }
        Ok(instance)
    }

    /// Makes `instance` the one that speaks for the machine, unless it was succeeded before. Returns the links of the
    /// one that spoke until now.
    fn take_over(&mut self, id: LinkId, instance: InstanceId) -> Result<Vec<LinkId>, AnnounceError> {
        let link = self.links.get_mut(&id).ok_or(AnnounceError::UnknownLink(id))?;
        let name = link.machine.clone();
        let machine = self.machines.get_mut(&name).ok_or(AnnounceError::UnknownLink(id))?;
        if machine.current == Some(instance) {
            return Ok(Vec::new());
        }
        if machine.superseded.contains(&instance) {
            link.phase = LinkPhase::Replaced;
            self.holds.wake_link(id);
            return Err(AnnounceError::Replaced);
        }
        let old = machine.current.replace(instance);
        if let Some(old) = old {
            machine.superseded.push_back(old);
            if machine.superseded.len() > self.config.max_superseded {
                machine.superseded.pop_front();
                self.counters.max_superseded += 1;
            }
        }
        let links: Vec<LinkId> = machine.links.iter().copied().collect();
        let mut replaced = Vec::new();
        for of_machine in links {
            let Some(link) = self.links.get_mut(&of_machine) else { continue };
            if link.phase != LinkPhase::Replaced && link.instance.is_some_and(|known| known != instance) {
                link.phase = LinkPhase::Replaced;
                replaced.push(of_machine);
                self.withdraw_all(of_machine);
                // What the older process wanted is of no interest any more: the next routing refuses it.
                self.holds.wake_link(of_machine);
            }
        }
        Ok(replaced)
    }

    /// Sorts the services of an announce into those that may be registered and those that may not.
    fn judge(
        &mut self,
        id: LinkId,
        ads: &[ServiceAd],
        refusals: &mut Refusals,
    ) -> BTreeMap<ServiceName, (Protocol, ServiceState)> {
        let mut accepted = BTreeMap::new();
        let Some(link) = self.links.get(&id) else { return accepted };
        // Those that are registered come first: one that is added must not cost another its place.
        let (known, added): (Vec<_>, Vec<_>) = ads
            .iter()
            .partition(|ad| ServiceName::new(&ad.name).is_ok_and(|name| link.services.contains(&name)));
        for ad in known.into_iter().chain(added) {
            if accepted.len() >= self.config.max_services_per_announce {
                self.counters.max_services_per_announce += 1;
                refusals.add(
                    &ad.name,
                    Code::OVERLOAD,
                    "an edge announces no more services than this relay takes",
                );
                continue;
            }
            let Ok(name) = ServiceName::new(&ad.name) else {
                refusals.add(&ad.name, Code::PROTOCOL, "the name breaks the rule for names");
                continue;
            };
            if !link.grants.may_publish(&name) {
                refusals.add(&ad.name, Code::UNAUTHORIZED, "this machine may not publish the name");
                continue;
            }
            let protocol = Protocol::try_from(ad.protocol).unwrap_or(Protocol::Tcp);
            let state = ServiceState::try_from(ad.state).unwrap_or(ServiceState::Down);
            match accepted.entry(name) {
                Entry::Vacant(free) => drop(free.insert((protocol, state))),
                Entry::Occupied(_) => refusals.add(&ad.name, Code::PROTOCOL, "the name is announced twice"),
            }
        }
        accepted
    }

    /// Makes the registrations of the link the accepted ones.
    fn register(
        &mut self,
        id: LinkId,
        instance: InstanceId,
        accepted: BTreeMap<ServiceName, (Protocol, ServiceState)>,
        now: Instant,
        refusals: &mut Refusals,
    ) {
        let Some(link) = self.links.get_mut(&id) else { return };
        // The machine has said what it serves. What it lost and does not name now won't come back.
        for service in self.lost.forget_machine(&link.machine) {
            self.interests.note(&service);
            self.holds.wake_service(&service);
        }
        let before = std::mem::take(&mut link.services);
        for service in before.iter().filter(|service| !accepted.contains_key(*service)) {
            self.registry.remove(service, id);
            self.interests.note(service);
        }
        for (service, (protocol, state)) in accepted {
            if self.registry.total() >= self.config.max_registrations && !before.contains(&service) {
                self.counters.max_registrations += 1;
                refusals.add(
                    service.as_str(),
                    Code::OVERLOAD,
                    "this relay has as many registrations as it takes",
                );
                continue;
            }
            let registration = Registration { instance, protocol, state };
            let old = self.registry.insert(service.clone(), id, registration);
            if old != Some(registration) {
                self.interests.note(&service);
            }
            if registration.is_up() {
                if !self.seen.note(&service, instance, self.config.max_seen, now) {
                    self.counters.max_seen += 1;
                }
                if !old.is_some_and(|old| old.is_up()) {
                    self.holds.wake_service(&service);
                }
            }
            link.services.insert(service);
        }
    }
}

/// The services that are not taken: all counted, the first ones listed.
struct Refusals {
    list: Vec<Refused>,
    total: u32,
    max: usize,
}

impl Refusals {
    fn add(&mut self, name: &str, code: Code, message: &'static str) {
        self.total = self.total.saturating_add(1);
        if self.list.len() < self.max {
            self.list.push(Refused::new(name, code, message));
        }
    }
}
