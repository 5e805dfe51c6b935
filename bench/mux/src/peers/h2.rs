//! h2: a request whose body and whose answer's body are the two directions.

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::Connection;
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use tokio::net::TcpStream;

use crate::peer::{Acceptor, Opener, Peer, Piece, Stream, tcp_pair};

/// Streams at once: 2,000 idle ones must fit.
const STREAMS: u32 = 8_192;

pub struct H2;
pub struct H2Large;

async fn connection(windows: Option<(u32, u32)>) -> Result<(Opens, Accepts)> {
    let (near, far) = tcp_pair().await?;
    let mut client = h2::client::Builder::new();
    let mut server = h2::server::Builder::new();
    client.initial_max_send_streams(STREAMS as usize);
    server.max_concurrent_streams(STREAMS);
    if let Some((stream, connection)) = windows {
        client.initial_window_size(stream).initial_connection_window_size(connection);
        server.initial_window_size(stream).initial_connection_window_size(connection);
    }
    let (client, server) = tokio::try_join!(client.handshake(near), server.handshake(far))?;
    let (opens, driver) = client;
    tokio::spawn(driver);
    Ok((Opens(opens), Accepts(server)))
}

impl Peer for H2 {
    const NAME: &'static str = "h2, default windows";
    type Stream = Both;
    type Opener = Opens;
    type Acceptor = Accepts;

    async fn connect() -> Result<(Opens, Accepts)> {
        connection(None).await
    }
}

impl Peer for H2Large {
    const NAME: &'static str = "h2, 1 MiB / 4 MiB";
    type Stream = Both;
    type Opener = Opens;
    type Acceptor = Accepts;

    async fn connect() -> Result<(Opens, Accepts)> {
        connection(Some((1 << 20, 4 << 20))).await
    }
}

pub struct Opens(SendRequest<Bytes>);

impl Opener for Opens {
    type Stream = Both;

    async fn open(&self) -> Result<Both> {
        let mut ready = self.0.clone().ready().await?;
        let request = Request::post("http://bench/").body(())?;
        let (answer, send) = ready.send_request(request, false)?;
        Ok(Both { send, receive: Receive::Head(answer) })
    }
}

pub struct Accepts(Connection<TcpStream, Bytes>);

impl Acceptor for Accepts {
    type Stream = Both;

    async fn accept(&mut self) -> Option<Both> {
        let (request, mut answer) = self.0.accept().await?.ok()?;
        let send = answer.send_response(Response::new(()), false).ok()?;
        Some(Both { send, receive: Receive::Body(request.into_body()) })
    }
}

pub struct Both {
    send: SendStream<Bytes>,
    receive: Receive,
}

enum Receive {
    Head(ResponseFuture),
    Body(RecvStream),
}

impl Stream for Both {
    async fn send(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            self.send.reserve_capacity(bytes.len());
            let granted = std::future::poll_fn(|cx| self.send.poll_capacity(cx)).await;
            let granted = granted.context("the stream is closed")??;
            let now = bytes.split_to(granted.min(bytes.len()));
            self.send.send_data(now, false)?;
        }
        Ok(())
    }

    async fn receive<'a>(&'a mut self, _: &'a mut [u8]) -> Result<Option<Piece<'a>>> {
        if let Receive::Head(answer) = &mut self.receive {
            self.receive = Receive::Body(answer.await?.into_body());
        }
        let Receive::Body(body) = &mut self.receive else { unreachable!("set above") };
        while let Some(bytes) = body.data().await.transpose()? {
            body.flow_control().release_capacity(bytes.len())?;
            // The end may come as an empty frame.
            if !bytes.is_empty() {
                return Ok(Some(Piece::ByReference(bytes)));
            }
        }
        Ok(None)
    }

    async fn end(&mut self) -> Result<()> {
        Ok(self.send.send_data(Bytes::new(), true)?)
    }
}
