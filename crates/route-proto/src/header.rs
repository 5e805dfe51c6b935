//! The routing header: what an open says about where it wants to go.
//!
//! ```text
//! version (1 byte, = 1)
//! fields: type (varint)  length (varint)  value (length bytes)     until the end of the header
//!
//!  type  field             value
//!     1  service           name
//!     2  session id        16 bytes
//!     3  agent instance    16 bytes; absent: any agent of the service will do
//!     4  relay hops        varint: how many relay-to-relay links the open has crossed; absent: 0
//!     5  kind              varint: 0 session, 1 control; absent: 0
//!     6  source machine    name of the machine that the open comes from
//!     7  again             varint: the session was opened before under this id, and its dialler has received so many
//!                          bytes of it; absent: it is opened for the first time
//!     8  time left         varint: for how many milliseconds more its dialler waits for the answer; absent: not said
//!     9  trail             1 to 8 times 16 bytes: the connection that the session is opened for, then those that it comes
//!                          of, as far as its edge knows them; absent: not known
//!    10  passing           varint: 1 on the control session of a process that dials and goes; absent: 0
//! ```
//!
//! Types are in any order; each known one stands at most once. An encoder writes the known fields by type, then
//! the unknown ones in the order in which they came. A session needs fields 1 and 2; a control open has neither.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use hopline_names::{ConnectionId, InstanceId, MachineName, NameError, ServiceName, SessionId};
use hopline_varint::{self as varint, VarintError};

/// The version that this crate reads and writes.
pub const VERSION: u8 = 1;
/// The longest header, in bytes; a longer one is refused before it is read.
pub const MAX_HEADER_LEN: usize = 4_096;
/// How many unknown fields a header may have: a relay keeps each while the open is in work.
pub const MAX_UNKNOWN_FIELDS: usize = 32;
/// How many bytes the unknown fields may take, with types and lengths. What is left holds the known fields at their
/// longest, so a relay that adds the source machine never makes a header too long.
pub const MAX_UNKNOWN_LEN: usize = MAX_HEADER_LEN - 512;
/// How many connections a trail has at most.
pub const MAX_TRAIL: usize = 8;

const SERVICE: u64 = 1;
const SESSION: u64 = 2;
const AGENT: u64 = 3;
const RELAY_HOPS: u64 = 4;
const KIND: u64 = 5;
const SOURCE: u64 = 6;
const AGAIN: u64 = 7;
const TIME_LEFT: u64 = 8;
const TRAIL: u64 = 9;
const PASSING: u64 = 10;

const KIND_SESSION: u64 = 0;
const KIND_CONTROL: u64 = 1;

/// What an open is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A session for the service of this name.
    Session {
        /// The service that is dialled.
        service: ServiceName,
        /// The session, under one id however often it is opened.
        session: SessionId,
    },
    /// The one control session of a link.
    Control,
}

/// The header of one open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingHeader {
    /// What the open is for.
    pub target: Target,
    /// The agent process that is meant; `None`: any. Where [`again`](Self::again) is `None`, nothing has gone out yet:
    /// a relay that has another agent of the service but not this one refuses with `offline` instead of holding the
    /// open, and the dialler may choose anew. Else no other will do.
    pub agent: Option<InstanceId>,
    /// How many relay-to-relay links the open has crossed.
    pub relay_hops: u64,
    /// The machine that the open comes from. A relay writes the name that the link proved, and believes a header only
    /// when it comes from another relay.
    pub source: Option<MachineName>,
    /// The session is taken up again after its path was lost: so many bytes of it the dialler has received. All that it
    /// has sent comes once more, from the first byte, and the agent skips what it had before.
    pub again: Option<u64>,
    /// For how long the dialler waits for the answer, counted from when this header was sent. Whoever holds the open
    /// sends on what is then left; the agent ends its dial before that, so that the reason arrives in time.
    pub time_left: Option<Duration>,
    /// The connection that the session is opened for, then those that it comes of: a mapping that is dialled by an agent
    /// of the same process names what the agent serves. An agent that finds a connection of its own here has been led
    /// back to itself. An encoder writes the first [`MAX_TRAIL`].
    pub trail: Vec<ConnectionId>,
    /// On a control session: the process dials a service and goes. A relay never lets such links take all the places of their
    /// machine: one is kept for the process that is there to stay.
    pub passing: bool,
    unknown: Vec<UnknownField>,
}

/// A field that this version does not know, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownField {
    /// The field's type.
    pub field_type: u64,
    /// The field's value.
    pub value: Bytes,
}

