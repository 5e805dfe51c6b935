//! The limits of an edge beside those of its links.

use hopline_limits::Limit;

use crate::agent::known_sessions::MAX_KNOWN;
use crate::links::MAX_HELD;
use crate::local::listener::BACKLOG;
use crate::pump::{LAST_QUEUE, replay};
use crate::{dial, trail};

/// The rows, each with the value that is in force.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "max_held",
        default: MAX_HELD as u64,
        unit: "opens",
        bounds: "opens that wait for a link",
        guards_against: "applications that connect while no relay can be reached",
        beyond: "the open is refused with `overload`",
        counter: Some("hopline_held_opens"),
    },
    Limit {
        name: "replay_bytes",
        default: replay::REPLAY_MEMORY as u64,
        unit: "bytes",
        bounds: "bytes kept to be sent again, of all sessions of a role together",
        guards_against: "many sessions that begin at once",
        beyond: "before its answer no more of a session is read than fits; after it, a session that does not fit does not survive its path",
        counter: Some("hopline_kept_bytes"),
    },
    Limit {
        name: "replay_bytes_per_session",
        default: replay::MAX_REPLAY as u64,
        unit: "bytes",
        bounds: "bytes kept to be sent again, of one direction of one session",
        guards_against: "sessions that begin with much",
        beyond: "the session does not survive its path any more",
        counter: None,
    },
    Limit {
        name: "sessions_remembered",
        default: MAX_KNOWN as u64,
        unit: "ids",
        bounds: "ids of sessions that an agent knows again",
        guards_against: "sidecars that open sessions without end",
        beyond: "the oldest is forgotten; what comes again under it is refused",
        counter: None,
    },
    Limit {
        name: "trail_connections",
        default: trail::MOST as u64,
        unit: "connections",
        bounds: "connections that are looked at to see whether an open has come round",
        guards_against: "an agent with very many connections",
        beyond: "the others are not looked at",
        counter: None,
    },
    Limit {
        name: "last_bytes",
        default: LAST_QUEUE as u64,
        unit: "bytes",
        bounds: "bytes still taken from a connection that is broken",
        guards_against: "a connection that is only half closed",
        beyond: "the rest is dropped",
        counter: None,
    },
    Limit {
        name: "accept_backlog",
        default: BACKLOG as u64,
        unit: "connections",
        bounds: "connections of one mapping that the kernel holds until they are accepted",
        guards_against: "bursts of connections",
        beyond: "the kernel lets them wait, or drops them",
        counter: None,
    },
    Limit {
        name: "dial_addresses",
        default: dial::MAX_ADDRESSES as u64,
        unit: "addresses",
        bounds: "addresses of a name that one dial tries",
        guards_against: "a name server that answers without end",
        beyond: "the others are not tried",
        counter: None,
    },
];
