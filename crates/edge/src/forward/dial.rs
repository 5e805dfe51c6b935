//! Dials a server, with the options that watch the one hop that no link watches (P12).
//!
//! The name is resolved anew at each dial, so a server may move. Its addresses are tried as RFC 8305 says: IPv6
//! and IPv4 in turn, the next one as soon as one fails or after 250 ms of silence, the first connection wins.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

/// How long a dial may take in all, the name's resolution included, where nothing else is said.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an attempt is alone before the next address is tried beside it (RFC 8305, section 8).
pub const STAGGER: Duration = Duration::from_millis(250);
/// The most addresses of a name that one dial tries.
pub const MAX_ADDRESSES: usize = 16;

/// Silence after which the kernel asks whether the host is there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between two such questions.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered questions after which the host is dead: 10 + 3 x 5 = 25 s, and P12 allows 26.
pub const KEEPALIVE_PROBES: u32 = 3;
/// The user timeout of `grpc:` services: finds a silent host within P12's bound while data is in flight. More than
/// 25 s would let an idle connection outlive its keepalive: Linux then waits for the user timeout.
pub const GRPC_USER_TIMEOUT: Duration = Duration::from_secs(24);

/// How a server is dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialOptions {
    /// How long it may take in all.
    pub timeout: Duration,
    /// TCP keepalive as in P12. Off for links, which watch themselves.
    pub keepalive: bool,
    /// `TCP_USER_TIMEOUT`. Off for services that may stop reading: Linux also counts a closed window.
    pub user_timeout: Option<Duration>,
}

impl Default for DialOptions {
    fn default() -> Self {
        Self { timeout: DIAL_TIMEOUT, keepalive: true, user_timeout: None }
    }
}

/// What kind of failure a dial met; of several addresses, the one that says most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialKind {
    /// A host answered that nothing listens there.
    Refused,
    /// No way to any address.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The name has no address.
    Name,
    /// Something else, such as no file descriptor left.
    Other,
}

impl DialKind {
    /// The kind as a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "no answer in time",
            Self::Name => "no such host",
            Self::Other => "failed",
        }
    }
}

/// One address that was tried, and how that ended.
#[derive(Debug)]
pub struct Attempt {
    /// The address.
    pub address: SocketAddr,
    /// What the system said; `None` when it had not answered when the time was up.
    pub error: Option<io::Error>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{}: {}", self.address, plain(error)),
            None => write!(f, "{}: no answer", self.address),
        }
    }
}

/// Why a server could not be dialled. The text lists each address that was tried.
#[derive(Debug)]
pub struct DialError {
    /// The target, `HOST:PORT`.
    pub target: String,
    /// What kind of failure it is.
    pub kind: DialKind,
    /// Every address that was tried, in the order of failing.
    pub attempts: Vec<Attempt>,
    /// Addresses beyond [`MAX_ADDRESSES`], or not reached in time.
    pub untried: usize,
    /// What the resolver said, when it failed.
    pub resolver: Option<io::Error>,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dial {}: {}", self.target, self.kind.as_str())?;
        if let Some(error) = &self.resolver {
            return write!(f, " ({error})");
        }
        for (index, attempt) in self.attempts.iter().enumerate() {
            write!(f, "{}{attempt}", if index == 0 { " (" } else { "; " })?;
        }
        match (self.attempts.is_empty(), self.untried) {
            (true, _) => Ok(()),
            (false, 0) => f.write_str(")"),
            (false, untried) => write!(f, "; {untried} more not tried)"),
        }
    }
}

impl std::error::Error for DialError {}

/// Dials `host` (a name, or an IP address without brackets) at `port`.
///
/// The connection has Nagle's algorithm off and TCP keepalive as in P12. `localhost` is ::1 and 127.0.0.1 whatever
/// the hosts file says, so a server is found in either family. Cancel-safe: dropping it drops every attempt.
///
/// # Errors
///
/// See [`DialError`]; at the latest after `options.timeout`.
pub async fn dial(host: &str, port: u16, options: &DialOptions) -> Result<TcpStream, DialError> {
    let deadline = Instant::now() + options.timeout;
    let name_error = |kind, resolver| DialError {
        target: target(host, port),
        kind,
        attempts: Vec::new(),
        untried: 0,
        resolver,
    };
    let addresses = match tokio::time::timeout_at(deadline, resolve(host, port)).await {
        Err(_) => return Err(name_error(DialKind::Timeout, Some(io::Error::other("resolving the name")))),
        Ok(Err(error)) => return Err(name_error(DialKind::Name, Some(error))),
        Ok(Ok(addresses)) if addresses.is_empty() => return Err(name_error(DialKind::Name, None)),
        Ok(Ok(addresses)) => addresses,
    };
    race(&addresses, deadline, options).await.map_err(|failed| DialError {
        target: target(host, port),
        kind: kind_of(&failed),
        untried: addresses.len().saturating_sub(failed.len()),
        attempts: failed,
        resolver: None,
    })
}

