//! What a header field says, as far as it matters here: a class or a number, never the value.

use std::time::Duration;

use crate::status::Status;

/// Who made the client, by its `user-agent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Implementation {
    /// `grpc-go/`.
    Go,
    /// `grpc-java-netty/` and its sisters.
    Java,
    /// `grpc-python/`, on top of the C core.
    Python,
    /// `grpc-node-js/`.
    Node,
    /// `tonic/`.
    Tonic,
    /// `grpc-dotnet/`.
    DotNet,
    /// None that is known here, or none named yet.
    #[default]
    Other,
}

impl Implementation {
    /// Every one, in the order of their settings in a hint.
    pub const ALL: [Self; 7] =
        [Self::Go, Self::Java, Self::Python, Self::Node, Self::Tonic, Self::DotNet, Self::Other];

    /// The name that people know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Go => "grpc-go",
            Self::Java => "grpc-java",
            Self::Python => "grpcio",
            Self::Node => "grpc-js",
            Self::Tonic => "tonic",
            Self::DotNet => "grpc-dotnet",
            Self::Other => "other",
        }
    }

    /// An application may put words of its own before or after the library's, so each word is looked at.
    fn of(agent: &[u8]) -> Self {
        let of_word = |word: &[u8]| {
            let known: [(&[u8], Self); 6] = [
                (b"grpc-go/", Self::Go),
                (b"grpc-java", Self::Java),
                (b"grpc-python", Self::Python),
                (b"grpc-node-js/", Self::Node),
                (b"tonic/", Self::Tonic),
                (b"grpc-dotnet/", Self::DotNet),
            ];
            known.into_iter().find(|(start, _)| word.starts_with(start)).map(|(_, found)| found)
        };
        agent.split(|byte| *byte == b' ').find_map(of_word).unwrap_or_default()
    }
}

/// One field of a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Authority {
        is_path: bool,
    },
    Path {
        /// A health check or reflection: what tools ask, and libraries by themselves. No hint rests on it.
        tool: bool,
    },
    HttpStatus(u16),
    ContentType {
        grpc: bool,
    },
    UserAgent(Implementation),
    /// Microseconds: smaller in the table than a `Duration`.
    Timeout(u64),
    GrpcStatus(Status),
    GrpcMessage {
        too_large: bool,
    },
    Other,
}

/// How much of a value is looked at. What is looked for stands at its beginning.
pub(crate) const VALUE_BYTES: usize = 256;

impl Field {
    pub(crate) fn authority(value: &[u8]) -> Self {
        let escaped = value.windows(3).any(|three| three.eq_ignore_ascii_case(b"%2f"));
        Self::Authority { is_path: escaped || value.contains(&b'/') }
    }

    pub(crate) fn path(value: &[u8]) -> Self {
        let tools: [&[u8]; 2] = [b"/grpc.health.v1.Health/", b"/grpc.reflection."];
        Self::Path { tool: tools.into_iter().any(|tool| value.starts_with(tool)) }
    }

    pub(crate) fn http_status(value: &[u8]) -> Self {
        digits(value, 3).map_or(Self::Other, |status| Self::HttpStatus(status as u16))
    }

    pub(crate) fn content_type(value: &[u8]) -> Self {
        // `application/grpc-web` is another protocol: its trailers are in the body.
        let grpc = value.strip_prefix(b"application/grpc").is_some_and(|rest| !rest.starts_with(b"-web"));
        Self::ContentType { grpc }
    }

    pub(crate) fn user_agent(value: &[u8]) -> Self {
        Self::UserAgent(Implementation::of(value))
    }

    /// At most eight digits and a unit. What is written otherwise is no deadline.
    pub(crate) fn timeout(value: &[u8]) -> Self {
        let Some((unit, number)) = value.split_last() else { return Self::Other };
        let Some(number) = digits(number, 8) else { return Self::Other };
        let micros = match unit {
            b'H' => number * 3_600_000_000,
            b'M' => number * 60_000_000,
            b'S' => number * 1_000_000,
            b'm' => number * 1_000,
            b'u' => number,
            b'n' => number.div_ceil(1_000),
            _ => return Self::Other,
        };
        Self::Timeout(micros)
    }

    pub(crate) fn grpc_status(value: &[u8]) -> Self {
        let code = digits(value, 2).unwrap_or(u64::MAX);
        Self::GrpcStatus(Status::from_code(code))
    }

