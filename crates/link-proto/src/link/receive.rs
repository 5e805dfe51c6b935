//! Bytes from the peer: frames decoded, rules checked, sessions told.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::{Decoding, Event, Link, LinkEnd, Peer, PeerLimits, Phase, ProtocolError};
use crate::code::Code;
use crate::flow::Overflow;
use crate::frame::{self, Abort, Frame, Step};
use crate::hello::Hello;
use crate::session::{IllegalChange, Opening, RecvPhase, Session, SessionId};

impl Link {
    /// Most bytes that [`Link::handle_bytes`] leaves for later.
    pub const LONGEST_FRAME: usize = 1 + 3 * crate::varint::MAX_LEN + 4_096;
}

impl<T: Default> Link<T> {
    /// Takes what the carrier read, as much as can be understood now; an incomplete frame stays in `bytes` and
    /// wants more behind it. At most [`Link::LONGEST_FRAME`] bytes stay.
    ///
    /// A peer that breaks a rule ends the link: see [`Event::Down`].
    pub fn handle_bytes(&mut self, now: Instant, bytes: &mut BytesMut) {
        self.observe_time(now);
        if bytes.is_empty() {
            return;
        }
        if self.end_of_link().is_none() && self.watch.received(now) {
            self.events.push_back(Event::Recovered);
        }
        while !bytes.is_empty() && self.end_of_link().is_none() {
            match self.step(now, bytes) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => self.protocol_error(error),
            }
        }
        if self.end_of_link().is_some() {
            bytes.clear();
        }
    }

    /// The carrier ended or failed.
    pub fn handle_carrier_end(&mut self, now: Instant, message: impl Into<String>) {
        let silent = now.saturating_duration_since(self.watch.last_rx());
        self.go_down(LinkEnd::CarrierLost { message: message.into(), silent });
    }

    /// One frame, or a piece of a data frame's payload; false if more bytes are needed.
    fn step(&mut self, now: Instant, bytes: &mut BytesMut) -> Result<bool, ProtocolError> {
        if let Decoding::Data(id, remaining) = self.decoding {
            let take = usize::try_from(remaining).unwrap_or(usize::MAX).min(bytes.len());
            let piece = bytes.split_to(take).freeze();
            let remaining = remaining - take as u64;
            self.decoding = if remaining == 0 { Decoding::Frame } else { Decoding::Data(id, remaining) };
            self.watch.received_session_frame(now);
            self.on_data(id, piece);
            return Ok(true);
        }
        let hello_phase = matches!(self.phase, Phase::Hello(_));
        // Strangers are told at their first byte: some would otherwise look like the start of an extension.
        if hello_phase && !matches!(bytes[0], frame::kind::HELLO | frame::kind::ABORT) {
            return Err(ProtocolError::Hello);
        }
        let (frame, len) = match frame::decode(bytes, self.config.limits.header_bytes)? {
            Step::Partial => return Ok(false),
            Step::Frame(frame, len) => (frame, len),
        };
        let _ = bytes.split_to(len);
        if hello_phase != matches!(frame, Frame::Hello(_)) {
            // A goodbye may come first: it says why there will be no hello.
            if !matches!(frame, Frame::Abort { id: SessionId(0), .. }) {
                return Err(ProtocolError::Hello);
            }
        }
        self.on_frame(now, frame)?;
        Ok(true)
    }

    fn on_frame(&mut self, now: Instant, frame: Frame) -> Result<(), ProtocolError> {
        match frame {
            Frame::Hello(hello) => self.on_hello(&hello),
            Frame::Ping { token } => {
                if self.pings.spend(now, self.watch.peer_interval()) {
                    return Err(ProtocolError::PingFlood);
                }
                let waits = self.out.pong.replace(token).is_some();
                self.counters.limits.pongs += u64::from(waits);
            }
            Frame::Pong { token } => self.watch.received_pong(token, now),
            Frame::Presence => {}
            Frame::Extension => self.counters.extensions_skipped += 1,
            Frame::Drain { .. } if self.peer_drains => self.counters.limits.drains += 1,
            Frame::Drain { deadline_ms } => {
                self.peer_drains = true;
                self.events.push_back(Event::PeerDrains { deadline_ms });
            }
            Frame::Abort { id: SessionId(0), abort } => {
                // A peer that gives this very link up as lost speaks of no other: it is hop 0 at both ends.
                let own = abort.code == Code::CONN_LOST;
                self.go_down(LinkEnd::Goodbye(if own { abort } else { one_hop_on(abort) }));
            }
            Frame::Open { id, header } => {
                self.watch.received_session_frame(now);
                self.on_open(id, header)?;
            }
            Frame::Answer { id, credit, header } => {
                self.watch.received_session_frame(now);
                self.on_answer(id, credit, header)?;
            }
            Frame::Data { id, len } => {
                self.watch.received_session_frame(now);
                self.check_data(id, len)?;
                self.decoding = Decoding::Data(id, len);
            }
            Frame::End { id } => {
                self.watch.received_session_frame(now);
                self.on_end(id)?;
            }
            Frame::EndAck { id } => {
                self.watch.received_session_frame(now);
                self.on_end_ack(id)?;
            }
            Frame::Credit { id, amount } => {
                self.watch.received_session_frame(now);
                self.on_credit(id, amount)?;
            }
            Frame::Abort { id, abort } => {
                self.watch.received_session_frame(now);
                self.on_abort(id, abort)?;
            }
        }
        Ok(())
    }

    fn on_hello(&mut self, hello: &Hello) {
        let adopted = hello.liveness.or(self.config.liveness).unwrap_or_default();
        let ours = self.config.liveness.unwrap_or(adopted);
        let theirs = hello.liveness.unwrap_or(ours);
        self.watch.agree(ours, theirs.interval());
        self.peer = PeerLimits {
            early_credit: u64::from(hello.early_credit),
            sessions: hello.sessions,
            header_bytes: hello.header_bytes,
        };
        self.phase = Phase::Up;
        self.events.push_back(Event::Up(Peer {
            instance: hello.instance,
            name: hello.name.clone(),
            liveness: ours,
        }));
    }

    fn on_open(&mut self, id: SessionId, header: Bytes) -> Result<(), ProtocolError> {
        if id.0 != self.next_theirs {
            return Err(ProtocolError::OpenOrder(id.0));
        }
        self.next_theirs += 2;
        let limits = self.config.limits;
        // A peer that counts never gets here: refusals that wait to be sent count at both ends.
        if self.open_theirs >= limits.sessions.saturating_mul(2) {
            return Err(ProtocolError::TooManyOpens(id.0));
        }
        let early_in = u64::from(limits.early_credit);
        let mut session = Session::new(None, self.peer.early_credit, early_in, self.now);
        self.open_theirs += 1;
        self.unanswered_theirs += 1;
        let refusal = self.refusal();
        session.released = refusal.is_some();
        self.held_theirs += u32::from(refusal.is_none());
        self.sessions.insert(id.0, Box::new(session));
        match refusal {
            None => self.events.push_back(Event::Opened { id, header }),
            Some(abort) => {
                self.counters.opens_over_limit += u64::from(abort.code == Code::OVERLOAD);
                self.abort(id, abort);
            }
        }
        Ok(())
    }

    /// Why the open that was just counted is refused, if it is.
    fn refusal(&mut self) -> Option<Abort> {
        let limits = self.config.limits;
        let met = &mut self.counters.limits;
        if self.drain.is_some() {
            return Some(Abort::new(Code::DRAINING, "this link drains"));
        }
        let message = if self.open_theirs > limits.sessions {
            met.sessions += 1;
            format!("{} sessions are open on this link", limits.sessions)
        } else if self.held_theirs >= limits.sessions.saturating_mul(2) {
            met.held_sessions += 1;
            format!("{} sessions of this link are still held", self.held_theirs)
        } else if self.unanswered_theirs > limits.unanswered_opens {
            met.unanswered_opens += 1;
            format!("{} opens await their answer", limits.unanswered_opens)
        } else {
            return None;
        };
        Some(Abort::new(Code::OVERLOAD, message))
    }

    fn on_answer(&mut self, id: SessionId, credit: u64, header: Bytes) -> Result<(), ProtocolError> {
        let Some(session) = self.known(id)? else { return Ok(()) };
        session.answer_received().map_err(|IllegalChange| ProtocolError::Answer(id.0))?;
        session.keep_header(header);
        if std::mem::take(&mut session.waiting.answer) {
            self.events.push_back(Event::Answered(id));
        }
        self.widen_to_first(id);
        self.queue_credit_if_due(id);
        self.on_credit(id, credit)
    }

    /// The head of a data frame: all of its payload must fit the credit.
    fn check_data(&mut self, id: SessionId, len: u64) -> Result<(), ProtocolError> {
        let Some(session) = self.known(id)? else { return Ok(()) };
        if session.recv.phase() != RecvPhase::Open {
            return Err(ProtocolError::AfterEnd(id.0));
        }
        if session.recv.credit.fits(len) {
            return Ok(());
        }
        let answered = session.opening() == Opening::Answered;
        let met = &mut self.counters.limits;
        *(if answered { &mut met.max_window } else { &mut met.early_credit }) += 1;
        Err(ProtocolError::Credit(id.0))
    }

    fn on_data(&mut self, id: SessionId, piece: Bytes) {
        self.counters.data_in += piece.len() as u64;
        // A late frame was counted with its head.
        let Some(session) = self.sessions.get_mut(&id.0).filter(|session| session.is_live()) else { return };
        session.recv.credit.receive(piece.len() as u64);
        if session.released {
            return;
        }
        session.recv.queue.push(piece, &mut self.pins);
        if std::mem::take(&mut session.waiting.read) {
            self.events.push_back(Event::Readable(id));
        }
    }

    fn on_end(&mut self, id: SessionId) -> Result<(), ProtocolError> {
        let Some(session) = self.known(id)? else { return Ok(()) };
        if session.ours && session.opening() == Opening::Unanswered {
            return Err(ProtocolError::EndBeforeAnswer(id.0));
        }
        session.recv.end().map_err(|IllegalChange| ProtocolError::AfterEnd(id.0))?;
        if std::mem::take(&mut session.waiting.read) {
            self.events.push_back(Event::Readable(id));
        }
        // Nothing more will come: what is not held already is free for others.
        if let Some(session) = self.sessions.get_mut(&id.0) {
            session.recv.credit.close();
            self.budget.settle(&mut session.recv.credit);
        }
        Ok(())
    }

    fn on_end_ack(&mut self, id: SessionId) -> Result<(), ProtocolError> {
        let Some(session) = self.known(id)? else { return Ok(()) };
        session.send.end_acknowledged().map_err(|IllegalChange| ProtocolError::EndAck(id.0))?;
        if std::mem::take(&mut session.waiting.write) {
            self.events.push_back(Event::Writable(id));
        }
        self.note_wire(id);
        Ok(())
    }

    fn on_credit(&mut self, id: SessionId, amount: u64) -> Result<(), ProtocolError> {
        let now = self.now;
        let Some(session) = self.known(id)? else { return Ok(()) };
        session.send.credit.grant(amount).map_err(|Overflow| ProtocolError::CreditOverflow(id.0))?;
        session.progress = now;
        self.queue_turn(id);
        Ok(())
    }

    fn on_abort(&mut self, id: SessionId, abort: Abort) -> Result<(), ProtocolError> {
        if self.known(id)?.is_some() {
            self.end_session(id, one_hop_on(abort));
        } else {
            self.withdraw_abort(id);
        }
        Ok(())
    }

    /// The session that a frame speaks of; `None` if it is over for this side, which the peer may not know yet.
    fn known(&mut self, id: SessionId) -> Result<Option<&mut Session<T>>, ProtocolError> {
        let ours = (id.0 % 2 == 1) == (self.config.side == super::Side::Dialer);
        let next = if ours { self.next_ours } else { self.next_theirs };
        if id.0 >= next || id.0 == 0 {
            return Err(ProtocolError::NeverOpened(id.0));
        }
        match self.sessions.get_mut(&id.0) {
            Some(session) if session.opening() == Opening::Queued => Err(ProtocolError::NeverOpened(id.0)),
            Some(session) if session.is_live() => Ok(Some(session)),
            Some(_) | None => {
                self.counters.late_frames += 1;
                Ok(None)
            }
        }
    }
}

fn one_hop_on(abort: Abort) -> Abort {
    Abort { hops: abort.hops.saturating_add(1), ..abort }
}
