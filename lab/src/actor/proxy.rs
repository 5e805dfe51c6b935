//! A plain TCP proxy, as it stands on many ways: it knows bytes only, and may cut what is idle.

use std::io;
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::stream::Stream;

/// For a read to see that the other direction has ended.
const TURN: Duration = Duration::from_millis(50);

/// Carries bytes both ways until both directions have ended or one failed; cuts both when nothing came for `idle`.
pub(super) fn carry(near: &Stream, to: &str, idle: Option<Duration>) -> io::Result<()> {
    let far = Stream::dial(to, TURN)?;
    near.set_patience(TURN)?;
    let heard = Mutex::new(Instant::now());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| pump(near, &far, &heard, idle, &over));
        pump(&far, near, &heard, idle, &over);
    });
    Ok(())
}

fn pump(from: &Stream, to: &Stream, heard: &Mutex<Instant>, idle: Option<Duration>, over: &AtomicBool) {
    let mut buffer = vec![0; 65_536];
    let lock = || heard.lock().unwrap_or_else(PoisonError::into_inner);
    while !over.load(Ordering::Relaxed) {
        match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(length) => {
                *lock() = Instant::now();
                if write(to, &buffer[..length]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let silent = lock().elapsed();
                if idle.is_some_and(|idle| silent >= idle) {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    over.store(true, Ordering::Relaxed);
    let _ = (from.reset(), to.reset());
}

/// Writes all, however long the reader takes.
fn write(to: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
