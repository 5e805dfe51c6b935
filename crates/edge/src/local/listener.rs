//! One mapping's local socket.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hopline_config::Listen;
use hopline_dns::{ResolveError, Resolver};
use hopline_unix_socket::{self as unix_socket, Presence, SocketFile, UnixBindError, UnixOptions};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket, UnixListener};

use super::LocalStream;
use crate::dial::keepalive;

/// The pause after an accept that failed for want of file descriptors or memory (F28).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The least time between two log lines about failing accepts of one mapping.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// Connections that the kernel keeps for us between two accepts (it caps this at `net.core.somaxconn`).
pub(crate) const BACKLOG: u32 = 1024;
/// The most addresses that one host name may stand for.
const MAX_ADDRESSES: usize = 16;
/// How often another port is tried when port 0 gave one that is free in one address family only.
const FREE_PORT_TRIES: usize = 8;

/// Where a mapping listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenSpec {
    /// A unix socket.
    Unix {
        /// Its path, at most 107 bytes once made absolute.
        path: PathBuf,
        /// Permission bits, such as `0o600`.
        mode: u32,
        /// The group that the file is given; the process's own when `None`.
        gid: Option<u32>,
        /// Whether a missing folder is made (0700): for the default path's own `hopline` folder, no other.
        make_folder: bool,
    },
    /// A TCP socket. `localhost` is 127.0.0.1 and ::1, both on one port, whichever the system has.
    Tcp {
        /// An IP address without brackets, `localhost`, or a name that resolves to addresses of this machine.
        host: String,
        /// The port; 0 for a free one.
        port: u16,
    },
}

impl fmt::Display for ListenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// What a mapping's `listen`, `mode` and group come to.
#[must_use]
pub fn spec(listen: &Listen, mode: u32, gid: Option<u32>) -> ListenSpec {
    match listen {
        Listen::Tcp { host, port } => ListenSpec::Tcp { host: host.clone(), port: *port },
        Listen::Unix(path) => {
            let folder = path.parent().and_then(Path::file_name);
            let make_folder = folder.is_some_and(|name| name == "hopline");
            ListenSpec::Unix { path: path.clone(), mode, gid, make_folder }
        }
    }
}

/// Why a mapping's socket could not be opened: one line with the mapping, the address and the reason.
#[derive(Debug, thiserror::Error)]
#[error("mapping {mapping}: {fault}")]
pub struct BindError {
    /// The mapping's name.
    pub mapping: String,
    /// What went wrong.
    #[source]
    pub fault: BindFault,
}

/// What went wrong when a local socket was opened.
#[derive(Debug, thiserror::Error)]
pub enum BindFault {
    /// Another program listens on the TCP address.
    #[error("{0}: another program listens on this address")]
    InUse(SocketAddr),
    /// The host name has no address.
    #[error("{host}: cannot be resolved: {error}")]
    Host {
        /// The name as given.
        host: String,
        /// What the resolver said.
        error: ResolveError,
    },
    /// The system refused the TCP address.
    #[error("{address}: cannot listen: {error}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The unix socket could not be made.
    #[error(transparent)]
    Unix(#[from] UnixBindError),
    /// The group that the unix socket is to have is not found.
    #[error("group {group:?} {problem}")]
    Group {
        /// The group as written.
        group: String,
        /// What was asked, and what came of it.
        problem: String,
    },
}

/// A mapping's open socket. When dropped it closes, refuses what was not accepted yet, and removes its own socket
/// file if that is still at the path.
#[derive(Debug)]
pub struct LocalListener {
    mapping: String,
    sockets: Sockets,
    /// Which of several TCP sockets is asked first, so that neither starves.
    turn: usize,
    /// No accept before this time, after one that failed.
    paused_until: Option<Instant>,
    last_log: Option<Instant>,
    health: ListenerHealth,
}

#[derive(Debug)]
enum Sockets {
    /// The file goes before the socket, so that nobody finds it dead.
    Unix {
        file: SocketFile,
        listener: UnixListener,
    },
    Tcp(Vec<TcpListener>),
}

/// Whether a listener can accept; a handle for `/status` that may outlive it.
#[derive(Debug, Clone, Default)]
pub struct ListenerHealth(Arc<Mutex<Option<AcceptTrouble>>>);

/// Why a listener cannot accept at present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptTrouble {
    /// What the system says, such as `Too many open files`.
    pub message: String,
    /// Since when.
    pub since: Instant,
    /// Failed accepts since then.
    pub failures: u64,
}

