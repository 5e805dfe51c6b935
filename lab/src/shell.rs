//! Commands of the system: `ip`, `nft`, `tc`. An error says the whole command and what it printed.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// Runs a command and gives what it printed on stdout.
///
/// # Errors
///
/// When it cannot be started or does not end with 0.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<String> {
    run_with(words, "")
}

/// The same with `input` on its stdin.
///
/// # Errors
///
/// As [`run`].
pub(crate) fn run_with(words: &[&str], input: &str) -> anyhow::Result<String> {
    let (program, arguments) = words.split_first().context("an empty command")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that reads nothing may have closed it; whether it did well is its exit code.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", words.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Asks every 20 ms until there is an answer.
///
/// # Errors
///
/// When there was none within `patience`.
pub(crate) fn until<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if began.elapsed() > patience {
            bail!("{what}: not within {:.1} s", patience.as_secs_f64());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// CLOCK_MONOTONIC in milliseconds: the clock that the applications print as `mono_ms`.
pub(crate) fn now_ms() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an uptime are far below 2^52")]
    let ms = now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6;
    ms
}
