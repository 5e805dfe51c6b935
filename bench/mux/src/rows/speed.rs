//! Bulk, ping-pong, opens.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Ask, Bench, MESSAGE, finish, percentile, ping};
use crate::pattern;
use crate::peer::{Peer, Stream};

/// Bytes that are checked one by one before speed is measured.
const VERIFIED: u64 = 4 << 20;

/// MB/s of `sessions` streams together, from the first byte sent to the last one counted.
pub async fn bulk<P: Peer>(sessions: usize, time: Duration) -> Result<f64> {
    let bench = Bench::<P>::start().await?;
    let mut checked = bench.open(Ask::Verify).await?;
    let mut sent = 0;
    while sent < VERIFIED {
        checked.send(pattern::at(sent, pattern::PIECE)).await?;
        sent += pattern::PIECE as u64;
    }
    finish(&mut checked, sent).await?;

    let mut streams = Vec::new();
    for _ in 0..sessions {
        streams.push(bench.open(Ask::Sink).await?);
    }
    let begun = Instant::now();
    let pumps: Vec<_> = streams
        .into_iter()
        .map(|mut stream| tokio::spawn(async move { Bench::<P>::pump(&mut stream, begun + time).await }))
        .collect();
    let mut bytes = 0;
    for pump in pumps {
        bytes += pump.await??;
    }
    Ok(bytes as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// p50 and p99 of one message of 64 bytes there and back, in microseconds.
pub async fn ping_pong<P: Peer>(time: Duration) -> Result<(f64, f64)> {
    let bench = Bench::<P>::start().await?;
    let mut stream = bench.open(Ask::Echo).await?;
    for _ in 0..200 {
        ping(&mut stream, Ask::Echo).await?;
    }
    let until = Instant::now() + time;
    let mut times = Vec::new();
    while Instant::now() < until {
        times.push(ping(&mut stream, Ask::Echo).await?);
    }
    Ok((percentile(&mut times, 0.5), percentile(&mut times, 0.99)))
}

/// Streams per second, one after another: open, a message there and back, end, the far end's end.
pub async fn opens<P: Peer>(time: Duration) -> Result<f64> {
    let bench = Bench::<P>::start().await?;
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < time {
        let mut stream = bench.open(Ask::Echo).await?;
        stream.end().await?;
        let rest = stream.receive(&mut [0; MESSAGE]).await?.map(|piece| piece.len());
        ensure!(rest.is_none(), "{rest:?} bytes behind the echo");
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}
