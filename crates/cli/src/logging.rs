//! Logs: text or JSON lines on stderr, written by a thread of their own.

mod filter;
mod queue;
mod stderr;
mod warn_limiter;

use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hopline_accounting::access;
use hopline_config::{LogConfig, LogFormat};
use tracing::Subscriber;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

use self::queue::{Queue, Sink as _};
use self::stderr::Stderr;
use self::warn_limiter::WarnLimiter;

/// How long the end of the process waits for its last lines in all, and while none of them is taken.
const FLUSH: Duration = Duration::from_secs(3);
const FLUSH_STILL: Duration = Duration::from_millis(500);

/// The one queue, whose writer starts with its first line; none if there is no thread to be had.
static QUEUE: LazyLock<Option<&'static Queue>> = LazyLock::new(|| {
    let queue: &'static Queue = Box::leak(Box::default());
    let writer = std::thread::Builder::new().name("log".to_owned());
    let started = writer.spawn(move || queue.run(&mut Stderr, |lines| notice(lines, is_json())));
    started.ok().map(|_| queue)
});
static JSON: AtomicBool = AtomicBool::new(false);

/// Logging under way: for a config file that is read again.
#[derive(Debug)]
pub(crate) struct Logging {
    filter: reload::Handle<EnvFilter, Registry>,
    config: LogConfig,
}

/// Starts logging as the config says; `RUST_LOG` goes before its level. Must be called on a runtime.
pub(crate) fn start(config: &LogConfig) -> Logging {
    JSON.store(config.format == LogFormat::Json, Ordering::Relaxed);
    let (filter, fault) = filter_of(config);
    let (filter, handle) = reload::Layer::new(filter);
    let (limiter, suppressed) = WarnLimiter::new();
    // What is no access line needs no target: its words say where it comes from.
    let state = lines(config, false).with_filter(filter_fn(|line| line.target() != access::TARGET));
    let access = lines(config, true).with_filter(filter_fn(|line| line.target() == access::TARGET));
    tracing_subscriber::registry().with(filter).with(limiter).with(state).with(access).init();
    tokio::spawn(suppressed.report());
    if let Some(fault) = fault {
        tracing::error!("RUST_LOG is not obeyed: {fault}; the level is {}", config.level.as_str());
    }
    Logging { filter: handle, config: *config }
}

impl Logging {
    /// Takes over `level` and `access` of a changed file. False if another format is asked for, which needs a restart.
    pub(crate) fn reload(&mut self, config: &LogConfig) -> bool {
        if self.filter.reload(filter_of(config).0).is_ok() {
            self.config = LogConfig { format: self.config.format, ..*config };
        }
        self.config == *config
    }
}

/// Makes panics lines like all others: one must not wait for whoever reads stderr.
pub(crate) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let trace = std::backtrace::Backtrace::capture();
        let thread = std::thread::current();
        let mut text = format!("thread {:?}: {panic}", thread.name().unwrap_or("unnamed"));
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            text += &format!("\n{trace}");
        }
        say(&text);
        flush();
    }));
}

/// Writes one line to stderr, behind everything that was logged before.
pub(crate) fn say(line: &str) {
    push(format!("{line}\n").as_bytes());
}

/// Waits until what was logged is written; but not long for a reader that has stopped.
pub(crate) fn flush() {
    if let Some(queue) = *QUEUE {
        queue.flush(FLUSH, FLUSH_STILL);
    }
}

fn push(line: &[u8]) {
    match *QUEUE {
        Some(queue) => queue.push(line),
        // Without a thread the line is worth the wait.
        None => drop(Stderr.write(line)),
    }
}

fn filter_of(config: &LogConfig) -> (EnvFilter, Option<String>) {
    filter::of(config, std::env::var_os("RUST_LOG").as_deref())
}

fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// The line that stands where others were dropped.
fn notice(lines: u64, json: bool) -> String {
    let mut now = String::new();
    // Without a clock that can be read the line says the rest.
    let _ = SystemTime.format_time(&mut Writer::new(&mut now));
    let message = "log lines were dropped: stderr did not take them";
    if json {
        format!(
            "{{\"timestamp\":\"{now}\",\"level\":\"WARN\",\"message\":\"{message}\",\"lines\":{lines}}}\n"
        )
    } else {
        format!("{now}  WARN {message} lines={lines}\n")
    }
}

/// The queue as a place to write to: each write is a whole line.
#[derive(Debug)]
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lines<S>(config: &LogConfig, target: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines =
        fmt::layer().with_writer(|| Lines).log_internal_errors(false).with_ansi(false).with_target(target);
    match config.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::notice;

    #[test]
    fn dropped_lines_are_spoken_of_in_the_format_of_the_log() {
        assert!(
            notice(3, false).ends_with("Z  WARN log lines were dropped: stderr did not take them lines=3\n")
        );
        let json: serde_json::Value = serde_json::from_str(&notice(4, true)).unwrap();
        assert_eq!((json["level"].as_str(), json["lines"].as_u64()), (Some("WARN"), Some(4)));
    }
}
