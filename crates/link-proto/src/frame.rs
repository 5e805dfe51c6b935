//! The frames of the wire: their numbers, their bodies, and what is illegal in them. `WIRE.md` is the text.

use bytes::{BufMut, Bytes, BytesMut};

use crate::code::Code;
use crate::hello::{Hello, HelloError};
use crate::limits::{MAX_BODY, MAX_MESSAGE};
use crate::session::SessionId;
use crate::varint::{self, Varint};

/// Frame types. One byte on the wire.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 0x01;
    pub(crate) const OPEN: u8 = 0x02;
    pub(crate) const ANSWER: u8 = 0x03;
    pub(crate) const DATA: u8 = 0x04;
    pub(crate) const END: u8 = 0x05;
    pub(crate) const END_ACK: u8 = 0x06;
    pub(crate) const CREDIT: u8 = 0x07;
    pub(crate) const ABORT: u8 = 0x08;
    pub(crate) const PING: u8 = 0x09;
    pub(crate) const PONG: u8 = 0x0a;
    pub(crate) const PRESENCE: u8 = 0x0b;
    pub(crate) const DRAIN: u8 = 0x0c;
    /// From here on: a length and a body, skipped by who does not know the type (WIRE-4).
    pub(crate) const EXTENSION_FIRST: u8 = 0x40;
    pub(crate) const EXTENSION_LAST: u8 = 0x7f;
}

/// A whole frame, or the beginning of a data frame, whose payload follows in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Hello(Hello),
    Open { id: SessionId, header: Bytes },
    Answer { id: SessionId, credit: u64, header: Bytes },
    Data { id: SessionId, len: u64 },
    End { id: SessionId },
    EndAck { id: SessionId },
    Credit { id: SessionId, amount: u64 },
    Abort { id: SessionId, abort: Abort },
    Ping { token: u8 },
    Pong { token: u8 },
    Presence,
    Drain { deadline_ms: u64 },
    Extension,
}

/// How the other side gave up, or how a hop on the way died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Why.
    pub code: Code,
    /// How many links this abort has crossed on its way to its reader: 0 for what the reader's own link raised.
    pub hops: u32,
    /// For people; at most 512 bytes of UTF-8.
    pub message: String,
    /// With `conn_lost`: for how long the link that died had been silent, in milliseconds.
    pub silent_ms: Option<u64>,
}

impl Abort {
    /// An abort that begins here. The message is cut at 512 bytes, at a character's end.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, hops: 0, message: message.into(), silent_ms: None }.bounded()
    }

    /// With its message cut to what the wire takes.
    pub(crate) fn bounded(mut self) -> Self {
        if self.message.len() > MAX_MESSAGE {
            let mut end = MAX_MESSAGE;
            while !self.message.is_char_boundary(end) {
                end -= 1;
            }
            self.message.truncate(end);
        }
        self
    }
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at hop {}", self.code, self.hops)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Abort {}

