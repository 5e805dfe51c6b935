//! A link as its owner sees it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::{Code, Config, ConfigError, Counters, Link, LinkEnd, Liveness, OpenError, Peer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::driver::Driver;
use crate::error::OpenFailed;
use crate::session::Session;
use crate::shared::{Guard, Shared, now};

/// What has happened to a link so far.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The peer's hello, once it came.
    pub up: Option<Peer>,
    /// How the link ended, once it did.
    pub down: Option<LinkEnd>,
    /// A ping has waited 2 s for its answer.
    pub suspect: bool,
    /// The peer drains: what is open is cut in so many milliseconds, counted from when it said so.
    pub peer_drains_ms: Option<u64>,
    /// This side drains.
    pub draining: bool,
    /// Our own drain is over.
    pub drained: bool,
    /// The driver has finished and dropped its carrier.
    pub carrier_closed: bool,
}

/// A look at a link's figures.
#[derive(Clone, Debug)]
pub struct Info {
    /// Smoothed round trip of our own pings.
    pub round_trip: Option<Duration>,
    /// Since the last byte from the peer.
    pub last_heard: Duration,
    /// Sessions open on the wire.
    pub sessions: u32,
    /// The liveness in force.
    pub liveness: Liveness,
    /// Bytes that unread data of sessions may come to hold, beyond what each has before its answer.
    pub window_bytes: u64,
    /// What `window_bytes` may be at most: [`Limits::budget`](crate::Limits::budget).
    pub window_budget: u64,
    /// Bytes and odd things counted.
    pub counters: Counters,
}

/// One link: opens sessions to the peer, accepts the peer's, says goodbye. Clones are handles to the same link;
/// when the last one is gone, and the last of its sessions and splices, the link says goodbye by itself, once what
/// clean sessions left to it is delivered, or after 10 s.
#[derive(Clone, Debug)]
pub struct Mux {
    shared: Arc<Shared>,
    guard: Arc<Guard>,
}