/// Why bytes are not a routing header. All but [`HeaderError::TooLong`] name what the sender did wrong in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Over [`MAX_HEADER_LEN`].
    #[error("a routing header has at most {MAX_HEADER_LEN} bytes, not {0}")]
    TooLong(usize),
    /// No byte at all.
    #[error("the routing header is empty")]
    Empty,
    /// A version that this crate does not read.
    #[error("routing header of version {0}; this side reads version {VERSION}")]
    Version(u8),
    /// A type, length or value that should be a number is none.
    #[error("in the routing header: {0}")]
    Number(#[from] VarintError),
    /// A field is longer than what is left.
    #[error("field {field_type} of the routing header is cut short")]
    Truncated {
        /// The field's type.
        field_type: u64,
    },
    /// A known field of a wrong length.
    #[error("field {field_type} of the routing header has a wrong length: {len}")]
    Length {
        /// The field's type.
        field_type: u64,
        /// The length that it says.
        len: usize,
    },
    /// A known field stands twice.
    #[error("field {field_type} of the routing header stands twice")]
    Duplicate {
        /// The field's type.
        field_type: u64,
    },
    /// A name that is not UTF-8.
    #[error("field {field_type} of the routing header is not UTF-8")]
    NotUtf8 {
        /// The field's type.
        field_type: u64,
    },
    /// A name that breaks the rule for names.
    #[error("field {field_type} of the routing header: {error}")]
    Name {
        /// The field's type.
        field_type: u64,
        /// What is wrong with it.
        error: NameError,
    },
    /// A kind of open that this version does not know.
    #[error("an open of kind {0} is unknown here")]
    Kind(u64),
    /// A session without one of the fields that a session needs.
    #[error("a session's routing header lacks field {field_type}")]
    Missing {
        /// The type of the field that is absent.
        field_type: u64,
    },
    /// A control open with a field that only sessions have.
    #[error("a control session's routing header has field {field_type}")]
    Unexpected {
        /// The field's type.
        field_type: u64,
    },
    /// More than [`MAX_UNKNOWN_FIELDS`], or more than [`MAX_UNKNOWN_LEN`] bytes of them.
    #[error(
        "the routing header has more unknown fields than {MAX_UNKNOWN_FIELDS} or {MAX_UNKNOWN_LEN} bytes"
    )]
    UnknownFields,
}

impl RoutingHeader {
    /// The header of a session for `service`, from an edge: no relay crossed, any agent.
    #[must_use]
    pub const fn session(service: ServiceName, session: SessionId) -> Self {
        Self::with_target(Target::Session { service, session })
    }

    /// The header of the control session.
    #[must_use]
    pub const fn control() -> Self {
        Self::with_target(Target::Control)
    }

    const fn with_target(target: Target) -> Self {
        Self {
            target,
            agent: None,
            relay_hops: 0,
            source: None,
            again: None,
            time_left: None,
            trail: Vec::new(),
            passing: false,
            unknown: Vec::new(),
        }
    }

    /// The service that a session is for.
    #[must_use]
    pub const fn service(&self) -> Option<&ServiceName> {
        match &self.target {
            Target::Session { service, .. } => Some(service),
            Target::Control => None,
        }
    }

    /// The session's id.
    #[must_use]
    pub const fn session_id(&self) -> Option<SessionId> {
        match self.target {
            Target::Session { session, .. } => Some(session),
            Target::Control => None,
        }
    }

    /// The fields that this version does not know, in their order.
    #[must_use]
    pub fn unknown(&self) -> &[UnknownField] {
        &self.unknown
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// [`HeaderError`]: the open is to be refused as `protocol`, its link may live.
    pub fn decode(input: &[u8]) -> Result<Self, HeaderError> {
        if input.len() > MAX_HEADER_LEN {
            return Err(HeaderError::TooLong(input.len()));
        }
        let Some((&version, mut rest)) = input.split_first() else {
            return Err(HeaderError::Empty);
        };
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let mut fields = Fields::default();
        while !rest.is_empty() {
            let (field_type, used) = varint::read(rest)?;
            rest = &rest[used..];
            let (len, used) = varint::read(rest)?;
            rest = &rest[used..];
            let value = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
            let Some((value, after)) = value else {
                return Err(HeaderError::Truncated { field_type });
            };
            fields.take(field_type, value)?;
            rest = after;
        }
        fields.finish()
    }

    /// Writes the header: at most [`MAX_HEADER_LEN`] bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        if let Target::Session { service, session } = &self.target {
            write_field(&mut out, SERVICE, service.as_str().as_bytes());
            write_field(&mut out, SESSION, session.as_bytes());
        }
        if let Some(agent) = &self.agent {
            write_field(&mut out, AGENT, agent.as_bytes());
        }
        if self.relay_hops != 0 {
            write_number(&mut out, RELAY_HOPS, self.relay_hops);
        }
        if self.target == Target::Control {
            write_number(&mut out, KIND, KIND_CONTROL);
        }
        if let Some(source) = &self.source {
            write_field(&mut out, SOURCE, source.as_str().as_bytes());
        }
        if let Some(received) = self.again {
            write_number(&mut out, AGAIN, received);
        }
        if let Some(time_left) = self.time_left {
            write_number(&mut out, TIME_LEFT, u64::try_from(time_left.as_millis()).unwrap_or(u64::MAX));
        }
        if !self.trail.is_empty() {
            let ids: Vec<[u8; 16]> = self.trail.iter().take(MAX_TRAIL).map(|id| *id.as_bytes()).collect();
            write_field(&mut out, TRAIL, ids.as_flattened());
        }
        if self.passing {
            write_number(&mut out, PASSING, 1);
        }
        for field in &self.unknown {
            write_field(&mut out, field.field_type, &field.value);
        }
        debug_assert!(out.len() <= MAX_HEADER_LEN);
        out.into()
    }
}

