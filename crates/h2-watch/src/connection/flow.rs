//! Windows: stalls, and throughput that a window bounds.

use std::time::Instant;

use super::{Connection, SOCKET, WHOLE};
use crate::evidence::HintKind;
use crate::limits::{LONG_PATH, PERIOD, STALL};

impl Connection {
    /// The application grants more of its window.
    pub(super) fn grant(&mut self, id: u32, increment: u32, now: Instant) {
        if id == WHOLE {
            self.window.grant(increment, now);
            self.widest = self.widest.max(self.window.left(super::FIRST_WINDOW));
        } else if let Some(stream) = self.streams.get_mut(id) {
            stream.window.grant(increment, now);
        } else {
            return;
        }
        if self.left(id) > 0 {
            self.end_stall(id, now);
        }
    }

    /// Data of the server uses both windows.
    pub(super) fn spend(&mut self, id: u32, bytes: u32, now: Instant) {
        let round_trip = self.round_trip().filter(|round_trip| *round_trip >= LONG_PATH);
        let assumed = round_trip.unwrap_or_default();
        if let Some(wait) = self.window.spend(bytes, super::FIRST_WINDOW, assumed, now) {
            self.throughput.wait(wait, self.widest);
        }
        let first = self.first_window;
        let tool = self.streams.get_mut(id).is_some_and(|stream| stream.tool);
        if let Some(stream) = self.streams.get_mut(id)
            && let Some(wait) = stream.window.spend(bytes, first, assumed, now)
        {
            self.throughput.wait(wait, first);
        }
        if tool {
            return;
        }
        let period = self.throughput.count(bytes, PERIOD, now);
        if let (Some(period), Some(round_trip)) = (period, round_trip) {
            if period.held {
                self.tally.bad(HintKind::SmallWindow);
                let evidence = &mut self.tally.evidence.small_window;
                evidence.window_bytes.see(period.window);
                evidence.round_trip_us.see(round_trip.as_micros() as u64);
                evidence.bytes_per_s.see(period.bytes_per_s);
                evidence.held_up_ms.add(period.length.as_millis() as u64);
            } else {
                self.tally.good(HintKind::SmallWindow);
            }
        }
    }

    /// What is left of a window; plenty where it is not known.
    fn left(&mut self, id: u32) -> i64 {
        if id == WHOLE {
            return self.window.left(super::FIRST_WINDOW);
        }
        let first = self.first_window;
        self.streams.get_mut(id).map_or(i64::MAX, |stream| stream.window.left(first))
    }

    /// Data has arrived on a stream: if it filled a window, and more may come, the server waits from now on.
    pub(super) fn stall_if_spent(&mut self, id: u32, now: Instant) {
        if self.left(id) <= 0 {
            self.begin_stall(id, now);
        }
        if self.left(WHOLE) <= 0 && self.streams.any_of_application() {
            self.begin_stall(WHOLE, now);
        }
    }

    /// The application's socket takes nothing: what is left of an open response waits from now on.
    pub(crate) fn handle_held_up(&mut self, now: Instant) {
        if self.streams.any_of_application() {
            self.begin_stall(SOCKET, now);
        }
    }

    fn begin_stall(&mut self, id: u32, now: Instant) {
        let since = match id {
            WHOLE => &mut self.window.stalled_since,
            SOCKET => &mut self.held_up_since,
            _ => match self.streams.get_mut(id) {
                Some(stream) if !stream.tool => &mut stream.window.stalled_since,
                _ => return,
            },
        };
        if since.is_none() {
            *since = Some(now);
            self.stalls.insert((now + STALL, id));
        }
    }

    /// Nobody waits for this window, or for the socket, any longer.
    pub(super) fn end_stall(&mut self, id: u32, now: Instant) {
        let since = match id {
            WHOLE => self.window.stalled_since.take(),
            SOCKET => self.held_up_since.take(),
            _ => self.streams.get_mut(id).and_then(|stream| stream.window.stalled_since.take()),
        };
        self.record_stall(id, since, now);
    }

    /// Counts a stall that is over, if it was long and no timer has counted it.
    pub(super) fn record_stall(&mut self, id: u32, since: Option<Instant>, now: Instant) {
        let Some(since) = since else { return };
        let uncounted = self.stalls.remove(&(since + STALL, id));
        self.long_stalls = self.long_stalls.saturating_sub(usize::from(!uncounted));
        let length = now.saturating_duration_since(since);
        if length < STALL {
            return;
        }
        if uncounted {
            self.tally.bad(HintKind::AppNotReading);
            self.tally.evidence.app_not_reading.stalls_over_5s.add(1);
        }
        self.tally.evidence.app_not_reading.longest_stall_ms.see(length.as_millis() as u64);
    }

    /// How long the longest wait is that goes on now, if it counts: for numbers that are shown meanwhile.
    pub(crate) fn note_running_stalls(&mut self, now: Instant) {
        if !self.is_stalled() {
            return;
        }
        let streams = self.streams.iter().filter_map(|(_, stream)| stream.window.stalled_since);
        let oldest = streams.chain(self.window.stalled_since).chain(self.held_up_since).min();
        let length = oldest.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
        if length >= STALL {
            self.tally.evidence.app_not_reading.longest_stall_ms.see(length.as_millis() as u64);
        }
    }

    /// The first size of the streams' windows has changed.
    pub(super) fn recheck_stalls(&mut self, now: Instant) {
        let first = self.first_window;
        let open = self.streams.iter().filter(|(_, stream)| stream.window.stalled_since.is_some());
        let over: Vec<u32> =
            open.filter(|(_, stream)| stream.window.left(first) > 0).map(|(id, _)| id).collect();
        for id in over {
            self.end_stall(id, now);
        }
    }
}
