//! Files, folders, names and streams of the process.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Writes to stdout. A reader that has gone is no fault of ours.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("writing to stdout"),
    }
}

/// Writes one line to stderr, if anybody is there to read it.
pub(crate) fn say_error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
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

/// This machine's name when none is given: its host name as far as the rule for names allows.
pub(crate) fn host_name() -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let first = host.trim().split('.').next().unwrap_or_default().to_ascii_lowercase();
    let name: String = first
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' })
        .collect();
    let name = name.trim_start_matches(['-', '_']).to_owned();
    anyhow::ensure!(!name.is_empty(), "this machine has no usable host name: say --name NAME");
    Ok(name)
}
