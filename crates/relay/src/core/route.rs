//! Opens: whether, and where, each one goes.

use std::time::Instant;

use hopline_link_proto::Code;
use hopline_names::{InstanceId, ServiceName};
use hopline_route_proto::{RoutingHeader, Target};
use rand_chacha::rand_core::Rng as _;

use super::holds::Hold;
use super::types::{HoldId, LinkId, LinkPhase, Route};
use super::{Link, Router};

/// How many relay-to-relay links an open may cross.
const MAX_RELAY_HOPS: u64 = 1;

enum Decision {
    Forward(LinkId),
    Refuse(Code, String),
    /// The agent may come until then.
    Wait(Instant),
}

impl Router {
    /// Decides about an open that has arrived on a link.
    ///
    /// The answer `Hold` counts the open as held; see [`Route::Hold`] for how that ends.
    pub fn route(&mut self, from: LinkId, header: &RoutingHeader, now: Instant) -> Route {
        match self.decide(from, header, now) {
            Decision::Forward(to) => self.forward(from, to, header),
            Decision::Refuse(code, message) => Route::Refuse { code, message },
            Decision::Wait(until) => self.hold(from, header, until),
        }
    }

    /// Decides again about a held open, with the header that it had. After any answer but `Hold` it is held no more.
    ///
    /// One that is not held (its dialler's link is down) is refused.
    pub fn route_held(&mut self, id: HoldId, header: &RoutingHeader, now: Instant) -> Route {
        let Some(from) = self.holds.get(id).map(|hold| hold.from) else {
            return Route::Refuse { code: Code::CONN_LOST, message: "the dialler's link is gone".to_owned() };
        };
        match self.decide(from, header, now) {
            Decision::Wait(until) => {
                self.holds.wait_on(id, until);
                Route::Hold { id, until }
            }
            Decision::Forward(to) => {
                self.holds.remove(id);
                self.forward(from, to, header)
            }
            Decision::Refuse(code, message) => {
                self.holds.remove(id);
                Route::Refuse { code, message }
            }
        }
    }

    /// A held open is over for another reason: its dialler has given up. A second call does nothing.
    pub fn hold_ended(&mut self, id: HoldId) {
        self.holds.remove(id);
    }

    fn forward(&self, from: LinkId, to: LinkId, header: &RoutingHeader) -> Route {
        let mut header = header.clone();
        header.source = self.links.get(&from).map(|link| link.machine.clone());
        Route::Forward { to, header }
    }

    fn hold(&mut self, from: LinkId, header: &RoutingHeader, until: Instant) -> Route {
        let overload = |message: String| Route::Refuse { code: Code::OVERLOAD, message };
        let machine = self.links.get(&from).map(|link| link.machine.clone());
        let (Some(machine), Some(service)) = (machine, header.service().cloned()) else {
            return Route::Refuse {
                code: Code::INTERNAL,
                message: "no link or no service to hold for".to_owned(),
            };
        };
        if self.holds.len() >= self.config.max_held {
            self.counters.max_held += 1;
            return overload(format!("this relay holds {} opens, and no more", self.config.max_held));
        }
        if self.holds.len_of(&machine) >= self.config.max_held_per_machine {
            self.counters.max_held_per_machine += 1;
            let max = self.config.max_held_per_machine;
            return overload(format!("this relay holds {max} opens of one machine, and no more"));
        }
        Route::Hold { id: self.holds.insert(Hold { from, machine, service, until }), until }
    }

