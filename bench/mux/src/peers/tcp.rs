//! A TCP connection for each stream: what the kernel does without any library.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::net::{TcpListener, TcpStream};

use crate::peer::{Acceptor, Io, Opener, Peer};

pub struct Tcp;

pub struct Address(SocketAddr);

impl Peer for Tcp {
    const NAME: &'static str = "plain TCP sockets";
    type Stream = Io<TcpStream>;
    type Opener = Address;
    type Acceptor = TcpListener;

    async fn connect() -> Result<(Address, TcpListener)> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        Ok((Address(listener.local_addr()?), listener))
    }
}

impl Opener for Address {
    type Stream = Io<TcpStream>;

    async fn open(&self) -> Result<Io<TcpStream>> {
        let stream = TcpStream::connect(self.0).await?;
        stream.set_nodelay(true)?;
        Ok(Io(stream))
    }
}

impl Acceptor for TcpListener {
    type Stream = Io<TcpStream>;

    async fn accept(&mut self) -> Option<Io<TcpStream>> {
        let (stream, _) = Self::accept(self).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Io(stream))
    }
}
