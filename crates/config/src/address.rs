//! Addresses: what is dialled, what is listened on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::path::{PathError, parse_socket_path};

/// Why a text is no address, or not one for its purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No colon, or nothing before it; the address of another machine.
    #[error("an address is HOST:PORT, such as {0}")]
    Shape(&'static str),
    /// No colon, or nothing before it; a local address.
    #[error("an address is unix:PATH or HOST:PORT, such as 127.0.0.1:7901")]
    LocalShape,
    /// More than one colon outside brackets.
    #[error("an IPv6 address stands in brackets, such as [::1]:7443")]
    Brackets,
    /// The part before the port.
    #[error("the host is neither an IP address nor a host name")]
    Host,
    /// A name that stands alone.
    #[error("a host name has no port and no pattern, such as status.example")]
    Name,
    /// The part after the last colon.
    #[error("a port is a number from {0} to 65535")]
    Port(u16),
    /// `unix:` where only TCP can be.
    #[error("a unix socket can't be used here: write HOST:PORT")]
    Unix,
    /// An address of another machine, or of all interfaces, where only this machine may reach it.
    #[error("must be unix:PATH or a loopback address, such as 127.0.0.1:7801")]
    Exposed,
    /// The part after `unix:`.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// An address that is dialled: a host name or IP address, and a port from 1.
///
/// Its text is `HOST:PORT`, with an IPv6 address in brackets: `[::1]:7443`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// Never 0 when it was parsed.
    pub port: u16,
}

/// An address that a relay listens on. As [`Endpoint`], but port 0 means a free one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindAddress {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// 0 for a port that the kernel picks.
    pub port: u16,
}

/// Where a local socket is: `unix:PATH` or `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listen {
    /// A unix socket; the path has at most 107 bytes when it was parsed.
    Unix(PathBuf),
    /// A TCP socket.
    Tcp {
        /// A host name, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// 0 for a port that the kernel picks.
        port: u16,
    },
}

/// Where `/status` and the page are served: a unix socket or a loopback address, never one that others reach.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatusAddress {
    /// A unix socket; the path has at most 107 bytes when it was parsed.
    Unix(PathBuf),
    /// A TCP socket.
    Tcp {
        /// `localhost`, or a loopback address, without brackets.
        host: String,
        /// 0 for a port that the kernel picks.
        port: u16,
    },
}

impl Listen {
    /// Whether only this machine can reach it: a unix socket, a loopback address as number, or `localhost`.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => is_loopback(host),
        }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = parse_host_port(text, 1, AddressError::Shape("relay.example:7443"))?;
        Ok(Self { host, port })
    }
}

impl FromStr for BindAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = parse_host_port(text, 0, AddressError::Shape("0.0.0.0:7443"))?;
        Ok(Self { host, port })
    }
}

impl FromStr for Listen {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(parse_socket_path(path)?));
        }
        let (host, port) = parse_host_port(text, 0, AddressError::LocalShape)?;
        Ok(Self::Tcp { host, port })
    }
}

impl FromStr for StatusAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let listen: Listen = text.parse()?;
        if !listen.is_local() {
            return Err(AddressError::Exposed);
        }
        Ok(match listen {
            Listen::Unix(path) => Self::Unix(path),
            Listen::Tcp { host, port } => Self::Tcp { host, port },
        })
    }
}

impl From<StatusAddress> for Listen {
    fn from(address: StatusAddress) -> Self {
        match address {
            StatusAddress::Unix(path) => Self::Unix(path),
            StatusAddress::Tcp { host, port } => Self::Tcp { host, port },
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_port(f, &self.host, self.port)
    }
}

impl fmt::Display for BindAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_host_port(f, &self.host, self.port)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } => write_host_port(f, host, *port),
        }
    }
}

impl fmt::Display for StatusAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } => write_host_port(f, host, *port),
        }
    }
}

fn write_host_port(f: &mut fmt::Formatter<'_>, host: &str, port: u16) -> fmt::Result {
    if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
}

fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        // `::ffff:127.0.0.1` is the IPv4 loopback by another name.
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

