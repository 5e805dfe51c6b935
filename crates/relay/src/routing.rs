//! What happens to an open: it is carried on, refused, or held.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use hopline_link::{Code, OpenError, Session, SpliceEnd, Spliced, splice};
use hopline_route_proto::RoutingHeader;
use tokio::sync::oneshot;

use crate::core::{HoldId, LinkId, Route};
use crate::hub::Hub;

/// How often an open may meet a link that has just ended before it is refused.
const ATTEMPTS: usize = 8;

/// Where an open stands after the router was asked.
enum Routed {
    Spliced(LinkId, Spliced),
    Refused,
    Held(Session, HoldId, oneshot::Receiver<()>),
}

/// Routes an open. The rest of its life, if it has one, is the future: it is to be spawned.
pub(crate) fn route(
    hub: &Arc<Hub>,
    from: LinkId,
    session: Session,
    header: RoutingHeader,
) -> Option<impl Future<Output = ()> + Send + use<>> {
    let routed = decide(hub, from, session, &header, None);
    if matches!(routed, Routed::Refused) {
        return None;
    }
    let hub = Arc::clone(hub);
    Some(async move {
        let mut routed = routed;
        loop {
            match routed {
                Routed::Refused => return,
                Routed::Spliced(to, spliced) => return finish(&hub, to, spliced).await,
                Routed::Held(session, id, wake) => {
                    tokio::select! {
                        _ = wake => routed = decide(&hub, from, session, &header, Some(id)),
                        _ = session.aborted() => {
                            return hub.with(|state| {
                                state.held.remove(&id);
                                state.router.hold_ended(id);
                            });
                        }
                    }
                }
            }
        }
    })
}

fn decide(
    hub: &Hub,
    from: LinkId,
    session: Session,
    header: &RoutingHeader,
    mut held: Option<HoldId>,
) -> Routed {
    for _ in 0..ATTEMPTS {
        let now = Instant::now();
        if hub.is_draining() {
            hub.with(|state| {
                state.opens.refuse(Code::DRAINING);
                if let Some(id) = held.take() {
                    state.router.hold_ended(id);
                }
            });
            session.abort(Code::DRAINING, "the relay is on its way out");
            return Routed::Refused;
        }
        let decided = hub.with(|state| {
            let route = match held.take() {
                Some(id) => state.router.route_held(id, header, now),
                None => state.router.route(from, header, now),
            };
            match route {
                Route::Forward { to, header } => {
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
            Err(Ok((code, message))) => {
                session.abort(code, message);
                return Routed::Refused;
            }
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
                session.abort(code, message);
                return Routed::Refused;
            }
        }
    }
    session.abort(Code::OFFLINE, "its agents come and go too quickly");
    hub.with(|state| state.opens.refuse(Code::OFFLINE));
    Routed::Refused
}

/// Waits for a session's end, within the answer timeout for its answer, and counts it.
async fn finish(hub: &Hub, to: LinkId, mut spliced: Spliced) {
    if let Some(limit) = hub.answer_timeout {
        tokio::select! {
            outcome = &mut spliced => return count(hub, to, &outcome.end, false),
            () = tokio::time::sleep(limit) => {}
        }
        if !spliced.is_answered() {
            spliced.abort(Code::TIMEOUT, &format!("no answer from the agent within {limit:?}"));
        }
    }
    let answered = spliced.is_answered();
    let outcome = (&mut spliced).await;
    count(hub, to, &outcome.end, answered || spliced.is_answered());
}

fn count(hub: &Hub, to: LinkId, end: &SpliceEnd, answered: bool) {
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
