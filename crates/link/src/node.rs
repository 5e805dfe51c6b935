//! A process among named peers: opens to a name, serves what the others open, leaves in order.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hopline_link_proto::{Code, Config, Side, SpliceEnd};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::auth::{Authenticate, Role};
use crate::carrier::{BoxCarrier, BoxFuture, Carrier, Dial, tune_tcp};
use crate::error::OpenFailed;
use crate::forward::forward;
use crate::observe::{Observation, Observer, Unobserved};
use crate::pool::{DialFailed, Pool, PoolConfig, bring_up};
use crate::session::Session;
use crate::splice::SpliceOutcome;

/// Sessions that have arrived and wait for [`Node::accept`], beyond those that wait in their links.
const ARRIVED: usize = 64;
/// Beyond the drain's deadline, which ends all sessions.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// After a failed accept, which is most often a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What an authenticated peer reads that the node does not want.
const NOT_ADMITTED: &str = "this peer may not connect";

/// What a node may be made to hold, and how it keeps its links.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// For each peer that this side dials; `link` is for accepted links, too. `dial_timeout` bounds what comes in as
    /// well as what goes out.
    pub pool: PoolConfig,
    /// Peers at once, dialled and accepted. Default 1,024. One more is not admitted.
    pub max_peers: usize,
    /// Links that one peer may bring. Default 8. One more is not admitted.
    pub max_links_per_peer: usize,
    /// Connections that may be authenticating at once. Default 256; the next wait in the listener's queue.
    pub max_handshakes: usize,
}

impl NodeConfig {
    /// The defaults, for links set up like this.
    #[must_use]
    pub fn new(link: Config) -> Self {
        Self { pool: PoolConfig::new(link), max_peers: 1_024, max_links_per_peer: 8, max_handshakes: 256 }
    }
}

/// Where connections come from.
pub trait Listen: Send + 'static {
    /// The next connection, fit for a link. Cancel safe.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<BoxCarrier>>;
}

impl Listen for TcpListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<BoxCarrier>> {
        Box::pin(async {
            let (stream, _) = Self::accept(self).await?;
            tune_tcp(&stream)?;
            Ok(Box::new(stream) as BoxCarrier)
        })
    }
}

impl Listen for UnixListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<BoxCarrier>> {
        Box::pin(async {
            let (stream, _) = Self::accept(self).await?;
            Ok(Box::new(stream) as BoxCarrier)
        })
    }
}

/// A session that a peer has opened.
#[derive(Debug)]
pub struct Arrived {
    /// The peer's authenticated name.
    pub peer: String,
    /// Answer it, abort it, or [`Node::forward`] it; dropping it refuses it.
    pub session: Session,
}

/// A process among named peers.
///
/// A peer is known by its authenticated name, whoever of the two dialled: a session to it takes the least busy of
/// all links to it. Peers that this side dials are kept linked as a [`Pool`] says. Clones are handles to the same
/// node; when the last is gone, nothing is dialled or accepted any more and links end with their last sessions.
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: NodeConfig,
    auth: Arc<dyn Authenticate>,
    observer: Arc<dyn Observer>,
    admit: Box<dyn Fn(&str) -> bool + Send + Sync>,
    peers: Mutex<BTreeMap<String, Pool>>,
    handshakes: Arc<Semaphore>,
    sender: mpsc::Sender<(String, Session)>,
    arrived: tokio::sync::Mutex<mpsc::Receiver<(String, Session)>>,
    leaving: watch::Sender<bool>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("peers", &self.lock().keys()).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Pool>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node to be.
#[must_use]
pub struct NodeBuilder {
    config: NodeConfig,
    auth: Arc<dyn Authenticate>,
    observer: Arc<dyn Observer>,
    admit: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl fmt::Debug for NodeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl NodeBuilder {
    /// Tells this observer what happens.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Says who may connect, by authenticated name. Without it, everyone who was authenticated.
    pub fn admit(mut self, admit: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.admit = Box::new(admit);
        self
    }

    /// The node, without peers.
    #[must_use]
    pub fn build(self) -> Node {
        let (sender, arrived) = mpsc::channel(ARRIVED);
        let permits = self.config.max_handshakes.clamp(1, Semaphore::MAX_PERMITS);
        Node {
            inner: Arc::new(Inner {
                handshakes: Arc::new(Semaphore::new(permits)),
                config: self.config,
                auth: self.auth,
                observer: self.observer,
                admit: self.admit,
                peers: Mutex::default(),
                sender,
                arrived: tokio::sync::Mutex::new(arrived),
                leaving: watch::Sender::new(false),
            }),
        }
    }
}

impl Node {
    /// A node whose peers `auth` knows.
    pub fn builder(auth: Arc<dyn Authenticate>, config: NodeConfig) -> NodeBuilder {
        NodeBuilder { config, auth, observer: Arc::new(Unobserved), admit: Box::new(|_| true) }
    }

