//! One HTTP/2 connection: what its items mean.

mod calls;
mod flow;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::evidence::HintKind;
use crate::flow::{Throughput, Window};
use crate::limits::{GOAWAY_GRACE, Limits, STALL, TURN};
use crate::pings::Pings;
use crate::reader::{Item, Reader};
use crate::status::Status;
use crate::stream::Streams;
use crate::tally::Tally;
use crate::watcher::GaveUp;

/// Windows before anybody changes them.
const FIRST_WINDOW: i64 = 65_535;
/// The connection's window, where streams are numbered.
const WHOLE: u32 = 0;
/// The application's socket, where streams are numbered: no stream has so high a number.
const SOCKET: u32 = u32::MAX;

const HEADER_TABLE_SIZE: u16 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
/// Size of a header table before anybody changes it.
const FIRST_TABLE: u32 = 4_096;

#[derive(Clone, Copy, Debug)]
pub(crate) struct GoAway {
    pub(crate) last: u32,
    at: Instant,
    /// It named an error.
    fault: bool,
}

/// Calls waiting for each other at the server's limit.
#[derive(Debug, Default)]
struct StreamLimit {
    limit: Option<u32>,
    /// Since when as many streams are open as there may be.
    full_since: Option<Instant>,
    /// When the last of those times ended.
    freed: Option<Instant>,
}

pub(crate) struct Connection {
    pub(crate) client: Reader,
    pub(crate) server: Reader,
    pub(crate) streams: Streams,
    /// The highest stream that the client has opened.
    pub(crate) newest: u32,
    pub(crate) goaway: Option<GoAway>,
    /// The client has lowered its table, and no block of the server has said so yet.
    pub(crate) resize_due: bool,
    /// The server's first SETTINGS are complete.
    pub(crate) server_ready: bool,
    pub(crate) tally: Tally,
    table_bytes: u32,
    /// First size of the client's stream windows.
    first_window: i64,
    window: Window,
    /// The widest that the connection's window has been.
    widest: i64,
    throughput: Throughput,
    /// Since when the application's socket has taken nothing.
    held_up_since: Option<Instant>,
    /// When each stall becomes one that counts.
    stalls: BTreeSet<(Instant, u32)>,
    /// Stalls that have been counted and go on.
    long_stalls: usize,
    pings: Pings,
    limit: StreamLimit,
    /// Failures that no call has followed yet, and when the last was.
    failures: (u64, Option<Instant>),
    path_round_trip: Option<Duration>,
    /// The application has begun a stream of its own.
    application: bool,
    /// There were health checks, or reflection.
    tools: bool,
}

impl Connection {
    pub(crate) fn new(limits: &Limits, now: Instant) -> Self {
        Self {
            client: Reader::new(limits),
            server: Reader::new(limits),
            streams: Streams::new(limits.streams),
            newest: 0,
            goaway: None,
            resize_due: false,
            server_ready: false,
            tally: Tally::default(),
            table_bytes: FIRST_TABLE,
            first_window: FIRST_WINDOW,
            window: Window::default(),
            widest: FIRST_WINDOW,
            throughput: Throughput::new(now),
            held_up_since: None,
            stalls: BTreeSet::new(),
            long_stalls: 0,
            pings: Pings::default(),
            limit: StreamLimit::default(),
            failures: (0, None),
            path_round_trip: None,
            application: false,
            tools: false,
        }
    }

    pub(crate) fn set_path_round_trip(&mut self, round_trip: Option<Duration>) {
        self.path_round_trip = round_trip;
    }

    /// The path's round trip: measured by the application's own PINGs, else as told.
    fn round_trip(&self) -> Option<Duration> {
        self.pings.round_trip.or(self.path_round_trip)
    }

    /// Bytes of memory beyond the struct itself.
    pub(crate) fn held_bytes(&self) -> usize {
        let stalls = self.stalls.len() * 48;
        self.client.held_bytes() + self.server.held_bytes() + self.streams.held_bytes() + stalls
    }

    pub(crate) fn handle_client(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), GaveUp> {
        while let Some(item) = self.client.next(&mut bytes)? {
            self.on_client(item, now);
        }
        Ok(())
    }

    pub(crate) fn handle_server(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), GaveUp> {
        if !bytes.is_empty() {
            self.end_stall(SOCKET, now);
        }
        while let Some(item) = self.server.next(&mut bytes)? {
            self.on_server(item, now);
        }
        Ok(())
    }

    fn on_client(&mut self, item: Item<'_>, now: Instant) {
        match item {
            Item::Headers { stream, fields, .. } => {
                self.pings.activity(now);
                // An even number would be the server's; a lower one is the trailers of a request.
                if stream > self.newest && stream % 2 == 1 {
                    self.newest = stream;
                    self.open(stream, &fields, now);
                }
            }
            Item::Data { .. } => self.pings.activity(now),
            Item::Reset { stream, .. } => self.reset_by_client(stream, now),
            Item::Setting { id: INITIAL_WINDOW_SIZE, value } => {
                self.first_window = i64::from(value);
                self.recheck_stalls(now);
            }
            Item::Setting { id: HEADER_TABLE_SIZE, value } => {
                self.resize_due |= value < self.table_bytes;
                self.table_bytes = value;
            }
            Item::Ping { ack: false, payload } => {
                if self.pings.sent(payload, now) && !self.is_a_checkers() {
                    self.tally.bad(HintKind::ClientKeepalive);
                    self.tally.evidence.client_keepalive.idle_pings_under_15s.add(1);
                }
            }
            Item::Window { stream, increment } => self.grant(stream, increment, now),
            Item::Body { .. }
            | Item::Setting { .. }
            | Item::Settings { .. }
            | Item::Ping { .. }
            | Item::GoAway { .. }
            | Item::Promise { .. } => {}
        }
    }

