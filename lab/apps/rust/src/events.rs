//! One line of stdout: what happened, and when.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Prints one line. `mono_ms` is CLOCK_MONOTONIC: the same for all processes of the machine.
pub(crate) fn emit(mut event: Value) {
    let now = clock_gettime(ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an uptime are far below 2^52")]
    let mono_ms = now.tv_sec as f64 * 1e3 + (now.tv_nsec / 1_000) as f64 / 1e3;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    event["mono_ms"] = json!(mono_ms);
    event["wall_ms"] = json!(wall.as_secs_f64() * 1e3);
    if writeln!(std::io::stdout().lock(), "{event}").is_err() {
        std::process::exit(1);
    }
}
