//! What happens to an open: it is carried on, refused, or held.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use hopline_accounting::access::{self, Access};
use hopline_link::{Abort, Code, OpenError, Session, SpliceEnd, SpliceOutcome, Spliced, splice};
use hopline_names::MachineName;
use hopline_route_proto::RoutingHeader;
use tokio::sync::oneshot;

use crate::core::{HoldId, LinkId, Route};
use crate::hub::Hub;

/// How often an open may meet a link that has just ended before it is refused.
const ATTEMPTS: usize = 8;

/// An open, from its arrival to the line that its end may have. What it is counted as is taken back when it is over or
/// dropped: the task that carries it may be stopped at any moment, and a count that stayed would weigh on each later
/// choice of an agent and hold up a drain.
struct Asked {
    hub: Arc<Hub>,
    from: LinkId,
    header: RoutingHeader,
    began: Instant,
    /// The machine that asked, and the one that it was sent on to; not known where no access lines are written.
    peer: Option<MachineName>,
    agent: Option<MachineName>,
    stage: Stage,
}

/// What an open is counted as.
#[derive(Clone, Copy)]
enum Stage {
    Deciding,
    Held(HoldId),
    /// Open, as a session of this agent's link.
    Open(LinkId),
    Over,
}

/// Where an open stands after the router was asked.
enum Routed {
    Spliced(Spliced),
    Refused,
    Held(Session, oneshot::Receiver<()>),
}

/// Routes an open. The rest of its life, if it has one, is the future: it is to be spawned.
pub(crate) fn route(
    hub: &Arc<Hub>,
    from: LinkId,
    session: Session,
    header: RoutingHeader,
) -> Option<impl Future<Output = ()> + Send + use<>> {
    let mut asked = Asked {
        hub: Arc::clone(hub),
        from,
        header,
        began: Instant::now(),
        peer: machine(hub, from),
        agent: None,
        stage: Stage::Deciding,
    };
    let mut routed = decide(&mut asked, session);
    if matches!(routed, Routed::Refused) {
        return None;
    }
    Some(async move {
        loop {
            match routed {
                Routed::Refused => return,
                Routed::Spliced(spliced) => return finish(asked, spliced).await,
                Routed::Held(session, wake) => {
                    tokio::select! {
                        _ = wake => routed = decide(&mut asked, session),
                        abort = session.aborted() => return asked.end((0, 0), Some(&abort)),
                    }
                }
            }
        }
    })
}

impl Asked {
    /// It is over: takes back what it was counted as, and writes the access line.
    fn end(&mut self, carried: (u64, u64), fault: Option<&Abort>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        match stage {
            Stage::Over => return,
            Stage::Deciding => {}
            Stage::Held(id) => self.hub.with(|state| {
                state.held.remove(&id);
                state.router.hold_ended(id);
            }),
            Stage::Open(to) => {
                self.hub.with(|state| {
                    state.router.session_ended(to);
                    state.sessions.open -= 1;
                });
                self.hub.quiet.notify_one();
            }
        }
        self.log_end(carried, fault);
    }

    fn log_end(&self, (forth, back): (u64, u64), end: Option<&Abort>) {
        let Some((service, id)) = self.header.service().zip(self.header.session_id()) else { return };
        let line = Access {
            service: Some(service.as_str()),
            peer: self.peer.as_ref().map(MachineName::as_str),
            agent: self.agent.as_ref().map(MachineName::as_str),
            duration: self.began.elapsed(),
            forth,
            back,
            ..Access::default()
        };
        line.log(&id, end);
    }

    /// Refuses it.
    fn refuse(&mut self, session: &Session, code: Code, message: impl Into<String>) -> Routed {
        let abort = Abort::new(code, message);
        session.abort_with(abort.clone());
        self.hub.counted.opens.refuse(code);
        self.end((0, 0), Some(&abort));
        Routed::Refused
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.end((0, 0), Some(&Abort::new(Code::INTERNAL, "the task that carried it was stopped")));
    }
}

/// The machine of a link, if access lines are written. A link that is over has taken its name along, so it is asked for
/// before that.
fn machine(hub: &Hub, link: LinkId) -> Option<MachineName> {
    let wanted = tracing::enabled!(target: access::TARGET, tracing::Level::INFO);
    wanted.then(|| hub.peek(|state| Some(state.links.get(&link)?.identity.name.clone())))?
}

