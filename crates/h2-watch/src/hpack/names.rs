//! Which header fields matter here, and the static table of HPACK (RFC 7541, appendix A) as far as they need it.

/// The names whose values say something about the connection. All others are read for their length only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Authority,
    Path,
    Status,
    ContentType,
    UserAgent,
    Timeout,
    GrpcStatus,
    GrpcMessage,
    Other,
}

/// The longest of the names above.
pub(super) const LONGEST: usize = 12;

impl Name {
    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":status" => Self::Status,
            b"content-type" => Self::ContentType,
            b"user-agent" => Self::UserAgent,
            b"grpc-timeout" => Self::Timeout,
            b"grpc-status" => Self::GrpcStatus,
            b"grpc-message" => Self::GrpcMessage,
            _ => Self::Other,
        }
    }
}

/// Names of the static table, first entry first.
pub(super) const STATIC: [&str; 61] = [
    ":authority",
    ":method",
    ":method",
    ":path",
    ":path",
    ":scheme",
    ":scheme",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];

/// The name of an entry, counted from 0.
pub(super) fn static_name(index: usize) -> Name {
    match index {
        0 => Name::Authority,
        3 | 4 => Name::Path,
        7..=13 => Name::Status,
        30 => Name::ContentType,
        57 => Name::UserAgent,
        _ => Name::Other,
    }
}

/// The value of an entry whose name matters, counted from 0.
pub(super) fn static_value(index: usize) -> &'static [u8] {
    match index {
        3 => b"/",
        4 => b"/index.html",
        7 => b"200",
        8 => b"204",
        9 => b"206",
        10 => b"304",
        11 => b"400",
        12 => b"404",
        13 => b"500",
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indices_agree() {
        for (index, name) in STATIC.iter().enumerate() {
            assert_eq!(static_name(index), Name::of(name.as_bytes()), "{name}");
        }
        let named = ["grpc-message", "grpc-timeout", "content-type"];
        assert!(named.iter().all(|name| name.len() <= LONGEST && Name::of(name.as_bytes()) != Name::Other));
    }
}
