//! Dials a server, with the options that watch the one hop that no link watches (P12).
//!
//! The name is looked up at each dial, and its addresses are known for their TTL, so a server may move. They are tried
//! as RFC 8305 says: IPv6 and IPv4 in turn, the next one as soon as one fails or after 250 ms of silence, the first
//! connection wins.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hopline_dns::{ResolveError, Resolver};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a dial may take in all, the name's resolution included, where nothing else is said.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an attempt is alone before the next address is tried beside it (RFC 8305, section 8).
pub const STAGGER: Duration = Duration::from_millis(250);
/// The same for one that has connected and is to shake hands still: that takes more round trips.
pub const HANDSHAKE_STAGGER: Duration = Duration::from_secs(1);
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
    /// No name server has said what addresses the name has.
    NameServer,
    /// As many as may wait for the same name already do.
    Crowded,
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
            Self::NameServer => "the name could not be resolved",
            Self::Crowded => "too many at once",
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
    /// Why the name has no addresses, when that is it.
    pub resolver: Option<ResolveError>,
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
pub async fn dial(
    resolver: &Resolver,
    host: &str,
    port: u16,
    options: &DialOptions,
) -> Result<TcpStream, DialError> {
    dial_and(resolver, host, port, options, |stream, _| std::future::ready(Ok(stream))).await
}

/// As [`dial`], and each connection is only won once `shake` has succeeded on it: an address that accepts and then says
/// nothing is passed over like one that does not accept. The socket address is that of the connection.
///
/// # Errors
///
/// See [`DialError`]; at the latest after `options.timeout`.
pub async fn dial_and<T, F: Future<Output = io::Result<T>>>(
    resolver: &Resolver,
    host: &str,
    port: u16,
    options: &DialOptions,
    shake: impl Fn(TcpStream, SocketAddr) -> F,
) -> Result<T, DialError> {
    let began = Instant::now();
    let deadline = began + options.timeout;
    let resolved = tokio::time::timeout_at(deadline, resolver.resolve(host, port)).await;
    let resolved = resolved.unwrap_or_else(|_| {
        Err(ResolveError::Silent { servers: resolver.servers(), within: began.elapsed() })
    });
    let addresses = resolved.map(in_turn).map_err(|error| DialError {
        target: target(host, port),
        kind: kind_of_name(&error),
        attempts: Vec::new(),
        untried: 0,
        resolver: Some(error),
    })?;
    race(&addresses, deadline, options, shake).await.map_err(|failed| DialError {
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

fn kind_of_name(error: &ResolveError) -> DialKind {
    match error {
        ResolveError::NotFound { .. } | ResolveError::Name { .. } | ResolveError::Zone { .. } => {
            DialKind::Name
        }
        ResolveError::Crowded { .. } => DialKind::Crowded,
        ResolveError::Silent { .. } | ResolveError::Failed { .. } | ResolveError::Interrupted { .. } => {
            DialKind::NameServer
        }
    }
}

/// The resolver's order, but with the families alternating from the first one's (RFC 8305, section 4).
fn in_turn(resolved: Vec<SocketAddr>) -> Vec<SocketAddr> {
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
async fn race<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    deadline: Instant,
    options: &DialOptions,
    shake: impl Fn(TcpStream, SocketAddr) -> F,
) -> Result<T, Vec<Attempt>> {
    let (shake, connected) = (&shake, &Notify::new());
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
                running.push(async move {
                    let shaken = async {
                        let stream = connect(address, options).await?;
                        connected.notify_one();
                        shake(stream, address).await
                    };
                    (address, shaken.await)
                });
            }
        }
        tokio::select! {
            ended = running.next() => match ended {
                Some((_, Ok(won))) => return Ok(won),
                Some((address, Err(error))) => {
                    open.retain(|open| *open != address);
                    failed.push(Attempt { address, error: Some(error) });
                    next_start = Instant::now();
                }
                // A failure starts the next attempt, so none is left.
                None => return Err(failed),
            },
            () = connected.notified() => next_start = Instant::now() + HANDSHAKE_STAGGER,
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