impl Mux {
    /// A link over `carrier`, and the future that drives it: spawn it, or poll it among others.
    ///
    /// # Errors
    /// A config that can't work.
    pub fn new<C>(carrier: C, config: Config) -> Result<(Self, Driver<C>), ConfigError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let shared = Shared::new(Link::tagged(config, now())?);
        let driver = Driver::new(carrier, Arc::clone(&shared));
        let guard = Arc::new(Guard(Arc::clone(&shared)));
        Ok((Self { shared, guard }, driver))
    }

    /// Like [`Mux::new`], with the driver spawned on the current tokio runtime. It ends with the link.
    ///
    /// # Errors
    /// A config that can't work.
    pub fn spawn<C>(carrier: C, config: Config) -> Result<Self, ConfigError>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mux, driver) = Self::new(carrier, config)?;
        tokio::spawn(driver);
        Ok(mux)
    }

    /// Waits for the peer's hello.
    ///
    /// # Errors
    /// How the link ended instead.
    pub async fn up(&self) -> Result<Peer, LinkFailed> {
        let mut status = self.watch();
        let reached = status.wait_for(|status| status.up.is_some() || status.down.is_some()).await;
        match reached.map(|status| (status.up.clone(), status.down.clone())) {
            Ok((_, Some(end))) => Err(LinkFailed(end)),
            Ok((Some(peer), None)) => Ok(peer),
            // The sender lives in `self`.
            Ok((None, None)) | Err(_) => Err(LinkFailed(LinkEnd::NoHello)),
        }
    }

    /// Waits until the link is over, and says how.
    pub async fn closed(&self) -> LinkEnd {
        let mut status = self.watch();
        match status.wait_for(|status| status.down.is_some()).await.map(|status| status.down.clone()) {
            Ok(Some(end)) => end,
            Ok(None) | Err(_) => LinkEnd::NoHello,
        }
    }

    /// Waits until the driver has finished: the goodbye has left, or has had its time, and the carrier is closed.
    pub async fn driver_done(&self) {
        let mut status = self.watch();
        // The sender lives in `self`.
        drop(status.wait_for(|status| status.carrier_closed).await);
    }

    /// The link's status, and its changes from here on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Opens a session. It can be written to at once; [`Session::answered`] says whether the far side took it.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing has gone out then.
    pub fn open(&self, header: impl Into<Bytes>) -> Result<Session, OpenError> {
        let header = header.into();
        let id = self.shared.with_bytes(|state| state.link.open(header))?;
        Ok(Session::new(Arc::clone(&self.guard), id, Bytes::new()))
    }

    /// Opens a session and waits for its answer, the peer's hello included, for at most `within`, however many hops
    /// are on the way. [`Session::answered`] then gives the answer's header at once. To send bytes before the answer,
    /// use [`Mux::open`].
    ///
    /// Cancel safe: dropped before it resolves, what had gone out is aborted with `peer_reset`.
    ///
    /// # Errors
    /// See [`OpenFailed`]. After `TimedOut` the far side reads an abort with `timeout`.
    pub async fn open_within(
        &self,
        header: impl Into<Bytes>,
        within: Duration,
    ) -> Result<Session, OpenFailed> {
        let opened = async {
            self.up().await.map_err(|failed| OpenError::Down(failed.0.abort()))?;
            Ok::<_, OpenFailed>(self.open(header)?)
        };
        let deadline = tokio::time::Instant::now() + within;
        let late = OpenFailed::TimedOut { within };
        let session = tokio::time::timeout_at(deadline, opened).await.map_err(|_| late.clone())??;
        match tokio::time::timeout_at(deadline, session.answered()).await {
            Ok(Ok(_)) => Ok(session),
            Ok(Err(abort)) => Err(OpenFailed::Refused(abort)),
            Err(_) => {
                session.abort(Code::TIMEOUT, late.to_string());
                Err(late)
            }
        }
    }

    /// The next session that the peer opens, oldest first; `None` once the link is over. Whoever takes it answers
    /// or aborts it; dropping it refuses it. Cancel safe.
    pub async fn accept(&self) -> Option<Session> {
        let (id, header) = poll_fn(|cx| {
            self.shared.peek(|state| {
                if let Some((id, header)) = state.opened.pop_front() {
                    return Poll::Ready(Some((id, header)));
                }
                if state.link.end_of_link().is_some() {
                    return Poll::Ready(None);
                }
                if !state.acceptors.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.acceptors.push(cx.waker().clone());
                }
                Poll::Pending
            })
        })
        .await?;
        Some(Session::new(Arc::clone(&self.guard), id, header))
    }

    /// Says goodbye: every session ends with this reason at both ends.
    pub fn close(&self, code: Code, message: impl Into<String>) {
        self.shared.with(|state| state.link.close(code, message));
    }

    /// Begins a drain: no new sessions, and what is open after `deadline` is cut with `drain_deadline`.
    /// [`Status::drained`] turns true when no session is left.
    pub fn drain(&self, deadline: Duration) {
        self.shared.with(|state| state.link.drain(now(), deadline));
        self.shared.status.send_modify(|status| status.draining = true);
    }

    /// The link's figures now.
    #[must_use]
    pub fn info(&self) -> Info {
        self.shared.peek(|state| Info {
            round_trip: state.link.round_trip(),
            last_heard: now().saturating_duration_since(state.link.last_heard()),
            sessions: state.link.open_sessions(),
            liveness: state.link.liveness(),
            window_bytes: state.link.budget_used(),
            window_budget: state.link.budget(),
            counters: state.link.counters(),
        })
    }

    /// Whether both are handles to one link.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// Says goodbye on all these links at once and waits, for at most `within`, until each has taken it: see
/// [`Mux::close`]. False if the time was not enough.
pub async fn close_all(links: &[Mux], code: Code, message: &str, within: Duration) -> bool {
    for mux in links {
        mux.close(code, message);
    }
    let all = async {
        for mux in links {
            mux.driver_done().await;
        }
    };
    tokio::time::timeout(within, all).await.is_ok()
}

/// A link that ended before it was up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkFailed(pub LinkEnd);
