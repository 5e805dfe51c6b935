//! QUIC by quinn, over UDP: encrypted, as it always is, by aws-lc-rs.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig, TransportConfig};

use crate::peer::{Acceptor, Opener, Peer, Piece, Stream};
use crate::tls;

pub struct Quinn;

impl Peer for Quinn {
    const NAME: &'static str = "QUIC (quinn), encrypted";
    type Stream = Both;
    type Opener = End;
    type Acceptor = End;

    async fn connect() -> Result<(End, End)> {
        // Its defaults, but for the number of streams.
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(8_192u32.into());
        let transport = Arc::new(transport);
        let (client, server) = tls::configs()?;
        let mut server =
            ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(Arc::unwrap_or_clone(server))?));
        server.transport_config(Arc::clone(&transport));
        let mut client =
            ClientConfig::new(Arc::new(QuicClientConfig::try_from(Arc::unwrap_or_clone(client))?));
        client.transport_config(transport);
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (listener, dialer) = (Endpoint::server(server, any)?, Endpoint::client(any)?);
        let dial =
            async { anyhow::Ok(dialer.connect_with(client, listener.local_addr()?, tls::NAME)?.await?) };
        let accept = async { anyhow::Ok(listener.accept().await.context("no connection came")?.await?) };
        let (near, far) = tokio::try_join!(dial, accept)?;
        Ok((End { connection: near, _endpoint: dialer }, End { connection: far, _endpoint: listener }))
    }
}

pub struct End {
    connection: Connection,
    _endpoint: Endpoint,
}

impl Opener for End {
    type Stream = Both;

    async fn open(&self) -> Result<Both> {
        let (send, receive) = self.connection.open_bi().await?;
        Ok(Both { send, receive })
    }
}

impl Acceptor for End {
    type Stream = Both;

    async fn accept(&mut self) -> Option<Both> {
        let (send, receive) = self.connection.accept_bi().await.ok()?;
        Some(Both { send, receive })
    }
}

pub struct Both {
    send: SendStream,
    receive: RecvStream,
}

impl Stream for Both {
    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        Ok(self.send.write_chunk(bytes).await?)
    }

    async fn receive<'a>(&'a mut self, room: &'a mut [u8]) -> Result<Option<Piece<'a>>> {
        let chunk = self.receive.read_chunk(room.len(), true).await?;
        Ok(chunk.map(|chunk| Piece::ByReference(chunk.bytes)))
    }

    async fn end(&mut self) -> Result<()> {
        Ok(self.send.finish()?)
    }
}
