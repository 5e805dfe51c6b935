//! Several links to one peer, kept up.

mod links;
mod upkeep;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::{Code, Config, OpenError, Side};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::auth::{AuthError, Authenticate};
use crate::carrier::Dial;
use crate::error::OpenFailed;
use crate::mux::{Info, Mux, close_all};
use crate::observe::{Observation, Observer, Unobserved};
use crate::session::Session;
use links::Links;
pub(crate) use upkeep::bring_up;

/// Between two tries of an open that its link refused as safe to repeat.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the last goodbyes of a drained pool may take.
const GOODBYES: Duration = Duration::from_secs(1);

/// How a pool keeps its links.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// What each link is set up with; its side does not matter here. Liveness and limits are per link.
    pub link: Config,
    /// Links kept up although nothing is open. Default 1. 0 dials at the first open.
    pub min_links: usize,
    /// The most links, draining ones not counted. Default 4: each is one connection, with one congestion window and
    /// one order of bytes.
    pub max_links: usize,
    /// A further link is dialled when the others have this many sessions each. Default 64.
    pub sessions_per_link: usize,
    /// A link beyond what the sessions need closes after so long. Default 30 s.
    pub surplus_after: Duration,
    /// How long one dial may take, authentication and hello included. Default 10 s.
    pub dial_timeout: Duration,
    /// Opens that may wait for a link at once. Default 4,096; one more fails with [`OpenFailed::TooManyWaiting`].
    pub max_waiting: usize,
}

impl PoolConfig {
    /// The defaults, for links set up like this.
    #[must_use]
    pub fn new(link: Config) -> Self {
        Self {
            link,
            min_links: 1,
            max_links: 4,
            sessions_per_link: 64,
            surplus_after: Duration::from_secs(30),
            dial_timeout: Duration::from_secs(10),
            max_waiting: 4_096,
        }
    }
}

/// Why a raw connection did not become a link.
#[derive(Debug, thiserror::Error)]
pub enum DialFailed {
    /// There was no connection.
    #[error("no connection: {0}")]
    Connect(#[source] std::io::Error),
    /// The peer is not who it should be.
    #[error("authentication: {0}")]
    Auth(#[from] AuthError),
    /// The link ended before it was up.
    #[error("hello: {0}")]
    Hello(#[from] crate::LinkFailed),
    /// It took too long.
    #[error("not up within {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The link's config can't work.
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The peer may not connect, or has as many links as it may.
    #[error("{peer:?} is not admitted: {why}")]
    NotAdmitted {
        /// The peer's authenticated name.
        peer: String,
        /// Why.
        why: &'static str,
    },
}

/// Several links to one peer: dialled, watched, dialled again, grown under load, replaced when the peer drains.
///
/// - The least busy link that was heard lately takes the next session. A link that is silent, or whose peer drains,
///   takes none, and another is dialled beside it at once: open sessions stay where they are.
/// - A lost link is dialled again with a fresh connection at least every second for a minute, then every 5 s, with
///   jitter; a dial that hangs does not hold up the next. One that is accepted and lost within 10 s, twice in a
///   row, is tried ever more seldom, up to every 30 s.
/// - Sessions that the peer opens over these links are refused: for peers that open to each other, use a
///   [`Node`](crate::Node).
///
/// Clones are handles to the same pool. When the last is gone nothing is dialled any more, and each link ends with
/// its last session.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
    /// Ends the upkeep with the last handle.
    _upkeep: Arc<Upkeep>,
}

#[derive(Debug)]
struct Upkeep(AbortHandle);

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What the handles and the upkeep share.
pub(crate) struct Inner {
    pub(crate) peer: String,
    pub(crate) config: PoolConfig,
    links: Links,
    pub(crate) auth: Arc<dyn Authenticate>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) leaving: watch::Sender<Option<Duration>>,
    /// Takes what the peer opens; without one it is refused.
    pub(crate) sessions: Option<mpsc::Sender<(String, Session)>>,
    dial: Mutex<Option<Arc<dyn Dial>>>,
}

impl Inner {
    fn dialler(&self) -> Option<Arc<dyn Dial>> {
        self.dial.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("peer", &self.peer).field("links", &self.links).finish_non_exhaustive()
    }
}

/// A pool to be.
#[derive(Debug)]
pub struct PoolBuilder {
    peer: String,
    config: PoolConfig,
    auth: Arc<dyn Authenticate>,
    observer: Arc<dyn Observer>,
    sessions: Option<mpsc::Sender<(String, Session)>>,
}

impl PoolBuilder {
    /// Tells this observer what happens.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    pub(crate) fn shared_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    pub(crate) fn serve(mut self, sessions: mpsc::Sender<(String, Session)>) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// Begins to dial, on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn spawn(self, dial: impl Dial) -> Pool {
        self.start(Some(Arc::new(dial)))
    }

    pub(crate) fn start(self, dial: Option<Arc<dyn Dial>>) -> Pool {
        let inner = Arc::new(Inner {
            peer: self.peer,
            links: Links::new(self.config.max_waiting),
            config: PoolConfig { link: Config { side: Side::Dialer, ..self.config.link }, ..self.config },
            auth: self.auth,
            observer: self.observer,
            leaving: watch::Sender::new(None),
            sessions: self.sessions,
            dial: Mutex::new(dial),
        });
        let upkeep = tokio::spawn(upkeep::run(Arc::clone(&inner)));
        Pool { inner, _upkeep: Arc::new(Upkeep(upkeep.abort_handle())) }
    }
}

