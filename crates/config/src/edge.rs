//! The file of an edge.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hopline_link_proto::Liveness;
use hopline_names::{Pattern, ServiceName};

use crate::address::{Endpoint, Listen};
use crate::env::Env;
use crate::fault::{Checked, Faults, Position, Report};
use crate::log::{LogConfig, parse_log};
use crate::section::{Field, Place, Section, join};
use crate::status::{StatusConfig, parse_status};
use crate::yaml::{self, Value};
use crate::{DEFAULT_DRAIN, DEFAULT_HOLD, DEFAULT_OPEN_TIMEOUT, MAX_ENTRIES, MAX_LIST};

mod mapping;
mod service;

pub use mapping::MappingConfig;
pub use service::{Protocol, ServiceConfig};

/// `open_timeout`: below it no relay far away could answer; above it no caller still waits.
const OPEN_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));
/// `hold`: none at all, up to the longest open timeout.
pub(crate) const HOLD: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(600));
/// `drain`: not at all, up to what a long transfer may want.
pub(crate) const DRAIN: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(24 * 3600));

/// Name servers that may be named.
const MAX_DNS: usize = 8;
const DNS_PORT: u16 = 53;

/// An edge's file, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeConfig {
    /// The relays that the file names, each once; empty when it leaves that to what `hopline join` stored.
    pub relay: Vec<Endpoint>,
    /// Where `/status` is served; `None` for nowhere.
    pub status: Option<StatusConfig>,
    /// Name servers that are asked in place of those of `/etc/resolv.conf`; empty for those.
    pub dns: Vec<SocketAddr>,
    /// For this process's links.
    pub keepalive: Liveness,
    /// For mappings that name none of their own; each [`MappingConfig`] has it filled in already.
    pub open_timeout: Duration,
    /// For how long opens wait for a path that may come back. Zero: not at all.
    pub hold: Duration,
    /// Grace period for open sessions after SIGTERM.
    pub drain: Duration,
    /// In the order of the file, at most 4,096, no name twice.
    pub services: Vec<ServiceConfig>,
    /// In the order of the file, at most 4,096, no name and no socket twice.
    pub connect: Vec<MappingConfig>,
    /// What is logged.
    pub log: LogConfig,
    /// The process dials and goes, as `hopline dial` does; no file says so. A relay keeps places for others of its machine.
    pub passing: bool,
}

/// Reads an edge's file. No path is opened, no name resolved.
///
/// # Errors
/// All faults of the file. A file that is no YAML has one, or those that come before it.
pub fn parse_edge(text: &[u8], env: &Env) -> Result<Checked<EdgeConfig>, Faults> {
    let mut report = Report::new(env.file.clone());
    let config = yaml::read(text, &mut report).and_then(|root| {
        if matches!(root.value, Value::Null(_)) {
            report.fault(Position::START, "", "the file is empty: an edge has services:, connect: or both");
            return None;
        }
        resolve(Field { path: String::new(), node: &root }, env, &mut report)
    });
    report.finish(config)
}

fn resolve(root: Field<'_>, env: &Env, report: &mut Report) -> Option<EdgeConfig> {
    let section = Section::open(root, Place::Edge, report)?;
    let open_timeout = section.duration("open_timeout", OPEN_TIMEOUT, report).unwrap_or(DEFAULT_OPEN_TIMEOUT);
    let mut sockets = Sockets::default();
    let status = section.field("status").and_then(|field| {
        let (status, field) = parse_status(field, report)?;
        sockets.claim(&status.listen.clone().into(), field.node.at, &field.path, report);
        Some(status)
    });
    let services = named_entries(&section, "services", report, service::parse);
    let connect = named_entries(&section, "connect", report, |name, field, report| {
        mapping::parse(name, field, open_timeout, env, report)
    });
    for (mapping, at) in &connect {
        let path = format!("connect.{}.listen", mapping.service);
        sockets.claim(&mapping.listen, *at, &path, report);
    }
    find_loops(&services, &connect, report);
    let given =
        |key| section.has_or_meant(key) && !section.field(key).is_some_and(|field| field.is_empty_map());
    if !given("services") && !given("connect") {
        report.fault(section.at, "", "nothing to do: an edge has services:, connect: or both");
    }
    Some(EdgeConfig {
        relay: section.field("relay").and_then(|field| parse_relays(&field, report)).unwrap_or_default(),
        status,
        dns: section.field("dns").and_then(|field| parse_dns(&field, report)).unwrap_or_default(),
        keepalive: section.parse("keepalive", report).unwrap_or_default(),
        open_timeout,
        hold: section.duration("hold", HOLD, report).unwrap_or(DEFAULT_HOLD),
        drain: section.duration("drain", DRAIN, report).unwrap_or(DEFAULT_DRAIN),
        services,
        connect: connect.into_iter().map(|(mapping, _)| mapping).collect(),
        log: parse_log(section.field("log"), report),
        passing: false,
    })
}