/// What makes the bytes of a peer no frame. Each ends the link with `protocol`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A type below the extension range that this version does not know.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
    /// A number not in its shortest form, or above 2^62 - 1.
    #[error("malformed number in a frame of type {0:#04x}")]
    Number(u8),
    /// A body longer than its limit.
    #[error("a frame of type {kind:#04x} announces {len} bytes; at most {max} are allowed")]
    TooLong {
        /// The frame's type.
        kind: u8,
        /// The length that it announces.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A body that ends in the middle of what it holds, or a value out of its range.
    #[error("malformed body in a frame of type {0:#04x}")]
    Body(u8),
    /// An abort's message longer than 512 bytes.
    #[error("an abort's message of {0} bytes; at most 512 are allowed")]
    Message(usize),
    /// A data frame without a byte.
    #[error("empty data frame")]
    EmptyData,
    /// Session 0 in a frame that needs a session.
    #[error("a frame of type {0:#04x} for session 0")]
    SessionZero(u8),
    /// A hello that can't be understood.
    #[error(transparent)]
    Hello(#[from] HelloError),
}

/// One step of the decoder.
pub(crate) enum Step {
    /// A frame that took so many bytes.
    Frame(Frame, usize),
    /// More bytes are needed.
    Partial,
}

/// Reads one frame from the beginning of `bytes`. Of a data frame only the head is read.
pub(crate) fn decode(bytes: &[u8], max_header: u32) -> Result<Step, FrameError> {
    let Some(&kind) = bytes.first() else { return Ok(Step::Partial) };
    let mut cursor = Cursor { bytes, at: 1, kind };
    match decode_body(&mut cursor, max_header) {
        Ok(frame) => Ok(Step::Frame(frame, cursor.at)),
        Err(Stop::Partial) => Ok(Step::Partial),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn decode_body(cursor: &mut Cursor<'_>, max_header: u32) -> Result<Frame, Stop> {
    let frame = match cursor.kind {
        kind::HELLO => Frame::Hello(Hello::decode(cursor.body(MAX_BODY as u64)?).map_err(FrameError::from)?),
        kind::OPEN => {
            let id = cursor.session()?;
            Frame::Open { id, header: Bytes::copy_from_slice(cursor.body(u64::from(max_header))?) }
        }
        kind::ANSWER => {
            let id = cursor.session()?;
            let credit = cursor.number()?;
            Frame::Answer { id, credit, header: Bytes::copy_from_slice(cursor.body(u64::from(max_header))?) }
        }
        kind::DATA => {
            let id = cursor.session()?;
            match cursor.number()? {
                0 => return Err(FrameError::EmptyData.into()),
                len => Frame::Data { id, len },
            }
        }
        kind::END => Frame::End { id: cursor.session()? },
        kind::END_ACK => Frame::EndAck { id: cursor.session()? },
        kind::CREDIT => Frame::Credit { id: cursor.session()?, amount: cursor.number()? },
        kind::ABORT => {
            let id = SessionId(cursor.number()?);
            Frame::Abort { id, abort: decode_abort(cursor.body(MAX_BODY as u64)?)? }
        }
        kind::PING => Frame::Ping { token: cursor.byte()? },
        kind::PONG => Frame::Pong { token: cursor.byte()? },
        kind::PRESENCE => Frame::Presence,
        kind::DRAIN => {
            let body = cursor.body(MAX_BODY as u64)?;
            Frame::Drain { deadline_ms: Cursor { bytes: body, at: 0, kind: kind::DRAIN }.inner_number()? }
        }
        kind::EXTENSION_FIRST..=kind::EXTENSION_LAST => {
            cursor.body(MAX_BODY as u64)?;
            Frame::Extension
        }
        unknown => return Err(FrameError::UnknownType(unknown).into()),
    };
    Ok(frame)
}

/// Field of an abort's body: for how long the link had been silent, in milliseconds.
const ABORT_SILENT_MS: u64 = 1;

fn decode_abort(body: &[u8]) -> Result<Abort, FrameError> {
    let bad = || FrameError::Body(kind::ABORT);
    let mut cursor = Cursor { bytes: body, at: 0, kind: kind::ABORT };
    let code = u32::try_from(cursor.inner_number()?).ok().and_then(Code::from_number).ok_or_else(bad)?;
    let hops = u32::try_from(cursor.inner_number()?).map_err(|_| bad())?;
    let message = cursor.inner_slice()?;
    if message.len() > MAX_MESSAGE {
        return Err(FrameError::Message(message.len()));
    }
    let message = std::str::from_utf8(message).map_err(|_| bad())?.to_owned();
    let mut abort = Abort { code, hops, message, silent_ms: None };
    while cursor.at < body.len() {
        let field = cursor.inner_number()?;
        let value = cursor.inner_slice()?;
        if field == ABORT_SILENT_MS {
            abort.silent_ms = Some(whole_number(value).ok_or_else(bad)?);
        }
    }
    Ok(abort)
}

/// A field's value that is one number and nothing else.
pub(crate) fn whole_number(value: &[u8]) -> Option<u64> {
    match varint::get(value) {
        Varint::Value(number, len) if len == value.len() => Some(number),
        Varint::Value(..) | Varint::Partial | Varint::Malformed => None,
    }
}

enum Stop {
    Partial,
    Error(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        Self::Error(error)
    }
}

/// A place in some bytes.
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
    pub(crate) kind: u8,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at).ok_or(Stop::Partial)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, Stop> {
        match varint::get(&self.bytes[self.at..]) {
            Varint::Value(value, len) => {
                self.at += len;
                Ok(value)
            }
            Varint::Partial => Err(Stop::Partial),
            Varint::Malformed => Err(FrameError::Number(self.kind).into()),
        }
    }

    fn session(&mut self) -> Result<SessionId, Stop> {
        match self.number()? {
            0 => Err(FrameError::SessionZero(self.kind).into()),
            id => Ok(SessionId(id)),
        }
    }

    fn body(&mut self, max: u64) -> Result<&'a [u8], Stop> {
        let len = self.number()?;
        if len > max {
            return Err(FrameError::TooLong { kind: self.kind, len, max }.into());
        }
        let end = self.at + usize::try_from(len).map_err(|_| FrameError::Body(self.kind))?;
        let body = self.bytes.get(self.at..end).ok_or(Stop::Partial)?;
        self.at = end;
        Ok(body)
    }

    /// A number inside a whole body, where running out of bytes is the peer's fault.
    pub(crate) fn inner_number(&mut self) -> Result<u64, FrameError> {
        self.number().map_err(|stop| self.inner(stop))
    }

    /// A length and that many bytes, inside a whole body.
    pub(crate) fn inner_slice(&mut self) -> Result<&'a [u8], FrameError> {
        self.body(MAX_BODY as u64).map_err(|stop| self.inner(stop))
    }

    fn inner(&self, stop: Stop) -> FrameError {
        match stop {
            Stop::Partial => FrameError::Body(self.kind),
            Stop::Error(error) => error,
        }
    }
}