    /// The words of grpc-go, grpc-java, the C core, grpc-js and tonic when a message is over their limit.
    pub(crate) fn grpc_message(value: &[u8]) -> Self {
        let words: [&[u8]; 3] = [b"larger than max", b"exceeds maximum size", b"message length too large"];
        Self::GrpcMessage {
            too_large: words
                .into_iter()
                .any(|word| (0..value.len()).any(|at| begins_with(&value[at..], word))),
        }
    }
}

/// Whether a text of `grpc-message` begins so. grpc-js and tonic write its spaces as %20.
fn begins_with(mut value: &[u8], word: &[u8]) -> bool {
    word.iter().all(|byte| {
        let (first, rest) = match value {
            [b'%', b'2', b'0', rest @ ..] => (b' ', rest),
            [first, rest @ ..] => (*first, rest),
            [] => return false,
        };
        value = rest;
        first == *byte
    })
}

fn digits(value: &[u8], most: usize) -> Option<u64> {
    let right = !value.is_empty() && value.len() <= most && value.iter().all(u8::is_ascii_digit);
    right.then(|| value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// All that is taken from one header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) authority_is_path: Option<bool>,
    pub(crate) tool: bool,
    pub(crate) http_status: Option<u16>,
    pub(crate) grpc: bool,
    pub(crate) agent: Option<Implementation>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grpc_status: Option<Status>,
    pub(crate) too_large: bool,
    /// The block changed the size of the decoder's table.
    pub(crate) resized: bool,
}

impl Fields {
    pub(crate) fn take(&mut self, field: Field) {
        match field {
            Field::Authority { is_path } => self.authority_is_path = Some(is_path),
            Field::Path { tool } => self.tool = tool,
            Field::HttpStatus(status) => self.http_status = Some(status),
            Field::ContentType { grpc } => self.grpc = grpc,
            Field::UserAgent(agent) => self.agent = Some(agent),
            Field::Timeout(micros) => self.timeout = Some(Duration::from_micros(micros)),
            Field::GrpcStatus(status) => self.grpc_status = Some(status),
            Field::GrpcMessage { too_large } => self.too_large = too_large,
            Field::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agents_as_measured() {
        let cases = [
            ("grpc-go/1.85.0", Implementation::Go),
            ("ledger/2.1 grpc-go/1.85.0", Implementation::Go),
            ("grpc-java-netty/1.85.1", Implementation::Java),
            ("grpc-python/1.85.3 grpc-c/58.0.0 (linux; chttp2)", Implementation::Python),
            ("grpc-python-asyncio/1.85.3 grpc-c/58.0.0 (linux; chttp2)", Implementation::Python),
            ("grpc-node-js/1.14.7", Implementation::Node),
            ("tonic/0.14.9", Implementation::Tonic),
            ("grpc-dotnet/2.70.0 (.NET 9.0.0; CLR 9.0.0; net9.0; linux; x64)", Implementation::DotNet),
            ("curl/8.0", Implementation::Other),
            ("", Implementation::Other),
        ];
        for (agent, expected) in cases {
            assert_eq!(Implementation::of(agent.as_bytes()), expected, "{agent}");
        }
    }

    #[test]
    fn timeouts_as_measured_and_malformed() {
        let cases: [(&str, Option<u64>); 11] = [
            ("2999986u", Some(2_999_986)),
            ("3010m", Some(3_010_000)),
            ("3S", Some(3_000_000)),
            ("1n", Some(1)),
            ("2M", Some(120_000_000)),
            ("99999999H", Some(359_999_996_400_000_000)),
            ("123456789m", None),
            ("m", None),
            ("", None),
            ("-1m", None),
            ("3s", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map_or(Field::Other, Field::Timeout);
            assert_eq!(Field::timeout(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn paths_as_authority() {
        for (authority, is_path) in [
            ("/run/app/u7", true),
            ("run%2Fapp%2Fu13", true),
            ("tmp%2fx.sock", true),
            ("localhost", false),
            ("[::1]:50051", false),
            ("host_1", false),
            ("a%20b", false),
            ("", false),
        ] {
            assert_eq!(Field::authority(authority.as_bytes()), Field::Authority { is_path }, "{authority}");
        }
    }

    #[test]
    fn what_is_no_grpc() {
        for (kind, grpc) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("text/html", false),
        ] {
            assert_eq!(Field::content_type(kind.as_bytes()), Field::ContentType { grpc }, "{kind}");
        }
    }
}
