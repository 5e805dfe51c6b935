//! Logs: text or JSON lines on stderr.

mod thrift;

use hopline_admin::access;
use hopline_config::{LogConfig, LogFormat};
use tracing::Subscriber;
use tracing_subscriber::filter::{Directive, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use self::thrift::Thrift;

/// Starts logging as the config says; `RUST_LOG` goes before its level. Must be called on a runtime.
pub(crate) fn start(config: &LogConfig) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,hopline={0},{1}", config.level.as_str(), crates(config)))
    });
    let filter = filter.add_directive(access_lines(config.access));
    let (thrift, left_out) = Thrift::new();
    // What is no access line needs no target: its words say where it comes from.
    let state = lines(config, false).with_filter(filter_fn(|line| line.target() != access::TARGET));
    let access = lines(config, true).with_filter(filter_fn(|line| line.target() == access::TARGET));
    tracing_subscriber::registry().with(filter).with(thrift).with(state).with(access).init();
    tokio::spawn(left_out.report());
}

/// Access lines are written when the config says so, and only then, whatever is written beside them.
fn access_lines(wanted: bool) -> Directive {
    let directive = format!("{}={}", access::TARGET, if wanted { "info" } else { "off" });
    directive.parse().expect("a target and a level")
}

fn lines<S>(config: &LogConfig, target: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    // A log that nobody can read any more must not bring the process down.
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(target);
    match config.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Our own crates at the level asked for; libraries stay at `warn`.
fn crates(config: &LogConfig) -> String {
    let level = config.level.as_str();
    let names = ["relay", "edge", "link", "link_proto", "identity", "admin", "config", "demo", "route_proto"];
    names.map(|name| format!("hopline_{name}={level}")).join(",")
}
