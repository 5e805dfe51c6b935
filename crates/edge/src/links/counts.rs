//! What is counted of the links of one uplink.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use hopline_accounting::EndCounter;
use hopline_admin::status::{Bytes, Dials, LinkHistory, link_ends};
use hopline_link::Counters;

use super::uplink::UplinkExit;

/// What links that are over have counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    bytes: Bytes,
    pub(super) limits: BTreeMap<&'static str, u64>,
}

impl Carried {
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.bytes.sent += counters.data_out;
        self.bytes.received += counters.data_in;
        for (limit, count) in counters.limits.by_limit().filter(|(_, count)| *count > 0) {
            *self.limits.entry(limit).or_default() += count;
        }
    }
}

/// How dials to one relay went, and how its links ended.
#[derive(Debug, Default)]
pub(crate) struct LinkCounts {
    up: AtomicU64,
    failed: AtomicU64,
    ends: EndCounter,
}

impl LinkCounts {
    pub(crate) fn dial_up(&self) {
        self.up.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dial_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self, exit: &UplinkExit) {
        match exit {
            UplinkExit::Replaced => self.ends.note_replaced(),
            UplinkExit::Lost(end) => self.ends.note(end.cause()),
        }
    }

    pub(crate) fn history(&self, carried: &Carried) -> LinkHistory {
        let dials =
            Dials { up: self.up.load(Ordering::Relaxed), failed: self.failed.load(Ordering::Relaxed) };
        LinkHistory { bytes: carried.bytes, dials, ends: link_ends(&self.ends) }
    }
}
