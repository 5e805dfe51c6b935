//! Logs: text or JSON lines on stderr.

use hopline_config::{LogConfig, LogFormat};
use tracing_subscriber::EnvFilter;

/// Starts logging as the config says; `RUST_LOG` goes before it.
pub(crate) fn start(config: &LogConfig) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,hopline={0},{1}", config.level.as_str(), crates(config)))
    });
    // A log that nobody can read any more must not bring the process down.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    match config.format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Our own crates at the level asked for; libraries stay at `warn`.
fn crates(config: &LogConfig) -> String {
    let level = config.level.as_str();
    let names = ["relay", "edge", "link", "link_proto", "identity", "admin", "config", "demo", "route_proto"];
    names.map(|name| format!("hopline_{name}={level}")).join(",")
}
