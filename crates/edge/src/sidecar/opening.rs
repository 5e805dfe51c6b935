//! From an application's connection to an answered session: waiting for a link, and trying again where that is safe.
//!
//! What the application says goes out at once, before the answer. It is also [kept](crate::pump::replay), so that it can go out
//! again, whole. That happens after a refusal by somebody who had done nothing with it, and when the path was lost
//! under a young session: then it goes out under the same id to the same agent process, which knows what it has
//! had. So the sidecar says with each open which agent it means, as far as its relay has told it of any. Where none
//! was named, or it is gone, an open that may hold a request goes out once: a request must not run twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_link::{Abort, Code, Mux, OpenError, Session};
use hopline_route_proto::{ConnectionId, Name, RoutingHeader, SessionId};

use super::Shared;
use crate::figures::Figures;
use crate::inspect::Inspected;
use crate::links::{Load, Uplink, Uplinks};
use crate::local::{LocalStream, gone};
use crate::pump::replay::YOUNG;
use crate::pump::{Beside, Broken, Flow, Keep};

/// Between an open that was refused and the next, so that two processes on their way out are not asked in a loop.
const PAUSE: Duration = Duration::from_millis(20);
/// For how long after the first open a session may be opened again under its id.
const AGAIN: Duration = Duration::from_secs(60);

/// How an open goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// Nothing of it has been anywhere: to an agent of the sidecar's choice.
    First,
    /// The same, to one of the relay's choice.
    Anywhere,
    /// The agent may have had all of it before.
    Again,
}

/// What is left of a connection whose session is over.
#[derive(Debug)]
pub(crate) struct Carried {
    /// For [`Flow::close`].
    pub(crate) flow: Flow,
    /// The last session; `None` if none was answered.
    pub(crate) session: Option<Session>,
    pub(crate) result: Result<(), Broken>,
    /// The id that the last open had.
    pub(crate) id: SessionId,
    /// The relay that it went to.
    pub(crate) relay: Option<String>,
    /// The agent's machine, where the sidecar chose the agent.
    pub(crate) agent: Option<String>,
}

/// An open under way, and the young session that comes of it.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    uplinks: &'a Arc<Uplinks>,
    local: &'a LocalStream,
    service: Name,
    figures: &'a Figures,
    id: SessionId,
    /// The agent that the last open named.
    agent: Option<Load>,
    attempt: Attempt,
    began: Instant,
    deadline: Instant,
    flow: Flow,
    /// The relay that the last open went to.
    relay: Option<Arc<Uplink>>,
    /// The application has said something and left: that is to arrive, and nothing of it will follow.
    left: bool,
    /// The connection, and what it comes of.
    trail: Vec<ConnectionId>,
}

