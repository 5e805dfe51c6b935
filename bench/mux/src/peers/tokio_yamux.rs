//! tokio-yamux. A stream whose owner only writes never sees the credit that comes for it, and stops for ever: so
//! it is measured with an owner that reads beside its writes, and, for bulk, as an ordinary owner too.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use anyhow::Result;
use bytes::{Buf, Bytes, BytesMut};
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::mpsc;
use tokio_yamux::{Config, Control, Session, StreamHandle};

use crate::peer::{Acceptor, Io, Opener, Peer, Piece, Stream, tcp_pair};

pub struct TokioYamux;
pub struct TokioYamuxWriteOnly;

async fn connection() -> Result<(Control, mpsc::UnboundedReceiver<StreamHandle>)> {
    let (near, far) = tcp_pair().await?;
    let mut client = Session::new_client(near, Config::default());
    let mut server = Session::new_server(far, Config::default());
    let control = client.control();
    let (incoming, accepted) = mpsc::unbounded_channel();
    tokio::spawn(async move { while let Some(Ok(_)) = client.next().await {} });
    tokio::spawn(async move {
        while let Some(Ok(stream)) = server.next().await {
            if incoming.send(stream).is_err() {
                return;
            }
        }
    });
    Ok((control, accepted))
}

impl Peer for TokioYamux {
    const NAME: &'static str = "tokio-yamux";
    type Stream = ReadsBeside;
    type Opener = Opens<ReadsBeside>;
    type Acceptor = Accepts<ReadsBeside>;

    async fn connect() -> Result<(Self::Opener, Self::Acceptor)> {
        let (control, accepted) = connection().await?;
        let wrap = |stream| ReadsBeside { stream, early: BytesMut::new(), ended: false };
        Ok((Opens { control, wrap }, Accepts { accepted, wrap }))
    }
}

impl Peer for TokioYamuxWriteOnly {
    const NAME: &'static str = "tokio-yamux, an owner that only writes";
    type Stream = Io<StreamHandle>;
    type Opener = Opens<Io<StreamHandle>>;
    type Acceptor = Accepts<Io<StreamHandle>>;

    async fn connect() -> Result<(Self::Opener, Self::Acceptor)> {
        let (control, accepted) = connection().await?;
        Ok((Opens { control, wrap: Io }, Accepts { accepted, wrap: Io }))
    }
}

pub struct Opens<S> {
    control: Control,
    wrap: fn(StreamHandle) -> S,
}

impl<S: Stream> Opener for Opens<S> {
    type Stream = S;

    async fn open(&self) -> Result<S> {
        Ok((self.wrap)(self.control.clone().open_stream().await?))
    }
}

pub struct Accepts<S> {
    accepted: mpsc::UnboundedReceiver<StreamHandle>,
    wrap: fn(StreamHandle) -> S,
}

impl<S: Stream> Acceptor for Accepts<S> {
    type Stream = S;

    async fn accept(&mut self) -> Option<S> {
        self.accepted.recv().await.map(self.wrap)
    }
}

/// A stream that reads whenever it writes.
pub struct ReadsBeside {
    stream: StreamHandle,
    early: BytesMut,
    ended: bool,
}

impl ReadsBeside {
    fn read_early(&mut self, cx: &mut Context<'_>) -> std::io::Result<()> {
        let mut room = [0; 4_096];
        while !self.ended && self.early.len() < 64 << 10 {
            let mut buf = ReadBuf::new(&mut room);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(result) => result?,
                Poll::Pending => break,
            }
            self.ended = buf.filled().is_empty();
            self.early.extend_from_slice(buf.filled());
        }
        Ok(())
    }
}

impl Stream for ReadsBeside {
    async fn send(&mut self, mut bytes: Bytes) -> Result<()> {
        poll_fn(|cx| {
            while !bytes.is_empty() {
                self.read_early(cx)?;
                let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes))?;
                bytes.advance(n);
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    async fn receive<'a>(&'a mut self, room: &'a mut [u8]) -> Result<Option<Piece<'a>>> {
        if !self.early.is_empty() {
            return Ok(Some(Piece::ByReference(self.early.split().freeze())));
        }
        if self.ended {
            return Ok(None);
        }
        let n = tokio::io::AsyncReadExt::read(&mut self.stream, room).await?;
        self.ended = n == 0;
        Ok((n > 0).then(|| Piece::Copied(&room[..n])))
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(self.stream.flush().await?)
    }

    async fn end(&mut self) -> Result<()> {
        Ok(self.stream.shutdown().await?)
    }
}
