//! What a session costs that says nothing.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Ask, Bench};
use crate::heap::Count;
use crate::peer::Peer;

const SESSIONS: usize = 2_000;

/// Heap bytes per idle session, both ends and their handles together. Each has carried one message there and back.
/// The kernel's part is not in it.
pub async fn bytes<P: Peer>() -> Result<f64> {
    let bench = Bench::<P>::start().await?;
    drop(bench.open(Ask::Keep).await?);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let count = Count::start();
    let mut near = Vec::with_capacity(SESSIONS);
    bench.kept.lock().unwrap_or_else(PoisonError::into_inner).reserve_exact(SESSIONS);
    for _ in 0..SESSIONS {
        near.push(bench.open(Ask::Keep).await?);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let bytes = count.bytes() as f64 / SESSIONS as f64;
    let kept = bench.kept.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(kept == SESSIONS + 1 && near.len() == SESSIONS, "{kept} streams at the far end");
    Ok(bytes)
}
