//! Sessions whose reader never reads, their writers stuck: what others of the same connection feel, what it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Ask, Bench, percentile, ping};
use crate::heap::Count;
use crate::pattern;
use crate::peer::{Peer, Stream};

/// Nothing was taken for so long: the windows are full.
const STILL: Duration = Duration::from_millis(150);
/// Time for the windows to fill.
const FILL: Duration = Duration::from_secs(8);
/// A ping that takes longer has stalled.
const STALLED: Duration = Duration::from_secs(1);
/// Streams at full speed beside the pings.
const LOADS: usize = 4;
/// Turns of pings here and there.
const TURNS: usize = 8;
const PINGS: usize = 1_000;
const PINGS_UNDER_LOAD: usize = 200;

/// What was found. `None`: the pings stalled.
pub struct Found {
    /// Heap per stalled session, both ends, without the one piece that each writer has in hand.
    pub bytes: f64,
    /// p99 beside the stalled sessions, and at the same time over a connection of its own.
    pub quiet: Option<(f64, f64)>,
    /// The same with streams at full speed on the connection of the stalled ones.
    pub loaded: Option<(f64, f64)>,
}

impl Found {
    /// How many times slower than over a connection of its own.
    pub fn ratio(pair: Option<(f64, f64)>) -> Option<f64> {
        pair.map(|(here, alone)| here / alone)
    }
}

/// `sessions` unread ones, whose writers write `piece` bytes at once; then pings beside them and, in turn, over a
/// quiet connection of the same kind.
pub async fn found<P: Peer>(sessions: usize, piece: usize) -> Result<Found> {
    let (busy, quiet) = (Bench::<P>::start().await?, Bench::<P>::start().await?);
    let mut here = busy.open(Ask::Echo).await?;
    let mut alone = quiet.open(Ask::Echo).await?;
    let mut loads = Vec::new();
    for _ in 0..LOADS {
        loads.push(busy.open(Ask::Sink).await?);
    }
    let count = Count::start();
    let mut streams = Vec::new();
    for _ in 0..sessions {
        streams.push(busy.open(Ask::Keep).await?);
    }
    let mut writers = JoinSet::new();
    fill(streams, piece, &mut writers).await?;
    let held = (sessions * piece) as i64;
    let bytes = (count.bytes() - held) as f64 / sessions as f64;
    drop(count);

    let beside = in_turn(&mut here, &mut alone, PINGS).await?;
    let mut loaded = None;
    if beside.is_some() {
        let stop = Arc::new(AtomicBool::new(false));
        let mut pumps = JoinSet::new();
        for stream in loads {
            pumps.spawn(pump_until(stream, Arc::clone(&stop)));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        loaded = in_turn(&mut here, &mut alone, PINGS_UNDER_LOAD).await?;
        stop.store(true, Ordering::Relaxed);
        pumps.abort_all();
    }
    writers.abort_all();
    Ok(Found { bytes, quiet: beside, loaded })
}

/// Starts a writer on each and waits until none gets any further.
async fn fill<S: Stream>(streams: Vec<S>, piece: usize, writers: &mut JoinSet<Result<()>>) -> Result<()> {
    let taken = Arc::new(AtomicU64::new(0));
    for mut stream in streams {
        let taken = Arc::clone(&taken);
        writers.spawn(async move {
            loop {
                // The writer's own, so that the count has it.
                stream.send(Bytes::from(vec![7; piece])).await?;
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let begun = Instant::now();
    let mut last = u64::MAX;
    while taken.load(Ordering::Relaxed) != last {
        ensure!(begun.elapsed() < FILL, "the windows of unread streams have no end");
        last = taken.load(Ordering::Relaxed);
        tokio::time::sleep(STILL).await;
    }
    Ok(())
}

async fn pump_until<S: Stream>(mut stream: S, stop: Arc<AtomicBool>) -> Result<()> {
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.send(pattern::at(sent, pattern::PIECE)).await?;
        sent += pattern::PIECE as u64;
    }
    Ok(())
}

/// p99 of both in microseconds, measured by turns so that both meet the same machine.
async fn in_turn<S: Stream>(here: &mut S, alone: &mut S, pings: usize) -> Result<Option<(f64, f64)>> {
    let (mut times, mut times_alone) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        for (stream, times) in [(&mut *here, &mut times), (&mut *alone, &mut times_alone)] {
            for _ in 0..pings {
                match timeout(STALLED, ping(stream, Ask::Echo)).await {
                    Ok(time) => times.push(time?),
                    Err(_) => return Ok(None),
                }
            }
        }
    }
    Ok(Some((percentile(&mut times, 0.99), percentile(&mut times_alone, 0.99))))
}
