//! The first frame of each side: version, limits, liveness, instance, name.

use std::time::Duration;

use bytes::{BufMut, BytesMut};

use crate::frame::{Cursor, FrameError, kind, put_number_field, put_slice, whole_number};
use crate::limits::{MAX_CREDIT, MAX_NAME};
use crate::liveness::{Liveness, LivenessError};
use crate::varint;

/// Four bytes that begin every hello, so that a stranger's bytes are known for what they are.
const MAGIC: &[u8; 4] = b"HOPL";
/// The oldest version of the wire that this code speaks.
pub(crate) const VERSION_MIN: u64 = 1;
/// The newest version of the wire that this code speaks.
pub(crate) const VERSION_MAX: u64 = 1;

/// Fields of a hello. Unknown ones are skipped.
mod field {
    pub(super) const INSTANCE: u64 = 1;
    pub(super) const INTERVAL_MS: u64 = 2;
    pub(super) const TIMEOUT_MS: u64 = 3;
    pub(super) const EARLY_CREDIT: u64 = 4;
    pub(super) const SESSIONS: u64 = 5;
    pub(super) const HEADER_BYTES: u64 = 6;
    pub(super) const NAME: u64 = 7;
}

/// What one side says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version_min: u64,
    pub(crate) version_max: u64,
    /// Random per process start.
    pub(crate) instance: [u8; 16],
    /// The sender's setting; a listener that has none leaves it out and adopts the dialer's.
    pub(crate) liveness: Option<Liveness>,
    pub(crate) early_credit: u32,
    pub(crate) sessions: u32,
    pub(crate) header_bytes: u32,
    /// Who the sender says it is. A claim: what proves it is the carrier's business.
    pub(crate) name: String,
}

/// What is wrong with a hello.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The first bytes are not a hello's.
    #[error("the peer does not speak this protocol")]
    Magic,
    /// A field that ends early, or a value out of its range.
    #[error("malformed hello: field {0}")]
    Field(u64),
    /// A field that every hello has is missing.
    #[error("hello without field {0}")]
    Missing(u64),
    /// A name longer than 255 bytes.
    #[error("malformed hello: a name of {0} bytes; at most 255 are allowed")]
    Name(usize),
    /// Liveness out of bounds.
    #[error("hello refused: {0}")]
    Liveness(#[from] LivenessError),
    /// No version in common.
    #[error("the peer speaks versions {peer_min} to {peer_max}, this side {VERSION_MIN} to {VERSION_MAX}")]
    Version {
        /// The peer's oldest.
        peer_min: u64,
        /// The peer's newest.
        peer_max: u64,
    },
}

impl Hello {
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_slice(MAGIC);
        varint::put(out, self.version_min);
        varint::put(out, self.version_max);
        varint::put(out, field::INSTANCE);
        put_slice(out, &self.instance);
        if let Some(liveness) = self.liveness {
            put_number_field(out, field::INTERVAL_MS, millis(liveness.interval()));
            put_number_field(out, field::TIMEOUT_MS, millis(liveness.timeout()));
        }
        put_number_field(out, field::EARLY_CREDIT, u64::from(self.early_credit));
        put_number_field(out, field::SESSIONS, u64::from(self.sessions));
        put_number_field(out, field::HEADER_BYTES, u64::from(self.header_bytes));
        varint::put(out, field::NAME);
        put_slice(out, self.name.as_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Result<Self, HelloError> {
        if !body.starts_with(MAGIC) {
            return Err(HelloError::Magic);
        }
        let mut cursor = Cursor { bytes: body, at: MAGIC.len(), kind: kind::HELLO };
        let malformed = |_: FrameError| HelloError::Field(0);
        let version_min = cursor.inner_number().map_err(malformed)?;
        let version_max = cursor.inner_number().map_err(malformed)?;
        if version_min > VERSION_MAX || version_max < VERSION_MIN || version_min > version_max {
            return Err(HelloError::Version { peer_min: version_min, peer_max: version_max });
        }
        let mut fields = Fields::default();
        while cursor.at < body.len() {
            let number = cursor.inner_number().map_err(malformed)?;
            let value = cursor.inner_slice().map_err(|_| HelloError::Field(number))?;
            if number == field::NAME && value.len() > MAX_NAME {
                return Err(HelloError::Name(value.len()));
            }
            fields.take(number, value).ok_or(HelloError::Field(number))?;
        }
        let liveness = match (fields.interval, fields.timeout) {
            (Some(interval), Some(timeout)) => {
                Some(Liveness::new(Duration::from_millis(interval), Duration::from_millis(timeout))?)
            }
            (None, None) => None,
            (Some(_), None) => return Err(HelloError::Missing(field::TIMEOUT_MS)),
            (None, Some(_)) => return Err(HelloError::Missing(field::INTERVAL_MS)),
        };
        Ok(Self {
            version_min,
            version_max,
            instance: fields.instance.ok_or(HelloError::Missing(field::INSTANCE))?,
            liveness,
            early_credit: fields.early_credit.ok_or(HelloError::Missing(field::EARLY_CREDIT))?,
            sessions: fields.sessions.ok_or(HelloError::Missing(field::SESSIONS))?,
            header_bytes: fields.header_bytes.ok_or(HelloError::Missing(field::HEADER_BYTES))?,
            name: fields.name.ok_or(HelloError::Missing(field::NAME))?,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    // A liveness has at most ten minutes.
    u64::try_from(duration.as_millis()).unwrap_or(varint::MAX)
}

#[derive(Default)]
struct Fields {
    instance: Option<[u8; 16]>,
    interval: Option<u64>,
    timeout: Option<u64>,
    early_credit: Option<u32>,
    sessions: Option<u32>,
    header_bytes: Option<u32>,
    name: Option<String>,
}

impl Fields {
    /// `None` if the value is bad or the field came before.
    fn take(&mut self, number: u64, value: &[u8]) -> Option<()> {
        match number {
            field::INSTANCE => once(&mut self.instance, value.try_into().ok()),
            field::INTERVAL_MS => once(&mut self.interval, whole_number(value)),
            field::TIMEOUT_MS => once(&mut self.timeout, whole_number(value)),
            field::EARLY_CREDIT => {
                once(&mut self.early_credit, small(value).filter(|n| u64::from(*n) <= MAX_CREDIT))
            }
            field::SESSIONS => once(&mut self.sessions, small(value)),
            field::HEADER_BYTES => once(&mut self.header_bytes, small(value)),
            field::NAME => once(&mut self.name, std::str::from_utf8(value).ok().map(str::to_owned)),
            _ => Some(()),
        }
    }
}

fn once<T>(slot: &mut Option<T>, value: Option<T>) -> Option<()> {
    if slot.is_some() {
        return None;
    }
    *slot = Some(value?);
    Some(())
}

fn small(value: &[u8]) -> Option<u32> {
    whole_number(value).and_then(|number| u32::try_from(number).ok())
}