impl<'a> Opening<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        local: &'a LocalStream,
        service: &str,
        figures: &'a Figures,
        deadline: Instant,
        inspected: Option<Arc<Inspected>>,
    ) -> Result<Self, Abort> {
        let service = Name::new(service).map_err(|error| Abort::new(Code::INTERNAL, error.to_string()))?;
        Ok(Self {
            uplinks: &shared.uplinks,
            local,
            service,
            figures,
            id: SessionId::new(rand::random()),
            agent: None,
            attempt: Attempt::First,
            began: Instant::now(),
            deadline,
            flow: Flow::new(&shared.memory, Beside::Application, &figures.bytes, inspected),
            relay: None,
            left: false,
            trail: shared.trails.of(local),
        })
    }

    /// Opens the session and carries it to its end, over as many paths as it takes while it is young.
    pub(crate) async fn carry(mut self) -> Carried {
        let mut session = None;
        let result = self.carry_on(&mut session).await;
        let agent = self.agent.as_ref().map(|agent| agent.machine().to_owned());
        let relay = self.relay.map(|relay| relay.name());
        Carried { flow: self.flow, session, result, id: self.id, relay, agent }
    }

    async fn carry_on(&mut self, place: &mut Option<Session>) -> Result<(), Broken> {
        let opened = self.run().await;
        match &opened {
            Ok(_) => self.figures.opens.accept(),
            Err(broken) => self.figures.opens.refuse(&broken.abort().code.name()),
        }
        let mut session = place.insert(opened?);
        let mut old = tokio::time::Instant::now() + YOUNG;
        loop {
            let result = if self.flow.is_kept() {
                tokio::select! {
                    biased;
                    result = self.flow.run(self.local, session) => result,
                    () = tokio::time::sleep_until(old) => {
                        self.flow.forget();
                        continue;
                    }
                }
            } else {
                self.flow.run(self.local, session).await
            };
            let Err(Broken::Session(lost)) = result else { return result };
            session = place.insert(self.run_again(lost).await?);
            old = tokio::time::Instant::now() + YOUNG;
        }
    }

    /// An answered session.
    async fn run(&mut self) -> Result<Session, Broken> {
        loop {
            let (local, left) = (self.local, self.left);
            let (session, mux) = tokio::select! {
                biased;
                opened = self.open() => opened.map_err(Broken::Session)?,
                () = gone(local), if !left => {
                    self.has_left(Broken::Left)?;
                    continue;
                }
            };
            match self.until_answered(&session, &mux).await {
                Ok(()) => return Ok(session),
                Err(Broken::Session(abort)) if self.may_repeat(&abort) => {
                    tracing::debug!(reason = %abort.code, hop = abort.hops, next = ?self.attempt, "trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(broken) => {
                    session.abort_with(broken.abort());
                    return Err(broken);
                }
            }
        }
    }

    /// Another session in the place of one whose path was lost while it was young.
    ///
    /// # Errors
    /// How the path was lost, if there is no other within the open timeout, or the agent can't take it up.
    async fn run_again(&mut self, lost: Abort) -> Result<Session, Broken> {
        if !self.may_repeat(&lost) {
            return Err(Broken::Session(lost));
        }
        match self.run().await {
            Err(Broken::Session(_)) => Err(Broken::Session(lost)),
            other => other,
        }
    }

    /// Opens a session on the best link; what was said before is to go out on it once more. Nothing has gone out on a
    /// link that refuses at once, so another may be tried. Cancel safe.
    async fn open(&mut self) -> Result<(Session, Mux), Abort> {
        loop {
            let (uplink, mux) = self.uplinks.wait(self.deadline).await?;
            let uplink = self.relay.insert(uplink);
            match self.attempt {
                Attempt::First => self.agent = self.uplinks.choose_agent(uplink, &self.service),
                Attempt::Anywhere => self.agent = None,
                Attempt::Again => {}
            }
            let mut header = RoutingHeader::session(self.service.clone(), self.id);
            header.agent = self.agent.as_ref().map(Load::agent);
            header.trail.clone_from(&self.trail);
            header.time_left = Some(self.deadline.saturating_duration_since(Instant::now()));
            header.again = (self.attempt == Attempt::Again).then(|| self.flow.received());
            let session = match mux.open(header.encode()) {
                Ok(session) => session,
                Err(OpenError::Down(_) | OpenError::NotUp | OpenError::Draining) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error @ (OpenError::TooManySessions(_) | OpenError::Exhausted)) => {
                    return Err(Abort::new(Code::OVERLOAD, error.to_string()));
                }
                Err(error @ OpenError::Header { .. }) => {
                    return Err(Abort::new(Code::INTERNAL, error.to_string()));
                }
            };
            if !self.flow.replay(0) {
                return Err(Abort::new(Code::INTERNAL, "what was said before is not kept"));
            }
            return Ok((session, mux));
        }
    }

    /// Carries what the application says until the answer comes, or the link is silent while another one is up: the open
    /// would else wait for an answer until its time is over, or the link is condemned.
    async fn until_answered(&mut self, session: &Session, mux: &Mux) -> Result<(), Broken> {
        let answered = tokio::time::timeout_at(self.deadline.into(), session.answered());
        let passed_over = self.uplinks.passed_over(mux);
        tokio::pin!(answered, passed_over);
        loop {
            let may_move = self.agent.is_some() || self.flow.inbound.is_harmless();
            let inbound = &mut self.flow.inbound;
            // Of one who has left, what was read goes out now, and the rest behind the answer.
            let (more, keep) = match self.left {
                true => (inbound.is_replaying(), Keep::Nothing),
                false => (inbound.may_step(), Keep::All),
            };
            tokio::select! {
                biased;
                answered = &mut answered => return match answered {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(abort)) => Err(Broken::Session(abort)),
                    Err(_) => {
                        let abort = Abort::new(Code::TIMEOUT, "no answer within the open timeout");
                        session.abort_with(abort.clone());
                        Err(Broken::Session(abort))
                    }
                },
                () = &mut passed_over, if may_move => {
                    let why = "the link is silent, and another one is up";
                    return Err(Broken::Session(Abort::new(Code::CONN_LOST, why)));
                }
                stepped = inbound.step(self.local, session, keep), if more => match stepped {
                    Ok(()) => {}
                    // It is kept: the next session is told it. The answer says more than the session's end does, and is
                    // read first.
                    Err(Broken::Session(_)) => tokio::task::yield_now().await,
                    Err(broken) => self.has_left(broken)?,
                },
                () = gone(self.local), if !more && !self.left => self.has_left(Broken::Left)?,
            }
        }
    }

    /// Whoever resets its connection has given up. So has one that leaves without a word; but the last words of one
    /// that closed its unix socket behind them are carried, as they are for one that closes a TCP connection.
    fn has_left(&mut self, how: Broken) -> Result<(), Broken> {
        let has_said = !self.flow.inbound.is_untouched() || self.local.has_unread();
        if !self.local.is_unix() || !has_said {
            return Err(how);
        }
        self.left = true;
        Ok(())
    }

    /// Whether another open may follow one that ended so; chooses how it goes out. None does without all that was said.
    fn may_repeat(&mut self, abort: &Abort) -> bool {
        if !self.flow.is_kept() {
            return false;
        }
        let harmless = self.flow.inbound.is_harmless() && self.flow.received() == 0;
        let next = next_attempt(self.attempt, abort.code, harmless, self.agent.is_some());
        let Some(next) = next.filter(|_| Instant::now() < self.deadline) else { return false };
        if next == Attempt::Again && self.began.elapsed() > AGAIN {
            return false;
        }
        if next != Attempt::Again {
            // An agent may know the old one.
            self.id = SessionId::new(rand::random());
        }
        self.attempt = next;
        true
    }
}

