//! HPACK (RFC 7541), read for a few fields.
//!
//! Of a field that matters its meaning is kept, of any other its length: the dynamic table holds no name and no value,
//! so no credential stays in memory because a connection was watched. That, and the price of a Huffman string (17 µs
//! and many allocations in `loona-hpack`, 85 ms for a hostile block of 16 KiB), is why the decoder is our own. It is
//! tested against `loona-hpack` and against h2.
//!
//! It is laxer than an endpoint: a size update may stand anywhere in a block. What it takes and an endpoint refuses
//! ends the connection anyway.

mod huffman;
mod names;

use std::collections::VecDeque;

use self::names::{LONGEST, Name, STATIC, static_name, static_value};
use crate::field::{Field, Fields, VALUE_BYTES};

/// Size of the table before anybody changes it.
const FIRST_TABLE_BYTES: usize = 4_096;
/// What an entry counts beyond name and value.
const ENTRY_OVERHEAD: usize = 32;

/// Why a block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes are no HPACK.
    Malformed,
    /// The encoder's table is larger than ours may be.
    Table,
}

struct Entry {
    name: Name,
    field: Field,
    name_bytes: u32,
    size: u32,
}

pub(crate) struct Decoder {
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
    limit: usize,
}

impl Decoder {
    pub(crate) fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, max_size: FIRST_TABLE_BYTES.min(limit), limit }
    }

    /// Bytes of memory that the table takes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Reads a whole block. After a fault the table is no longer the encoder's.
    pub(crate) fn decode(&mut self, mut block: &[u8]) -> Result<Fields, Fault> {
        let mut fields = Fields::default();
        while let Some(first) = block.first().copied() {
            match first {
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    fields.take(self.indexed(index)?);
                }
                0x40.. => {
                    let entry = self.literal(&mut block, 6)?;
                    fields.take(entry.field);
                    self.insert(entry);
                }
                0x20.. => {
                    let size = integer(&mut block, 5)?;
                    if size > self.limit {
                        return Err(Fault::Table);
                    }
                    fields.resized = true;
                    self.max_size = size;
                    self.evict(0);
                }
                _ => fields.take(self.literal(&mut block, 4)?.field),
            }
        }
        Ok(fields)
    }

    fn indexed(&self, index: usize) -> Result<Field, Fault> {
        let index = index.checked_sub(1).ok_or(Fault::Malformed)?;
        if index < STATIC.len() {
            return Ok(meaning(static_name(index), static_value(index)));
        }
        self.entries.get(index - STATIC.len()).map(|entry| entry.field).ok_or(Fault::Malformed)
    }

    fn literal(&self, block: &mut &[u8], prefix: u32) -> Result<Entry, Fault> {
        let index = integer(block, prefix)?;
        let (name, name_bytes) = match index.checked_sub(1) {
            None => {
                let mut kept = Kept::<LONGEST>::default();
                let length = string(block, &mut kept)?;
                // A longer name has lost its end here, and is none that matters.
                let name = if length > LONGEST { Name::Other } else { Name::of(kept.bytes()) };
                (name, length)
            }
            Some(index) if index < STATIC.len() => (static_name(index), STATIC[index].len()),
            Some(index) => {
                let entry = self.entries.get(index - STATIC.len()).ok_or(Fault::Malformed)?;
                (entry.name, entry.name_bytes as usize)
            }
        };
        let (field, value_bytes) = if name == Name::Other {
            (Field::Other, string(block, &mut Kept::<0>::default())?)
        } else {
            let mut kept = Kept::<VALUE_BYTES>::default();
            let length = string(block, &mut kept)?;
            (meaning(name, kept.bytes()), length)
        };
        let size = name_bytes + value_bytes + ENTRY_OVERHEAD;
        Ok(Entry { name, field, name_bytes: name_bytes as u32, size: size as u32 })
    }

    /// Makes room first, as the encoder does. What is larger than the table empties it.
    fn insert(&mut self, entry: Entry) {
        let size = entry.size as usize;
        self.evict(size);
        if size <= self.max_size {
            self.size += size;
            self.entries.push_front(entry);
        }
    }

    fn evict(&mut self, room: usize) {
        while self.size + room > self.max_size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size as usize;
        }
    }
}

/// What a field says.
#[cfg(feature = "testkit")]
pub(crate) fn meaning_of(name: &[u8], value: &[u8]) -> Field {
    meaning(Name::of(name), value)
}

fn meaning(name: Name, value: &[u8]) -> Field {
    match name {
        Name::Authority => Field::authority(value),
        Name::Path => Field::path(value),
        Name::Status => Field::http_status(value),
        Name::ContentType => Field::content_type(value),
        Name::UserAgent => Field::user_agent(value),
        Name::Timeout => Field::timeout(value),
        Name::GrpcStatus => Field::grpc_status(value),
        Name::GrpcMessage => Field::grpc_message(value),
        Name::Other => Field::Other,
    }
}

/// The first bytes of a string; it lives no longer than the field is read.
struct Kept<const MOST: usize> {
    bytes: [u8; MOST],
    have: usize,
}

impl<const MOST: usize> Default for Kept<MOST> {
    fn default() -> Self {
        Self { bytes: [0; MOST], have: 0 }
    }
}

impl<const MOST: usize> Kept<MOST> {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.have) {
            *slot = byte;
            self.have += 1;
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.have]
    }
}

/// An integer with a prefix of so many bits. Five bytes at most: 2^28 and a bit, more than any field may be long.
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, Fault> {
    let (first, mut rest) = block.split_first().ok_or(Fault::Malformed)?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first().ok_or(Fault::Malformed)?;
            rest = after;
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift >= 28 {
                return Err(Fault::Malformed);
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// A string: its first bytes to `kept`, its decoded length as the result.
fn string<const MOST: usize>(block: &mut &[u8], kept: &mut Kept<MOST>) -> Result<usize, Fault> {
    let huffman = block.first().ok_or(Fault::Malformed)? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Fault::Malformed)?;
    *block = rest;
    if huffman {
        return huffman::decode(bytes, |byte| kept.push(byte)).ok_or(Fault::Malformed);
    }
    let have = length.min(MOST);
    kept.bytes[..have].copy_from_slice(&bytes[..have]);
    kept.have = have;
    Ok(length)
}
