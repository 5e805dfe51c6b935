//! Files, folders, names and streams of the process.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use hopline_identity::connection_fault;
use hopline_names::{MAX_LEN, MachineName};

use crate::streams;

/// Writes to stdout. A reader that has gone is no fault of ours.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    match streams::write_stdout(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to stdout"),
    }
}

/// An error with its causes, each once: most errors name theirs in their own text.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let said = cause.downcast_ref().map_or_else(|| cause.to_string(), connection_fault);
        if !text.contains(&said) {
            text += if text.is_empty() { "" } else { ": " };
            text += &said;
        }
    }
    text
}

/// A whole file, but no more than `max` bytes of it.
pub(crate) fn read(path: &Path, max: usize) -> anyhow::Result<Vec<u8>> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut text = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut text).with_context(|| path.display().to_string())?;
    anyhow::ensure!(text.len() <= max, "{}: more than {max} bytes", path.display());
    Ok(text)
}

/// Where a relay keeps its state when `--state` does not say.
pub(crate) fn relay_state(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    given.map_or_else(|| state_folder("relay"), Ok)
}

/// Where a machine keeps its key when `--state` does not say.
pub(crate) fn machine_state(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    given.map_or_else(|| state_folder("machine"), Ok)
}

fn state_folder(role: &str) -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")));
    let base = base.context("neither XDG_STATE_HOME nor HOME is set: say --state DIR")?;
    Ok(base.join("hopline").join(role))
}

/// This machine's name when none is given: its host name, as far as the rule for names allows.
pub(crate) fn host_name() -> anyhow::Result<MachineName> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name_of_host(&host)
        .with_context(|| format!("this machine's host name {host:?} makes no machine name: say --name NAME"))
}

/// The first label of a host name, in lower case, its odd characters made hyphens; `None` if nothing is left of it.
fn name_of_host(host: &str) -> Option<MachineName> {
    // What the kernel says before anybody has given it one.
    if host == "(none)" {
        return None;
    }
    let first = host.split('.').find(|label| !label.is_empty())?.to_lowercase();
    let name: String = first
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' })
        .collect();
    let name: String = name.trim_start_matches(['-', '_']).chars().take(MAX_LEN).collect();
    let name = name.trim_end_matches('-');
    MachineName::new(name).ok()
}

#[cfg(test)]
mod tests {
    use super::name_of_host;

    #[test]
    fn host_names_make_machine_names() {
        for (host, name) in [
            ("web-1", Some("web-1")),
            ("web-1.example.com", Some("web-1")),
            ("WEB_1", Some("web_1")),
            ("Annas MacBook Pro", Some("annas-macbook-pro")),
            ("_build.internal", Some("build")),
            (".example", Some("example")),
            ("-x-", Some("x")),
            ("Büro", Some("b-ro")),
            ("ÄÖÜ", None),
            ("", None),
            ("...", None),
            ("(none)", None),
            ("---", None),
        ] {
            assert_eq!(name_of_host(host), name.map(|name| name.parse().unwrap()), "{host:?}");
        }
        assert_eq!(name_of_host(&"a".repeat(64)), "a".repeat(63).parse().ok());
        assert_eq!(name_of_host(&format!("{}-{}", "a".repeat(62), "b")), "a".repeat(62).parse().ok());
    }
}