/// How an open may go out after one that ended so; `None`: not at all. A path that was lost, or whose peer left without
/// a drain, may have carried the open as far as the server: then only to the agent that knows it, or if all that was
/// said is harmless.
fn next_attempt(last: Attempt, code: Code, harmless: bool, named: bool) -> Option<Attempt> {
    match code {
        // Refused before anything was done with it. But what an agent may have had it may have still.
        Code::DRAINING => Some(last),
        // The agent that was named is not here.
        Code::OFFLINE if named && (last == Attempt::First || harmless) => Some(Attempt::Anywhere),
        Code::CONN_LOST if named => Some(Attempt::Again),
        Code::CONN_LOST | Code::SHUTDOWN if harmless => Some(Attempt::First),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_never_said_to_one_who_does_not_know_it() {
        use Attempt::{Again, Anywhere, First};
        for (last, code, harmless, named, next) in [
            (First, Code::DRAINING, true, true, Some(First)),
            (First, Code::DRAINING, false, false, Some(First)),
            (Again, Code::DRAINING, false, true, Some(Again)),
            (First, Code::CONN_LOST, true, true, Some(Again)),
            (First, Code::CONN_LOST, false, true, Some(Again)),
            (First, Code::CONN_LOST, true, false, Some(First)),
            (First, Code::CONN_LOST, false, false, None),
            (Anywhere, Code::CONN_LOST, false, false, None),
            (Again, Code::CONN_LOST, false, true, Some(Again)),
            (First, Code::SHUTDOWN, true, true, Some(First)),
            (First, Code::SHUTDOWN, false, true, None),
            (Again, Code::SHUTDOWN, false, true, None),
            (First, Code::OFFLINE, false, true, Some(Anywhere)),
            (First, Code::OFFLINE, true, false, None),
            (Anywhere, Code::OFFLINE, true, false, None),
            (Again, Code::OFFLINE, true, true, Some(Anywhere)),
            (Again, Code::OFFLINE, false, true, None),
            (Again, Code::REFUSED, true, true, None),
            (First, Code::DIAL_FAILED, true, true, None),
            (First, Code::TIMEOUT, true, true, None),
        ] {
            let what = format!("{last:?}, {code}, harmless: {harmless}, named: {named}");
            assert_eq!(next_attempt(last, code, harmless, named), next, "{what}");
        }
    }
}
