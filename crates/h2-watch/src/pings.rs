//! PINGs: the client's keepalive, and the path's round trip.

use std::time::{Duration, Instant};

use crate::limits::{ACTIVITY, SHORT_KEEPALIVE};

/// PINGs whose answers are awaited; of further ones the round trip is not measured.
const AWAITED: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Pings {
    /// When headers or data last passed, either way.
    active: Option<Instant>,
    /// The last PING of an idle connection; none since headers or data passed.
    idle: Option<Instant>,
    awaited: [Option<(u64, Instant)>; AWAITED],
    /// The shortest round trip so far.
    pub(crate) round_trip: Option<Duration>,
}

impl Pings {
    /// Headers or data pass.
    pub(crate) fn activity(&mut self, now: Instant) {
        self.active = Some(now);
        self.idle = None;
    }

    /// The client sends one. True: it is a keepalive at an interval that nothing needs.
    pub(crate) fn sent(&mut self, payload: u64, now: Instant) -> bool {
        if let Some(slot) = self.awaited.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some((payload, now));
        }
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        if since(self.active).is_some_and(|ago| ago < ACTIVITY) {
            return false;
        }
        let short = since(self.idle).is_some_and(|ago| ago < SHORT_KEEPALIVE);
        self.idle = Some(now);
        short
    }

    /// The server answers one.
    pub(crate) fn answered(&mut self, payload: u64, now: Instant) {
        let mut slots = self.awaited.iter_mut();
        let found = slots.find(|slot| slot.is_some_and(|(awaited, _)| awaited == payload));
        if let Some((_, sent)) = found.and_then(Option::take) {
            let took = now.saturating_duration_since(sent);
            self.round_trip = Some(self.round_trip.map_or(took, |least| least.min(took)));
        }
    }
}
