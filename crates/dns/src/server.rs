//! Name servers, and a query that goes to them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::ResolveError;

/// How long a name server is alone before the next one is asked beside it.
const STAGGER: Duration = Duration::from_secs(1);
/// For how long one that was silent is asked last.
const LAST: Duration = Duration::from_secs(30);
/// How long the other family's addresses are waited for once one's are there (RFC 8305, section 3, has 50 ms).
const OTHER_FAMILY: Duration = Duration::from_millis(50);
/// Names that are asked for at one server at once.
const MAX_ACTIVE: usize = 1_024;

/// Addresses, and for how long they are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ips: Arc<[IpAddr]>,
    pub(crate) ttl: Duration,
}

/// What a name server has said of a name, or not.
#[derive(Debug)]
enum Failure {
    /// There is no such name, or it has no address.
    Absent,
    Silent,
    /// Something else, in its words.
    Other(String),
}

/// One name server.
pub(crate) struct Server {
    address: SocketAddr,
    /// Its own one, so that the order of servers is not its affair.
    resolver: Option<TokioResolver>,
    patience: Duration,
    silent: Mutex<Option<Instant>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// A name server that is given up after `patience`.
    pub(crate) fn new(address: SocketAddr, patience: Duration) -> Self {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
            connection.port = address.port();
            connection
        });
        let server = NameServerConfig::new(address.ip(), true, connections.into());
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options = builder.options_mut();
        // A query is written again from 333 ms on, three times in each half.
        options.timeout = patience / 2;
        options.attempts = 1;
        // What is kept, is kept by us.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.max_active_requests = MAX_ACTIVE;
        options.edns0 = ResolverOpts::default().edns0;
        Self { address, resolver: builder.build().ok(), patience, silent: Mutex::default() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks for both families at once.
    async fn ask(&self, name: &Name) -> Result<Found, Failure> {
        let asked = timeout(self.patience, self.ask_both(name)).await;
        let answer = asked.unwrap_or(Err(Failure::Silent));
        *self.lock() = matches!(answer, Err(Failure::Silent)).then(|| Instant::now() + LAST);
        answer
    }

    async fn ask_both(&self, name: &Name) -> Result<Found, Failure> {
        let mut six = pin!(self.ask_one(name, RecordType::AAAA));
        let mut four = pin!(self.ask_one(name, RecordType::A));
        let (first, second) = tokio::select! {
            six_first = &mut six => match six_first {
                Ok(found) => (Ok(found), timeout(OTHER_FAMILY, four).await.ok()),
                failed => (failed, Some(four.await)),
            },
            four_first = &mut four => match four_first {
                Ok(found) => (Ok(found), timeout(OTHER_FAMILY, six).await.ok()),
                failed => (failed, Some(six.await)),
            },
        };
        match (first, second) {
            (Ok(one), Some(Ok(other))) => {
                // IPv6 first; whoever dials takes the families in turn.
                let mut ips = [&*one.ips, &*other.ips].concat();
                ips.sort_by_key(IpAddr::is_ipv4);
                Ok(Found { ips: ips.into(), ttl: one.ttl.min(other.ttl) })
            }
            (Ok(found), _) | (Err(_), Some(Ok(found))) => Ok(found),
            // A name that has addresses of one family only is nothing to the other.
            (Err(Failure::Absent), Some(Err(failure))) | (Err(failure), _) => Err(failure),
        }
    }

    async fn ask_one(&self, name: &Name, kind: RecordType) -> Result<Found, Failure> {
        let Some(resolver) = &self.resolver else {
            return Err(Failure::Other("it can't be asked".to_owned()));
        };
        let lookup = resolver.lookup(name.clone(), kind).await.map_err(|error| failure(&error))?;
        let ips: Vec<IpAddr> = lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect();
        let ttl = lookup.answers().iter().map(|record| record.ttl).min();
        match ttl {
            Some(ttl) if !ips.is_empty() => {
                Ok(Found { ips: ips.into(), ttl: Duration::from_secs(u64::from(ttl)) })
            }
            _ => Err(Failure::Absent),
        }
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.lock().is_some_and(|until| now < until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "what else can go wrong is told in the library's words")]
fn failure(error: &NetError) -> Failure {
    let code = match error {
        NetError::Timeout => return Failure::Silent,
        NetError::Dns(DnsError::NoRecordsFound(none)) => none.response_code,
        NetError::Dns(DnsError::ResponseCode(code)) => *code,
        other => return Failure::Other(other.to_string()),
    };
    match code {
        ResponseCode::NXDomain | ResponseCode::NoError => Failure::Absent,
        ResponseCode::ServFail => Failure::Other("SERVFAIL".to_owned()),
        ResponseCode::Refused => Failure::Other("REFUSED".to_owned()),
        other => Failure::Other(other.to_str().to_owned()),
    }
}

/// Asks the name servers for the first of `names` that has addresses.
pub(crate) async fn ask(host: &str, servers: &[Arc<Server>], names: &[Name]) -> Result<Found, ResolveError> {
    let mut absent = None;
    let mut failed = None;
    for name in names {
        match ask_in_turn(servers, name).await {
            Ok(found) => return Ok(found),
            Err(ResolveError::NotFound { server, .. }) => absent = Some(server),
            // The further names would only wait as long again.
            Err(error @ ResolveError::Silent { .. }) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    match (failed, absent) {
        (Some(error), _) => Err(error),
        (None, server) => {
            let asked: Vec<String> = names.iter().map(plain).collect();
            let server = server.unwrap_or_else(|| format!("of {host}"));
            Err(ResolveError::NotFound { server, asked: asked.join(", ") })
        }
    }
}

/// One name at each server until one knows: the next one as soon as one fails, or after [`STAGGER`] of silence.
async fn ask_in_turn(servers: &[Arc<Server>], name: &Name) -> Result<Found, ResolveError> {
    let began = Instant::now();
    let mut order = servers.to_vec();
    order.sort_by_key(|server| server.is_silent(began));
    let mut waiting = order.iter().cloned();
    let mut running = JoinSet::new();
    let mut failures = Vec::new();
    let mut next_start = began;
    loop {
        if Instant::now() >= next_start {
            next_start = Instant::now() + STAGGER;
            if let Some(server) = waiting.next() {
                let name = name.clone();
                running.spawn(async move { (server.ask(&name).await, server.address) });
            }
        }
        let answered = tokio::select! {
            answered = running.join_next() => answered,
            () = sleep_until(next_start), if waiting.len() > 0 => continue,
        };
        match answered {
            Some(Ok((Ok(found), address))) => {
                note_slow(&order, address, began);
                return Ok(found);
            }
            Some(Ok((Err(Failure::Absent), address))) => {
                note_slow(&order, address, began);
                return Err(ResolveError::NotFound { server: address.to_string(), asked: plain(name) });
            }
            Some(Ok((Err(failure), address))) => {
                failures.push((failure, address));
                next_start = Instant::now();
            }
            // A task that panicked; hickory has no reason to.
            Some(Err(_)) => next_start = Instant::now(),
            None if waiting.len() > 0 => {}
            None => return Err(none_knows(&failures, began)),
        }
    }
}

/// Those before the one that has answered have not, though they were asked a stagger earlier.
fn note_slow(order: &[Arc<Server>], answered: SocketAddr, began: Instant) {
    let now = Instant::now();
    for server in order.iter().take_while(|server| server.address != answered) {
        if now.duration_since(began) >= STAGGER {
            *server.lock() = Some(now + LAST);
        }
    }
}

fn none_knows(failures: &[(Failure, SocketAddr)], began: Instant) -> ResolveError {
    let mut said = Vec::new();
    for (failure, address) in failures {
        if let Failure::Other(words) = failure {
            said.push(format!("{address}: {words}"));
        }
    }
    if said.is_empty() {
        let servers: Vec<String> = failures.iter().map(|(_, address)| address.to_string()).collect();
        return ResolveError::Silent { servers: servers.join(", "), within: began.elapsed() };
    }
    let silent = failures.iter().filter(|(failure, _)| matches!(failure, Failure::Silent));
    said.extend(silent.map(|(_, address)| format!("{address}: no answer")));
    ResolveError::Failed { failures: said.join("; ") }
}

fn plain(name: &Name) -> String {
    let text = name.to_string();
    text.strip_suffix('.').map(str::to_owned).unwrap_or(text)
}
