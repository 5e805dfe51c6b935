//! Which lines are written: the config's level, or `RUST_LOG`.

use std::ffi::OsStr;

use hopline_accounting::access;
use hopline_config::LogConfig;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

/// Our own crates, and those beneath them that a person may ask for by name.
const KNOWN: [&str; 12] = [
    "hopline",
    "tokio",
    "rustls",
    "hyper",
    "hyper_util",
    "h2",
    "tonic",
    "tower",
    "mio",
    "want",
    "tracing",
    "log",
];
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter, and what is wrong with `RUST_LOG` if it is not obeyed.
pub(super) fn of(config: &LogConfig, said: Option<&OsStr>) -> (EnvFilter, Option<String>) {
    let (filter, fault) = match said.map(directives) {
        None | Some(Ok(None)) => (None, None),
        Some(Ok(Some(filter))) => (Some(filter), None),
        Some(Err(fault)) => (None, Some(fault)),
    };
    let filter = filter.unwrap_or_else(|| {
        EnvFilter::new(format!("warn,hickory=error,hopline={0},{1}", config.level.as_str(), crates(config)))
    });
    (filter.add_directive(access_lines(config.access)), fault)
}

/// What `RUST_LOG` asks for; `None` when it asks for nothing.
fn directives(said: &OsStr) -> Result<Option<EnvFilter>, String> {
    let text = said.to_str().ok_or("it is not UTF-8")?;
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    for part in &parts {
        // A bare word is a target to the parser, and a level that was mistyped would silence everything else.
        let word = part.split(['=', '[', ':']).next().unwrap_or(part);
        let is_target = KNOWN.contains(&word) || word.starts_with("hopline_");
        let is_level =
            LEVELS.contains(&part.to_ascii_lowercase().as_str()) || part.parse::<u8>().is_ok_and(|n| n <= 5);
        if !part.contains('=') && !part.contains("::") && !is_target && !is_level {
            return Err(format!(
                "{:?} is neither a level ({}) nor TARGET=LEVEL",
                shortened(part),
                LEVELS.join(", ")
            ));
        }
    }
    // Errors are silenced by who says so, not by who asks for something else.
    let filter = EnvFilter::try_new(format!("error,{}", parts.join(",")));
    filter.map(Some).map_err(|error| error.to_string())
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Access lines are written when the config says so, and only then, whatever is written beside them.
fn access_lines(wanted: bool) -> Directive {
    let directive = format!("{}={}", access::TARGET, if wanted { "info" } else { "off" });
    directive.parse().expect("a target and a level")
}

/// Our own crates at the level asked for; libraries stay at `warn`, and the one that reads DNS at `error`, for it warns of
/// each datagram that is not as it should be.
fn crates(config: &LogConfig) -> String {
    let level = config.level.as_str();
    let names =
        ["relay", "edge", "dns", "link", "link_proto", "identity", "admin", "config", "demo", "route_proto"];
    names.map(|name| format!("hopline_{name}={level}")).join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(said: &str) -> (String, Option<String>) {
        let (filter, fault) = of(&LogConfig::default(), Some(OsStr::new(said)));
        (filter.to_string(), fault)
    }

    #[test]
    fn an_empty_variable_is_as_if_it_were_not_set() {
        let unset = of(&LogConfig::default(), None).0.to_string();
        assert!(unset.contains("hopline_edge=info"), "{unset}");
        for empty in ["", " ", ",", " , ,"] {
            assert_eq!(filter(empty), (unset.clone(), None), "{empty:?}");
        }
    }

    #[test]
    fn what_cannot_be_obeyed_is_said_and_the_config_counts() {
        let unset = of(&LogConfig::default(), None).0.to_string();
        for bad in [
            "inf",
            "verbose",
            "hopline_edge=verbose",
            "info,debgu",
            "=",
            "a=b=c",
            "INFOO",
            "6",
            "hopline debug",
        ] {
            let (shown, fault) = filter(bad);
            assert_eq!(shown, unset, "{bad:?}");
            assert!(fault.is_some_and(|fault| !fault.is_empty()), "{bad:?}");
        }
    }

    #[test]
    fn what_is_asked_for_is_obeyed_and_errors_stay() {
        for (good, has) in [
            ("debug", "debug"),
            ("DEBUG", "debug"),
            ("off", "off"),
            ("hopline_link=trace", "hopline_link=trace"),
            ("hopline_link=trace", "error"),
            ("hopline_link", "hopline_link=trace"),
            ("info,hopline_edge::opening=debug", "hopline_edge::opening=debug"),
            ("tokio::task=trace, warn", "warn"),
        ] {
            let (shown, fault) = filter(good);
            assert_eq!(fault, None, "{good:?}");
            assert!(shown.split(',').any(|directive| directive == has), "{good:?}: {shown}");
        }
    }
}
