//! What every peer can do: a connection between two ends of this process, streams over it.

use std::future::Future;
use std::ops::Deref;

use anyhow::Result;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One library, set up in one way.
pub trait Peer: 'static {
    const NAME: &'static str;
    type Stream: Stream;
    type Opener: Opener<Stream = Self::Stream>;
    type Acceptor: Acceptor<Stream = Self::Stream>;

    /// A fresh connection over loopback, up at both ends.
    fn connect() -> impl Future<Output = Result<(Self::Opener, Self::Acceptor)>> + Send;
}

/// The end that opens streams.
pub trait Opener: Send + Sync + 'static {
    type Stream: Stream;
    fn open(&self) -> impl Future<Output = Result<Self::Stream>> + Send;
}

/// The end that accepts them.
pub trait Acceptor: Send + 'static {
    type Stream: Stream;
    fn accept(&mut self) -> impl Future<Output = Option<Self::Stream>> + Send;
}

/// One two-way stream.
pub trait Stream: Send + 'static {
    /// Sends all of it, in the way that is cheapest for the library.
    fn send(&mut self, bytes: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Whatever has come, into `room` where the library can't do without a copy; `None` is the peer's end.
    fn receive<'a>(
        &'a mut self,
        room: &'a mut [u8],
    ) -> impl Future<Output = Result<Option<Piece<'a>>>> + Send;

    /// Has everything leave that was sent.
    fn flush(&mut self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Ends the sending direction.
    fn end(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Bytes received.
pub enum Piece<'a> {
    Copied(&'a [u8]),
    ByReference(Bytes),
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::ByReference(bytes) => bytes,
        }
    }
}

/// A stream that is `AsyncRead` and `AsyncWrite`.
pub struct Io<S>(pub S);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for Io<S> {
    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.0.write_all(&bytes).await?)
    }

    async fn receive<'a>(&'a mut self, room: &'a mut [u8]) -> Result<Option<Piece<'a>>> {
        let n = self.0.read(room).await?;
        Ok((n > 0).then(|| Piece::Copied(&room[..n])))
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush().await?)
    }

    async fn end(&mut self) -> Result<()> {
        Ok(self.0.shutdown().await?)
    }
}

/// Both ends of a TCP connection over loopback.
pub async fn tcp_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (near, far) = tokio::try_join!(TcpStream::connect(address), listener.accept())?;
    near.set_nodelay(true)?;
    far.0.set_nodelay(true)?;
    Ok((near, far.0))
}