fn parse_host_port(text: &str, least_port: u16, shape: AddressError) -> Result<(String, u16), AddressError> {
    let host;
    let port;
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']').ok_or(AddressError::Brackets)?;
        if !is_ipv6(inner) {
            return Err(AddressError::Host);
        }
        host = inner;
        port = after.strip_prefix(':').ok_or(shape)?;
    } else {
        let Some(split) = text.rsplit_once(':') else { return Err(shape) };
        (host, port) = split;
        if host.starts_with("unix:") || text.starts_with("unix:") {
            return Err(AddressError::Unix);
        }
        if is_ipv6(host) || is_ipv6(text) {
            return Err(AddressError::Brackets);
        }
        if host.is_empty() {
            return Err(shape);
        }
        if !is_host_name(host) {
            return Err(AddressError::Host);
        }
    }
    // `parse` alone would also take `+80`.
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(number) if digits && number >= least_port => Ok((host.to_owned(), number)),
        _ => Err(AddressError::Port(least_port)),
    }
}

/// An IPv6 address, with or without a zone (`fe80::1%eth0`).
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let zone_is_good = (1..=15).contains(&zone.len())
        && zone.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    zone_is_good && address.parse::<Ipv6Addr>().is_ok()
}

/// A host name or an IPv4 address.
pub(crate) fn is_host_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label_is_good = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
    };
    if name.len() > 253 || !name.split('.').all(label_is_good) {
        return false;
    }
    // No top level domain is a number, so `10.0.0.300` is a mistyped address and no name.
    let last = name.rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|b| b.is_ascii_digit()) || text.parse::<Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_go_both_ways() {
        for (text, host, port) in [
            ("relay-a.example:7443", "relay-a.example", 7443),
            ("relay.example.:1", "relay.example.", 1),
            ("10.0.0.3:65535", "10.0.0.3", 65535),
            ("[::1]:80", "::1", 80),
            ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
            ("my_host:80", "my_host", 80),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn bad_endpoints_say_why() {
        let shape = AddressError::Shape("relay.example:7443");
        for (text, want) in [
            ("", shape.clone()),
            ("7443", shape.clone()),
            (":7443", shape.clone()),
            ("[::1]", shape),
            ("::1:80", AddressError::Brackets),
            ("::1", AddressError::Brackets),
            ("[::1", AddressError::Brackets),
            ("[10.0.0.1]:80", AddressError::Host),
            ("a b:80", AddressError::Host),
            ("http://a:80", AddressError::Host),
            ("10.0.0.300:80", AddressError::Host),
            ("1.2.3:80", AddressError::Host),
            ("a..b:80", AddressError::Host),
            ("-a:80", AddressError::Host),
            ("münchen:80", AddressError::Host),
            ("a:0", AddressError::Port(1)),
            ("a:65536", AddressError::Port(1)),
            ("a:+80", AddressError::Port(1)),
            ("a:", AddressError::Port(1)),
            ("a:http", AddressError::Port(1)),
            ("unix:/a", AddressError::Unix),
            ("unix:/a:80", AddressError::Unix),
        ] {
            assert_eq!(text.parse::<Endpoint>(), Err(want), "{text:?}");
        }
    }

    #[test]
    fn listen_addresses_go_both_ways() {
        for text in ["unix:/run/a.sock", "unix:a:b", "127.0.0.1:0", "[::]:7443", "localhost:1"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        let longest = format!("unix:/{}", "a".repeat(106));
        assert!(longest.parse::<Listen>().is_ok());
        for (text, want) in [
            (format!("{longest}a"), AddressError::Path(PathError::Long(108))),
            ("unix:".into(), AddressError::Path(PathError::Empty)),
            ("unix:/run/".into(), AddressError::Path(PathError::Folder)),
            ("unix:~/a.sock".into(), AddressError::Path(PathError::Shell)),
            ("unix:$XDG_RUNTIME_DIR/a.sock".into(), AddressError::Path(PathError::Shell)),
            ("unix:/a\0b".into(), AddressError::Path(PathError::Control)),
            ("/run/a.sock".into(), AddressError::LocalShape),
        ] {
            assert_eq!(text.parse::<Listen>(), Err(want), "{text:?}");
        }
    }

    #[test]
    fn only_loopback_is_local() {
        for (text, local) in [
            ("unix:/a", true),
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("LocalHost:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("localhost.example:1", false),
            ("web-1:1", false),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().is_local(), local, "{text:?}");
            let status = text.parse::<StatusAddress>();
            assert_eq!(status.as_ref().err(), (!local).then_some(&AddressError::Exposed), "{text:?}");
            if let Ok(address) = status {
                assert_eq!(address.to_string(), text);
            }
        }
        assert_eq!("[::]:0".parse::<BindAddress>().unwrap().to_string(), "[::]:0");
    }
}
