//! The measurements, and what they share: a far end that does as a stream's first message asks.

pub mod idle;
pub mod quiet;
pub mod speed;
pub mod stalled;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::pattern;
use crate::peer::{Acceptor, Opener, Peer, Stream};

/// Bytes of a ping, and of a stream's first message.
pub const MESSAGE: usize = 64;

/// What the far end does behind the echo of a stream's first message.
#[derive(Clone, Copy)]
pub enum Ask {
    /// Sends everything back.
    Echo = b'E' as isize,
    /// Reads to the end, then says how many bytes came.
    Sink = b'S' as isize,
    /// The same, and checks every byte.
    Verify = b'V' as isize,
    /// Keeps the stream and never touches it again.
    Keep = b'K' as isize,
}

/// Streams that the far end keeps.
pub type Kept<S> = Arc<Mutex<Vec<S>>>;

/// One connection with its far end at work.
pub struct Bench<P: Peer> {
    opener: P::Opener,
    pub kept: Kept<P::Stream>,
    serving: JoinHandle<()>,
}

impl<P: Peer> Bench<P> {
    pub async fn start() -> Result<Self> {
        let (opener, acceptor) = P::connect().await?;
        let kept = Kept::default();
        let serving = tokio::spawn(serve::<P>(acceptor, Arc::clone(&kept)));
        Ok(Self { opener, kept, serving })
    }

    /// Opens a stream and says what it is for; the far end is at it when this returns.
    pub async fn open(&self, ask: Ask) -> Result<P::Stream> {
        let mut stream = self.opener.open().await?;
        ping(&mut stream, ask).await?;
        Ok(stream)
    }

    /// Pieces of 64 KiB until the time is over, then the end; gives the bytes that the far end counted.
    pub async fn pump(stream: &mut P::Stream, until: Instant) -> Result<u64> {
        let mut sent = 0;
        while Instant::now() < until {
            stream.send(pattern::at(sent, pattern::PIECE)).await?;
            sent += pattern::PIECE as u64;
        }
        finish(stream, sent).await
    }
}

impl<P: Peer> Drop for Bench<P> {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Ends a stream to a sink: `sent` bytes must have come.
pub async fn finish(stream: &mut impl Stream, sent: u64) -> Result<u64> {
    stream.end().await?;
    let mut room = [0; 8];
    let mut answer = Vec::new();
    while let Some(piece) = stream.receive(&mut room).await? {
        answer.extend_from_slice(&piece);
    }
    let came = <[u8; 8]>::try_from(&answer[..]).map(u64::from_le_bytes).ok();
    ensure!(came == Some(sent), "{sent} bytes were sent, the sink answered {came:?}");
    Ok(sent)
}

/// One message there and back.
pub async fn ping(stream: &mut impl Stream, ask: Ask) -> Result<Duration> {
    let message = [ask as u8; MESSAGE];
    let begun = Instant::now();
    stream.send(Bytes::copy_from_slice(&message)).await?;
    stream.flush().await?;
    let mut room = [0; MESSAGE];
    let mut come = 0;
    while come < MESSAGE {
        let Some(piece) = stream.receive(&mut room).await? else { bail!("the stream ended early") };
        come += piece.len();
        ensure!(piece.iter().all(|byte| *byte == ask as u8), "an echo differs");
    }
    ensure!(come == MESSAGE, "an echo of {come} bytes");
    Ok(begun.elapsed())
}

async fn serve<P: Peer>(mut acceptor: P::Acceptor, kept: Kept<P::Stream>) {
    while let Some(stream) = acceptor.accept().await {
        // A fault shows at the near end, as a broken stream or a wrong answer.
        tokio::spawn(handle(stream, Arc::clone(&kept)));
    }
}

async fn handle<S: Stream>(mut stream: S, kept: Kept<S>) -> Result<()> {
    let mut room = [0; MESSAGE];
    let mut message = Vec::new();
    while message.len() < MESSAGE {
        let Some(piece) = stream.receive(&mut room).await? else { bail!("no first message") };
        message.extend_from_slice(&piece);
    }
    stream.send(Bytes::copy_from_slice(&message)).await?;
    stream.flush().await?;
    match message[0] {
        b'E' => echo(stream).await,
        b'S' => sink(stream, pattern::spot_check).await,
        b'V' => sink(stream, pattern::check).await,
        _ => {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            Ok(())
        }
    }
}

async fn echo(mut stream: impl Stream) -> Result<()> {
    let mut room = [0; 4 << 10];
    while let Some(piece) = stream.receive(&mut room).await? {
        let back = Bytes::copy_from_slice(&piece);
        stream.send(back).await?;
        stream.flush().await?;
    }
    stream.end().await
}

async fn sink(mut stream: impl Stream, check: fn(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut room = vec![0; pattern::PIECE];
    let mut come = 0;
    while let Some(piece) = stream.receive(&mut room).await? {
        check(come, &piece)?;
        come += piece.len() as u64;
    }
    stream.send(Bytes::copy_from_slice(&come.to_le_bytes())).await?;
    stream.flush().await?;
    stream.end().await
}

/// The value that a share of all is not above, in microseconds.
pub fn percentile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}
