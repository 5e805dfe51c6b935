//! What happens to an open: it is carried on, refused, or held.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use hopline_admin::access::{self, Access};
use hopline_link::{Abort, Code, OpenError, Session, SpliceEnd, SpliceOutcome, Spliced, splice};
use hopline_route_proto::{Name, RoutingHeader};
use tokio::sync::oneshot;

use crate::core::{HoldId, LinkId, Route};
use crate::hub::Hub;

/// How often an open may meet a link that has just ended before it is refused.
const ATTEMPTS: usize = 8;

/// An open, for the line that its end may have.
struct Asked {
    from: LinkId,
    header: RoutingHeader,
    began: Instant,
    /// The machine that asked, and the one that it was sent on to; not known where no access lines are written.
    peer: Option<Name>,
    agent: Option<Name>,
}

/// Where an open stands after the router was asked.
enum Routed {
    Spliced(LinkId, Spliced),
    Refused(Abort),
    Held(Session, HoldId, oneshot::Receiver<()>),
}

/// Routes an open. The rest of its life, if it has one, is the future: it is to be spawned.
pub(crate) fn route(
    hub: &Arc<Hub>,
    from: LinkId,
    session: Session,
    header: RoutingHeader,
) -> Option<impl Future<Output = ()> + Send + use<>> {
    let peer = machine(hub, from);
    let mut asked = Asked { from, header, began: Instant::now(), peer, agent: None };
    let routed = decide(hub, &asked, session, None);
    if let Routed::Refused(abort) = &routed {
        asked.log_end((0, 0), Some(abort));
        return None;
    }
    let hub = Arc::clone(hub);
    Some(async move {
        let mut routed = routed;
        loop {
            match routed {
                Routed::Refused(abort) => return asked.log_end((0, 0), Some(&abort)),
                Routed::Spliced(to, spliced) => {
                    asked.agent = machine(&hub, to);
                    return finish(&hub, &asked, to, spliced).await;
                }
                Routed::Held(session, id, wake) => {
                    tokio::select! {
                        _ = wake => routed = decide(&hub, &asked, session, Some(id)),
                        abort = session.aborted() => {
                            hub.with(|state| {
                                state.held.remove(&id);
                                state.router.hold_ended(id);
                            });
                            return asked.log_end((0, 0), Some(&abort));
                        }
                    }
                }
            }
        }
    })
}

impl Asked {
    /// Writes the access line.
    fn log_end(&self, (forth, back): (u64, u64), end: Option<&Abort>) {
        let Some((service, id)) = self.header.service().zip(self.header.session_id()) else { return };
        let line = Access {
            service: Some(service.as_str()),
            peer: self.peer.as_ref().map(Name::as_str),
            agent: self.agent.as_ref().map(Name::as_str),
            duration: self.began.elapsed(),
            forth,
            back,
            ..Access::default()
        };
        let fault = end.map(|abort| (abort.code.name(), u64::from(abort.hops)));
        line.log(&id, fault.as_ref().map(|(reason, hop)| (reason.as_ref(), *hop)));
    }
}

/// The machine of a link, if access lines are written. A link that is over has taken its name along, so it is asked for
/// before that.
fn machine(hub: &Hub, link: LinkId) -> Option<Name> {
    let wanted = tracing::enabled!(target: access::TARGET, tracing::Level::INFO);
    wanted.then(|| hub.peek(|state| Some(state.links.get(&link)?.machine.clone())))?
}

/// Refuses an open.
fn refuse(session: &Session, code: Code, message: impl Into<String>) -> Routed {
    let abort = Abort::new(code, message);
    session.abort_with(abort.clone());
    Routed::Refused(abort)
}

