//! Control messages out of the bytes of a control session.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Buf as _, BytesMut};
use hopline_varint::{self as varint, VarintError};

use crate::control::{Body, ControlMessage, MAX_CONTROL_LEN, MAX_WHOLE_LEN};

/// Why the bytes of a control session are not control messages. The control session, and with it the link, is to be
/// ended as `protocol`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// A length that is no number.
    #[error("the length of a control message: {0}")]
    Length(VarintError),
    /// Over [`MAX_CONTROL_LEN`].
    #[error("a control message has at most {MAX_CONTROL_LEN} bytes, not {0}")]
    TooLong(u64),
    /// Bytes that are not a control message.
    #[error("a control message is not valid: {0}")]
    Malformed(prost::DecodeError),
    /// Parts that are longer together than [`MAX_WHOLE_LEN`].
    #[error("a control message in parts has at most {MAX_WHOLE_LEN} bytes, not {0}")]
    WholeTooLong(usize),
    /// Another message between the parts of one.
    #[error("a control message stands between the parts of another")]
    BetweenParts,
    /// The session ended inside a message.
    #[error("the control session ended inside a message")]
    Truncated,
}

/// Cuts the bytes of a control session into messages.
///
/// Feed it with [`handle_data`](Self::handle_data), in any cuts, then call [`poll_message`](Self::poll_message) until
/// it gives `None`. It holds what was fed and not yet polled: drained after each feed, at most one message
/// of [`MAX_CONTROL_LEN`] and one feed; and the parts of a long message, at most [`MAX_WHOLE_LEN`]. A fault is for good: each later poll gives it again.
pub struct ControlDecoder<M> {
    buffer: BytesMut,
    /// The parts of a message so far.
    parts: BytesMut,
    skipped: u64,
    fault: Option<ControlError>,
    // The decoder makes messages and holds none.
    message: PhantomData<fn() -> M>,
}

impl<M: ControlMessage> ControlDecoder<M> {
    /// A decoder at the start of a control session.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            parts: BytesMut::new(),
            skipped: 0,
            fault: None,
            message: PhantomData,
        }
    }

    /// Takes the next bytes of the session.
    pub fn handle_data(&mut self, data: &[u8]) {
        if self.fault.is_none() {
            self.buffer.extend_from_slice(data);
        }
    }

    /// The next whole message that this version knows; `None` until more bytes come.
    ///
    /// # Errors
    ///
    /// [`ControlError`], now and at each later call.
    pub fn poll_message(&mut self) -> Result<Option<M>, ControlError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.next().inspect_err(|fault| {
            self.fault = Some(fault.clone());
            self.buffer = BytesMut::new();
            self.parts = BytesMut::new();
        })
    }

    /// How many messages were skipped because this version does not know them.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// To be called at the end of the session, with all messages polled.
    ///
    /// # Errors
    ///
    /// [`ControlError::Truncated`] if the session ended inside a message, or the fault met before.
    pub fn finish(&self) -> Result<(), ControlError> {
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None if self.buffer.is_empty() && self.parts.is_empty() => Ok(()),
            None => Err(ControlError::Truncated),
        }
    }

    fn next(&mut self) -> Result<Option<M>, ControlError> {
        loop {
            let (len, used) = match varint::read(&self.buffer) {
                Ok(read) => read,
                Err(VarintError::Incomplete) => return Ok(None),
                Err(error) => return Err(ControlError::Length(error)),
            };
            let body_len = match usize::try_from(len) {
                Ok(body_len) if body_len <= MAX_CONTROL_LEN => body_len,
                _ => return Err(ControlError::TooLong(len)),
            };
            let Some(body) = self.buffer.get(used..used + body_len) else {
                return Ok(None);
            };
            let read = M::from_body(body).map_err(ControlError::Malformed)?;
            self.buffer.advance(used + body_len);
            let read = match read {
                Body::Part(part) => {
                    let len = self.parts.len() + part.data.len();
                    if len > MAX_WHOLE_LEN {
                        return Err(ControlError::WholeTooLong(len));
                    }
                    self.parts.extend_from_slice(&part.data);
                    if !part.last {
                        continue;
                    }
                    let whole = std::mem::take(&mut self.parts);
                    M::from_body(&whole).map_err(ControlError::Malformed)?
                }
                Body::Message(_) | Body::Unknown if !self.parts.is_empty() => {
                    return Err(ControlError::BetweenParts);
                }
                read @ (Body::Message(_) | Body::Unknown) => read,
            };
            if let Body::Message(message) = read {
                return Ok(Some(message));
            }
            self.skipped = self.skipped.saturating_add(1);
        }
    }
}

impl<M: ControlMessage> Default for ControlDecoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> fmt::Debug for ControlDecoder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlDecoder")
            .field("buffered", &self.buffer.len())
            .field("skipped", &self.skipped)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
