//! What an idle link says over TLS, byte by byte, in virtual time.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Result, ensure};
use hopline_link::{Config, Mux, Side};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::heap::Count;
use crate::tls;

/// How long the link is watched.
const WATCHED: Duration = Duration::from_secs(600);
/// The span of which the promise speaks.
const SPAN: Duration = Duration::from_secs(20);
/// Bytes closer together than this are of one round.
const ROUND: Duration = Duration::from_millis(500);

/// Bytes below TLS, records included, both directions together.
pub struct Quiet {
    /// The most that one ping round took.
    pub round: u64,
    /// In the 20 s after the last byte of a session.
    pub after_last: u64,
    /// In any 20 s.
    pub any: u64,
    /// Heap of the link when it has been idle, both ends with their sessions, without TLS.
    pub held: i64,
}

type Log = Arc<Mutex<Vec<(Instant, u64)>>>;

/// Counts what is written to the carrier, and when.
struct Counted {
    carrier: DuplexStream,
    log: Log,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.carrier).poll_write(cx, buf);
        if let Poll::Ready(Ok(n)) = result {
            self.log.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), n as u64));
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

fn logged(log: &Log) -> i64 {
    let entries = log.lock().unwrap_or_else(PoisonError::into_inner).capacity();
    (entries * size_of::<(Instant, u64)>()) as i64
}

/// An idle link with so many sessions, each of which has carried a message there and back. To be run with a paused
/// clock.
pub async fn quiet(sessions: usize) -> Result<Quiet> {
    let log = Log::default();
    let (near, far) = duplex(256 << 10);
    let (client, server) = tls::configs()?;
    let near = Counted { carrier: near, log: Arc::clone(&log) };
    let far = Counted { carrier: far, log: Arc::clone(&log) };
    let (near, far) = tokio::try_join!(
        TlsConnector::from(client).connect(ServerName::try_from(tls::NAME)?, near),
        TlsAcceptor::from(server).accept(far),
    )?;
    let count = Count::start();
    let dialer = Mux::spawn(near, Config::new(Side::Dialer, [1; 16], "dialer"))?;
    let listener = Mux::spawn(far, Config::new(Side::Listener, [2; 16], "listener"))?;
    dialer.up().await?;
    let mut open = Vec::new();
    for _ in 0..sessions {
        let mut near = dialer.open(&b""[..])?;
        near.write_all(b"message").await?;
        let mut far = listener.accept().await.ok_or_else(|| anyhow::anyhow!("the link is down"))?;
        far.answer(&b""[..]);
        far.read_exact(&mut [0; 7]).await?;
        far.write_all(b"message").await?;
        near.read_exact(&mut [0; 7]).await?;
        open.push((near, far));
    }
    let last = Instant::now();
    tokio::time::sleep(WATCHED).await;
    ensure!(dialer.info().sessions as usize == sessions, "sessions were lost");
    // The log itself grows meanwhile.
    let held = count.bytes() - logged(&log);
    let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // Whatever followed the last message at once belongs to it.
    let log: Vec<_> = log.into_iter().filter(|(at, _)| *at > last + ROUND).collect();
    ensure!(!log.is_empty(), "a link that says nothing watches nothing");
    let within = |from: Instant, span: Duration| -> u64 {
        log.iter().filter(|(at, _)| *at >= from && *at < from + span).map(|(_, n)| n).sum()
    };
    let most = |span| log.iter().map(|(at, _)| within(*at, span)).max().unwrap_or(0);
    Ok(Quiet { round: most(ROUND), after_last: within(last, SPAN), any: most(SPAN), held })
}