    fn on_server(&mut self, item: Item<'_>, now: Instant) {
        match item {
            Item::Headers { stream, end, fields } => {
                self.pings.activity(now);
                self.resize_due &= !fields.resized;
                self.on_response(stream, end, &fields, now);
            }
            Item::Body { stream, bytes } => {
                if let Some(stream) = self.streams.get_mut(stream) {
                    stream.position.pass(bytes);
                }
            }
            Item::Data { stream, flow, end } => {
                self.pings.activity(now);
                self.spend(stream, flow, now);
                if end {
                    self.end_without_status(stream, now);
                }
                self.stall_if_spent(stream, now);
            }
            Item::Reset { stream, code } => self.reset_by_server(stream, code, now),
            Item::Setting { id: MAX_CONCURRENT_STREAMS, value } => {
                self.limit = StreamLimit { limit: Some(value), ..StreamLimit::default() };
            }
            Item::Settings { .. } => self.server_ready = true,
            Item::Ping { ack: true, payload } => self.pings.answered(payload, now),
            Item::GoAway { last, code, too_many_pings } => {
                self.on_goaway(last, code, too_many_pings, now);
            }
            Item::Promise { resized } => self.resize_due &= !resized,
            Item::Setting { .. } | Item::Ping { .. } | Item::Window { .. } => {}
        }
    }

    fn on_goaway(&mut self, last: u32, code: u32, too_many_pings: bool, now: Instant) {
        if too_many_pings && !self.is_a_checkers() {
            self.tally.bad(HintKind::ClientKeepalive);
            self.tally.evidence.client_keepalive.too_many_pings_goaway.add(1);
        }
        self.tally.evidence.goaway_ignored.goaways.add(1);
        let first = self.goaway.map_or(now, |goaway| goaway.at);
        let last = self.goaway.map_or(last, |goaway| goaway.last.min(last));
        let fault = code != NO_ERROR || self.goaway.is_some_and(|goaway| goaway.fault);
        self.goaway = Some(GoAway { last, at: first, fault });
        if code == PROTOCOL_ERROR {
            let refused = self.streams.iter().filter(|(_, stream)| stream.authority_is_path).count();
            self.refused_path(refused as u64);
        }
    }

    /// Whether only health checks or reflection have used the connection: it is not the application's.
    fn is_a_checkers(&self) -> bool {
        self.tools && !self.application
    }

    /// A stream begins after the server said goodbye, and later than the client can have missed it.
    fn check_goaway(&mut self, now: Instant) {
        if self.goaway.is_some_and(|goaway| now.saturating_duration_since(goaway.at) > GOAWAY_GRACE) {
            self.tally.bad(HintKind::GoawayIgnored);
            self.tally.evidence.goaway_ignored.streams_after_goaway.add(1);
        }
    }

    /// Streams have begun or ended. `began`: one has begun just now.
    fn check_limit(&mut self, began: bool, now: Instant) {
        let Some(limit) = self.limit.limit else { return };
        let recently = |then: Instant| now.saturating_duration_since(then) <= TURN;
        if began && self.limit.freed.is_some_and(recently) {
            self.tally.bad(HintKind::StreamLimit);
            self.tally.evidence.stream_limit.calls_that_waited.add(1);
            self.tally.evidence.stream_limit.limit.see(u64::from(limit));
        }
        let full = self.streams.len() >= limit as usize;
        match (full, self.limit.full_since) {
            (true, None) => self.limit.full_since = Some(now),
            (false, Some(since)) => {
                let length = now.saturating_duration_since(since);
                self.tally.evidence.stream_limit.at_limit_ms.add(length.as_millis() as u64);
                (self.limit.full_since, self.limit.freed) = (None, Some(now));
            }
            _ => {}
        }
    }

    /// Whether a stall goes on that counts: its length grows without a byte.
    pub(crate) fn is_stalled(&self) -> bool {
        self.long_stalls > 0
    }

    /// The next moment at which something is due without a byte.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.stalls.first().map(|(at, _)| *at)
    }

    /// What has become due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.stalls.first().copied()
            && at <= now
        {
            self.stalls.remove(&(at, id));
            self.long_stalls += 1;
            self.tally.bad(HintKind::AppNotReading);
            self.tally.evidence.app_not_reading.stalls_over_5s.add(1);
            self.tally.evidence.app_not_reading.longest_stall_ms.see(STALL.as_millis() as u64);
        }
    }

    /// The connection is over, and with it what was open. `given_up`: the application closed it of its own will,
    /// which it has none of after a GOAWAY that names an error.
    pub(crate) fn close(&mut self, given_up: bool, now: Instant) {
        let given_up = given_up && !self.goaway.is_some_and(|goaway| goaway.fault);
        let status = if given_up { Status::CANCELLED } else { Status::UNAVAILABLE };
        while let Some((id, stream)) = self.streams.pop() {
            self.ended(id, &stream, status, now);
        }
        self.end_stall(WHOLE, now);
        self.end_stall(SOCKET, now);
    }
}
