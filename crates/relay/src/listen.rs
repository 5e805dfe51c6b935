//! From a connection to a link: accept, prove who it is, or let it join.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_identity::{ALPN_JOIN, ALPN_LINK, AuthError, MachineIdentity, serve_join};
use hopline_link::{Abort, Code, Config, Mux, Side, reset_if_dead, tune_tcp};
use hopline_names::MachineName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::handshakes::{Admitted, Place, Stage};
use crate::hub::Hub;
use crate::links::{self, NewLink};
use crate::sockets::{Sockets, may_come};

/// How long a TLS handshake may take.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two tries to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// After an accept that failed for want of descriptors or memory: the loop must not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two lines of log about failing accepts, or about places that were taken away.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// Listens, now or as soon as that is possible.
///
/// # Errors
/// What trying again would not mend.
pub(crate) async fn bind(hub: &Hub, address: &str) -> std::io::Result<Option<Sockets>> {
    match Sockets::bind(address).await.and_then(|sockets| Ok((sockets.local_addrs()?, sockets))) {
        Ok((addresses, sockets)) => {
            let text = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let state = hub.identity.folder().display();
            tracing::info!(listen = %text, name = %hub.name, %state, "relay listens");
            hub.set_listens(Ok(addresses));
            Ok(Some(sockets))
        }
        Err(error) if may_come(&error) => {
            // One line, not one for each try.
            let trouble = format!("can't listen on {address}: {error}; tried again each second");
            if hub.set_listens(Err(trouble.clone())) {
                tracing::warn!("{trouble}");
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Accepts connections until `closing` turns true; the links live on until the task is ended.
pub(crate) async fn run(
    hub: Arc<Hub>,
    address: String,
    sockets: Option<Sockets>,
    mut closing: watch::Receiver<bool>,
) {
    let mut sockets = tokio::select! {
        sockets = bound(&hub, &address, sockets) => sockets,
        _ = closing.wait_for(|closing| *closing) => return,
    };
    let mut tasks = JoinSet::new();
    let (mut complained, mut told) = (None, None);
    loop {
        let accepted = tokio::select! {
            accepted = sockets.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let admitted = hub.handshakes.admit(address.ip());
                if let Some(loser) = admitted.loser
                    && is_due(&mut told)
                {
                    tracing::warn!(address = %loser, "too many connections that are no links yet: the oldest ones of this address are closed");
                }
                tasks.spawn(connection(Arc::clone(&hub), stream, address, admitted));
            }
            Err(error) => {
                hub.handshakes.make_room();
                if is_due(&mut complained) {
                    tracing::warn!(%error, "can't accept connections now");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    // The address is free for the next process at once.
    drop(sockets);
    while tasks.join_next().await.is_some() {}
}

/// The sockets, as soon as they can be had.
async fn bound(hub: &Hub, address: &str, sockets: Option<Sockets>) -> Sockets {
    let mut sockets = sockets;
    loop {
        if let Some(sockets) = sockets {
            return sockets;
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
        sockets = bind(hub, address).await.unwrap_or_else(|error| {
            hub.set_listens(Err(format!("can't listen on {address}: {error}; tried again each second")));
            None
        });
    }
}

/// Whether a line is due; notes that it is written.
fn is_due(last: &mut Option<Instant>) -> bool {
    let due = last.is_none_or(|at| at.elapsed() >= LOG_EVERY);
    if due {
        *last = Some(Instant::now());
    }
    due
}

async fn connection(hub: Arc<Hub>, stream: TcpStream, address: SocketAddr, admitted: Admitted) {
    let Admitted { place, evicted, .. } = admitted;
    let link = tokio::select! {
        link = establish(&hub, stream, address, &place) => link,
        _ = evicted => return tracing::debug!(%address, "closed to make room for others"),
    };
    // A link is no handshake any more.
    drop(place);
    if let Some(link) = link {
        links::serve(&hub, link).await;
    }
}

/// What the client asked for in its handshake decides what it gets. A link is up when this gives it.
async fn establish(hub: &Hub, stream: TcpStream, address: SocketAddr, place: &Place) -> Option<NewLink> {
    let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake(hub, stream, place)).await;
    let tls = match shaken {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, "TLS handshake took too long");
            return None;
        }
    };
    match tls.get_ref().1.alpn_protocol() {
        Some(ALPN_JOIN) => {
            place.reach(Stage::Joining);
            match serve_join(tls, &hub.identity).await {
                Ok(joined) => {
                    tracing::info!(machine = %joined.name, token = joined.token, %address, "machine joined");
                }
                Err(error) => tracing::warn!(%address, %error, "join refused"),
            }
            None
        }
        Some(ALPN_LINK) => link(hub, tls, address).await,
        _ => {
            tracing::debug!(%address, "a client of another protocol");
            None
        }
    }
}

async fn handshake(hub: &Hub, stream: TcpStream, place: &Place) -> std::io::Result<TlsStream<TcpStream>> {
    tune_tcp(&stream)?;
    stream.readable().await?;
    place.reach(Stage::Shaking);
    TlsAcceptor::from(hub.identity.server_config()).accept(stream).await
}

/// A link up to its hello. A machine that may not link is told why: else it would see a connection that ends.
async fn link(hub: &Hub, tls: TlsStream<TcpStream>, address: SocketAddr) -> Option<NewLink> {
    let admitted = match authenticate(hub, &tls).await {
        Ok(admitted) => Ok(admitted),
        Err(refused) => {
            let machine = refused.machine.as_ref().map_or("?", MachineName::as_str);
            // A machine that was removed tries again and again.
            if refused.machine.as_ref().is_none_or(|machine| hub.is_news(machine.as_str(), &refused.log)) {
                tracing::warn!(machine, %address, error = refused.log, "link refused");
            }
            Err(refused.tell?)
        }
    };
    let settings = hub.settings();
    let config = Config {
        liveness: settings.liveness,
        limits: settings.limits,
        ..Config::new(Side::Listener, hub.instance, hub.name.as_str())
    };
    let (mux, driver) = match Mux::new(tls, config) {
        Ok(link) => link,
        Err(error) => {
            tracing::error!(%error, "the relay's link settings can't work");
            return None;
        }
    };
    tokio::spawn(driver.when_over(|end, tls| reset_if_dead(end, tls.get_ref().0)));
    if let Err(error) = mux.up().await {
        tracing::debug!(%address, %error, "no link came of this connection");
        return None;
    }
    match admitted {
        Ok(identity) => Some(NewLink { mux, identity, address }),
        Err(abort) => {
            mux.close(abort.code, abort.message);
            // Its goodbye takes a moment.
            let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, mux.closed()).await;
            None
        }
    }
}

/// Why a machine gets no link.
struct Refused {
    /// Its name, if its certificate has one.
    machine: Option<MachineName>,
    /// For our log.
    log: String,
    /// For the machine; nothing for a stranger.
    tell: Option<Abort>,
}

impl Refused {
    fn new(error: &AuthError) -> Self {
        let unknown = |name: &MachineName| {
            let text = format!(
                "this relay does not know machine {name} by this certificate: it was removed, or has joined anew; join again with a new token"
            );
            Some(Abort::new(Code::UNAUTHORIZED, text))
        };
        let (machine, tell) = match error {
            AuthError::NoCertificate | AuthError::NotAMachine => (None, None),
            AuthError::UnknownMachine { name } | AuthError::OtherKey { name } => {
                (Some(name.clone()), unknown(name))
            }
            AuthError::State(_) => return Self::unreadable(error.to_string()),
        };
        Self { machine, log: error.to_string(), tell }
    }

    /// The machine's record could not be read: ours to mend.
    fn unreadable(log: String) -> Self {
        let text = "the relay can't read this machine's record; the relay's log says why";
        Self { machine: None, log, tell: Some(Abort::new(Code::INTERNAL, text)) }
    }
}

async fn authenticate(hub: &Hub, tls: &TlsStream<TcpStream>) -> Result<MachineIdentity, Refused> {
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Vec<_> = chain.iter().map(|c| c.clone().into_owned()).collect();
    let identity = hub.identity.clone();
    // The machine's record is a file.
    let found = tokio::task::spawn_blocking(move || identity.authenticate(&chain)).await;
    found.map_err(|error| Refused::unreadable(error.to_string()))?.map_err(|error| Refused::new(&error))
}
