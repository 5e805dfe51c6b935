//! The one task of a pool: dials what is missing, looks after what is up, lets go of what is too many.

use std::sync::Arc;
use std::time::Duration;

use hopline_link_proto::{Code, LinkEnd};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::links::Entry;
use super::{DialFailed, Inner, PoolConfig};
use crate::auth::{Authenticate, Authenticated, Role};
use crate::backoff::Backoff;
use crate::carrier::{BoxCarrier, Dial};
use crate::mux::Mux;
use crate::observe::Observation;

/// How long a surplus link may take for sessions that the peer has opened in the same moment.
const SURPLUS_DRAIN: Duration = Duration::from_secs(10);

/// How many links there should be that take sessions.
fn wanted(config: &PoolConfig, sessions: usize, somebody_waits: bool) -> usize {
    let most = config.max_links.max(1);
    // One more than is full, so that the next session finds room.
    let for_load = if sessions == 0 { 0 } else { sessions / config.sessions_per_link.max(1) + 1 };
    for_load.max(usize::from(somebody_waits)).max(config.min_links).min(most)
}

struct Upkeep {
    inner: Arc<Inner>,
    dials: JoinSet<Result<Mux, DialFailed>>,
    tended: JoinSet<(Entry, LinkEnd)>,
    backoff: Backoff,
    next_dial: Instant,
    /// Since when there have been more links than the sessions need.
    surplus_since: Option<Instant>,
}

