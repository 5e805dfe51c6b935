//! Serves the page, `/status`, `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hopline_accounting::log_lines;
use hopline_unix_socket::{self as unix_socket, Presence, SocketFile, UnixBindError, UnixOptions};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use crate::metrics::Metrics;
use crate::page::{PAGE, POLICY};
use crate::server::room::{Client, Place, Room};
use crate::status::{Finding, Status};

mod host;
mod room;

/// Connections served at once. For a further one the oldest goes that has sent no request, or reads its answer slowly;
/// where there is none such it waits.
pub const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send its request's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may last, from accept to close, its answer included.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes that a request line and its headers may have.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;
/// The most header lines of a request.
pub const MAX_HEADERS: usize = 64;
/// How often it is looked whether the file of a unix socket is still there.
const LOOK: Duration = Duration::from_secs(2);
/// The pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the text format of Prometheus is called.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the status address shows.
pub trait Source: Send + Sync + 'static {
    /// A snapshot for `/status`; one is taken at a time in a process's server, whatever the clients do. It runs on the
    /// threads that carry traffic: it must not block, hold a lock that the data path needs for longer than a copy takes,
    /// or go on for longer than about a millisecond without an `await` that yields.
    fn status(&self) -> impl Future<Output = Status> + Send;

    /// Adds samples to `/metrics` that a status does not hold, by families of [`crate::metrics::families`]. Runs behind
    /// [`Source::status`], on a thread that carries no traffic.
    fn metrics(&self, metrics: &mut Metrics) {
        let _ = metrics;
    }

    /// Whether `/readyz` says yes; if not, why, in one sentence. Must not block.
    ///
    /// # Errors
    ///
    /// The reason for which the process is not ready.
    fn ready(&self) -> Result<(), String>;
}

/// Where the status is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address; must be loopback.
    Tcp(SocketAddr),
    /// A unix socket, made with mode 0600.
    Unix(PathBuf),
}

