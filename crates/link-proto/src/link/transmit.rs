//! What goes to the peer, and in which order.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{Link, Phase};
use crate::frame::{self, Frame};
use crate::limits::MAX_DATA;
use crate::queue::{ByteQueue, Pins};
use crate::session::{Opening, Session, SessionId};

/// Payloads below this many bytes are copied behind their frame's head: one piece less to write.
const INLINE_BELOW: usize = 1 << 10;

/// Bytes for the carrier, in pieces.
#[derive(Debug, Default)]
pub struct Transmit {
    /// The pieces in order; none is empty.
    pub pieces: VecDeque<Bytes>,
    len: usize,
}

impl Transmit {
    /// Bytes in all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The carrier took `n` bytes from the front.
    pub fn advance(&mut self, mut n: usize) {
        self.len -= n.min(self.len);
        while let Some(front) = self.pieces.front_mut() {
            if n < front.len() {
                let _ = front.split_to(n);
                return;
            }
            n -= front.len();
            self.pieces.pop_front();
        }
    }

    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }
}

impl<T: Default> Link<T> {
    /// Appends what may go now to `out`, until that holds `max` bytes or more; true if it appended anything.
    ///
    /// Control goes before data; sessions take turns of at most 16 KiB. Keep `max` small (64 KiB): what has left
    /// here can't be overtaken by a ping any more.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Transmit, max: usize) -> bool {
        self.now = now;
        let before = out.len();
        let mut heads = std::mem::take(&mut self.scratch);
        self.put_control(now, &mut heads);
        if matches!(self.phase, Phase::Up) {
            self.put_turns(now, &mut heads, out, max);
        }
        out.push(heads.split().freeze());
        self.scratch = heads;
        let sent = out.len() > before;
        if sent {
            self.watch.sent(now);
        }
        sent
    }

    /// Whether [`Link::poll_transmit`] may have something to give: false is certain.
    #[must_use]
    pub fn has_output(&self) -> bool {
        let out = &self.out;
        let of_link = out.ping.is_some()
            || out.pong.is_some()
            || out.presence
            || out.drain.is_some()
            || out.goodbye.is_some()
            || !out.last_words.is_empty();
        let held_back = matches!(self.phase, Phase::Hello(_));
        out.hello || (!held_back && (of_link || !self.control.is_empty() || !self.turn.is_empty()))
    }

    fn put_control(&mut self, now: Instant, heads: &mut BytesMut) {
        if std::mem::take(&mut self.out.hello) {
            frame::encode(&Frame::Hello(self.hello()), heads);
        }
        if matches!(self.phase, Phase::Hello(_)) {
            return;
        }
        if let Some(token) = self.out.ping.take() {
            frame::encode(&Frame::Ping { token }, heads);
        }
        if let Some(token) = self.out.pong.take() {
            frame::encode(&Frame::Pong { token }, heads);
        }
        if std::mem::take(&mut self.out.presence) {
            frame::encode(&Frame::Presence, heads);
        }
        if !self.control.is_empty() {
            self.measure(now, heads);
        }
        while let Some(id) = self.control.pop_front() {
            self.put_session_control(id, heads);
        }
        if let Some(deadline_ms) = self.out.drain.take() {
            frame::encode(&Frame::Drain { deadline_ms }, heads);
        }
        for (id, abort) in std::mem::take(&mut self.out.last_words) {
            frame::encode(&Frame::Abort { id, abort }, heads);
        }
        if let Some(abort) = self.out.goodbye.take() {
            frame::encode(&Frame::Abort { id: SessionId(0), abort }, heads);
        }
    }

    fn measure(&mut self, now: Instant, heads: &mut BytesMut) {
        if let Some(token) = self.watch.measure(now) {
            frame::encode(&Frame::Ping { token }, heads);
        }
    }

    /// Credit and the acknowledgement of an end.
    fn put_session_control(&mut self, id: SessionId, heads: &mut BytesMut) {
        let Some(session) = self.sessions.get_mut(&id.0) else { return };
        session.in_control = false;
        if session.ended.is_some() || session.opening() == Opening::Queued {
            return;
        }
        if session.recv.credit.is_due() {
            let amount = session.recv.credit.grant();
            frame::encode(&Frame::Credit { id, amount }, heads);
        }
        if std::mem::take(&mut session.end_ack_due) {
            frame::encode(&Frame::EndAck { id }, heads);
            self.note_wire(id);
        }
    }

    fn put_turns(&mut self, now: Instant, heads: &mut BytesMut, out: &mut Transmit, max: usize) {
        while out.len() + heads.len() < max {
            let Some(id) = self.turn.pop_front() else { return };
            self.measure(now, heads);
            let Some(session) = self.sessions.get_mut(&id.0) else { continue };
            session.in_turn = false;
            if session.wire_done {
                continue;
            }
            let was_full = session.waiting.write;
            let sent = put_turn(id, session, heads, out, &mut self.pins);
            if sent > 0 {
                session.progress = now;
            }
            self.counters.data_out += sent;
            let writable = was_full && sent > 0;
            if writable {
                session.waiting.write = false;
                self.events.push_back(super::Event::Writable(id));
            }
            self.note_wire(id);
            self.queue_turn(id);
        }
    }
}

/// One session's turn: its open, its data up to a turn's size, then answer, end and abort. Returns the count of
/// payload bytes.
fn put_turn<T>(
    id: SessionId,
    session: &mut Session<T>,
    heads: &mut BytesMut,
    out: &mut Transmit,
    pins: &mut Pins,
) -> u64 {
    if session.open_sent().is_ok() {
        let header = session.take_header();
        frame::encode(&Frame::Open { id, header }, heads);
    }
    let take = session.send.sendable().min(MAX_DATA);
    if take > 0 {
        frame::encode(&Frame::Data { id, len: take as u64 }, heads);
        put_payload(&mut session.send.queue, take, heads, out, pins);
        session.send.credit.spend(take as u64);
    }
    if session.send.sendable() > 0 {
        return take as u64;
    }
    // All that has credit is out: what follows the data may go.
    if session.answer_sent().is_ok() {
        let header = session.take_header();
        let credit = session.recv.credit.grant();
        frame::encode(&Frame::Answer { id, credit, header }, heads);
    }
    if let Some(abort) = session.abort_out.take() {
        session.send.queue.clear(pins);
        frame::encode(&Frame::Abort { id, abort: *abort }, heads);
    } else if session.end_may_go() && session.send.end_sent().is_ok() {
        frame::encode(&Frame::End { id }, heads);
    }
    take as u64
}

fn put_payload(
    queue: &mut ByteQueue,
    mut remaining: usize,
    heads: &mut BytesMut,
    out: &mut Transmit,
    pins: &mut Pins,
) {
    while let Some(piece) = queue.pop(remaining, pins) {
        remaining -= piece.len();
        if piece.len() < INLINE_BELOW {
            heads.extend_from_slice(&piece);
        } else {
            out.push(heads.split().freeze());
            out.push(piece);
        }
    }
}