impl Pool {
    /// A pool of links to `peer`, whom `auth` must prove to be at the other end of each.
    #[must_use]
    pub fn builder(peer: impl Into<String>, auth: Arc<dyn Authenticate>, config: PoolConfig) -> PoolBuilder {
        PoolBuilder { peer: peer.into(), config, auth, observer: Arc::new(Unobserved), sessions: None }
    }

    /// The peer's name.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.inner.peer
    }

    /// Opens a session on the least busy link and waits for its answer, all within `within`: an open made while no
    /// link is up waits for one. It goes out again after a refusal with `draining` alone, which says that nobody
    /// has seen it.
    ///
    /// Cancel safe: dropped, what had gone out is aborted with `peer_reset`.
    ///
    /// # Errors
    /// See [`OpenFailed`]; `NoLink` says what the last dial met.
    pub async fn open(&self, header: impl Into<Bytes>, within: Duration) -> Result<Session, OpenFailed> {
        let header = header.into();
        let began = Instant::now();
        let result = self.try_open(&header, began + within, within).await;
        self.inner.observer.observe(&Observation::Opened {
            peer: &self.inner.peer,
            result: result.as_ref().map(|_| ()),
            took: began.elapsed(),
        });
        result
    }

    async fn try_open(
        &self,
        header: &Bytes,
        deadline: Instant,
        within: Duration,
    ) -> Result<Session, OpenFailed> {
        loop {
            let mux = self.pick(deadline, within).await?;
            let session = match mux.open(header.clone()) {
                Ok(session) => session,
                // It has just changed; the next look at the links knows.
                Err(OpenError::Down(_) | OpenError::NotUp | OpenError::Draining | OpenError::Exhausted) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error @ (OpenError::TooManySessions(_) | OpenError::Header { .. })) => {
                    return Err(error.into());
                }
            };
            match timeout_at(deadline, session.answered()).await {
                Ok(Ok(_)) => return Ok(session),
                Ok(Err(abort)) if abort.code == Code::DRAINING => tokio::time::sleep(PAUSE).await,
                Ok(Err(abort)) => return Err(OpenFailed::Refused(abort)),
                Err(_) => {
                    let late = OpenFailed::TimedOut { within };
                    session.abort(Code::TIMEOUT, late.to_string());
                    return Err(late);
                }
            }
        }
    }

    /// The least busy link that takes sessions, as soon as there is one: to open without waiting for the answer, or
    /// to forward to. Cancel safe.
    ///
    /// # Errors
    /// `NoLink` after `within`, `TooManyWaiting`, or `Leaving`.
    pub async fn link(&self, within: Duration) -> Result<Mux, OpenFailed> {
        self.pick(Instant::now() + within, within).await
    }

    async fn pick(&self, deadline: Instant, within: Duration) -> Result<Mux, OpenFailed> {
        let inner = &self.inner;
        let (mux, sessions) = inner.links.wait(deadline, within, inner.leaving.subscribe()).await?;
        if sessions + 1 >= inner.config.sessions_per_link {
            // Also the least busy link is full: the upkeep looks whether there should be one more.
            inner.links.touch();
        }
        Ok(mux)
    }

    /// The figures of every link that there is, draining ones included.
    #[must_use]
    pub fn links(&self) -> Vec<Info> {
        self.inner.links.all().iter().map(Mux::info).collect()
    }

    /// What the last dial that failed met; `None` since the last link came up.
    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.inner.links.fault()
    }

    /// Dials and opens nothing any more, drains every link, and waits until all are over: at most `deadline`, when
    /// what is open is cut with `drain_deadline`, and a second for the goodbyes. Cancel safe: the drain goes on.
    pub async fn drain(&self, deadline: Duration) {
        self.inner.leaving.send_if_modified(|leaving| leaving.replace(deadline).is_none());
        let links = self.inner.links.all();
        for mux in &links {
            mux.drain(deadline);
        }
        let drained = async {
            for mux in &links {
                let mut status = mux.watch();
                drop(status.wait_for(|status| status.drained || status.down.is_some()).await);
            }
        };
        drop(tokio::time::timeout(deadline + GOODBYES, drained).await);
        close_all(&links, Code::SHUTDOWN, "drained", GOODBYES).await;
    }

    /// A link that came from elsewhere joins the pool.
    pub(crate) fn adopt(&self, mux: Mux, dialled: bool) -> bool {
        if self.is_leaving() {
            return false;
        }
        self.inner.links.add(mux, dialled);
        true
    }

    /// From now on this side dials the peer; the dialler that there was is replaced.
    pub(crate) fn dial_with(&self, dial: Arc<dyn Dial>) {
        *self.inner.dial.lock().unwrap_or_else(PoisonError::into_inner) = Some(dial);
        self.inner.links.touch();
    }

    /// Nobody dials it, and no link is up.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.inner.dialler().is_none() && self.inner.links.all().is_empty()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.inner.leaving.borrow().is_some()
    }
}