impl Address {
    /// A TCP address from its host (an IP address without brackets, or `localhost`, which is 127.0.0.1 here) and
    /// port; `None` when the host is something else.
    #[must_use]
    pub fn tcp(host: &str, port: u16) -> Option<Self> {
        let ip = if host.eq_ignore_ascii_case("localhost") {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            host.parse().ok()?
        };
        Some(Self::Tcp(SocketAddr::new(ip, port)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why the status address could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can be reached from other machines.
    #[error(
        "status address {0}: not a loopback address; the status is served at 127.0.0.1:PORT, [::1]:PORT or \
         unix:PATH only (to read it from elsewhere, forward the port by ssh)"
    )]
    NotLoopback(SocketAddr),
    /// Another process listens there.
    #[error("status address {0}: in use by another process")]
    InUse(SocketAddr),
    /// The system refused the TCP address.
    #[error("status address {address}: cannot listen: {error}")]
    Tcp {
        /// The address as given.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The unix socket could not be made.
    #[error("status address unix:{0}")]
    Unix(#[from] UnixBindError),
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The open status address. Nothing is answered before [`Server::serve`].
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: Address,
    names: Vec<String>,
    /// Removes the unix socket's file in the end.
    file: Option<SocketFile>,
}

impl Server {
    /// Opens the address. A unix socket is made with mode 0600, by the rules of [`unix_socket::bind`].
    ///
    /// # Errors
    ///
    /// See [`ServeError`].
    #[expect(clippy::unused_async, reason = "needs a runtime's context; async says so in the type")]
    pub async fn bind(address: &Address) -> Result<Self, ServeError> {
        let (listener, address, file) =
            match address {
                Address::Tcp(wanted) => {
                    let listener = bind_tcp(*wanted)?;
                    let local =
                        listener.local_addr().map_err(|error| ServeError::Tcp { address: *wanted, error })?;
                    (Listener::Tcp(listener), Address::Tcp(local), None)
                }
                Address::Unix(path) => {
                    let (listener, file) = unix_socket::bind(path, &UnixOptions::default())?;
                    let path = file.path().to_owned();
                    let listener = UnixListener::from_std(listener).map_err(|error| {
                        UnixBindError::System { path: path.clone(), action: "watch the socket", error }
                    })?;
                    (Listener::Unix(listener), Address::Unix(path), Some(file))
                }
            };
        Ok(Self { listener, address, names: Vec::new(), file })
    }

    /// Accepts a `Host` with one of these names too, beside IP addresses and `localhost`. On a unix socket any will do.
    #[must_use]
    pub fn allow_hosts(mut self, names: impl IntoIterator<Item: Into<String>>) -> Self {
        self.names.extend(names.into_iter().map(|name| name.into().to_ascii_lowercase()));
        self
    }

    /// The address with the real port.
    #[must_use]
    pub fn local_addr(&self) -> &Address {
        &self.address
    }

    /// Serves until `shutdown` ends, then closes the address and drops what is still being answered. A unix socket whose
    /// file vanishes is made again.
    pub async fn serve(mut self, source: impl Source, shutdown: impl Future<Output = ()>) {
        let shared = Arc::new(Shared {
            source: Arc::new(source),
            // On a unix socket no web page can pose as a local user, so any host will do.
            names: matches!(self.listener, Listener::Tcp(_)).then_some(std::mem::take(&mut self.names)),
            snapshot: Arc::new(tokio::sync::Mutex::default()),
        });
        let room = Room::new(MAX_CONNECTIONS);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut looks = tokio::time::interval(LOOK);
        let mut said = None;
        // Accepted, and without a place yet.
        let mut waiting = None;
        loop {
            let place = tokio::select! {
                () = &mut shutdown => return,
                // Frees what finished connections left behind.
                Some(_) = connections.join_next() => continue,
                _ = looks.tick() => {
                    self.look(&mut said);
                    continue;
                }
                accepted = accept(&self.listener), if waiting.is_none() => {
                    waiting = Some(accepted);
                    continue;
                }
                place = place_for(&room, waiting.as_ref()) => place,
            };
            let Some((_, stream)) = waiting.take() else { continue };
            let id = place.id();
            let task = match stream {
                Stream::Tcp(stream) => {
                    // Without it the answer's last part may wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    connections.spawn(connection(TokioIo::new(stream), Arc::clone(&shared), place))
                }
                Stream::Unix(stream) => {
                    connections.spawn(connection(TokioIo::new(stream), Arc::clone(&shared), place))
                }
            };
            room.serve(id, task);
        }
    }

    /// Makes the unix socket again if nobody can find it any more; `said` is what was wrong the last time.
    fn look(&mut self, said: &mut Option<String>) {
        let Some(file) = self.file.as_ref().filter(|file| file.presence() != Presence::There) else { return };
        let path = file.path().to_owned();
        let bound = unix_socket::bind(&path, &UnixOptions::default()).map_err(ServeError::from).and_then(
            |(listener, file)| {
                let watched = UnixListener::from_std(listener).map_err(|error| UnixBindError::System {
                    path: path.clone(),
                    action: "watch the socket",
                    error,
                });
                Ok((watched?, file))
            },
        );
        match bound {
            Ok((listener, file)) => {
                (self.listener, self.file) = (Listener::Unix(listener), Some(file));
                tracing::warn!(address = %self.address, "the status socket's file had gone; it is made again");
                *said = None;
            }
            Err(error) => {
                let error = error.to_string();
                if said.as_ref() != Some(&error) {
                    let again = LOOK.as_secs();
                    tracing::error!(
                        "the status socket's file has gone, {error}; trying again every {again} s"
                    );
                    *said = Some(error);
                }
            }
        }
    }
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServeError> {
    if !address.ip().to_canonical().is_loopback() {
        return Err(ServeError::NotLoopback(address));
    }
    let fault = |error: io::Error| {
        if error.kind() == io::ErrorKind::AddrInUse {
            ServeError::InUse(address)
        } else {
            ServeError::Tcp { address, error }
        }
    };
    let listener = std::net::TcpListener::bind(address).map_err(fault)?;
    listener.set_nonblocking(true).map_err(fault)?;
    TcpListener::from_std(listener).map_err(fault)
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

/// A place for the connection that waits for one, if one does. Cancel safe.
async fn place_for(room: &Arc<Room>, waiting: Option<&(Client, Stream)>) -> Place {
    match waiting {
        Some((client, _)) => room.place(*client).await,
        None => std::future::pending().await,
    }
}

/// The next connection.
async fn accept(listener: &Listener) -> (Client, Stream) {
    loop {
        let accepted = match listener {
            Listener::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, from)| (Client::Address(from.ip()), Stream::Tcp(stream))),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                let user = stream.peer_cred().map_or(Client::Unknown, |peer| Client::User(peer.uid()));
                (user, Stream::Unix(stream))
            }),
        };
        match accepted {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::debug!(%error, "the status address could not accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Shared<S> {
    source: Arc<S>,
    /// The further names that a `Host` may have; `None` where the host is not looked at.
    names: Option<Vec<String>>,
    /// The last snapshot in each form; whoever has it takes the next one.
    snapshot: Arc<tokio::sync::Mutex<Vec<Snapshot>>>,
}

/// What was written last in one form.
struct Snapshot {
    content_type: &'static str,
    began: Instant,
    body: Bytes,
}

/// One connection: one request, then it is closed.
async fn connection<S, I>(io: TokioIo<I>, shared: Arc<Shared<S>>, place: Place)
where
    S: Source,
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let service = service_fn(|request| {
        place.asked();
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&request, &shared).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_headers(MAX_HEADERS)
        .keep_alive(false)
        // A client may end its direction right after the request, as `nc -N` does.
        .half_close(true)
        .serve_connection(io, service);
    // What went wrong with a client's connection is the client's affair; it is cut, and that is all.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, serving).await;
    drop(place);
}

type Answer = Response<Full<Bytes>>;

async fn answer<S: Source>(request: &Request<Incoming>, shared: &Shared<S>) -> Answer {
    if let Some(names) = &shared.names
        && let Err(refusal) = host::check(request, names)
    {
        return text(refusal.status(), refusal.to_string());
    }
    let path = request.uri().path();
    if !matches!(path, "/" | "/status" | "/metrics" | "/healthz" | "/readyz") {
        let there_are = "not found; there are /, /status, /metrics, /healthz and /readyz";
        return text(StatusCode::NOT_FOUND, there_are.to_owned());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered".to_owned());
        answer.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    match path {
        "/" => page(),
        "/status" => snapshot(shared, "application/json", |_, status| written(&status)).await,
        "/metrics" => snapshot(shared, METRICS_TYPE, |source, status| Ok(scraped(source, &status))).await,
        "/readyz" => match shared.source.ready() {
            Ok(()) => text(StatusCode::OK, "ready".to_owned()),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
        },
        _ => text(StatusCode::OK, "ok".to_owned()),
    }
}

/// A status as it is sent: with what follows from it, so that no reader has to find out again.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    status: &'a Status,
    healthy: bool,
    findings: Vec<Finding>,
    log_lines_dropped: u64,
}

fn written(status: &Status) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Shown {
        status,
        healthy: status.healthy(),
        findings: status.findings(),
        log_lines_dropped: log_lines::dropped(),
    })
}

fn scraped(source: &impl Source, status: &Status) -> Vec<u8> {
    let mut metrics = Metrics::of(status);
    source.metrics(&mut metrics);
    metrics.render().into_bytes()
}

/// The snapshot, written on a thread of its own, so that its size never delays the data path. Those who have waited while
/// one was taken share the next.
async fn snapshot<S: Source>(
    shared: &Shared<S>,
    content_type: &'static str,
    write: impl FnOnce(&S, Status) -> Result<Vec<u8>, serde_json::Error> + Send + 'static,
) -> Answer {
    let asked = Instant::now();
    let mut last = Arc::clone(&shared.snapshot).lock_owned().await;
    let fresh = last.iter().find(|last| last.content_type == content_type && last.began >= asked);
    if let Some(fresh) = fresh {
        return respond(StatusCode::OK, content_type, fresh.body.clone());
    }
    let source = Arc::clone(&shared.source);
    // A task of its own: a client that leaves must not let a second one begin while this is under way.
    let taken = tokio::spawn(async move {
        let began = Instant::now();
        let status = source.status().await;
        let body = tokio::task::spawn_blocking(move || write(&source, status))
            .await
            .map(|body| body.map(Bytes::from));
        if let Ok(Ok(body)) = &body {
            last.retain(|last| last.content_type != content_type);
            last.push(Snapshot { content_type, began, body: body.clone() });
        }
        body
    });
    match taken.await.and_then(|written| written) {
        Ok(Ok(body)) => respond(StatusCode::OK, content_type, body),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn page() -> Answer {
    let mut answer = respond(StatusCode::OK, "text/html; charset=utf-8", Bytes::from_static(PAGE.as_bytes()));
    let headers = answer.headers_mut();
    let policy = header::HeaderValue::from_str(&POLICY).expect("the policy is plain text");
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.insert(header::REFERRER_POLICY, header::HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-opener-policy", header::HeaderValue::from_static("same-origin"));
    answer
}

fn failed(error: &dyn std::error::Error) -> Answer {
    tracing::warn!(%error, "the status could not be taken");
    text(StatusCode::INTERNAL_SERVER_ERROR, "the status could not be taken".to_owned())
}

fn text(status: StatusCode, mut line: String) -> Answer {
    line.push('\n');
    respond(status, "text/plain; charset=utf-8", Bytes::from(line))
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    // No page of another site may show it, or have its answers in its own process.
    headers.insert("cross-origin-resource-policy", header::HeaderValue::from_static("same-origin"));
    answer
}
