//! The limits of the status address, and of who reads one.

use hopline_limits::Limit;

use crate::client::{MAX_ANSWER_BYTES, TIMEOUT};
use crate::server::{CONNECTION_TIMEOUT, HEADER_TIMEOUT, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS};

/// The rows, each with the value that is in force.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "connections",
        default: MAX_CONNECTIONS as u64,
        unit: "connections",
        bounds: "connections to the status address",
        guards_against: "programs that connect without end",
        beyond: "the oldest goes that has sent no request, or reads slowly; else the new one waits",
        counter: None,
    },
    Limit {
        name: "header_timeout",
        default: HEADER_TIMEOUT.as_millis() as u64,
        unit: "ms",
        bounds: "a request's headers",
        guards_against: "requests that never end",
        beyond: "the connection ends",
        counter: None,
    },
    Limit {
        name: "connection_timeout",
        default: CONNECTION_TIMEOUT.as_millis() as u64,
        unit: "ms",
        bounds: "a connection, its answer included",
        guards_against: "readers that take nothing",
        beyond: "the connection ends",
        counter: None,
    },
    Limit {
        name: "header_bytes",
        default: MAX_HEADER_BYTES as u64,
        unit: "bytes",
        bounds: "bytes of a request's line and headers",
        guards_against: "headers without end",
        beyond: "the request is refused",
        counter: None,
    },
    Limit {
        name: "headers",
        default: MAX_HEADERS as u64,
        unit: "lines",
        bounds: "header lines of a request",
        guards_against: "headers without end",
        beyond: "the request is refused",
        counter: None,
    },
    Limit {
        name: "answer_bytes",
        default: MAX_ANSWER_BYTES as u64,
        unit: "bytes",
        bounds: "bytes of a status that `hopline status` reads",
        guards_against: "an address that is no status address",
        beyond: "the status is not read",
        counter: None,
    },
    Limit {
        name: "answer_timeout",
        default: TIMEOUT.as_millis() as u64,
        unit: "ms",
        bounds: "reading a status",
        guards_against: "a process that is stopped",
        beyond: "the status is not read",
        counter: None,
    },
];
