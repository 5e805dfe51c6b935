//! hopline-link over TCP, by its `AsyncRead` and `AsyncWrite` as the others, and by reference.

use anyhow::Result;
use bytes::Bytes;
use hopline_link::{Config, Mux, Session, Side, tune_tcp};

use crate::peer::{Acceptor, Io, Opener, Peer, Piece, Stream, tcp_pair};

pub struct Hopline;
pub struct HoplineByReference;

async fn link() -> Result<(Mux, Mux)> {
    let (near, far) = tcp_pair().await?;
    tune_tcp(&near)?;
    tune_tcp(&far)?;
    let dialer = Mux::spawn(near, Config::new(Side::Dialer, [1; 16], "dialer"))?;
    let listener = Mux::spawn(far, Config::new(Side::Listener, [2; 16], "listener"))?;
    dialer.up().await?;
    listener.up().await?;
    Ok((dialer, listener))
}

pub struct End<S> {
    mux: Mux,
    wrap: fn(Session) -> S,
}

impl Peer for Hopline {
    const NAME: &'static str = "hopline-link";
    type Stream = Io<Session>;
    type Opener = End<Io<Session>>;
    type Acceptor = End<Io<Session>>;

    async fn connect() -> Result<(Self::Opener, Self::Acceptor)> {
        let (dialer, listener) = link().await?;
        Ok((End { mux: dialer, wrap: Io }, End { mux: listener, wrap: Io }))
    }
}

impl Peer for HoplineByReference {
    const NAME: &'static str = "hopline-link, by reference";
    type Stream = ByReference;
    type Opener = End<ByReference>;
    type Acceptor = End<ByReference>;

    async fn connect() -> Result<(Self::Opener, Self::Acceptor)> {
        let (dialer, listener) = link().await?;
        Ok((End { mux: dialer, wrap: ByReference }, End { mux: listener, wrap: ByReference }))
    }
}

impl<S: Stream> Opener for End<S> {
    type Stream = S;

    async fn open(&self) -> Result<S> {
        Ok((self.wrap)(self.mux.open(Bytes::new())?))
    }
}

impl<S: Stream> Acceptor for End<S> {
    type Stream = S;

    async fn accept(&mut self) -> Option<S> {
        let session = self.mux.accept().await?;
        session.answer(Bytes::new());
        Some((self.wrap)(session))
    }
}

pub struct ByReference(Session);

impl Stream for ByReference {
    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.0.write_bytes(bytes).await?)
    }

    async fn receive<'a>(&'a mut self, _: &'a mut [u8]) -> Result<Option<Piece<'a>>> {
        Ok(self.0.read_bytes().await?.map(Piece::ByReference))
    }

    async fn end(&mut self) -> Result<()> {
        self.0.end();
        Ok(())
    }
}
