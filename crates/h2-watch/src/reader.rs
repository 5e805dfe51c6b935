//! One direction of a connection, cut into what matters: frame heads, a few numbers, header blocks.
//!
//! Bodies are skipped by length. Whatever the cuts, the same items come out in the same order.

use crate::field::Fields;
use crate::hpack::{Decoder, Fault};
use crate::limits::Limits;
use crate::watcher::GaveUp;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

pub(crate) const HEAD_BYTES: usize = 9;
/// Bytes of a GOAWAY that are read: two numbers, and enough of its debug data.
const GOAWAY_BYTES: usize = 8 + 32;
const TOO_MANY_PINGS: &[u8] = b"too_many_pings";

/// What passes, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    /// Some bytes of a body, without padding.
    Body {
        stream: u32,
        bytes: &'a [u8],
    },
    /// A DATA frame is complete.
    Data {
        stream: u32,
        flow: u32,
        end: bool,
    },
    Headers {
        stream: u32,
        end: bool,
        fields: Fields,
    },
    Reset {
        stream: u32,
        code: u32,
    },
    Setting {
        id: u16,
        value: u32,
    },
    /// A SETTINGS frame is complete.
    Settings {
        ack: bool,
    },
    Ping {
        ack: bool,
        payload: u64,
    },
    GoAway {
        last: u32,
        code: u32,
        too_many_pings: bool,
    },
    Window {
        stream: u32,
        increment: u32,
    },
    /// A header block that says nothing here, for the table's sake: PUSH_PROMISE.
    Promise {
        resized: bool,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Head {
    fn parse(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn is_first_settings(self) -> bool {
        self.kind == SETTINGS && self.stream == 0 && !self.has(ACK) && self.length.is_multiple_of(6)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    /// Collects the fixed beginning of a payload.
    Small {
        want: usize,
    },
    Body,
    Fragment,
    /// What is left of the payload says nothing.
    Skip,
}

/// A header block that has begun.
#[derive(Clone, Copy, Debug)]
struct Block {
    stream: u32,
    end: bool,
    promise: bool,
}

pub(crate) struct Reader {
    state: State,
    small: [u8; GOAWAY_BYTES],
    have: usize,
    head: Head,
    /// Bytes of the payload that are still to come, padding included.
    left: u32,
    padding: u32,
    decoder: Decoder,
    block: Option<Block>,
    fragments: Vec<u8>,
    block_limit: usize,
    /// Whether the first frame was one that a connection may begin with; none before its head was read.
    began_well: Option<bool>,
}

impl Reader {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            state: State::Head,
            small: [0; GOAWAY_BYTES],
            have: 0,
            head: Head::default(),
            left: 0,
            padding: 0,
            decoder: Decoder::new(limits.table_bytes),
            block: None,
            fragments: Vec::new(),
            block_limit: limits.block_bytes,
            began_well: None,
        }
    }

    /// Whether the next byte begins a frame, of any kind: not inside one, not inside a header block.
    pub(crate) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Head) && self.have == 0 && self.block.is_none()
    }

    /// Whether the first frame was none that a connection may begin with.
    pub(crate) fn began_otherwise(&self) -> bool {
        self.began_well == Some(false)
    }

    /// Bytes of memory beyond the struct itself.
    pub(crate) fn held_bytes(&self) -> usize {
        self.fragments.capacity() + self.decoder.held_bytes()
    }

    /// The next item, or none when the bytes are used up.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Item<'a>>, GaveUp> {
        loop {
            // A frame without payload is complete with its head, so this comes before the look at what is left.
            let item = match self.state {
                State::Head => {
                    if !self.collect(HEAD_BYTES, bytes) {
                        return Ok(None);
                    }
                    self.begin()?
                }
                State::Small { want } => {
                    if !self.collect(want, bytes) {
                        return Ok(None);
                    }
                    self.small_is_complete(want)?
                }
                State::Body => {
                    let part = self.take(bytes);
                    if self.left == self.padding {
                        self.state = State::Skip;
                    }
                    if part.is_empty() && matches!(self.state, State::Body) {
                        return Ok(None);
                    }
                    (!part.is_empty()).then_some(Item::Body { stream: self.head.stream, bytes: part })
                }
                State::Fragment => {
                    let part = self.take(bytes);
                    if self.left > self.padding {
                        self.keep(part)?;
                        return Ok(None);
                    }
                    self.fragment_is_complete(part)?
                }
                State::Skip => {
                    let count = bytes.len().min(self.left as usize);
                    *bytes = &bytes[count..];
                    self.left -= count as u32;
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.finish()
                }
            };
            if item.is_some() {
                return Ok(item);
            }
        }
    }

    /// Fills `small` up to `want`; true when it is full, and then the next collection begins from nothing.
    fn collect(&mut self, want: usize, bytes: &mut &[u8]) -> bool {
        let count = bytes.len().min(want - self.have);
        let (taken, rest) = bytes.split_at(count);
        self.small[self.have..self.have + count].copy_from_slice(taken);
        *bytes = rest;
        self.have += count;
        if self.have < want {
            return false;
        }
        self.have = 0;
        true
    }

    /// What there is of the payload before its padding.
    fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> &'a [u8] {
        let count = bytes.len().min((self.left - self.padding) as usize);
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        self.left -= count as u32;
        taken
    }

    /// A head is complete: what its payload begins with.
    fn begin(&mut self) -> Result<Option<Item<'static>>, GaveUp> {
        let mut head = [0; HEAD_BYTES];
        head.copy_from_slice(&self.small[..HEAD_BYTES]);
        self.head = Head::parse(&head);
        let head = self.head;
        (self.left, self.padding) = (head.length, 0);
        self.began_well.get_or_insert(head.is_first_settings());
        if self.block.is_some_and(|block| head.kind != CONTINUATION || head.stream != block.stream) {
            return Err(GaveUp::Framing);
        }
        let pad = usize::from(head.has(PADDED));
        let on_stream = matches!(head.kind, DATA | HEADERS | RST_STREAM | PUSH_PROMISE | CONTINUATION);
        if on_stream && head.stream == 0 {
            return Err(GaveUp::Framing);
        }
        let want = match head.kind {
            DATA => pad,
            HEADERS => pad + if head.has(PRIORITY) { 5 } else { 0 },
            PUSH_PROMISE => pad + 4,
            RST_STREAM | WINDOW_UPDATE if head.length == 4 => 4,
            PING if head.length == 8 => 8,
            GOAWAY if head.length >= 8 => GOAWAY_BYTES.min(head.length as usize),
            SETTINGS if head.length.is_multiple_of(6) => 6.min(head.length as usize),
            RST_STREAM | WINDOW_UPDATE | PING | GOAWAY | SETTINGS => return Err(GaveUp::Framing),
            CONTINUATION if self.block.is_none() => return Err(GaveUp::Framing),
            _ => 0,
        };
        if want > head.length as usize {
            return Err(GaveUp::Framing);
        }
        self.state = State::Small { want };
        Ok(None)
    }

    /// The fixed beginning of the payload is there.
    fn small_is_complete(&mut self, want: usize) -> Result<Option<Item<'static>>, GaveUp> {
        self.left -= want as u32;
        self.state = State::Skip;
        let head = self.head;
        let number = |at: usize| {
            u32::from_be_bytes([self.small[at], self.small[at + 1], self.small[at + 2], self.small[at + 3]])
        };
        let item = match head.kind {
            DATA | HEADERS | PUSH_PROMISE => {
                self.padding = if head.has(PADDED) { u32::from(self.small[0]) } else { 0 };
                if self.padding > self.left {
                    return Err(GaveUp::Framing);
                }
                if head.kind == DATA {
                    self.state = State::Body;
                } else {
                    let promise = head.kind == PUSH_PROMISE;
                    self.block = Some(Block { stream: head.stream, end: head.has(END_STREAM), promise });
                    self.state = State::Fragment;
                }
                return Ok(None);
            }
            CONTINUATION => {
                self.state = State::Fragment;
                return Ok(None);
            }
            RST_STREAM => Item::Reset { stream: head.stream, code: number(0) },
            WINDOW_UPDATE => Item::Window { stream: head.stream, increment: number(0) & 0x7fff_ffff },
            PING => {
                let payload = u64::from(number(0)) << 32 | u64::from(number(4));
                Item::Ping { ack: head.has(ACK), payload }
            }
            GOAWAY => {
                let debug = &self.small[8..want];
                let too_many_pings = debug.windows(TOO_MANY_PINGS.len()).any(|part| part == TOO_MANY_PINGS);
                Item::GoAway { last: number(0) & 0x7fff_ffff, code: number(4), too_many_pings }
            }
            SETTINGS if want == 6 => {
                if self.left > 0 {
                    self.state = State::Small { want: 6 };
                }
                Item::Setting { id: u16::from_be_bytes([self.small[0], self.small[1]]), value: number(2) }
            }
            _ => return Ok(None),
        };
        Ok(Some(item))
    }

    /// The whole payload has passed.
    fn finish(&mut self) -> Option<Item<'static>> {
        self.state = State::Head;
        match self.head.kind {
            DATA => Some(Item::Data {
                stream: self.head.stream,
                flow: self.head.length,
                end: self.head.has(END_STREAM),
            }),
            SETTINGS => Some(Item::Settings { ack: self.head.has(ACK) }),
            _ => None,
        }
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), GaveUp> {
        if self.fragments.len() + part.len() > self.block_limit {
            return Err(GaveUp::HeaderBlock);
        }
        self.fragments.extend_from_slice(part);
        Ok(())
    }

    /// A fragment is there, `last` its last part. A block that lies in one piece is read where it lies.
    fn fragment_is_complete(&mut self, last: &[u8]) -> Result<Option<Item<'static>>, GaveUp> {
        self.state = State::Skip;
        if !self.head.has(END_HEADERS) {
            self.keep(last)?;
            return Ok(None);
        }
        let Some(block) = self.block.take() else { return Err(GaveUp::Framing) };
        let decoded = if self.fragments.is_empty() {
            if last.len() > self.block_limit {
                return Err(GaveUp::HeaderBlock);
            }
            self.decoder.decode(last)
        } else {
            self.keep(last)?;
            // Nothing of a block stays behind it, its memory included.
            let whole = std::mem::take(&mut self.fragments);
            self.decoder.decode(&whole)
        };
        let fields = decoded.map_err(|fault| match fault {
            Fault::Malformed => GaveUp::Hpack,
            Fault::Table => GaveUp::HeaderTable,
        })?;
        Ok(Some(if block.promise {
            Item::Promise { resized: fields.resized }
        } else {
            Item::Headers { stream: block.stream, end: block.end, fields }
        }))
    }
}
