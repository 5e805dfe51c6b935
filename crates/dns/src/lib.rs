//! Names to addresses, as `getaddrinfo` finds them with `hosts: files dns`, without its threads.
//!
//! # The main decision: a lookup is a task, not a thread
//!
//! `getaddrinfo` blocks, so an async program gives it a thread for each lookup; a name server that is silent then uses
//! up the whole pool, and everything else in the process that needs a thread waits behind names. Here a lookup is a few
//! datagrams and a timer, and a silent name server holds up nobody but those who wait for its answer:
//!
//! - lookups of one name share one query, and its answer is kept for its TTL, for a second at least;
//! - where there are several name servers, the next one is asked beside one that has not answered within a second, and
//!   one that stays silent is asked last for a while;
//! - a name that was known goes on working while no name server answers;
//! - `/etc/hosts` and `/etc/resolv.conf` are read again when they change.
//!
//! What only `nsswitch.conf` knows (mDNS, NIS, LDAP) is not found; systemd-resolved, which answers as a name server, is
//! the way to those.

mod error;
mod kept;
mod server;
mod sources;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hickory_resolver::proto::rr::Name;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

pub use error::ResolveError;

use crate::kept::{Answer, Kept, STALE_PATIENCE};
use crate::sources::Snapshot;

/// Lookups that may wait for the addresses of one name at once.
pub const MAX_WAITING: usize = 1_024;

/// Where a resolver finds what it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// Name servers, search domains and options, in the form of resolv.conf(5). Without the file 127.0.0.1:53 is asked.
    pub resolv_conf: PathBuf,
    /// Addresses of names, in the form of hosts(5).
    pub hosts: PathBuf,
    /// Name servers that are asked in place of those of `resolv_conf`; none for those.
    pub servers: Vec<SocketAddr>,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            hosts: PathBuf::from("/etc/hosts"),
            servers: Vec::new(),
        }
    }
}

/// Finds the addresses of names. A clone shares what is kept.
#[derive(Debug, Clone)]
pub struct Resolver {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    sources: Sources,
    snapshot: Snapshot,
    kept: Kept,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(Sources::default())
    }
}

impl Resolver {
    /// A resolver with these sources. They are read at the first lookup of a name.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        let state = State { sources, snapshot: Snapshot::default(), kept: Kept::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Takes other name servers in place of those that it had; see [`Sources::servers`].
    pub fn use_servers(&self, servers: Vec<SocketAddr>) {
        let mut state = self.lock();
        if state.sources.servers != servers {
            state.sources.servers = servers;
            state.snapshot = Snapshot::default();
            state.kept = Kept::default();
        }
    }

    /// The addresses of `host` (a name, or an IP address without brackets), each with `port`; never none.
    ///
    /// `localhost`, and what ends in `.localhost`, is ::1 and 127.0.0.1 whatever anybody says; IP addresses ask nobody.
    /// How long it may take is the caller's to bound: a silent name server is given up after the time that
    /// `resolv.conf` states, 5 s by default. Cancel safe: the query that a lookup has begun goes on for the next one.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Some(address) = literal(host, port) {
            return Ok(vec![address?]);
        }
        let ips = self.lookup(host).await?;
        Ok(ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
    }

    async fn lookup(&self, host: &str) -> Answer {
        if is_localhost(host) {
            return Ok(Arc::new([Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]));
        }
        let key = host.to_ascii_lowercase();
        let name = Name::from_str_relaxed(&key);
        let name =
            name.map_err(|error| ResolveError::Name { host: host.to_owned(), problem: error.to_string() })?;
        let Asked { mut asked, since, stale } = match self.begin(&key, &name)? {
            Begun::Known(answer) => return answer,
            Begun::Asked(asked) => asked,
        };
        let answered = async {
            let answer = asked.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
            // The task that asks has gone with its runtime.
            answer.unwrap_or_else(|| Err(ResolveError::Interrupted { host: host.to_owned() }))
        };
        match stale {
            None => answered.await,
            Some(stale) => timeout_at(since + STALE_PATIENCE, answered).await.unwrap_or(Ok(stale)),
        }
    }

    /// What is known of a name, or the query that is to tell: the one that runs, else a new one.
    fn begin(&self, key: &str, name: &Name) -> Result<Begun, ResolveError> {
        let now = Instant::now();
        let mut state = self.lock();
        let State { sources, snapshot, kept } = &mut *state;
        if snapshot.refresh(sources, now) {
            *kept = Kept::default();
        }
        if let Some(ips) = snapshot.hosts(name) {
            return Ok(Begun::Known(Ok(ips)));
        }
        let entry = kept.entry(key, now);
        if let Some(answer) = entry.fresh(now) {
            return Ok(Begun::Known(answer));
        }
        let stale = entry.stale(now);
        if let Some((asked, since)) = &entry.asked {
            if stale.is_none() && asked.receiver_count() >= MAX_WAITING {
                return Err(ResolveError::Crowded { host: key.to_owned() });
            }
            return Ok(Begun::Asked(Asked { asked: asked.subscribe(), since: *since, stale }));
        }
        let asked = watch::Sender::new(None);
        let waiting = asked.subscribe();
        entry.asked = Some((asked.clone(), now));
        let (servers, names) = (snapshot.servers(), snapshot.candidates(name));
        let (key, resolver) = (key.to_owned(), self.clone());
        tokio::spawn(async move {
            let answer = server::ask(&key, &servers, &names).await;
            let answer = resolver.lock().kept.answered(&key, &asked, answer, Instant::now());
            asked.send_replace(Some(answer));
        });
        Ok(Begun::Asked(Asked { asked: waiting, since: now, stale }))
    }

    /// The name servers that are asked, for whoever speaks of them.
    #[must_use]
    pub fn servers(&self) -> String {
        let servers = self.lock().snapshot.servers();
        servers.iter().map(|server| server.address().to_string()).collect::<Vec<_>>().join(", ")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Begun {
    Known(Answer),
    Asked(Asked),
}

/// A query that runs.
struct Asked {
    asked: watch::Receiver<Option<Answer>>,
    since: Instant,
    /// What was known before.
    stale: Option<Arc<[IpAddr]>>,
}

/// The address, where the host is an IP address, with or without a zone (`fe80::1%eth0`).
fn literal(host: &str, port: u16) -> Option<Result<SocketAddr, ResolveError>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(Ok(SocketAddr::new(ip, port)));
    }
    let (address, zone) = host.split_once('%')?;
    let ip: Ipv6Addr = address.parse().ok()?;
    let index = zone.parse().ok().or_else(|| index_of(zone));
    let missing = || ResolveError::Zone { host: host.to_owned(), zone: zone.to_owned() };
    Some(index.map(|index| SocketAddrV6::new(ip, port, 0, index).into()).ok_or_else(missing))
}

fn index_of(interface: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET6, SocketType::DGRAM, None).ok()?;
    rustix::net::netdevice::name_to_index(&socket, interface).ok()
}

fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    last.eq_ignore_ascii_case("localhost")
}
