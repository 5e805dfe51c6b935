//! The decoders by themselves, for tests that give them any bytes.

use bytes::BytesMut;

use crate::FrameError;
use crate::frame::{self, Step};
use crate::varint::{self, Varint};

/// What a decoder makes of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// It took so many of them.
    Whole {
        /// Bytes taken; of a data frame those of its head.
        len: usize,
        /// What they mean.
        text: String,
        /// The same meaning, encoded anew.
        again: Vec<u8>,
    },
    /// More are needed.
    Partial,
    /// They are illegal: for a frame, why.
    Illegal(Option<FrameError>),
}

/// One frame at the beginning of `bytes`, where headers have at most `max_header` bytes.
#[must_use]
pub fn decode_frame(bytes: &[u8], max_header: u32) -> Decoded {
    match frame::decode(bytes, max_header) {
        Ok(Step::Partial) => Decoded::Partial,
        Ok(Step::Frame(frame, len)) => {
            let mut again = BytesMut::new();
            frame::encode(&frame, &mut again);
            Decoded::Whole { len, text: format!("{frame:?}"), again: again.to_vec() }
        }
        Err(error) => Decoded::Illegal(Some(error)),
    }
}

/// One number at the beginning of `bytes`.
#[must_use]
pub fn decode_number(bytes: &[u8]) -> Decoded {
    match varint::get(bytes) {
        Varint::Partial => Decoded::Partial,
        Varint::Malformed => Decoded::Illegal(None),
        Varint::Value(value, len) => {
            let mut again = BytesMut::new();
            varint::put(&mut again, value);
            Decoded::Whole { len, text: value.to_string(), again: again.to_vec() }
        }
    }
}
