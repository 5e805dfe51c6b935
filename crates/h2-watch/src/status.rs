//! How a call ended.

/// A gRPC status code, or what is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u8);

impl Status {
    /// How many there are: 17 codes, and one for what is none of them.
    pub const COUNT: usize = 18;

    pub(crate) const CANCELLED: Self = Self(1);
    pub(crate) const UNKNOWN: Self = Self(2);
    pub(crate) const DEADLINE_EXCEEDED: Self = Self(4);
    pub(crate) const PERMISSION_DENIED: Self = Self(7);
    pub(crate) const RESOURCE_EXHAUSTED: Self = Self(8);
    pub(crate) const ABORTED: Self = Self(10);
    pub(crate) const OUT_OF_RANGE: Self = Self(11);
    pub(crate) const UNIMPLEMENTED: Self = Self(12);
    pub(crate) const INTERNAL: Self = Self(13);
    pub(crate) const UNAVAILABLE: Self = Self(14);
    pub(crate) const UNAUTHENTICATED: Self = Self(16);

    const NAMES: [&'static str; Self::COUNT] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
        "other",
    ];

    /// All of them, by number; `other` last.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// The word that `/metrics` uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The status of a code; above 16 it is `other`.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        Self(code.min(Self::COUNT as u64 - 1) as u8)
    }

    /// What a client makes of a reset (gRPC over HTTP/2, "Errors").
    pub(crate) fn from_reset(code: u32) -> Self {
        match code {
            7 => Self::UNAVAILABLE,
            8 => Self::CANCELLED,
            11 => Self::RESOURCE_EXHAUSTED,
            12 => Self::PERMISSION_DENIED,
            _ => Self::INTERNAL,
        }
    }

    /// What a client makes of a response without `grpc-status` (gRPC, "HTTP to gRPC status code mapping").
    pub(crate) fn from_http(status: u16) -> Self {
        match status {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }

    /// Whether a client would be right to repeat the call, after a while. Codes that say what is wrong with the
    /// request are not meant, nor a deadline: it was a wait of its own.
    pub(crate) fn is_fault(self) -> bool {
        [Self::UNKNOWN, Self::RESOURCE_EXHAUSTED, Self::ABORTED, Self::INTERNAL, Self::UNAVAILABLE]
            .contains(&self)
    }
}
