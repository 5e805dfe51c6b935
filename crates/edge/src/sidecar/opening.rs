//! From an application's connection to an answered session: waiting for a link, and opening again where that is safe.
//!
//! What the application writes goes out at once, before the answer, and also into a [replay buffer](crate::pump::replay).
//! The open goes out again, and the buffer behind it, after a refusal by a process that did nothing with it, and when the
//! path is lost within the replay window: then under the same id to the same agent process, which knows what it has
//! received. So each open names the agent process that it is for, as far as the relay has told the sidecar of any. Where
//! none was named, or it is gone, an open that may carry a request goes out once: a request must not run twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_link::{Abort, Code, Mux, OpenError, Session};
use hopline_names::{ConnectionId, ServiceName, SessionId};
use hopline_route_proto::RoutingHeader;

use super::Shared;
use crate::figures::Figures;
use crate::inspect::Inspected;
use crate::links::{Load, Uplink, Uplinks};
use crate::local::{LocalStream, gone};
use crate::pump::replay::REPLAY_WINDOW;
use crate::pump::{Beside, Broken, Flow, Keep};

/// Between an open that was refused and the next, so that two processes on their way out are not asked in a loop.
const PAUSE: Duration = Duration::from_millis(20);
/// How long after the first open a session may be opened again under its id.
const RESUME_WITHIN: Duration = Duration::from_secs(60);

/// How an open goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// Nothing of it has been anywhere: to an agent of the sidecar's choice.
    First,
    /// The same, to one of the relay's choice.
    Anywhere,
    /// The agent may have had all of it before.
    Resume,
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

/// An open in progress, and the session that comes of it.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    uplinks: &'a Arc<Uplinks>,
    local: &'a LocalStream,
    service: ServiceName,
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
    /// The application has closed its connection behind its last bytes: they are to arrive, and nothing follows them.
    app_gone: bool,
    /// The connection, and what it comes of.
    trail: Vec<ConnectionId>,
}

