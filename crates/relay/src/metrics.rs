//! What the relay counts for `/status` and `/metrics` beside its router.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hopline_accounting::{AbortCounter, EndCounter, OpenCounter};
use hopline_admin::status::{Budget, Bytes, RelayBudgets};
use hopline_link::{Counters, LinkEnd, SpliceEnd};

use crate::core::{Router, RouterConfig};
use crate::handshakes::{Handshakes, PLACES};

/// Sums over everything that is over.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) opens: OpenCounter,
    pub(crate) aborts: AbortCounter,
    pub(crate) ends: EndCounter,
    before: Mutex<Carried>,
}

/// What links have counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    pub(crate) bytes: Bytes,
    pub(crate) limits: BTreeMap<String, u64>,
}

impl Carried {
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.bytes.sent += counters.data_out;
        self.bytes.received += counters.data_in;
        for (limit, count) in counters.limits.by_limit() {
            self.add_limit(limit, count);
        }
    }

    pub(crate) fn add_limit(&mut self, limit: &str, count: u64) {
        if count > 0 {
            *self.limits.entry(limit.to_owned()).or_default() += count;
        }
    }
}

impl Counted {
    /// A link is over.
    pub(crate) fn link_ended(&self, end: &LinkEnd, counters: &Counters) {
        self.ends.note(end.cause());
        self.before().add(counters);
    }

    /// A session is over.
    pub(crate) fn session_ended(&self, end: &SpliceEnd) {
        if let SpliceEnd::Aborted(abort) = end {
            self.aborts.note(abort);
        }
    }

    /// What the links that are over have carried.
    pub(crate) fn carried(&self) -> Carried {
        self.before().clone()
    }

    fn before(&self) -> MutexGuard<'_, Carried> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The router's and the listener's; the windows of links are added by whoever asks them.
pub(crate) fn budgets(router: &Router, handshakes: &Handshakes) -> RelayBudgets {
    let gauges = router.gauges();
    // Nothing but `hold` can be set.
    let limits = RouterConfig::default();
    let budget = |used: usize, limit: usize| Budget { used: used as u64, limit: limit as u64 };
    RelayBudgets {
        held_opens: budget(gauges.held, limits.max_held),
        links: budget(gauges.links, limits.max_links),
        registrations: budget(gauges.registrations, limits.max_registrations),
        handshakes: budget(handshakes.under_way(), PLACES),
        window_bytes: Budget::default(),
    }
}

#[cfg(test)]
mod tests {
    use hopline_admin::metrics::families;
    use hopline_link::Counters;

    /// What `docs/metrics.md` says of the series of limits.
    #[test]
    fn a_relay_has_as_many_limits_as_the_documented_bound_says() {
        let of_links: Vec<_> = Counters::default().limits.by_limit().map(|(name, _)| name).collect();
        let of_router: Vec<_> =
            crate::core::Counters::default().by_limit().iter().map(|(name, _)| *name).collect();
        assert!(of_links.iter().all(|name| !of_router.contains(name)));
        let families = families::all();
        let described = families.iter().find(|family| family.name == "hopline_limit_reached_total").unwrap();
        let (link, router) = (of_links.len(), of_router.len());
        let all = link + router + 1;
        let series = format!("{all} limits: {link} of a link, {router} of the router, 1 of its listener");
        assert_eq!(described.series, series);
    }
}