    fn decide(&mut self, from: LinkId, header: &RoutingHeader, now: Instant) -> Decision {
        let Some(dialler) = self.links.get(&from) else {
            return Decision::Refuse(Code::CONN_LOST, "the dialler's link is gone".to_owned());
        };
        let service = match check(dialler, header) {
            Ok(service) => service,
            Err((code, message)) => return Decision::Refuse(code, message),
        };
        let (silent, heard): (Vec<_>, Vec<_>) = self
            .candidates(service, header.agent)
            .partition(|(id, _)| self.links.get(id).is_some_and(|l| l.suspect));
        if !heard.is_empty() {
            return Decision::Forward(self.choose(&heard));
        }
        // One that was only preferred, and has had nothing yet, is not worth a wait while there is another.
        if header.agent.is_some() && header.again.is_none() && self.is_heard(service) {
            return Decision::Refuse(Code::OFFLINE, self.why_offline(service, header.agent));
        }
        if !silent.is_empty() {
            // Heard again, or lost: either comes within the liveness bound.
            return Decision::Wait(now + self.config.hold);
        }
        let lost = self.lost.until(service, header.agent, now);
        let unseen = self.seen.until(service, header.agent, now);
        if let Some(until) = lost.max(unseen) {
            return Decision::Wait(until);
        }
        Decision::Refuse(Code::OFFLINE, self.why_offline(service, header.agent))
    }

    /// Whether a session for this service could go to some agent now.
    fn is_heard(&self, service: &ServiceName) -> bool {
        self.candidates(service, None).any(|(id, _)| self.links.get(&id).is_some_and(|link| !link.suspect))
    }

    /// The links that could take the open, with their open sessions.
    fn candidates(
        &self,
        service: &ServiceName,
        agent: Option<InstanceId>,
    ) -> impl Iterator<Item = (LinkId, u64)> {
        let fits = move |instance| agent.is_none_or(|agent| agent == instance);
        let up = self.registry.of(service).filter(move |(_, of)| of.is_up() && fits(of.instance));
        up.filter_map(|(id, _)| self.links.get(&id).map(|link| (id, link.sessions)))
    }

    /// Of two candidates drawn at random the one with fewer open sessions: nearly as even as the least loaded of all, and
    /// relays that know different parts of the load don't all send to the same one.
    fn choose(&mut self, candidates: &[(LinkId, u64)]) -> LinkId {
        let first = self.below(candidates.len());
        let mut second = first;
        if candidates.len() > 1 {
            // Any but the first, each as likely.
            second = self.below(candidates.len() - 1);
            second += usize::from(second >= first);
        }
        let (first, second) = (candidates[first], candidates[second]);
        if second.1 < first.1 { second.0 } else { first.0 }
    }

    /// A random number below `bound`. The modulus favours low numbers by less than one part in 2^32.
    fn below(&mut self, bound: usize) -> usize {
        (self.rng.next_u64() % bound as u64) as usize
    }

    fn why_offline(&self, service: &ServiceName, agent: Option<InstanceId>) -> String {
        let known = self.registry.of(service).any(|(_, of)| agent.is_none_or(|agent| agent == of.instance));
        match (known, agent) {
            (true, _) => format!("the agents of {service} say that it is down"),
            (false, None) => format!("no agent serves {service} now"),
            (false, Some(_)) => format!("the agent of {service} that this session needs is not here"),
        }
    }
}

/// Whether this dialler may dial with this header at all; the service, if so.
fn check<'a>(dialler: &Link, header: &'a RoutingHeader) -> Result<&'a ServiceName, (Code, String)> {
    if dialler.phase == LinkPhase::Replaced {
        let message = "a newer process of the same machine has taken over";
        return Err((Code::UNAUTHORIZED, message.to_owned()));
    }
    let Target::Session { service, .. } = &header.target else {
        return Err((Code::PROTOCOL, "a control session is not routed".to_owned()));
    };
    if header.relay_hops > MAX_RELAY_HOPS {
        return Err((Code::PROTOCOL, "the open has gone from relay to relay too often".to_owned()));
    }
    // The same answer whether the name exists or not: who may not dial it learns nothing.
    if !dialler.grants.may_dial(service) {
        return Err((Code::NOT_FOUND, format!("this machine may dial no service {service}")));
    }
    Ok(service)
}