fn decide(hub: &Hub, asked: &Asked, session: Session, mut held: Option<HoldId>) -> Routed {
    let (from, header) = (asked.from, &asked.header);
    for _ in 0..ATTEMPTS {
        let now = Instant::now();
        if hub.is_draining() {
            hub.with(|state| {
                state.opens.refuse(Code::DRAINING);
                if let Some(id) = held.take() {
                    state.router.hold_ended(id);
                }
            });
            return refuse(&session, Code::DRAINING, "the relay is on its way out");
        }
        let decided = hub.with(|state| {
            let route = match held.take() {
                Some(id) => state.router.route_held(id, header, now),
                None => state.router.route(from, header, now),
            };
            match route {
                Route::Forward { to, mut header } => {
                    // What was spent here, held.
                    header.time_left =
                        header.time_left.map(|left| left.saturating_sub(asked.began.elapsed()));
                    state.router.session_started(to);
                    Ok((to, header, state.links.get(&to).map(|link| link.mux.clone())))
                }
                Route::Refuse { code, message } => {
                    state.opens.refuse(code);
                    Err(Ok((code, message)))
                }
                Route::Hold { id, .. } => {
                    let (sender, wake) = oneshot::channel();
                    state.held.insert(id, sender);
                    Err(Err((id, wake)))
                }
            }
        });
        let (to, header, mux) = match decided {
            Ok(forward) => forward,
            Err(Ok((code, message))) => return refuse(&session, code, message),
            Err(Err((id, wake))) => return Routed::Held(session, id, wake),
        };
        let opened =
            mux.ok_or(None).and_then(|mux| mux.open(header.encode()).map_err(|error| Some((mux, error))));
        match opened {
            Ok(onward) => {
                hub.with(|state| {
                    state.opens.sessions_open += 1;
                    state.opens.sessions_total += 1;
                });
                return Routed::Spliced(to, splice(session, onward));
            }
            // The link has just ended. Nothing of the session has gone out: ask again without it.
            Err(Some((mux, OpenError::Down(_) | OpenError::NotUp))) => {
                hub.with(|state| state.router.session_ended(to));
                if let Some(end) = mux.watch().borrow().down.clone() {
                    hub.link_ended(to, &end);
                }
            }
            Err(error) => {
                let (code, message) = match error {
                    Some((_, OpenError::Draining)) => {
                        (Code::DRAINING, "the agent is on its way out".to_owned())
                    }
                    Some((_, error)) => (Code::OVERLOAD, error.to_string()),
                    None => (Code::INTERNAL, "the agent's link is gone".to_owned()),
                };
                hub.with(|state| {
                    state.router.session_ended(to);
                    state.opens.refuse(code);
                });
                return refuse(&session, code, message);
            }
        }
    }
    hub.with(|state| state.opens.refuse(Code::OFFLINE));
    refuse(&session, Code::OFFLINE, "its agents come and go too quickly")
}

/// Waits for a session's end, within the answer timeout for its answer, and counts it.
async fn finish(hub: &Hub, asked: &Asked, to: LinkId, mut spliced: Spliced) {
    if let Some(limit) = hub.answer_timeout {
        tokio::select! {
            outcome = &mut spliced => return count(hub, asked, to, &outcome, false),
            () = tokio::time::sleep(limit) => {}
        }
        if !spliced.is_answered() {
            spliced.abort(Code::TIMEOUT, &format!("no answer from the agent within {limit:?}"));
        }
    }
    let answered = spliced.is_answered();
    let outcome = (&mut spliced).await;
    count(hub, asked, to, &outcome, answered || spliced.is_answered());
}

fn count(hub: &Hub, asked: &Asked, to: LinkId, outcome: &SpliceOutcome, answered: bool) {
    let end = &outcome.end;
    let fault = match end {
        SpliceEnd::Aborted(abort) => Some(abort),
        SpliceEnd::Clean => None,
    };
    asked.log_end((outcome.forth, outcome.back), fault);
    hub.counted.session_ended(end);
    hub.with(|state| {
        state.router.session_ended(to);
        state.opens.sessions_open -= 1;
        match end {
            SpliceEnd::Aborted(abort) if !answered => state.opens.refuse(abort.code),
            SpliceEnd::Aborted(_) | SpliceEnd::Clean => state.opens.accepted += 1,
        }
    });
    hub.quiet.notify_one();
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