impl ListenerHealth {
    /// The present trouble; `None` while accepts work.
    #[must_use]
    pub fn trouble(&self) -> Option<AcceptTrouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self, error: &io::Error, now: Instant) -> u64 {
        let mut trouble = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = trouble.get_or_insert_with(|| AcceptTrouble {
            message: error.to_string(),
            since: now,
            failures: 0,
        });
        trouble.message = error.to_string();
        trouble.failures = trouble.failures.saturating_add(1);
        trouble.failures
    }

    fn worked(&self) -> Option<AcceptTrouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl LocalListener {
    /// Opens the socket of `mapping`. It is open to all whom its mode allows when this returns, to nobody before.
    ///
    /// # Errors
    ///
    /// See [`BindFault`]. After an error nothing is left open, and no file of ours at the path.
    pub async fn bind(mapping: &str, spec: &ListenSpec) -> Result<Self, BindError> {
        Self::open(mapping, spec, &Resolver::default()).await
    }

    /// As [`LocalListener::bind`], with a resolver for the host name that a TCP socket may have.
    ///
    /// # Errors
    ///
    /// See [`BindFault`].
    pub async fn open(mapping: &str, spec: &ListenSpec, resolver: &Resolver) -> Result<Self, BindError> {
        let sockets = match spec {
            ListenSpec::Unix { path, mode, gid, make_folder } => {
                let options = UnixOptions { mode: *mode, gid: *gid, make_folder: *make_folder };
                bind_unix(path.clone(), options).await
            }
            ListenSpec::Tcp { host, port } => bind_tcp(resolver, host, *port).await,
        };
        let sockets = sockets.map_err(|fault| BindError { mapping: mapping.to_owned(), fault })?;
        Ok(Self {
            mapping: mapping.to_owned(),
            sockets,
            turn: 0,
            paused_until: None,
            last_log: None,
            health: ListenerHealth::default(),
        })
    }

    /// The next application's connection, with Nagle's algorithm off, and TCP keepalive as a server's connection has it.
    ///
    /// Never fails: a connection that was gone before its accept is passed over; when the system has no file
    /// descriptors or memory left it tries again every 100 ms, logs a line at most every 5 s, and
    /// [`ListenerHealth::trouble`] says so meanwhile. Cancel-safe.
    pub async fn accept(&mut self) -> LocalStream {
        loop {
            if let Some(until) = self.paused_until {
                tokio::time::sleep_until(until.into()).await;
                self.paused_until = None;
            }
            match poll_fn(|cx| self.poll_accept(cx)).await {
                Ok(stream) => {
                    if let Some(trouble) = self.health.worked() {
                        self.recovered(&trouble);
                    }
                    // It fails only on a connection that is already dead, which its reader will see.
                    let _ = stream.set_nodelay(true);
                    return stream;
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => self.pause(&error),
            }
        }
    }

    /// Why nobody who connects to the address reaches this socket any more, if that is so.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        let Sockets::Unix { file, .. } = &self.sockets else { return None };
        match file.presence() {
            Presence::There => None,
            Presence::Gone => Some(format!("{}: its socket file is gone", file.path().display())),
            Presence::Replaced => {
                Some(format!("{}: another file is in the place of its socket", file.path().display()))
            }
        }
    }

    /// Whether another socket could not be opened because of this one.
    #[must_use]
    pub fn is_in_the_way(&self, fault: &BindFault) -> bool {
        match fault {
            BindFault::InUse(busy) => self.tcp_addresses().iter().any(|own| {
                let (own_ip, busy_ip) = (own.ip().to_canonical(), busy.ip().to_canonical());
                let same_ip = own_ip == busy_ip || own_ip.is_unspecified() || busy_ip.is_unspecified();
                own.port() == busy.port() && same_ip
            }),
            BindFault::Unix(UnixBindError::InUse { path }) => {
                self.unix_path() == Some(path.as_path()) && self.lost().is_none()
            }
            BindFault::Host { .. } | BindFault::Tcp { .. } | BindFault::Unix(_) | BindFault::Group { .. } => {
                false
            }
        }
    }

    /// A handle for `/status`.
    #[must_use]
    pub fn health(&self) -> ListenerHealth {
        self.health.clone()
    }

    /// The TCP addresses, with their real port; none for a unix socket.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        match &self.sockets {
            Sockets::Unix { .. } => Vec::new(),
            Sockets::Tcp(sockets) => sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect(),
        }
    }

    /// The unix socket's absolute path; none for TCP.
    #[must_use]
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.sockets {
            Sockets::Unix { file, .. } => Some(file.path()),
            Sockets::Tcp(_) => None,
        }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<LocalStream>> {
        match &self.sockets {
            Sockets::Unix { listener, .. } => {
                listener.poll_accept(cx).map_ok(|(stream, _)| LocalStream::from(stream))
            }
            Sockets::Tcp(sockets) => {
                self.turn = self.turn.wrapping_add(1);
                for index in 0..sockets.len() {
                    let socket = &sockets[(self.turn + index) % sockets.len()];
                    if let Poll::Ready(accepted) = socket.poll_accept(cx) {
                        return Poll::Ready(accepted.map(|(stream, _)| LocalStream::from(stream)));
                    }
                }
                Poll::Pending
            }
        }
    }

    /// ReplayBuffer in the listener, not in the future: whoever cancels an accept does not cut the pause short.
    fn pause(&mut self, error: &io::Error) {
        let now = Instant::now();
        self.paused_until = Some(now + ACCEPT_PAUSE);
        let failures = self.health.failed(error, now);
        if self.last_log.is_none_or(|last| now.duration_since(last) >= LOG_EVERY) {
            self.last_log = Some(now);
            tracing::warn!(mapping = self.mapping, %error, failures, "cannot accept connections, trying again");
        }
    }

    fn recovered(&mut self, trouble: &AcceptTrouble) {
        // Flapping at the limit must not log at each turn either.
        if self.last_log.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            self.last_log = Some(Instant::now());
            let failures = trouble.failures;
            tracing::info!(mapping = self.mapping, failures, "connections are accepted again");
        }
    }
}

