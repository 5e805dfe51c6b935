//! The seeded stream, and what both ends of a checked stream know of it.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::events::emit;

/// What a client asks of a stream, in the metadata `lab-args`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Args {
    pub(crate) every_ms: u64,
    pub(crate) bytes: usize,
    pub(crate) seed: u32,
    pub(crate) receive: u64,
    pub(crate) chunk: u64,
    pub(crate) receive_rate: u64,
}

/// xorshift32, each word as four bytes, the lowest first.
#[derive(Debug)]
pub(crate) struct Source {
    word: u32,
    at: usize,
}

impl Source {
    pub(crate) fn new(seed: u32) -> Self {
        Self { word: seed.wrapping_mul(2_654_435_761).max(1), at: 4 }
    }

    pub(crate) fn take(&mut self, length: usize) -> Bytes {
        let mut bytes = vec![0; length];
        for byte in &mut bytes {
            if self.at == 4 {
                self.word ^= self.word << 13;
                self.word ^= self.word >> 17;
                self.word ^= self.word << 5;
                self.at = 0;
            }
            *byte = self.word.to_le_bytes()[self.at];
            self.at += 1;
        }
        bytes.into()
    }
}

/// Counts and hashes one direction.
#[derive(Debug, Default)]
struct Tally {
    count: u64,
    hash: Sha256,
}

impl Tally {
    fn add(&mut self, bytes: &[u8]) {
        self.count += bytes.len() as u64;
        self.hash.update(bytes);
    }

    fn hex(&self) -> String {
        let mut hex = String::new();
        for byte in self.hash.clone().finalize() {
            // Writing to a string does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }
}

/// Both directions of a stream. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<(Tally, Tally)>>);

impl Ledger {
    pub(crate) fn sent(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.add(bytes);
    }

    pub(crate) fn received(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.add(bytes);
    }

    /// Prints an event with the totals. Of two events the one that is printed later counts no less.
    pub(crate) fn emit(&self, mut event: Value) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        event["sent"] = json!(held.0.count);
        event["sent_sha256"] = json!(held.0.hex());
        event["received"] = json!(held.1.count);
        event["received_sha256"] = json!(held.1.hex());
        emit(event);
    }

    /// Prints the running totals twice a second; never ends.
    pub(crate) async fn watch(self, call: String) {
        let mut ticker = tokio::time::interval(Duration::from_millis(500));
        ticker.tick().await;
        loop {
            ticker.tick().await;
            self.emit(json!({"event": "progress", "call": call}));
        }
    }
}

/// Sends `total` bytes of a stream in chunks, at most `rate` bytes a second (0: as fast as it goes). False when the
/// receiver is gone.
pub(crate) async fn pour(
    mut source: Source,
    ledger: Ledger,
    total: u64,
    chunk: u64,
    rate: u64,
    into: mpsc::Sender<Bytes>,
) -> bool {
    let began = Instant::now();
    let mut sent = 0;
    while sent < total {
        let length = chunk.max(1).min(total - sent);
        let bytes = source.take(usize::try_from(length).unwrap_or(usize::MAX));
        // Counted before it is given away: what the other end has got was always sent.
        let Ok(place) = into.reserve().await else { return false };
        ledger.sent(&bytes);
        place.send(bytes);
        sent += length;
        if rate > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a pace, not an amount")]
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            tokio::time::sleep_until(began + due).await;
        }
    }
    true
}
