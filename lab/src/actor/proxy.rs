//! A plain TCP proxy, as it stands on many ways: it knows bytes only, and may cut what is idle.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::stream::Stream;

/// For a read to see that the other direction has ended.
const TURN: Duration = Duration::from_millis(50);

/// When a proxy cuts what it carries; it resets both sides then. None: never.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Limits {
    /// When nothing has come for so long.
    idle_ms: Option<u64>,
    /// So long after its begin.
    after_ms: Option<u64>,
    /// After so many bytes, both ways together, for its first connection, twice as many for its second and so on ...
    step_bytes: Option<u64>,
    /// ... up to this many connections.
    steps: u64,
}

impl Limits {
    fn reached(&self, number: u64, began: Instant, heard: Instant, bytes: u64) -> bool {
        let past = |limit: Option<u64>, since: Instant| {
            limit.is_some_and(|ms| since.elapsed() >= Duration::from_millis(ms))
        };
        let full = self.step_bytes.is_some_and(|step| number < self.steps && bytes >= step * (number + 1));
        full || past(self.idle_ms, heard) || past(self.after_ms, began)
    }
}

/// One connection that is carried.
#[derive(Debug)]
struct Carried<'a> {
    number: u64,
    limits: &'a Limits,
    began: Instant,
    heard: Mutex<Instant>,
    bytes: AtomicU64,
    over: AtomicBool,
}

/// Carries bytes both ways until both directions have ended, one failed, or a limit is reached.
pub(super) fn carry(near: &Stream, to: &str, number: u64, limits: &Limits) -> io::Result<()> {
    let far = Stream::dial(to, TURN)?;
    near.set_patience(TURN)?;
    let carried = Carried {
        number,
        limits,
        began: Instant::now(),
        heard: Mutex::new(Instant::now()),
        bytes: AtomicU64::new(0),
        over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pump(near, &far, &carried));
        pump(&far, near, &carried);
    });
    Ok(())
}

fn pump(from: &Stream, to: &Stream, carried: &Carried<'_>) {
    let mut buffer = vec![0; 65_536];
    // Small pieces where bytes are counted: the cut is to fall inside what is said.
    let room = if carried.limits.step_bytes.is_some() { 64 } else { buffer.len() };
    while !carried.over.load(Ordering::Relaxed) {
        let heard = *carried.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if carried.limits.reached(carried.number, carried.began, heard, carried.bytes.load(Ordering::Relaxed))
        {
            break;
        }
        match from.read(&mut buffer[..room]) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(length) => {
                *carried.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                carried.bytes.fetch_add(length as u64, Ordering::Relaxed);
                if write(to, &buffer[..length]).is_err() {
                    break;
                }
            }
            Err(error) if waits(&error) => {}
            Err(_) => break,
        }
    }
    carried.over.store(true, Ordering::Relaxed);
    let _ = (from.reset(), to.reset());
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Writes all, however long the reader takes.
fn write(to: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if waits(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
