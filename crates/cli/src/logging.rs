//! Logs: text or JSON lines on stderr.

mod thrift;

use hopline_config::{LogConfig, LogFormat};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use self::thrift::Thrift;

/// Starts logging as the config says; `RUST_LOG` goes before it. Must be called on a runtime.
pub(crate) fn start(config: &LogConfig) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,hopline={0},{1}", config.level.as_str(), crates(config)))
    });
    // A log that nobody can read any more must not bring the process down.
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    let lines = match config.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let (thrift, left_out) = Thrift::new();
    tracing_subscriber::registry().with(filter).with(thrift).with(lines).init();
    tokio::spawn(left_out.report());
}

/// Our own crates at the level asked for; libraries stay at `warn`.
fn crates(config: &LogConfig) -> String {
    let level = config.level.as_str();
    let names = ["relay", "edge", "link", "link_proto", "identity", "admin", "config", "demo", "route_proto"];
    names.map(|name| format!("hopline_{name}={level}")).join(",")
}
