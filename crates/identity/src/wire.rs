//! The two messages of a join, each with its length before it as a big-endian u32.

use std::fmt;
use std::io;

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use zeroize::Zeroizing;

/// The one version of the join exchange.
pub(crate) const JOIN_VERSION: u32 = 1;

/// The longest message that is read, in bytes; all that an unknown peer can make us hold.
pub(crate) const MAX_MESSAGE_LEN: u32 = 64 * 1024;

/// Sent by the machine. Whoever reads one wipes `secret`; `Debug` shows only the version.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(crate) struct JoinRequest {
    #[prost(string, tag = "1")]
    pub(crate) token_id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) secret: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) csr_der: Vec<u8>,
    #[prost(uint32, tag = "5")]
    pub(crate) version: u32,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinRequest").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Sent by the relay.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct JoinReply {
    #[prost(oneof = "Outcome", tags = "1, 2")]
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Outcome {
    #[prost(message, tag = "1")]
    Issued(Issued),
    #[prost(message, tag = "2")]
    Refused(Refused),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Issued {
    /// The machine's certificate first, then any between it and the authority.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) chain_der: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) ca_der: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) publish: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) dial: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Refused {
    #[prost(string, tag = "1")]
    pub(crate) message: String,
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a message of {0} bytes; at most {MAX_MESSAGE_LEN} are read")]
    TooLong(u32),
    #[error("a message that cannot be decoded")]
    Malformed,
}

pub(crate) async fn read<M: Message + Default>(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<M, ReadError> {
    let len = stream.read_u32().await?;
    if len > MAX_MESSAGE_LEN {
        return Err(ReadError::TooLong(len));
    }
    // At full size at once: a buffer that grew would leave copies of the secret behind.
    let mut body = Zeroizing::new(vec![0; len as usize]);
    stream.read_exact(&mut body).await?;
    M::decode(body.as_slice()).map_err(|_| ReadError::Malformed)
}

/// Writes and flushes one message; those that we send are far below the limit.
pub(crate) async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> io::Result<()> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the message is too long");
    let len = u32::try_from(message.encoded_len()).ok().filter(|len| *len <= MAX_MESSAGE_LEN);
    let len = len.ok_or_else(too_long)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(4 + len as usize));
    bytes.extend_from_slice(&len.to_be_bytes());
    message.encode(&mut *bytes).map_err(|_| too_long())?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}
