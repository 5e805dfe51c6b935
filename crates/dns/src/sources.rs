//! `/etc/resolv.conf` and `/etc/hosts`, read again when they change.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use tokio::time::Instant;

use crate::Sources;
use crate::server::Server;

/// How often it is looked whether a file has changed.
const LOOK: Duration = Duration::from_secs(1);
/// Name servers of a `resolv.conf` that are asked, as the C library has it.
const MAX_SERVERS: usize = 3;
/// The most bytes that are read of either file.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// For how long a name server is waited for where no option says so.
const PATIENCE: Duration = Duration::from_secs(5);
/// The port of name servers.
const PORT: u16 = 53;

/// The files as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    looked: Option<Instant>,
    marks: Option<[Mark; 2]>,
    hosts: Hosts,
    servers: Arc<[Arc<Server>]>,
    search: Vec<Name>,
    ndots: usize,
}

/// By what a change of a file shows; `None` for one that is not there.
type Mark = Option<(u64, u64, u64, i64, i64)>;

impl Snapshot {
    /// Looks whether a file has changed, if nobody has looked within the last second; says whether that changes anything.
    pub(crate) fn refresh(&mut self, sources: &Sources, now: Instant) -> bool {
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK) {
            return false;
        }
        self.looked = Some(now);
        let marks = Some([mark(&sources.resolv_conf), mark(&sources.hosts)]);
        if self.marks == marks {
            return false;
        }
        self.marks = marks;
        self.read_hosts(&sources.hosts);
        self.read_resolv_conf(sources);
        true
    }

    fn read_hosts(&mut self, path: &Path) {
        self.hosts = Hosts::default();
        if let Some(text) = read(path)
            && let Err(error) = self.hosts.read_hosts_conf(text.as_slice())
        {
            tracing::warn!(path = %path.display(), %error, "can't read the hosts file to its end");
        }
    }

    fn read_resolv_conf(&mut self, sources: &Sources) {
        let text = read(&sources.resolv_conf).unwrap_or_default();
        // Who names no server means the one on this machine, as for the C library.
        let with_default = || [text.as_slice(), b"\nnameserver 127.0.0.1\n"].concat();
        let parsed = parse_resolv_conf(&text).or_else(|_| parse_resolv_conf(with_default()));
        let (mut servers, mut patience) = (sources.servers.clone(), PATIENCE);
        (self.search, self.ndots) = (Vec::new(), 1);
        match parsed {
            Ok((config, options)) => {
                let (_, search, named) = config.into_parts();
                (self.search, self.ndots) = (search, options.ndots);
                patience = options.timeout.max(Duration::from_secs(1));
                if servers.is_empty() {
                    servers.extend(
                        named.iter().take(MAX_SERVERS).map(|server| SocketAddr::new(server.ip, PORT)),
                    );
                }
            }
            Err(error) => {
                tracing::warn!(path = %sources.resolv_conf.display(), %error, "can't read the file; asking 127.0.0.1");
                if servers.is_empty() {
                    servers.push((Ipv4Addr::LOCALHOST, PORT).into());
                }
            }
        }
        self.servers = servers.into_iter().map(|address| Arc::new(Server::new(address, patience))).collect();
    }

    /// The addresses that the hosts file has of a name.
    pub(crate) fn hosts(&self, name: &Name) -> Option<Arc<[IpAddr]>> {
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let both = [of(RecordType::AAAA), of(RecordType::A)];
        let ips: Vec<IpAddr> = both
            .iter()
            .flatten()
            .flat_map(|lookup| lookup.answers())
            .filter_map(|record| record.data.ip_addr())
            .collect();
        (!ips.is_empty()).then(|| ips.into())
    }

    pub(crate) fn servers(&self) -> Arc<[Arc<Server>]> {
        Arc::clone(&self.servers)
    }

    /// The names that a name may stand for, in the order in which they are tried (resolv.conf(5), `ndots`).
    pub(crate) fn candidates(&self, name: &Name) -> Vec<Name> {
        let mut plain = name.clone();
        plain.set_fqdn(true);
        if name.is_fqdn() || self.search.is_empty() {
            return vec![plain];
        }
        let mut names: Vec<Name> =
            self.search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        for name in &mut names {
            name.set_fqdn(true);
        }
        let dots = usize::from(name.num_labels()).saturating_sub(1);
        let at = if dots >= self.ndots { 0 } else { names.len() };
        names.insert(at, plain);
        names
    }
}

fn mark(path: &Path) -> Mark {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}

fn read(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}