impl<'a> Opening<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        local: &'a LocalStream,
        service: &ServiceName,
        figures: &'a Figures,
        deadline: Instant,
        inspected: Option<Arc<Inspected>>,
    ) -> Self {
        Self {
            uplinks: &shared.uplinks,
            local,
            service: service.clone(),
            figures,
            id: SessionId::new(rand::random()),
            agent: None,
            attempt: Attempt::First,
            began: Instant::now(),
            deadline,
            flow: Flow::new(&shared.memory, Beside::Application, &figures.bytes, inspected),
            relay: None,
            app_gone: false,
            trail: shared.trails.of(local),
        }
    }

    /// Opens the session and carries it to its end, over as many paths as it takes within the replay window.
    pub(crate) async fn carry(mut self) -> Carried {
        let mut session = None;
        let result = self.carry_on(&mut session).await;
        let agent = self.agent.as_ref().map(|agent| agent.machine().to_owned());
        let relay = self.relay.map(|relay| relay.name());
        Carried { flow: self.flow, session, result, id: self.id, relay, agent }
    }

    async fn carry_on(&mut self, last: &mut Option<Session>) -> Result<(), Broken> {
        let opened = self.run().await;
        match &opened {
            Ok(_) => self.figures.opens.accept(),
            Err(broken) => self.figures.opens.refuse(broken.abort().code),
        }
        let mut session = last.insert(opened?);
        let mut window_end = tokio::time::Instant::now() + REPLAY_WINDOW;
        loop {
            let result = if self.flow.is_replayable() {
                tokio::select! {
                    biased;
                    result = self.flow.run(self.local, session) => result,
                    () = tokio::time::sleep_until(window_end) => {
                        self.flow.end_replay_window();
                        continue;
                    }
                }
            } else {
                self.flow.run(self.local, session).await
            };
            let Err(Broken::Session(lost)) = result else { return result };
            session = last.insert(self.resume(lost).await?);
            window_end = tokio::time::Instant::now() + REPLAY_WINDOW;
        }
    }

    /// An answered session.
    async fn run(&mut self) -> Result<Session, Broken> {
        loop {
            let (local, app_gone) = (self.local, self.app_gone);
            let (session, mux) = tokio::select! {
                biased;
                opened = self.open() => opened.map_err(Broken::Session)?,
                () = gone(local), if !app_gone => {
                    self.handle_app_gone(Broken::PeerGone)?;
                    continue;
                }
            };
            match self.until_answered(&session, &mux).await {
                Ok(()) => return Ok(session),
                Err(Broken::Session(abort)) if self.may_retry(&abort) => {
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

    /// Another session in place of one whose path was lost within the replay window.
    ///
    /// # Errors
    /// How the path was lost, if no other session is answered within the open timeout.
    async fn resume(&mut self, lost: Abort) -> Result<Session, Broken> {
        if !self.may_retry(&lost) {
            return Err(Broken::Session(lost));
        }
        match self.run().await {
            Err(Broken::Session(_)) => Err(Broken::Session(lost)),
            other => other,
        }
    }

    /// Opens a session on the best link; the replay buffer is to go out on it. Nothing has gone out on a
    /// link that refuses at once, so another may be tried. Cancel safe.
    async fn open(&mut self) -> Result<(Session, Mux), Abort> {
        loop {
            let (uplink, mux) = self.uplinks.wait(self.deadline).await?;
            let uplink = self.relay.insert(uplink);
            match self.attempt {
                Attempt::First => self.agent = self.uplinks.choose_agent(uplink, &self.service),
                Attempt::Anywhere => self.agent = None,
                Attempt::Resume => {}
            }
            let mut header = RoutingHeader::session(self.service.clone(), self.id);
            header.agent = self.agent.as_ref().map(Load::agent);
            header.trail.clone_from(&self.trail);
            header.time_left = Some(self.deadline.saturating_duration_since(Instant::now()));
            header.again = (self.attempt == Attempt::Resume).then(|| self.flow.received());
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
                return Err(Abort::new(Code::INTERNAL, "the replay buffer is incomplete"));
            }
            return Ok((session, mux));
        }
    }

    /// Carries what the application says until the answer comes, or the link is silent while another one is up: the open
    /// would else wait for an answer until its time is over, or the link is condemned.
    async fn until_answered(&mut self, session: &Session, mux: &Mux) -> Result<(), Broken> {
        let answered = tokio::time::timeout_at(self.deadline.into(), session.answered());
        let superseded = self.uplinks.superseded(mux);
        tokio::pin!(answered, superseded);
        loop {
            let may_move = self.agent.is_some() || self.flow.inbound.is_safe_to_replay();
            let inbound = &mut self.flow.inbound;
            // Of one who has left, what was read goes out now, and the rest behind the answer.
            let (more, keep) = match self.app_gone {
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
                () = &mut superseded, if may_move => {
                    let why = "the link is silent, and another one is up";
                    return Err(Broken::Session(Abort::new(Code::CONN_LOST, why)));
                }
                stepped = inbound.step(self.local, session, keep), if more => match stepped {
                    Ok(()) => {}
                    // It is in the replay buffer. The answer says more than the session's end does, and is
                    // read first.
                    Err(Broken::Session(_)) => tokio::task::yield_now().await,
                    Err(broken) => self.handle_app_gone(broken)?,
                },
                () = gone(self.local), if !more && !self.app_gone => self.handle_app_gone(Broken::PeerGone)?,
            }
        }
    }

    /// Whoever resets its connection has given up. So has one that leaves without a word; but the last words of one
    /// that closed its unix socket behind them are carried, as they are for one that closes a TCP connection.
    fn handle_app_gone(&mut self, how: Broken) -> Result<(), Broken> {
        let has_said = !self.flow.inbound.is_untouched() || self.local.has_unread();
        if !self.local.is_unix() || !has_said {
            return Err(how);
        }
        self.app_gone = true;
        Ok(())
    }

    /// Whether another open may follow one that ended so; chooses how it goes out. None does without a complete replay buffer.
    fn may_retry(&mut self, abort: &Abort) -> bool {
        if !self.flow.is_replayable() {
            return false;
        }
        let safe_to_replay = self.flow.inbound.is_safe_to_replay() && self.flow.received() == 0;
        let next = next_attempt(self.attempt, abort.code, safe_to_replay, self.agent.is_some());
        let Some(next) = next.filter(|_| Instant::now() < self.deadline) else { return false };
        if next == Attempt::Resume && self.began.elapsed() > RESUME_WITHIN {
            return false;
        }
        if next != Attempt::Resume {
            // An agent may know the old one.
            self.id = SessionId::new(rand::random());
        }
        self.attempt = next;
        true
    }
}

/// How an open may go out after one that ended so; `None`: not at all. A path that was lost, or whose peer left without
/// a drain, may have carried the open as far as the server: then only to the agent that knows it, or if all that
/// was written is safe to replay.
fn next_attempt(last: Attempt, code: Code, safe_to_replay: bool, named: bool) -> Option<Attempt> {
    match code {
        // Refused before anything was done with it. But what an agent may have had it may have still.
        Code::DRAINING => Some(last),
        // The agent that was named is not here.
        Code::OFFLINE if named && (last == Attempt::First || safe_to_replay) => Some(Attempt::Anywhere),
        Code::CONN_LOST if named => Some(Attempt::Resume),
        Code::CONN_LOST | Code::SHUTDOWN if safe_to_replay => Some(Attempt::First),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_resumed_only_where_it_is_known() {
        use Attempt::{Anywhere, First, Resume};
        for (last, code, safe_to_replay, named, next) in [
            (First, Code::DRAINING, true, true, Some(First)),
            (First, Code::DRAINING, false, false, Some(First)),
            (Resume, Code::DRAINING, false, true, Some(Resume)),
            (First, Code::CONN_LOST, true, true, Some(Resume)),
            (First, Code::CONN_LOST, false, true, Some(Resume)),
            (First, Code::CONN_LOST, true, false, Some(First)),
            (First, Code::CONN_LOST, false, false, None),
            (Anywhere, Code::CONN_LOST, false, false, None),
            (Resume, Code::CONN_LOST, false, true, Some(Resume)),
            (First, Code::SHUTDOWN, true, true, Some(First)),
            (First, Code::SHUTDOWN, false, true, None),
            (Resume, Code::SHUTDOWN, false, true, None),
            (First, Code::OFFLINE, false, true, Some(Anywhere)),
            (First, Code::OFFLINE, true, false, None),
            (Anywhere, Code::OFFLINE, true, false, None),
            (Resume, Code::OFFLINE, true, true, Some(Anywhere)),
            (Resume, Code::OFFLINE, false, true, None),
            (Resume, Code::REFUSED, true, true, None),
            (First, Code::DIAL_FAILED, true, true, None),
            (First, Code::TIMEOUT, true, true, None),
        ] {
            let what = format!("{last:?}, {code}, safe_to_replay: {safe_to_replay}, named: {named}");
            assert_eq!(next_attempt(last, code, safe_to_replay, named), next, "{what}");
        }
    }
}