fn write_field(out: &mut Vec<u8>, field_type: u64, value: &[u8]) {
    varint::write(field_type, out);
    varint::write(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn write_number(out: &mut Vec<u8>, field_type: u64, number: u64) {
    let mut value = Vec::with_capacity(10);
    varint::write(number, &mut value);
    write_field(out, field_type, &value);
}

/// The fields read so far.
#[derive(Default)]
struct Fields {
    service: Option<ServiceName>,
    session: Option<SessionId>,
    agent: Option<InstanceId>,
    relay_hops: Option<u64>,
    kind: Option<u64>,
    source: Option<MachineName>,
    again: Option<u64>,
    time_left: Option<u64>,
    trail: Option<Vec<ConnectionId>>,
    passing: Option<u64>,
    unknown: Vec<UnknownField>,
    unknown_len: usize,
}

impl Fields {
    fn take(&mut self, field_type: u64, value: &[u8]) -> Result<(), HeaderError> {
        match field_type {
            SERVICE => put(&mut self.service, field_type, name(field_type, value)?),
            SESSION => put(&mut self.session, field_type, id(field_type, value)?),
            AGENT => put(&mut self.agent, field_type, id(field_type, value)?),
            RELAY_HOPS => put(&mut self.relay_hops, field_type, number(field_type, value)?),
            KIND => put(&mut self.kind, field_type, number(field_type, value)?),
            SOURCE => put(&mut self.source, field_type, name(field_type, value)?),
            AGAIN => put(&mut self.again, field_type, number(field_type, value)?),
            TIME_LEFT => put(&mut self.time_left, field_type, number(field_type, value)?),
            TRAIL => put(&mut self.trail, field_type, trail(field_type, value)?),
            PASSING => put(&mut self.passing, field_type, number(field_type, value)?),
            _ => self.take_unknown(field_type, value),
        }
    }

    fn take_unknown(&mut self, field_type: u64, value: &[u8]) -> Result<(), HeaderError> {
        let mut encoded = Vec::with_capacity(value.len() + 12);
        write_field(&mut encoded, field_type, value);
        self.unknown_len += encoded.len();
        if self.unknown.len() == MAX_UNKNOWN_FIELDS || self.unknown_len > MAX_UNKNOWN_LEN {
            return Err(HeaderError::UnknownFields);
        }
        self.unknown.push(UnknownField { field_type, value: Bytes::copy_from_slice(value) });
        Ok(())
    }

    fn finish(self) -> Result<RoutingHeader, HeaderError> {
        let target = match self.kind.unwrap_or(KIND_SESSION) {
            KIND_SESSION => Target::Session {
                service: self.service.ok_or(HeaderError::Missing { field_type: SERVICE })?,
                session: self.session.ok_or(HeaderError::Missing { field_type: SESSION })?,
            },
            KIND_CONTROL if self.service.is_some() => {
                return Err(HeaderError::Unexpected { field_type: SERVICE });
            }
            KIND_CONTROL if self.session.is_some() => {
                return Err(HeaderError::Unexpected { field_type: SESSION });
            }
            KIND_CONTROL => Target::Control,
            kind => return Err(HeaderError::Kind(kind)),
        };
        Ok(RoutingHeader {
            target,
            agent: self.agent,
            relay_hops: self.relay_hops.unwrap_or(0),
            source: self.source,
            again: self.again,
            time_left: self.time_left.map(Duration::from_millis),
            trail: self.trail.unwrap_or_default(),
            passing: self.passing.is_some_and(|passing| passing != 0),
            unknown: self.unknown,
        })
    }
}

fn put<T>(slot: &mut Option<T>, field_type: u64, value: T) -> Result<(), HeaderError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(HeaderError::Duplicate { field_type }),
    }
}

fn name<T: FromStr<Err = NameError>>(field_type: u64, value: &[u8]) -> Result<T, HeaderError> {
    let text = std::str::from_utf8(value).map_err(|_| HeaderError::NotUtf8 { field_type })?;
    text.parse().map_err(|error| HeaderError::Name { field_type, error })
}

fn id<'a, T: TryFrom<&'a [u8]>>(field_type: u64, value: &'a [u8]) -> Result<T, HeaderError> {
    T::try_from(value).map_err(|_| HeaderError::Length { field_type, len: value.len() })
}

fn trail(field_type: u64, value: &[u8]) -> Result<Vec<ConnectionId>, HeaderError> {
    let wrong = HeaderError::Length { field_type, len: value.len() };
    match value.as_chunks() {
        (ids, []) if (1..=MAX_TRAIL).contains(&ids.len()) => {
            Ok(ids.iter().copied().map(ConnectionId::new).collect())
        }
        _ => Err(wrong),
    }
}

fn number(field_type: u64, value: &[u8]) -> Result<u64, HeaderError> {
    match varint::read(value)? {
        (number, used) if used == value.len() => Ok(number),
        _ => Err(HeaderError::Length { field_type, len: value.len() }),
    }
}

#[cfg(test)]
mod tests;
