//! The file of a relay.

use std::path::PathBuf;
use std::time::Duration;

use hopline_link_proto::Liveness;

use crate::address::BindAddress;
use crate::env::Env;
use crate::fault::{Checked, Faults, Report};
use crate::log::{LogConfig, parse_log};
use crate::path::parse_path;
use crate::section::{Field, Place, Section};
use crate::status::{StatusConfig, parse_status};
use crate::yaml::{self, Value};

/// `answer_timeout`: as the open timeouts that it cuts short.
const ANSWER_TIMEOUT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// A relay's file, resolved. What may also be given on the command line stays optional.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayFileConfig {
    /// Where edges dial; `--listen` goes before it.
    pub listen: Option<BindAddress>,
    /// The folder of the CA, the certificate and the policy; `--state` goes before it.
    pub state: Option<PathBuf>,
    /// Where `/status` is served; `--admin` goes before its address, and `--admin-host` adds names.
    pub admin: Option<StatusConfig>,
    /// For all links of this relay; `None` adopts what each edge asks for.
    pub keepalive: Option<Liveness>,
    /// For how long the return of a lost agent is waited for.
    pub hold: Option<Duration>,
    /// Grace period for open sessions after SIGTERM; `--drain` overrides it.
    pub drain: Option<Duration>,
    /// How long the relay waits for an agent's answer before it refuses with `timeout`; `None` for no bound of its own.
    pub answer_timeout: Option<Duration>,
    /// What is logged.
    pub log: LogConfig,
}

/// Reads a relay's file; an empty one is valid. No path is opened, no name resolved.
///
/// # Errors
/// All faults of the file. A file that is no YAML has one, or those that come before it.
pub fn parse_relay(text: &[u8], env: &Env) -> Result<Checked<RelayFileConfig>, Faults> {
    let mut report = Report::new(env.file.clone());
    let config = yaml::read(text, &mut report).and_then(|root| {
        if matches!(root.value, Value::Null(_)) {
            return Some(RelayFileConfig::default());
        }
        resolve(Field { path: String::new(), node: &root }, &mut report)
    });
    report.finish(config)
}

fn resolve(root: Field<'_>, report: &mut Report) -> Option<RelayFileConfig> {
    let section = Section::open(root, Place::Relay, report)?;
    Some(RelayFileConfig {
        listen: section.parse("listen", report),
        state: section.parse_with("state", report, parse_path),
        admin: section.field("admin").and_then(|field| Some(parse_status(field, report)?.0)),
        keepalive: section.parse("keepalive", report),
        hold: section.duration("hold", crate::edge::HOLD, report),
        drain: section.duration("drain", crate::edge::DRAIN, report),
        answer_timeout: section.duration("answer_timeout", ANSWER_TIMEOUT, report),
        log: parse_log(section.field("log"), report),
    })
}