pub(super) async fn run(inner: Arc<Inner>) {
    let now = Instant::now();
    let mut changed = inner.links.changed();
    let mut leaving = inner.leaving.subscribe();
    let mut upkeep = Upkeep {
        inner,
        dials: JoinSet::new(),
        tended: JoinSet::new(),
        backoff: Backoff::new(now),
        next_dial: now,
        surplus_since: None,
    };
    loop {
        changed.mark_unchanged();
        let wake = upkeep.look();
        tokio::select! {
            _ = changed.changed() => {}
            // Nothing is dialled from now on; links are looked after to their end.
            _ = leaving.changed() => {}
            Some(done) = upkeep.dials.join_next() => upkeep.dialled(done.ok()),
            Some(done) = upkeep.tended.join_next() => upkeep.ended(done.ok()),
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

impl Upkeep {
    /// Does what is due; gives when to look again if nothing happens.
    fn look(&mut self) -> Option<Instant> {
        for entry in self.inner.links.take_untended() {
            self.tended.spawn(tend(Arc::clone(&self.inner), entry));
        }
        let now = Instant::now();
        let config = &self.inner.config;
        let usable = self.inner.links.usable();
        let sessions = usable.iter().map(|(_, sessions)| sessions).sum();
        let wanted = wanted(config, sessions, self.inner.links.is_wanted());
        let Some(dial) = self.inner.dialler().filter(|_| self.inner.leaving.borrow().is_none()) else {
            self.dials = JoinSet::new();
            return None;
        };
        if usable.len() < wanted {
            self.surplus_since = None;
            if now >= self.next_dial {
                // A dial that hangs does not count: the path may be back while it waits for its retransmission.
                for _ in usable.len()..wanted {
                    self.dials.spawn(dial_once(Arc::clone(&self.inner), Arc::clone(&dial)));
                }
                self.next_dial = now + self.backoff.pause(now, rand::random());
            }
            return Some(self.next_dial);
        }
        self.dials = JoinSet::new();
        let idle = usable.iter().rev().find(|(_, sessions)| *sessions == 0);
        let (Some((mux, _)), true) = (idle, usable.len() > wanted) else {
            self.surplus_since = None;
            // Sessions that end tell nobody here.
            return (usable.len() > config.min_links).then(|| now + config.surplus_after);
        };
        let until = *self.surplus_since.get_or_insert(now) + config.surplus_after;
        if now < until {
            return Some(until);
        }
        self.surplus_since = None;
        mux.drain(SURPLUS_DRAIN);
        // There may be one more.
        Some(now + config.surplus_after)
    }

    fn dialled(&mut self, done: Option<Result<Mux, DialFailed>>) {
        let peer = &self.inner.peer;
        match done {
            // Several may come up in one moment after an outage.
            Some(Ok(mux)) if self.inner.links.usable().len() >= self.inner.config.max_links.max(1) => {
                mux.close(Code::SHUTDOWN, "one link too many");
            }
            Some(Ok(mux)) => self.inner.links.add(mux, true),
            Some(Err(error)) => {
                self.inner.observer.observe(&Observation::DialFailed { peer, error: &error });
                self.inner.links.failed(error.to_string());
            }
            // A dialler that panicked: its message is on stderr.
            None => self.inner.links.failed("the dialler panicked".to_owned()),
        }
    }

    fn ended(&mut self, done: Option<(Entry, LinkEnd)>) {
        let Some((entry, end)) = done else { return };
        let now = Instant::now();
        self.inner.links.remove(&entry.mux);
        self.inner.observer.observe(&Observation::LinkDown {
            peer: &self.inner.peer,
            end: &end,
            after: now.saturating_duration_since(entry.since),
        });
        if entry.dialled && !matches!(end, LinkEnd::Closed(_)) {
            self.inner.links.failed(end.to_string());
            self.backoff.lost(entry.since, now);
            // The first dial after a loss waits its turn too: a thousand peers have lost the same one.
            self.next_dial = now + self.backoff.pause(now, rand::random());
        }
    }
}

/// Looks after one link: what the peer opens, what it says of itself, its end.
async fn tend(inner: Arc<Inner>, entry: Entry) -> (Entry, LinkEnd) {
    let mux = &entry.mux;
    let mut status = mux.watch();
    let (mut suspect, mut drains) = (false, false);
    if let Some(hello) = status.borrow_and_update().up.clone() {
        let dialled = entry.dialled;
        inner.observer.observe(&Observation::LinkUp { peer: &inner.peer, hello: &hello, dialled });
    }
    // A session that nobody takes yet holds up the next ones of this link alone. One future for the link's whole
    // life: dropped in between, it would drop the session that it has in hand.
    let mut take = std::pin::pin!(async {
        while let Some(session) = mux.accept().await {
            serve(&inner, session).await;
        }
        std::future::pending::<()>().await;
    });
    loop {
        let now = status.borrow_and_update().clone();
        if now.down.is_some() {
            break;
        }
        if now.suspect && !suspect {
            inner.observer.observe(&Observation::LinkSuspect { peer: &inner.peer });
        }
        if now.peer_drains_ms.is_some() && !drains {
            inner.observer.observe(&Observation::PeerDrains { peer: &inner.peer });
        }
        if now.drained {
            mux.close(Code::SHUTDOWN, "drained");
            continue;
        }
        (suspect, drains) = (now.suspect, now.peer_drains_ms.is_some());
        inner.links.touch();
        tokio::select! {
            _ = status.changed() => {}
            () = &mut take => {}
        }
    }
    let end = mux.closed().await;
    (entry.clone(), end)
}

async fn serve(inner: &Inner, session: crate::Session) {
    let Some(sessions) = &inner.sessions else {
        return session.abort(Code::REFUSED, "this side only opens sessions");
    };
    if inner.leaving.borrow().is_some() {
        return session.abort(Code::DRAINING, "this side is on its way out");
    }
    let Ok(place) = sessions.reserve().await else {
        return session.abort(Code::SHUTDOWN, "this side takes no sessions any more");
    };
    inner.observer.observe(&Observation::Accepted { peer: &inner.peer });
    place.send((inner.peer.clone(), session));
}

async fn dial_once(inner: Arc<Inner>, dial: Arc<dyn Dial>) -> Result<Mux, DialFailed> {
    let config = &inner.config;
    let up = async {
        let raw = dial.dial().await.map_err(DialFailed::Connect)?;
        let role = Role::Dialer { expects: Some(&inner.peer) };
        let (mux, _) = bring_up(raw, &*inner.auth, role, config.link.clone()).await?;
        Ok(mux)
    };
    timeout(config.dial_timeout, up).await.unwrap_or(Err(DialFailed::TimedOut(config.dial_timeout)))
}

/// A raw connection becomes a link that is up, and whose peer is known.
pub(crate) async fn bring_up(
    raw: BoxCarrier,
    auth: &dyn Authenticate,
    role: Role<'_>,
    config: crate::Config,
) -> Result<(Mux, String), DialFailed> {
    let Authenticated { carrier, peer } = auth.authenticate(raw, role).await?;
    let mux = Mux::spawn(carrier, config)?;
    mux.up().await?;
    Ok((mux, peer))
}
