//! The limits of joining, of tokens and of state folders.

use hopline_limits::Limit;

use crate::{files, reach, records, relay, serve, token, wire};

/// The rows, each with the value that is in force.
pub const LIMITS: &[Limit] = &[
    Limit {
        name: "joins_waiting",
        default: relay::MAX_WAITING as u64,
        unit: "joins",
        bounds: "joins that wait for the state folder's lock",
        guards_against: "joins that take the places of links while a lock is held",
        beyond: "the join is refused, to be tried again",
        counter: None,
    },
    Limit {
        name: "join_timeout",
        default: serve::JOIN_TIMEOUT.as_millis() as u64,
        unit: "ms",
        bounds: "a join, at each end",
        guards_against: "a peer that joins and says nothing",
        beyond: "the join ends",
        counter: None,
    },
    Limit {
        name: "join_message",
        default: wire::MAX_MESSAGE_LEN as u64,
        unit: "bytes",
        bounds: "bytes of one message of a join",
        guards_against: "a peer without a certificate that sends without end",
        beyond: "the join ends",
        counter: None,
    },
    Limit {
        name: "token_bytes",
        default: token::MAX_TOKEN_LEN as u64,
        unit: "bytes",
        bounds: "bytes that are read as a token",
        guards_against: "a file that is no token",
        beyond: "it is no token",
        counter: None,
    },
    Limit {
        name: "token_patterns",
        default: token::MAX_PATTERNS as u64,
        unit: "patterns",
        bounds: "patterns of one kind in a token",
        guards_against: "a token that makes every check long",
        beyond: "the token is not made",
        counter: None,
    },
    Limit {
        name: "token_uses_kept",
        default: records::MAX_USES_KEPT as u64,
        unit: "uses",
        bounds: "uses of a token that are remembered with their keys",
        guards_against: "a token of very many uses",
        beyond: "the oldest is forgotten: its machine can not repeat its join",
        counter: None,
    },
    Limit {
        name: "name_bytes",
        default: hopline_names::MAX_LEN as u64,
        unit: "bytes",
        bounds: "bytes of the name of a machine or a relay",
        guards_against: "names that fill logs and certificates",
        beyond: "the name is refused",
        counter: None,
    },
    Limit {
        name: "state_file_bytes",
        default: files::MAX_FILE_LEN,
        unit: "bytes",
        bounds: "bytes of a file of a state folder",
        guards_against: "a file that is not ours",
        beyond: "the file is not read",
        counter: None,
    },
    Limit {
        name: "relay_addresses",
        default: reach::MAX_ADDRESSES as u64,
        unit: "addresses",
        bounds: "addresses of a relay's name that one join tries",
        guards_against: "a name server that answers without end",
        beyond: "the others are not tried",
        counter: None,
    },
];