fn target(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Every address of the host once, families in turn.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if host.eq_ignore_ascii_case("localhost") {
        let loopbacks = [IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];
        return Ok(loopbacks.map(|ip| SocketAddr::new(ip, port)).to_vec());
    }
    Ok(in_turn(tokio::net::lookup_host((host, port)).await?))
}

/// The resolver's order, but with the families alternating from the first one's (RFC 8305, section 4).
fn in_turn(resolved: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut first: Vec<SocketAddr> = Vec::new();
    let mut second: Vec<SocketAddr> = Vec::new();
    for address in resolved {
        let family = match first.first() {
            Some(leader) if leader.is_ipv4() != address.is_ipv4() => &mut second,
            _ => &mut first,
        };
        if !family.contains(&address) {
            family.push(address);
        }
    }
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        let before = ordered.len();
        ordered.extend(first.next());
        ordered.extend(second.next());
        if ordered.len() == before {
            return ordered;
        }
    }
}

/// The first connection, or how each attempt failed.
async fn race(
    addresses: &[SocketAddr],
    deadline: Instant,
    options: &DialOptions,
) -> Result<TcpStream, Vec<Attempt>> {
    let mut waiting = addresses.iter().copied().take(MAX_ADDRESSES);
    let mut running = FuturesUnordered::new();
    let mut open: Vec<SocketAddr> = Vec::new();
    let mut failed = Vec::new();
    let mut next_start = Instant::now();
    loop {
        let now = Instant::now();
        if now >= deadline {
            failed.extend(open.into_iter().map(|address| Attempt { address, error: None }));
            return Err(failed);
        }
        if now >= next_start {
            next_start = deadline;
            if let Some(address) = waiting.next() {
                next_start = now + STAGGER;
                open.push(address);
                running.push(async move { (address, connect(address, options).await) });
            }
        }
        tokio::select! {
            ended = running.next() => match ended {
                Some((_, Ok(stream))) => return Ok(stream),
                Some((address, Err(error))) => {
                    open.retain(|open| *open != address);
                    failed.push(Attempt { address, error: Some(error) });
                    next_start = Instant::now();
                }
                // A failure starts the next attempt, so none is left.
                None => return Err(failed),
            },
            () = tokio::time::sleep_until(next_start.min(deadline)) => {}
        }
    }
}

async fn connect(address: SocketAddr, options: &DialOptions) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    connect_by(socket, address, options).await
}

async fn connect_by(socket: TcpSocket, address: SocketAddr, options: &DialOptions) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    // Urgent data, which nothing here knows, then stays where it stands among the rest: else it would be lost.
    SockRef::from(&socket).set_out_of_band_inline(true)?;
    let stream = socket.connect(address).await?;
    if met_itself(&stream)? {
        // By a reset: an ordinary close would leave the port in TIME_WAIT, and the server could not have it for a minute.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        return Err(Errno::CONNREFUSED.into());
    }
    let options_of = SockRef::from(&stream);
    if options.keepalive {
        options_of.set_tcp_keepalive(&keepalive())?;
        // Only now: before it would bound the connecting too.
    }
    if options.user_timeout.is_some() {
        options_of.set_tcp_user_timeout(options.user_timeout)?;
    }
    Ok(stream)
}

/// How the kernel watches the host at the other end of a connection that no link watches: a server's, or that of an
/// application that comes from another host.
pub(crate) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES)
}

/// On loopback a port of the ephemeral range on which nothing listens can be given to the dialling socket itself. TCP
/// then lets it connect to itself, and it would hold the port of a server that is about to start.
fn met_itself(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()? == stream.peer_addr()?)
}

/// An address that had not answered outweighs a refusal: the server may be behind it. A refusal outweighs the rest.
/// Without any attempt the time was up before the first.
fn kind_of(attempts: &[Attempt]) -> DialKind {
    if attempts.is_empty() {
        return DialKind::Timeout;
    }
    let kinds: Vec<DialKind> = attempts.iter().map(kind_of_one).collect();
    let first_of = [DialKind::Timeout, DialKind::Refused, DialKind::Unreachable];
    first_of.into_iter().find(|kind| kinds.contains(kind)).unwrap_or(DialKind::Other)
}

fn kind_of_one(attempt: &Attempt) -> DialKind {
    let Some(error) = &attempt.error else { return DialKind::Timeout };
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => DialKind::Refused,
        Some(Errno::TIMEDOUT) => DialKind::Timeout,
        Some(
            Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT,
        ) => DialKind::Unreachable,
        _ => DialKind::Other,
    }
}

/// The error without `(os error 111)`.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((plain, _)) => plain.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
