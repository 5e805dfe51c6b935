//! Which `Host` a request may name.
//!
//! A web page of another site can make the user's browser send requests to loopback under a name that its owner
//! points there (DNS rebinding), and could then read the answers. Such a request names that site as its host.

use std::net::{Ipv4Addr, Ipv6Addr};

use hyper::{Request, StatusCode, Version, header};

/// Why a request was refused for its host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("a request must have exactly one Host header")]
    Malformed,
    #[error(
        "the status is answered for an IP address, localhost or a configured name as host only; names are \
         configured by hosts:, at a relay also by --admin-host"
    )]
    Foreign,
}

impl Refusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Foreign => StatusCode::MISDIRECTED_REQUEST,
        }
    }
}

/// Checks every name that the request goes by.
pub(super) fn check<B>(request: &Request<B>, names: &[String]) -> Result<(), Refusal> {
    if let Some(authority) = request.uri().authority()
        && !allowed(authority.as_str(), names)
    {
        return Err(Refusal::Foreign);
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let host = host.to_str().map_err(|_| Refusal::Malformed)?;
            if allowed(host, names) { Ok(()) } else { Err(Refusal::Foreign) }
        }
        // No browser speaks HTTP/1.0, and old probes send no host with it.
        (None, _) if request.version() == Version::HTTP_10 => Ok(()),
        (None | Some(_), _) => Err(Refusal::Malformed),
    }
}

/// Whether `host`, with or without a port, is an IP address, `localhost` or one of `names`.
fn allowed(host: &str, names: &[String]) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest
            .split_once(']')
            .is_some_and(|(ip, port)| ip.parse::<Ipv6Addr>().is_ok() && is_port_or_empty(port));
    }
    let (name, port) = match host.find(':') {
        Some(colon) => host.split_at(colon),
        None => (host, ""),
    };
    is_port_or_empty(port)
        && (name.parse::<Ipv4Addr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || names.iter().any(|allowed| name.eq_ignore_ascii_case(allowed)))
}

fn is_port_or_empty(port: &str) -> bool {
    port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_known_names_pass() {
        let names = ["status.example".to_owned()];
        let table = [
            ("127.0.0.1", true),
            ("127.0.0.1:7801", true),
            ("192.0.2.1", true),
            ("[::1]", true),
            ("[::1]:7801", true),
            ("localhost", true),
            ("LocalHost:80", true),
            ("status.example", true),
            ("Status.Example:7801", true),
            ("", false),
            (":80", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:port", false),
            ("localhost:80:80", false),
            ("[::1", false),
            ("[::1]evil.example", false),
            ("[evil.example]", false),
            ("user@localhost", false),
            ("localhost,evil.example", false),
            ("0x7f000001", false),
            ("127.1", false),
        ];
        assert_eq!(table.len(), 23);
        for (host, wanted) in table {
            assert_eq!(allowed(host, &names), wanted, "{host:?}");
        }
    }
}