/// Whether an accept's error speaks of the connection that it would have given (Linux passes on what had happened
/// to it), so that the next one can be taken at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::TIMEDOUT
        )
    )
}

async fn bind_unix(path: PathBuf, options: UnixOptions) -> Result<Sockets, BindFault> {
    let at = path.clone();
    let system = |action, error| UnixBindError::System { path: at.clone(), action, error };
    // Off the threads that carry traffic: it may wait for another process.
    let (listener, file) = tokio::task::spawn_blocking(move || unix_socket::bind(&path, &options))
        .await
        .map_err(|error| system("make the socket", io::Error::other(error)))??;
    let listener = UnixListener::from_std(listener).map_err(|error| system("watch the socket", error))?;
    Ok(Sockets::Unix { file, listener })
}

async fn bind_tcp(resolver: &Resolver, host: &str, port: u16) -> Result<Sockets, BindFault> {
    if host.eq_ignore_ascii_case("localhost") {
        return bind_localhost(port).map(Sockets::Tcp);
    }
    let found = resolver.resolve(host, port).await;
    let mut addresses = found.map_err(|error| BindFault::Host { host: host.to_owned(), error })?;
    addresses.truncate(MAX_ADDRESSES);
    addresses.dedup();
    addresses.iter().map(|address| listen(*address)).collect::<Result<_, _>>().map(Sockets::Tcp)
}

/// Both families on one port. A family that the system does not have is left out.
fn bind_localhost(port: u16) -> Result<Vec<TcpListener>, BindFault> {
    let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for attempt in 1.. {
        let first = match listen(SocketAddr::new(v4, port)) {
            Ok(first) => first,
            Err(fault) if is_missing_family(&fault) => return Ok(vec![listen(SocketAddr::new(v6, port))?]),
            Err(fault) => return Err(fault),
        };
        let address = SocketAddr::new(v4, port);
        let chosen = first.local_addr().map_err(|error| BindFault::Tcp { address, error })?.port();
        match listen(SocketAddr::new(v6, chosen)) {
            Ok(second) => return Ok(vec![first, second]),
            Err(fault) if is_missing_family(&fault) => return Ok(vec![first]),
            Err(BindFault::InUse(_)) if port == 0 && attempt < FREE_PORT_TRIES => {}
            Err(fault) => return Err(fault),
        }
    }
    unreachable!("the loop ends by returning")
}

fn is_missing_family(fault: &BindFault) -> bool {
    let BindFault::Tcp { error, .. } = fault else { return false };
    matches!(Errno::from_io_error(error), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

fn listen(address: SocketAddr) -> Result<TcpListener, BindFault> {
    let opened = || -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A restart must not wait for the last run's connections to time out.
        socket.set_reuseaddr(true)?;
        // What is accepted inherits these, so they hold from its first byte on: urgent data stays where it stands among
        // the rest, and an application whose host has vanished is noticed as a server is.
        let options = SockRef::from(&socket);
        options.set_out_of_band_inline(true)?;
        options.set_tcp_keepalive(&keepalive())?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    opened().map_err(|error| {
        if Errno::from_io_error(&error) == Some(Errno::ADDRINUSE) {
            BindFault::InUse(address)
        } else {
            BindFault::Tcp { address, error }
        }
    })
}

#[cfg(test)]
mod tests;
