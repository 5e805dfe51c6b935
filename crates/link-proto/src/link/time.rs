//! What time does to a link: pings, presence, suspicion, death, the ends of a drain and of a late hello.

use std::time::Instant;

use super::{Event, Link, LinkEnd, Phase};
use crate::code::Code;
use crate::frame::Abort;
use crate::session::SessionId;
use crate::watch::Due;

impl<T: Default> Link<T> {
    /// When [`Link::handle_timeout`] wants to be called next; `None` once the link is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Down(_) => None,
            Phase::Hello(until) => Some(until),
            Phase::Up => {
                // A drain that is over has no deadline left.
                let drain = self.drain.filter(|_| !self.drained);
                let linger = self.lingering.first().map(|(until, _)| *until);
                [drain, linger].into_iter().flatten().fold(self.watch.deadline(), Instant::min).into()
            }
        }
    }

    /// Time has come to `now`. Read the carrier first: what waits there speaks for the peer.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.observe_time(now);
        match self.phase {
            Phase::Hello(until) if now >= until => {
                self.counters.limits.hello_timeout += 1;
                self.go_down(LinkEnd::NoHello);
            }
            Phase::Up => {
                self.run_watch(now);
                self.run_drain(now);
                self.run_linger();
            }
            Phase::Hello(_) | Phase::Down(_) => {}
        }
    }

    /// Input has come: much later than the timeout is a pause of our own, not the peer's silence.
    pub(super) fn observe_time(&mut self, now: Instant) {
        self.now = now;
        let expected = self.poll_timeout();
        self.watch.observe_pause(expected, now);
    }

    fn run_watch(&mut self, now: Instant) {
        loop {
            match self.watch.poll(now) {
                Due::Nothing => return,
                Due::Ping(token) => self.out.ping = Some(token),
                Due::Presence => self.out.presence = true,
                Due::Suspect => self.events.push_back(Event::Suspect),
                Due::Dead { silent } => {
                    let end = LinkEnd::DeadPeer { silent };
                    self.out.goodbye = Some(end.abort());
                    self.go_down(end);
                    return;
                }
            }
        }
    }

    fn run_drain(&mut self, now: Instant) {
        if self.drained || self.drain.is_none_or(|deadline| now < deadline) {
            return;
        }
        let open: Vec<SessionId> =
            self.sessions.iter().filter(|(_, s)| !s.wire_done).map(|(id, _)| SessionId(*id)).collect();
        for id in open {
            self.abort(id, Abort::new(Code::DRAIN_DEADLINE, "the drain's deadline has passed"));
        }
        // The owner need not wait until a stuck carrier has taken the aborts.
        self.drained = true;
        self.events.push_back(Event::Drained);
    }
}