/// Appends a frame's bytes; of a data frame only the head, its payload goes behind.
pub(crate) fn encode(frame: &Frame, out: &mut BytesMut) {
    match frame {
        Frame::Hello(hello) => put_body(out, kind::HELLO, |body| hello.encode(body)),
        Frame::Open { id, header } => {
            put_head(out, kind::OPEN, *id);
            put_slice(out, header);
        }
        Frame::Answer { id, credit, header } => {
            put_head(out, kind::ANSWER, *id);
            varint::put(out, *credit);
            put_slice(out, header);
        }
        Frame::Data { id, len } => {
            put_head(out, kind::DATA, *id);
            varint::put(out, *len);
        }
        Frame::End { id } => put_head(out, kind::END, *id),
        Frame::EndAck { id } => put_head(out, kind::END_ACK, *id),
        Frame::Credit { id, amount } => {
            put_head(out, kind::CREDIT, *id);
            varint::put(out, *amount);
        }
        Frame::Abort { id, abort } => {
            put_head(out, kind::ABORT, *id);
            let mut body = BytesMut::new();
            varint::put(&mut body, u64::from(abort.code.number()));
            varint::put(&mut body, u64::from(abort.hops));
            put_slice(&mut body, abort.message.as_bytes());
            if let Some(silent) = abort.silent_ms {
                put_number_field(&mut body, ABORT_SILENT_MS, silent.min(varint::MAX));
            }
            put_slice(out, &body);
        }
        Frame::Ping { token } => out.extend_from_slice(&[kind::PING, *token]),
        Frame::Pong { token } => out.extend_from_slice(&[kind::PONG, *token]),
        Frame::Presence => out.put_u8(kind::PRESENCE),
        Frame::Drain { deadline_ms } => put_body(out, kind::DRAIN, |body| varint::put(body, *deadline_ms)),
        Frame::Extension => put_body(out, kind::EXTENSION_FIRST, |_| ()),
    }
}

fn put_head(out: &mut BytesMut, kind: u8, id: SessionId) {
    out.put_u8(kind);
    varint::put(out, id.0);
}

/// A length and the bytes.
pub(crate) fn put_slice(out: &mut BytesMut, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A field whose value is one number.
pub(crate) fn put_number_field(out: &mut BytesMut, field: u64, number: u64) {
    let mut value = BytesMut::new();
    varint::put(&mut value, number);
    varint::put(out, field);
    put_slice(out, &value);
}

fn put_body(out: &mut BytesMut, kind: u8, fill: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    fill(&mut body);
    out.put_u8(kind);
    put_slice(out, &body);
}