    /// Keeps links to `peer` from now on, made by `dial`. Links that it brings itself count as well. A second call
    /// replaces the dialler.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(&self, peer: impl Into<String>, dial: impl Dial) {
        let peer = peer.into();
        self.peer(&peer, &mut self.inner.lock()).dial_with(Arc::new(dial));
    }

    /// The peer's pool, made if there is none.
    fn peer(&self, name: &str, peers: &mut BTreeMap<String, Pool>) -> Pool {
        let inner = &self.inner;
        let new = || {
            Pool::builder(name, Arc::clone(&inner.auth), inner.config.pool.clone())
                .shared_observer(Arc::clone(&inner.observer))
                .serve(inner.sender.clone())
                .start(None)
        };
        peers.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// Accepts connections from `listener` until the node drains. Drop the future to stop accepting earlier;
    /// connections that are still authenticating are dropped with it, links stay.
    pub async fn serve(&self, mut listener: impl Listen) {
        let mut leaving = self.inner.leaving.subscribe();
        let mut handshakes = JoinSet::new();
        loop {
            while handshakes.try_join_next().is_some() {}
            let accepted = async {
                // Not closed: it lives in `self`.
                let place = Arc::clone(&self.inner.handshakes).acquire_owned().await.ok();
                (place, listener.accept().await)
            };
            tokio::select! {
                biased;
                () = has_left(&mut leaving) => return,
                (place, raw) = accepted => match raw {
                    Ok(raw) => {
                        let node = self.clone();
                        handshakes.spawn(async move {
                            // Whoever counts was told.
                            let _ = node.take_raw(raw).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        let error = DialFailed::Connect(error);
                        self.inner.observer.observe(&Observation::AcceptFailed { error: &error });
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Takes one connection that came from anywhere: authenticates it, runs a link over it, and gives the peer's
    /// name. Not cancel safe: dropped, the connection is dropped too.
    ///
    /// # Errors
    /// See [`DialFailed`].
    pub async fn take(&self, raw: impl Carrier) -> Result<String, DialFailed> {
        self.take_raw(Box::new(raw)).await
    }

    async fn take_raw(&self, raw: BoxCarrier) -> Result<String, DialFailed> {
        let result = self.try_take(raw).await;
        if let Err(error) = &result {
            self.inner.observer.observe(&Observation::AcceptFailed { error });
        }
        result
    }

    async fn try_take(&self, raw: BoxCarrier) -> Result<String, DialFailed> {
        let pool = &self.inner.config.pool;
        let config = Config { side: Side::Listener, ..pool.link.clone() };
        let up = bring_up(raw, &*self.inner.auth, Role::Listener, config);
        let within = pool.dial_timeout;
        let (mux, peer) = timeout(within, up).await.unwrap_or(Err(DialFailed::TimedOut(within)))?;
        if let Err(why) = self.admit(&peer, &mux) {
            let code = if why == NOT_ADMITTED { Code::UNAUTHORIZED } else { Code::OVERLOAD };
            mux.close(code, why);
            return Err(DialFailed::NotAdmitted { peer, why });
        }
        Ok(peer)
    }

    fn admit(&self, peer: &str, mux: &crate::Mux) -> Result<(), &'static str> {
        if !(self.inner.admit)(peer) {
            return Err(NOT_ADMITTED);
        }
        let mut peers = self.inner.lock();
        if *self.inner.leaving.borrow() {
            return Err("this side is on its way out");
        }
        peers.retain(|name, pool| name == peer || !pool.holds_nothing());
        if !peers.contains_key(peer) && peers.len() >= self.inner.config.max_peers {
            return Err("there are as many peers as there may be");
        }
        let pool = self.peer(peer, &mut peers);
        if pool.links().len() >= self.inner.config.max_links_per_peer {
            return Err("it has as many links as it may have");
        }
        pool.adopt(mux.clone(), false);
        Ok(())
    }

    /// Opens a session to a peer and waits for its answer, as [`Pool::open`] does.
    ///
    /// Cancel safe: dropped, what had gone out is aborted with `peer_reset`.
    ///
    /// # Errors
    /// See [`OpenFailed`]; `NoPeer` at once for a name that is neither linked nor dialled.
    pub async fn open(
        &self,
        peer: &str,
        header: impl Into<Bytes>,
        within: Duration,
    ) -> Result<Session, OpenFailed> {
        self.known(peer)?.open(header, within).await
    }

    /// Carries `left`, which arrived here, on to a peer, and waits until it is over. Whatever prevents that refuses
    /// it. `answer_timeout` as for [`forward()`](crate::forward()); it bounds the wait for a link, too.
    ///
    /// Dropped before it resolves, sessions that were joined stay so; one that was not is refused.
    pub async fn forward(
        &self,
        left: Session,
        peer: &str,
        header: impl Into<Bytes>,
        answer_timeout: Option<Duration>,
    ) -> SpliceOutcome {
        let wait = answer_timeout.unwrap_or(self.inner.config.pool.dial_timeout);
        let right = async { Ok(self.known(peer)?.link(wait).await?.open(header)?) };
        let right: Result<Session, OpenFailed> = right.await;
        let outcome = match right {
            Ok(right) => forward(left, right, answer_timeout).await,
            Err(error) => {
                left.abort_with(error.abort());
                SpliceOutcome { end: SpliceEnd::Aborted(error.abort()), forth: 0, back: 0 }
            }
        };
        let abort = match &outcome.end {
            SpliceEnd::Clean => None,
            SpliceEnd::Aborted(abort) => Some(abort),
        };
        let (forth, back) = (outcome.forth, outcome.back);
        self.inner.observer.observe(&Observation::Forwarded { abort, forth, back });
        outcome
    }

    /// The next session that any peer has opened; `None` once the node has drained. Cancel safe. Several tasks may
    /// wait for one.
    pub async fn accept(&self) -> Option<Arrived> {
        let mut leaving = self.inner.leaving.subscribe();
        let next = async { self.inner.arrived.lock().await.recv().await };
        tokio::select! {
            biased;
            next = next => next.map(|(peer, session)| Arrived { peer, session }),
            () = has_left(&mut leaving) => None,
        }
    }

    /// The pool of links to a peer.
    ///
    /// # Errors
    /// `NoPeer`, or `Leaving`.
    pub fn pool(&self, peer: &str) -> Result<Pool, OpenFailed> {
        self.known(peer)
    }

    fn known(&self, peer: &str) -> Result<Pool, OpenFailed> {
        if *self.inner.leaving.borrow() {
            return Err(OpenFailed::Leaving);
        }
        let known = self.inner.lock().get(peer).filter(|pool| !pool.holds_nothing()).cloned();
        known.ok_or_else(|| OpenFailed::NoPeer(peer.to_owned()))
    }

    /// The names of peers that are linked or dialled.
    #[must_use]
    pub fn peers(&self) -> Vec<String> {
        let peers = self.inner.lock();
        peers.iter().filter(|(_, pool)| !pool.holds_nothing()).map(|(name, _)| name.clone()).collect()
    }

    /// Accepts, dials and opens nothing any more; lets open sessions run for at most `deadline`, when they are cut
    /// with `drain_deadline`; ends all links. [`Node::accept`] and [`Node::serve`] return; what had arrived and nobody
    /// took is refused with `draining`, safe to repeat elsewhere. Cancel safe: the drain goes on.
    pub async fn drain(&self, deadline: Duration) {
        self.inner.leaving.send_replace(true);
        let refusing = tokio::spawn(refuse_arrived(Arc::clone(&self.inner), deadline + REFUSED_FOR));
        let pools: Vec<Pool> = self.inner.lock().values().cloned().collect();
        let mut drains = JoinSet::new();
        for pool in pools {
            drains.spawn(async move { pool.drain(deadline).await });
        }
        while drains.join_next().await.is_some() {}
        refusing.abort();
    }
}

/// Refuses what had arrived when the drain began, and nobody took.
async fn refuse_arrived(inner: Arc<Inner>, within: Duration) {
    let refuse = async {
        let mut arrived = inner.arrived.lock().await;
        while let Some((_, session)) = arrived.recv().await {
            session.abort(Code::DRAINING, "this side is on its way out");
        }
    };
    drop(timeout(within, refuse).await);
}

/// Waits until the node is on its way out.
async fn has_left(leaving: &mut watch::Receiver<bool>) {
    // The sender lives in the node, and the node in whoever waits.
    drop(leaving.wait_for(|leaving| *leaving).await);
}
