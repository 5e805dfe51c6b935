//! Calls: how they begin, how they end, what that says.

use std::time::{Duration, Instant};

use super::{Connection, PROTOCOL_ERROR, SOCKET, WHOLE};
use crate::evidence::HintKind;
use crate::field::Fields;
use crate::flow::Window;
use crate::limits::REPEAT;
use crate::status::Status;
use crate::stream::{Position, Stream};

impl Connection {
    /// The client begins a stream.
    pub(super) fn open(&mut self, id: u32, fields: &Fields, now: Instant) {
        if let Some((oldest, stream)) = self.streams.make_room() {
            self.tally.counters.streams_forgotten += 1;
            self.record_stall(oldest, stream.window.stalled_since, now);
        }
        if let Some(agent) = fields.agent.filter(|_| !fields.tool) {
            self.tally.agent = agent;
        }
        let authority_is_path = fields.authority_is_path == Some(true);
        let stream = Stream {
            opened: now,
            timeout: fields.timeout,
            grpc: fields.grpc,
            tool: fields.tool,
            authority_is_path: fields.grpc && !fields.tool && authority_is_path,
            http_status: None,
            position: Position::default(),
            window: Window::default(),
        };
        self.streams.insert(id, stream);
        if !fields.tool {
            self.check_goaway(now);
        }
        self.check_limit(!fields.tool, now);
        if fields.grpc {
            self.count_call(fields, now);
        } else {
            self.application = true;
            self.tally.counters.other_requests += 1;
        }
    }

    fn count_call(&mut self, fields: &Fields, now: Instant) {
        self.tally.counters.calls += 1;
        let with_a_path = fields.authority_is_path == Some(true);
        self.tally.counters.calls_with_a_path += u64::from(with_a_path);
        if fields.tool {
            self.tools = true;
            return;
        }
        self.tally.calls += 1;
        self.application = true;
        self.tally.evidence.authority_is_path.calls.add(1);
        self.tally.evidence.message_too_large.calls.add(1);
        if with_a_path {
            self.tally.evidence.authority_is_path.calls_with_a_path.add(1);
        } else {
            self.tally.good(HintKind::AuthorityIsPath);
        }
        self.count_deadline(fields.timeout);
        let (waiting, last) = &mut self.failures;
        if last.is_some_and(|last| now.saturating_duration_since(last) <= REPEAT) && *waiting > 0 {
            *waiting -= 1;
            self.tally.repeats += 1;
        }
    }

    fn count_deadline(&mut self, timeout: Option<Duration>) {
        self.tally.evidence.no_deadline.calls.add(1);
        let Some(timeout) = timeout else {
            self.tally.bad(HintKind::NoDeadline);
            self.tally.evidence.no_deadline.calls_without_deadline.add(1);
            return;
        };
        self.tally.good(HintKind::NoDeadline);
        let round_trip = self.round_trip();
        let evidence = &mut self.tally.evidence.deadline_too_short;
        evidence.calls.add(1);
        match round_trip {
            Some(round_trip) if timeout < round_trip => {
                evidence.calls_below_round_trip.add(1);
                evidence.shortest_deadline_us.see(timeout.as_micros().max(1) as u64);
                evidence.round_trip_us.see(round_trip.as_micros() as u64);
                self.tally.bad(HintKind::DeadlineTooShort);
            }
            Some(_) => self.tally.good(HintKind::DeadlineTooShort),
            None => {}
        }
    }

    /// Headers of the server: of a response, informational ones, or trailers.
    pub(super) fn on_response(&mut self, id: u32, end: bool, fields: &Fields, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        match fields.http_status {
            Some(100..200) if !end => return,
            Some(status) => stream.http_status = Some(status),
            None => {}
        }
        if !end {
            return;
        }
        let Some(http_status) = stream.http_status.or(Some(200)) else { return };
        let status = fields.grpc_status.unwrap_or(Status::from_http(http_status));
        let refused = stream.authority_is_path && http_status == 400;
        let too_large = [Status::RESOURCE_EXHAUSTED, Status::OUT_OF_RANGE].contains(&status);
        if stream.grpc && !stream.tool && fields.too_large && too_large {
            self.tally.bad(HintKind::MessageTooLarge);
            self.tally.evidence.message_too_large.calls_refused.add(1);
        }
        if refused {
            self.refused_path(1);
        }
        self.finish(id, status, now);
    }

    /// A body ended the response: what a call may not do.
    pub(super) fn end_without_status(&mut self, id: u32, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let status = Status::from_http(stream.http_status.unwrap_or(200));
        if stream.authority_is_path && stream.http_status == Some(400) {
            self.refused_path(1);
        }
        self.finish(id, status, now);
    }

    /// The client gave up: for its deadline, if that has come, else for reasons of its own. Its own clock started a
    /// little before the request was seen.
    pub(super) fn reset_by_client(&mut self, id: u32, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let age = now.saturating_duration_since(stream.opened);
        let passed = stream.timeout.is_some_and(|timeout| age >= timeout - timeout / 20);
        let status = if passed { Status::DEADLINE_EXCEEDED } else { Status::CANCELLED };
        self.finish(id, status, now);
    }

    pub(super) fn reset_by_server(&mut self, id: u32, code: u32, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if stream.authority_is_path && code == PROTOCOL_ERROR && stream.http_status.is_none() {
            self.refused_path(1);
        }
        self.finish(id, Status::from_reset(code), now);
    }

    pub(super) fn refused_path(&mut self, calls: u64) {
        if calls > 0 {
            self.tally.bad(HintKind::AuthorityIsPath);
            self.tally.evidence.authority_is_path.calls_refused.add(calls);
        }
    }

    fn finish(&mut self, id: u32, status: Status, now: Instant) {
        let Some(stream) = self.streams.remove(id) else { return };
        self.ended(id, &stream, status, now);
        self.check_limit(false, now);
        if !self.streams.any_of_application() {
            self.end_stall(WHOLE, now);
            self.end_stall(SOCKET, now);
        }
    }

    /// Counts a stream that is no longer followed because it is over.
    pub(super) fn ended(&mut self, id: u32, stream: &Stream, status: Status, now: Instant) {
        self.record_stall(id, stream.window.stalled_since, now);
        if !stream.grpc {
            return;
        }
        let age = now.saturating_duration_since(stream.opened);
        let counters = &mut self.tally.counters;
        counters.ended[status.index()] += 1;
        counters.duration.record(age);
        if let Some(timeout) = stream.timeout {
            counters.deadline_left.record(timeout.saturating_sub(age));
        }
        if stream.tool {
            return;
        }
        self.tally.ended += 1;
        if status.is_fault() {
            self.tally.failed += 1;
            let (waiting, last) = &mut self.failures;
            if last.is_none_or(|last| now.saturating_duration_since(last) > REPEAT) {
                *waiting = 0;
            }
            *waiting += 1;
            *last = Some(now);
        }
    }
}