/// The entries of `services:` or `connect:`, without those that have a fault.
fn named_entries<T>(
    section: &Section<'_>,
    key: &str,
    report: &mut Report,
    mut parse: impl FnMut(ServiceName, Field<'_>, &mut Report) -> Option<T>,
) -> Vec<T> {
    let mut parsed = Vec::new();
    let Some(field) = section.field(key) else { return parsed };
    let Some(entries) = field.entries("service names", report) else { return parsed };
    if entries.len() > MAX_ENTRIES {
        let message = format_args!("{} entries; at most {MAX_ENTRIES} are allowed", entries.len());
        report.fault(field.node.at, &field.path, message);
        return parsed;
    }
    for entry in entries {
        let path = join(&field.path, &entry.key);
        let below = Field { path: path.clone(), node: &entry.node };
        match entry.key.parse::<ServiceName>() {
            Ok(name) => parsed.extend(parse(name, below, report)),
            Err(error) => {
                report.fault(entry.key_at, &path, error);
                // What stands below a bad name is checked all the same.
                parse(placeholder(), below, report);
            }
        }
    }
    parsed
}

/// Forwards that lead back to the mapping whose service they are, as far as this file shows it.
fn find_loops(services: &[ServiceConfig], connect: &[(MappingConfig, Position)], report: &mut Report) {
    for (mapping, at) in connect {
        let mut name = &mapping.service;
        // A ring that this mapping is not part of ends too.
        for _ in connect {
            let Some(service) = services.iter().find(|service| service.name == *name) else { break };
            let target = &service.target;
            let next = connect.iter().find(|(mapping, _)| listens_at(&mapping.listen, target));
            let Some((next, _)) = next else { break };
            name = &next.service;
            if *name == mapping.service {
                let path = format!("connect.{name}.listen");
                let message = format_args!(
                    "a loop: the agent of this file dials {target} for {}, and that leads back to this mapping",
                    service.name
                );
                report.notice(*at, &path, message);
                break;
            }
        }
    }
}

/// Whether who dials the target reaches a mapping that listens there.
fn listens_at(listen: &Listen, target: &Endpoint) -> bool {
    let Listen::Tcp { host, port } = listen else { return false };
    let is_here = |host: &str| {
        let ip = host.parse::<std::net::IpAddr>();
        host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
    };
    *port == target.port && (*host == target.host || (is_here(host) && is_here(&target.host)))
}

/// Stands in for a name that was reported.
fn placeholder() -> ServiceName {
    "x".parse().expect("a letter is a name")
}

fn parse_relays(field: &Field<'_>, report: &mut Report) -> Option<Vec<Endpoint>> {
    let mut relays: Vec<Endpoint> = Vec::new();
    for element in field.list(MAX_LIST, "[relay.example:7443]", report)? {
        let Some(endpoint) = element.parse_with(report, str::parse::<Endpoint>) else { continue };
        if relays.contains(&endpoint) {
            report.bad_value(
                element.node.at,
                &element.path,
                &endpoint.to_string(),
                "this relay is named before",
            );
        } else {
            relays.push(endpoint);
        }
    }
    if matches!(&field.node.value, Value::List(nodes) if nodes.is_empty()) {
        report.fault(field.node.at, &field.path, "names no relay: name one, or leave the key out after join");
    }
    Some(relays)
}

fn parse_dns(field: &Field<'_>, report: &mut Report) -> Option<Vec<SocketAddr>> {
    let elements = field.list(MAX_DNS, "[127.0.0.1:8600]", report)?;
    let servers = elements.filter_map(|element| {
        element.parse_with(report, |text| {
            let alone = || text.parse().map(|ip: IpAddr| SocketAddr::new(ip, DNS_PORT)).ok();
            let server = text.parse().ok().or_else(alone).filter(|server: &SocketAddr| server.port() != 0);
            server.ok_or("a name server is an IP address, or IP:PORT, such as 127.0.0.1:8600")
        })
    });
    Some(servers.collect())
}

fn parse_patterns(field: &Field<'_>, report: &mut Report) -> Option<Vec<Pattern>> {
    let elements = field.list(MAX_LIST, "[web-1, \"batch-*\"]", report)?;
    let patterns = elements.filter_map(|element| element.parse_with(report, str::parse::<Pattern>)).collect();
    Some(patterns)
}

/// Which socket is whose, so that two of the same are found before one of them fails to listen.
#[derive(Default)]
struct Sockets(HashMap<Listen, (String, usize)>);

impl Sockets {
    fn claim(&mut self, listen: &Listen, at: Position, path: &str, report: &mut Report) {
        // Port 0 is another port each time.
        if matches!(listen, Listen::Tcp { port: 0, .. }) {
            return;
        }
        if let Some((other, line)) = self.0.get(listen) {
            // A mapping that was written twice is reported as such.
            if other == path {
                return;
            }
            let message = format_args!("the same address as {other} in line {line}: write another");
            report.bad_value(at, path, &listen.to_string(), message);
        } else {
            self.0.insert(listen.clone(), (path.to_owned(), at.line));
        }
    }
}
