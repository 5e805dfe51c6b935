//! The limits of the relay around its router: connections that are no links yet, and what waits for edges.

use hopline_limits::{Limit, REACHED};

use crate::handshakes::PLACES;
use crate::hub::CONTROL_QUEUE;
use crate::listen::HANDSHAKE_TIMEOUT;
use crate::{news, sockets};

/// The rows, each with the value that is in force.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "max_handshakes",
        default: PLACES as u64,
        unit: "connections",
        bounds: "connections that are no links yet, joins included",
        guards_against: "connections that shake hands without end",
        beyond: "the one that has come least far ends, of the address that has most",
        counter: REACHED,
    },
    Limit {
        name: "handshake_timeout",
        default: HANDSHAKE_TIMEOUT.as_millis() as u64,
        unit: "ms",
        bounds: "a TLS handshake",
        guards_against: "connections that say nothing",
        beyond: "the connection ends",
        counter: None,
    },
    Limit {
        name: "accept_backlog",
        default: sockets::BACKLOG as u64,
        unit: "connections",
        bounds: "connections that the kernel holds until they are accepted",
        guards_against: "bursts of connections",
        beyond: "the kernel drops them; they come again",
        counter: None,
    },
    Limit {
        name: "control_queue",
        default: CONTROL_QUEUE as u64,
        unit: "messages",
        bounds: "control messages that wait for one edge",
        guards_against: "an edge that does not read",
        beyond: "further ones are not sent",
        counter: None,
    },
    Limit {
        name: "news",
        default: news::MOST as u64,
        unit: "entries",
        bounds: "things said of machines that are not logged again",
        guards_against: "a machine that fails in ever new ways",
        beyond: "the oldest is forgotten, and logged again",
        counter: None,
    },
];
