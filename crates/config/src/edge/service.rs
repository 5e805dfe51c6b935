//! One entry of `services:`.

use std::str::FromStr;

use hopline_names::{Pattern, ServiceName};

use crate::address::Endpoint;
use crate::edge::parse_patterns;
use crate::fault::Report;
use crate::section::{Field, Place, Section};

/// What a service speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// gRPC, so HTTP/2.
    Grpc,
    /// Anything else over TCP.
    Tcp,
}

/// A service that this edge publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Its name, the same for those who dial it.
    pub name: ServiceName,
    /// What it speaks.
    pub protocol: Protocol,
    /// Where the agent dials: `forward:`, or 127.0.0.1 with the port of `tcp:`.
    pub target: Endpoint,
    /// Whether the target comes from `forward:`, so that the last hop crosses a network.
    pub forward: bool,
    /// The machines that may dial it; `None` when the file leaves that to the relay's policy.
    pub allow: Option<Vec<Pattern>>,
}

pub(super) fn parse(name: ServiceName, field: Field<'_>, report: &mut Report) -> Option<ServiceConfig> {
    let section = Section::open(field, Place::Service, report)?;
    let allow = section.field("allow").and_then(|field| {
        let globs = parse_patterns(&field, report)?;
        if globs.is_empty() {
            report.notice(field.node.at, &field.path, "an empty list: no machine may dial this service");
        }
        Some(globs)
    });
    let (protocol, target) = match (section.field("grpc"), section.field("tcp")) {
        (Some(grpc), None) => (Protocol::Grpc, parse_target(grpc, report)),
        (None, Some(tcp)) => (Protocol::Tcp, parse_target(tcp, report)),
        (Some(grpc), Some(tcp)) => {
            report.fault(tcp.node.at, &tcp.path, "a service is either grpc: or tcp:; remove one of them");
            parse_target(grpc, report);
            parse_target(tcp, report);
            return None;
        }
        (None, None) if section.has_or_meant("grpc") || section.has_or_meant("tcp") => return None,
        (None, None) => {
            let message = "says not what it is: write grpc: { tcp: PORT } or tcp: { tcp: PORT }";
            report.fault(section.at, &section.path, message);
            return None;
        }
    };
    let (target, forward) = target?;
    Some(ServiceConfig { name, protocol, target, forward, allow })
}

/// Where the agent dials, and whether `forward:` says so.
fn parse_target(field: Field<'_>, report: &mut Report) -> Option<(Endpoint, bool)> {
    let section = Section::open(field, Place::Target, report)?;
    let port = section.parse::<Port>("tcp", report);
    let forward = section.parse::<Endpoint>("forward", report);
    match (section.field("tcp"), section.field("forward")) {
        (None, None) if section.has_or_meant("tcp") || section.has_or_meant("forward") => None,
        (None, None) => {
            report.fault(section.at, &section.path, "no server: write tcp: PORT or forward: HOST:PORT");
            None
        }
        (Some(tcp), Some(_)) => {
            let target = forward?;
            let message =
                format_args!("only names the service's port: the agent dials {target}, as forward: says");
            report.notice(tcp.node.at, &tcp.path, message);
            Some((target, true))
        }
        (None, Some(_)) => Some((forward?, true)),
        (Some(_), None) => Some((Endpoint { host: "127.0.0.1".to_owned(), port: port?.0 }, false)),
    }
}

/// A port that can be dialled.
struct Port(u16);

impl FromStr for Port {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(port) if digits && port > 0 => Ok(Self(port)),
            _ => Err("a port is a number from 1 to 65535"),
        }
    }
}
