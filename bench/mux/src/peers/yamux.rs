//! yamux (rust-yamux): each end is driven by a task of its own, as its documents ask.

use std::future::poll_fn;
use std::task::{Context, Poll};

use anyhow::Result;
use futures::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, Mode, Stream};

use crate::peer::{Acceptor, Io, Opener, Peer, tcp_pair};

pub struct Yamux;

type Wrapped = Io<Compat<Stream>>;
type Open = oneshot::Sender<Stream>;

impl Peer for Yamux {
    const NAME: &'static str = "yamux (Rust)";
    type Stream = Wrapped;
    type Opener = Opens;
    type Acceptor = Accepts;

    async fn connect() -> Result<(Opens, Accepts)> {
        let (near, far) = tcp_pair().await?;
        // Its defaults, but for the number of streams and what they may hold: 1,000 unread ones must fit.
        let mut config = Config::default();
        config.set_max_connection_receive_window(None).set_max_num_streams(8_192);
        let (opens, asked) = mpsc::unbounded_channel();
        let (incoming, accepted) = mpsc::unbounded_channel();
        // Held by the server's driver, so that it never ends for want of opens.
        let (idle, never) = mpsc::unbounded_channel();
        tokio::spawn(drive(Connection::new(near.compat(), config.clone(), Mode::Client), asked, None));
        tokio::spawn(async move {
            let _idle: mpsc::UnboundedSender<Open> = idle;
            drive(Connection::new(far.compat(), config, Mode::Server), never, Some(incoming)).await;
        });
        Ok((Opens(opens), Accepts(accepted)))
    }
}

async fn drive<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<T>,
    mut asked: mpsc::UnboundedReceiver<Open>,
    incoming: Option<mpsc::UnboundedSender<Stream>>,
) {
    let mut waiting: Option<Open> = None;
    poll_fn(|cx| {
        loop {
            if let Poll::Ready(over) = turn(&mut connection, &mut asked, &mut waiting, incoming.as_ref(), cx)
            {
                if over {
                    return Poll::Ready(());
                }
            } else {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// One thing done: true if the connection is over.
fn turn<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<T>,
    asked: &mut mpsc::UnboundedReceiver<Open>,
    waiting: &mut Option<Open>,
    incoming: Option<&mpsc::UnboundedSender<Stream>>,
    cx: &mut Context<'_>,
) -> Poll<bool> {
    if waiting.is_none() {
        match asked.poll_recv(cx) {
            Poll::Ready(Some(open)) => *waiting = Some(open),
            Poll::Ready(None) => return Poll::Ready(true),
            Poll::Pending => {}
        }
    }
    if waiting.is_some()
        && let Poll::Ready(stream) = connection.poll_new_outbound(cx)
    {
        let (Ok(stream), Some(open)) = (stream, waiting.take()) else { return Poll::Ready(true) };
        return Poll::Ready(open.send(stream).is_err());
    }
    match connection.poll_next_inbound(cx) {
        Poll::Ready(Some(Ok(stream))) => Poll::Ready(incoming.is_some_and(|to| to.send(stream).is_err())),
        Poll::Ready(Some(Err(_)) | None) => Poll::Ready(true),
        Poll::Pending => Poll::Pending,
    }
}

pub struct Opens(mpsc::UnboundedSender<Open>);

impl Opener for Opens {
    type Stream = Wrapped;

    async fn open(&self) -> Result<Wrapped> {
        let (open, opened) = oneshot::channel();
        self.0.send(open)?;
        Ok(Io(opened.await?.compat()))
    }
}

pub struct Accepts(mpsc::UnboundedReceiver<Stream>);

impl Acceptor for Accepts {
    type Stream = Wrapped;

    async fn accept(&mut self) -> Option<Wrapped> {
        Some(Io(self.0.recv().await?.compat()))
    }
}
