//! One entry of `connect:`.

use std::time::Duration;

use hopline_names::ServiceName;

use crate::address::Listen;
use crate::edge::OPEN_TIMEOUT;
use crate::env::Env;
use crate::fault::{Position, Report};
use crate::path::MAX_SOCKET_PATH_BYTES;
use crate::section::{Field, Place, Section};

const DEFAULT_MODE: u32 = 0o600;
const MAX_GROUP: usize = 32;

/// A local socket for a remote service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingConfig {
    /// The service that its connections come out at.
    pub service: ServiceName,
    /// Where the socket is; of other machines' reach only when the file says `expose: true`.
    pub listen: Listen,
    /// How long an open may take, holding included.
    pub open_timeout: Duration,
    /// Whether HTTP/2 is read in passing. True unless the file says otherwise.
    pub inspect: bool,
    /// Whether a session that ends by a fault ends each open gRPC call with a status that says which. False unless the
    /// file says otherwise; never true without `inspect`.
    pub explain: bool,
    /// The mode of a unix socket, 0600 unless the file says otherwise; without meaning for TCP.
    pub mode: u32,
    /// The group of a unix socket, a name or a number; `None` for the process's own. Always `None` for TCP.
    pub group: Option<String>,
}

/// The mapping, and where its address is written or, by default, where the mapping begins.
pub(super) fn parse(
    service: ServiceName,
    field: Field<'_>,
    open_timeout: Duration,
    env: &Env,
    report: &mut Report,
) -> Option<(MappingConfig, Position)> {
    let section = Section::open(field, Place::Mapping, report)?;
    let open_timeout = section.duration("open_timeout", OPEN_TIMEOUT, report).unwrap_or(open_timeout);
    let inspect = section.bool("inspect", report).unwrap_or(true);
    let explain = section.parse_with("explain", report, parse_switch).unwrap_or(false);
    if explain
        && !inspect
        && let Some(field) = section.field("explain")
    {
        let message = "`explain` needs `inspect`; remove `inspect: false`";
        report.fault(field.node.at, &field.path, message);
    }
    let mode = section.parse_with("mode", report, parse_mode);
    let group = section.parse_with("group", report, parse_group);
    let expose = section.bool("expose", report);
    let listen = match section.field("listen") {
        Some(field) => field.parse_with(report, str::parse),
        None if section.has_or_meant("listen") => None,
        None => default_listen(&service, &section, env, report),
    }?;
    match listen {
        Listen::Unix(_) => check_unix(&section, mode, group.is_some(), report),
        Listen::Tcp { .. } => check_tcp(&section, &listen, expose == Some(true), report),
    }
    let at = section.field("listen").map_or(section.at, |field| field.node.at);
    check_whole_path(&listen, at, &section, env, report);
    let mode = mode.unwrap_or(DEFAULT_MODE);
    Some((MappingConfig { service, listen, open_timeout, inspect, explain, mode, group }, at))
}

/// `$XDG_RUNTIME_DIR/hopline/NAME.sock`.
fn default_listen(
    service: &ServiceName,
    section: &Section<'_>,
    env: &Env,
    report: &mut Report,
) -> Option<Listen> {
    // No guess: a folder that others can write to is no place for a private socket.
    let Some(dir) = &env.runtime_dir else {
        let message = "XDG_RUNTIME_DIR is not set, so there is no default: write listen: unix:PATH";
        report.fault(section.at, &section.path, message);
        return None;
    };
    let path = dir.join("hopline").join(format!("{service}.sock"));
    let len = path.as_os_str().len();
    if len > MAX_SOCKET_PATH_BYTES {
        let message = format_args!(
            "its default path has {len} bytes, a unix socket at most {MAX_SOCKET_PATH_BYTES}: write listen:"
        );
        report.fault(section.at, &section.path, message);
        return None;
    }
    Some(Listen::Unix(path))
}

/// A relative path is short as it is written; the socket has the whole one.
fn check_whole_path(listen: &Listen, at: Position, section: &Section<'_>, env: &Env, report: &mut Report) {
    let (Listen::Unix(path), Some(dir)) = (listen, &env.working_dir) else { return };
    let len = dir.join(path).as_os_str().len();
    if len > MAX_SOCKET_PATH_BYTES {
        let message = format_args!(
            "the whole path has {len} bytes, a unix socket's at most {MAX_SOCKET_PATH_BYTES}; it lies below {}",
            dir.display()
        );
        report.bad_value(at, &format!("{}.listen", section.path), &listen.to_string(), message);
    }
}

fn check_unix(section: &Section<'_>, mode: Option<u32>, has_group: bool, report: &mut Report) {
    if let Some(field) = section.field("expose") {
        report.fault(
            field.node.at,
            &field.path,
            "only for a TCP listen: remove it; mode: and group: open a unix socket",
        );
    }
    if let (Some(field), Some(mode)) = (section.field("mode"), mode)
        && mode & 0o002 != 0
    {
        report.notice(field.node.at, &field.path, "every user of this machine can dial this service");
    }
    if let Some(field) = section.field("group")
        && has_group
        && mode.unwrap_or(DEFAULT_MODE) & 0o020 == 0
    {
        report.notice(
            field.node.at,
            &field.path,
            "the group can't dial unless mode: says so: write mode: 0660",
        );
    }
}

fn check_tcp(section: &Section<'_>, listen: &Listen, expose: bool, report: &mut Report) {
    for key in ["mode", "group"] {
        if let Some(field) = section.field(key) {
            report.fault(
                field.node.at,
                &field.path,
                "only for a unix socket: remove it, or write listen: unix:PATH",
            );
        }
    }
    let Some(field) = section.field("listen") else { return };
    if !expose && !listen.is_local() {
        let message =
            "others could reach it: write a loopback address such as 127.0.0.1:7901, or expose: true";
        report.bad_value(field.node.at, &field.path, &listen.to_string(), message);
    }
    if expose && !listen.is_local() {
        report.notice(
            field.node.at,
            &field.path,
            "exposed: whoever reaches this address can dial the service",
        );
    }
}

fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("write on or off"),
    }
}

/// Octal, as `chmod` has it, with the zero in front that tells it from a decimal number.
fn parse_mode(text: &str) -> Result<u32, &'static str> {
    let digits = text.strip_prefix("0o").or_else(|| text.strip_prefix('0')).unwrap_or_default();
    if digits.len() == 3 && digits.bytes().all(|b| matches!(b, b'0'..=b'7')) {
        return u32::from_str_radix(digits, 8).map_err(|_| "not octal");
    }
    Err("a mode is a zero and three octal digits, such as 0660")
}

fn parse_group(text: &str) -> Result<String, &'static str> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if (1..=MAX_GROUP).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('-') {
        return Ok(text.to_owned());
    }
    Err("a group is a name or a number, such as app or 1000")
}
