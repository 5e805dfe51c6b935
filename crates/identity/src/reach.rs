//! From a token's address to the relay that it was made for: every address of the name, the next one beside the last
//! (RFC 8305). An address counts only when the relay behind it has proved that it is the pinned one, so neither a silent
//! host nor a stranger at one address is in the way of the others. The secret is not sent before.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificate::Fingerprint;
use crate::clock::date;
use crate::fault::connection_fault;
use crate::serve::JOIN_TIMEOUT;
use crate::tls::{
    NOT_PINNED, certificate_fault, is_expired, is_not_valid_yet, join_client_config, relay_server_name,
};

/// How long an attempt is alone before the next address is tried beside it.
const STAGGER: Duration = Duration::from_millis(250);
/// The most addresses of a name that are tried.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Why no address of a relay led to it. The secret was not sent.
#[derive(Debug, thiserror::Error)]
#[error("cannot join at {relay}: {why}")]
pub struct ReachError {
    /// The address in the token, `HOST:PORT`.
    pub relay: String,
    /// What happened.
    pub why: Why,
}

/// What happened on the way to a relay.
#[derive(Debug)]
pub enum Why {
    /// The name has no address that anybody knows.
    Name(String),
    /// Each address that was tried, in the order of failing.
    Attempts(Vec<Attempt>),
}

/// One address that was tried.
#[derive(Debug)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// How it failed.
    pub fault: AttemptFault,
}

/// How an attempt at one address failed.
#[derive(Debug, thiserror::Error)]
pub enum AttemptFault {
    /// No connection.
    #[error("{}", plain(.0))]
    Connect(io::Error),
    /// No answer when the time was up.
    #[error("no answer within {} s", JOIN_TIMEOUT.as_secs())]
    Silent,
    /// Whoever answers there is not a relay of the authority that the token pins.
    #[error("this is not the relay that the token was made for: its certificate authority is another one")]
    OtherRelay,
    /// The relay's certificate is not valid at this machine's time.
    #[error(
        "the relay's certificate is not valid by this machine's clock, which says {0}; set the clock, then try again"
    )]
    Clock(String),
    /// TLS failed in another way.
    #[error("TLS failed: {}", connection_fault(.0))]
    Tls(io::Error),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(fault) => f.write_str(fault),
            Self::Attempts(attempts) => {
                for (index, attempt) in attempts.iter().enumerate() {
                    let before = if index == 0 { "" } else { "; " };
                    write!(f, "{before}{}: {}", attempt.address, attempt.fault)?;
                }
                Ok(())
            }
        }
    }
}

/// A connection to the relay, whose authority has the token's fingerprint.
pub(crate) async fn reach(
    relay: &str,
    authority: Fingerprint,
    deadline: Instant,
) -> Result<TlsStream<TcpStream>, ReachError> {
    let error = |why| ReachError { relay: relay.to_owned(), why };
    let name_error = |fault: String| error(Why::Name(fault));
    let config =
        join_client_config(authority).map_err(|fault| name_error(format!("TLS can't be set up: {fault}")))?;
    let addresses = match tokio::time::timeout_at(deadline, resolve(relay)).await {
        Err(_) => {
            let seconds = JOIN_TIMEOUT.as_secs();
            return Err(name_error(format!("the name could not be resolved within {seconds} s")));
        }
        Ok(Err(fault)) => {
            return Err(name_error(format!("the name could not be resolved: {}", plain(&fault))));
        }
        Ok(Ok(addresses)) if addresses.is_empty() => {
            return Err(name_error("the name has no address".to_owned()));
        }
        Ok(Ok(addresses)) => addresses,
    };
    let config = Arc::new(config);
    race(&addresses, &config, deadline).await.map_err(|attempts| error(Why::Attempts(attempts)))
}

/// What the system says, without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((plain, _)) => plain.to_lowercase(),
        None => text,
    }
}

/// Every address of `HOST:PORT` once, families in turn. `localhost` is both loopbacks, whatever the hosts file says.
async fn resolve(relay: &str) -> io::Result<Vec<SocketAddr>> {
    if let Some((host, port)) = relay.rsplit_once(':')
        && host.eq_ignore_ascii_case("localhost")
        && let Ok(port) = port.parse()
    {
        let loopbacks = [IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];
        return Ok(loopbacks.map(|ip| SocketAddr::new(ip, port)).to_vec());
    }
    Ok(in_turn(tokio::net::lookup_host(relay).await?.collect()))
}

/// The resolver's order, with the families alternating from the first one's.
fn in_turn(resolved: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(leader) = resolved.first().map(SocketAddr::is_ipv4) else { return resolved };
    let (mut first, mut second): (Vec<_>, Vec<_>) =
        resolved.into_iter().rev().partition(|address| address.is_ipv4() == leader);
    let mut ordered: Vec<SocketAddr> = Vec::new();
    while !first.is_empty() || !second.is_empty() {
        for address in [first.pop(), second.pop()].into_iter().flatten() {
            if !ordered.contains(&address) {
                ordered.push(address);
            }
        }
    }
    ordered.truncate(MAX_ADDRESSES);
    ordered
}

/// The first address that the right relay answers at, or how each attempt failed.
async fn race(
    addresses: &[SocketAddr],
    config: &Arc<ClientConfig>,
    deadline: Instant,
) -> Result<TlsStream<TcpStream>, Vec<Attempt>> {
    let mut waiting = addresses.iter().copied();
    let mut running = FuturesUnordered::new();
    let mut open: Vec<SocketAddr> = Vec::new();
    let mut failed = Vec::new();
    let mut next_start = Instant::now();
    loop {
        let now = Instant::now();
        if now >= deadline {
            failed.extend(open.into_iter().map(|address| Attempt { address, fault: AttemptFault::Silent }));
            return Err(failed);
        }
        if now >= next_start {
            next_start = deadline;
            if let Some(address) = waiting.next() {
                next_start = now + STAGGER;
                open.push(address);
                running.push(async move { (address, attempt(address, config).await) });
            }
        }
        tokio::select! {
            ended = running.next() => match ended {
                Some((_, Ok(stream))) => return Ok(stream),
                Some((address, Err(fault))) => {
                    open.retain(|open| *open != address);
                    failed.push(Attempt { address, fault });
                    next_start = Instant::now();
                }
                // A failure starts the next attempt, so none is left.
                None => return Err(failed),
            },
            () = tokio::time::sleep_until(next_start.min(deadline)) => {}
        }
    }
}

async fn attempt(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, AttemptFault> {
    let tcp = TcpStream::connect(address).await.map_err(AttemptFault::Connect)?;
    tcp.set_nodelay(true).map_err(AttemptFault::Connect)?;
    TlsConnector::from(Arc::clone(config)).connect(relay_server_name(), tcp).await.map_err(tls_fault)
}

fn tls_fault(source: io::Error) -> AttemptFault {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) if certificate_fault(error) == Some(&NOT_PINNED) => AttemptFault::OtherRelay,
        Some(error) if is_not_valid_yet(error) || is_expired(error) => {
            AttemptFault::Clock(date(SystemTime::now()))
        }
        Some(_) | None => AttemptFault::Tls(source),
    }
}

#[cfg(test)]
mod tests;