fn decide(asked: &mut Asked, session: Session) -> Routed {
    let hub = Arc::clone(&asked.hub);
    for _ in 0..ATTEMPTS {
        if hub.is_draining() {
            return asked.refuse(&session, Code::DRAINING, "the relay is on its way out");
        }
        let now = Instant::now();
        let (from, header) = (asked.from, &asked.header);
        let decided = hub.with(|state| {
            let route = match asked.stage {
                Stage::Held(id) => state.router.route_held(id, header, now),
                Stage::Deciding | Stage::Open(_) | Stage::Over => state.router.route(from, header, now),
            };
            match route {
                Route::Forward { to, mut header } => {
                    // What was spent here, held.
                    header.time_left =
                        header.time_left.map(|left| left.saturating_sub(asked.began.elapsed()));
                    state.router.session_started(to);
                    Ok((to, header, state.links.get(&to).map(|link| link.mux.clone())))
                }
                Route::Refuse { code, message } => Err(Ok((code, message))),
                Route::Hold { id, .. } => {
                    let (sender, wake) = oneshot::channel();
                    state.held.insert(id, sender);
                    Err(Err((id, wake)))
                }
            }
        });
        let (to, header, mux) = match decided {
            Ok(forward) => forward,
            Err(Ok((code, message))) => {
                asked.stage = Stage::Deciding;
                return asked.refuse(&session, code, message);
            }
            Err(Err((id, wake))) => {
                asked.stage = Stage::Held(id);
                return Routed::Held(session, wake);
            }
        };
        // No longer held, and not open yet.
        asked.stage = Stage::Deciding;
        let opened =
            mux.ok_or(None).and_then(|mux| mux.open(header.encode()).map_err(|error| Some((mux, error))));
        match opened {
            Ok(onward) => {
                hub.with(|state| {
                    state.sessions.open += 1;
                    state.sessions.total += 1;
                });
                asked.stage = Stage::Open(to);
                asked.agent = machine(&hub, to);
                return Routed::Spliced(splice(session, onward));
            }
            // The link has just ended. Nothing of the session has gone out: ask again without it.
            Err(Some((mux, OpenError::Down(_) | OpenError::NotUp))) => {
                hub.with(|state| state.router.session_ended(to));
                let end = mux.watch().borrow().down.clone();
                if let Some(end) = end {
                    hub.link_ended(to, &mux, &end);
                }
            }
            Err(error) => {
                hub.with(|state| state.router.session_ended(to));
                let (code, message) = match error {
                    Some((_, OpenError::Draining)) => {
                        (Code::DRAINING, "the agent is on its way out".to_owned())
                    }
                    Some((_, error)) => (Code::OVERLOAD, error.to_string()),
                    None => (Code::INTERNAL, "the agent's link is gone".to_owned()),
                };
                return asked.refuse(&session, code, message);
            }
        }
    }
    asked.refuse(&session, Code::OFFLINE, "its agents come and go too quickly")
}

/// Waits for a session's end, within the answer timeout for its answer, and counts it.
async fn finish(asked: Asked, mut spliced: Spliced) {
    if let Some(limit) = asked.hub.settings().answer_timeout {
        tokio::select! {
            outcome = &mut spliced => return count(asked, &outcome, false),
            () = tokio::time::sleep(limit) => {}
        }
        if !spliced.is_answered() {
            spliced.abort(Code::TIMEOUT, &format!("no answer from the agent within {limit:?}"));
        }
    }
    let answered = spliced.is_answered();
    let outcome = (&mut spliced).await;
    count(asked, &outcome, answered || spliced.is_answered());
}

fn count(mut asked: Asked, outcome: &SpliceOutcome, answered: bool) {
    let end = &outcome.end;
    let fault = match end {
        SpliceEnd::Aborted(abort) => Some(abort),
        SpliceEnd::Clean => None,
    };
    asked.hub.counted.session_ended(end);
    match end {
        SpliceEnd::Aborted(abort) if !answered => asked.hub.counted.opens.refuse(abort.code),
        SpliceEnd::Aborted(_) | SpliceEnd::Clean => asked.hub.counted.opens.accept(),
    }
    asked.end((outcome.forth, outcome.back), fault);
}

/// Tells the router the time when it wants to know it.
pub(crate) async fn keep_time(hub: Arc<Hub>) {
    loop {
        let changed = hub.reschedule.notified();
        match hub.peek(|state| state.router.poll_timeout()) {
            None => changed.await,
            Some(at) => tokio::select! {
                () = changed => continue,
                () = tokio::time::sleep_until(at.into()) => {
                    hub.with(|state| state.router.handle_timeout(Instant::now()));
                }
            },
        }
    }
}
