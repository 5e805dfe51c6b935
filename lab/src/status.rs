//! Reads `/status` and `/readyz` of relay and edges over their unix sockets.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

/// One GET; gives the status code and the body.
///
/// # Errors
///
/// When nobody answers within 2 s, or it is not HTTP.
pub(crate) fn get(socket: &Path, path: &str) -> anyhow::Result<(u16, String)> {
    ask(UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?, path)
}

fn ask(mut stream: UnixStream, path: &str) -> anyhow::Result<(u16, String)> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let code = head.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status code")?;
    Ok((code, body.to_owned()))
}

/// A connection to a process's status on which nothing was asked yet, for when it has no descriptor for another.
#[derive(Debug)]
pub(crate) struct Early(UnixStream);

impl Early {
    /// Connects, and gives the process a moment to accept.
    ///
    /// # Errors
    ///
    /// When nobody listens.
    pub(crate) fn open(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("{}", socket.display()))?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(Self(stream))
    }

    /// The whole `/status`. The process waits for the question for 5 s at most.
    ///
    /// # Errors
    ///
    /// When nobody answers within 2 s, or it is not JSON.
    pub(crate) fn status(self) -> anyhow::Result<Value> {
        let (_, body) = ask(self.0, "/status")?;
        serde_json::from_str(&body).context("/status is not JSON")
    }
}

/// Whether a process says that it can work.
pub(crate) fn ready(socket: &Path) -> bool {
    get(socket, "/readyz").is_ok_and(|(code, _)| code == 200)
}

/// The whole `/status`.
///
/// # Errors
///
/// As [`get`], or when it is not JSON.
pub(crate) fn read(socket: &Path) -> anyhow::Result<Value> {
    let (code, body) = get(socket, "/status")?;
    if code != 200 {
        bail!("/status answers {code}");
    }
    serde_json::from_str(&body).context("/status is not JSON")
}

/// The entry of `list` with this name: a mapping or a service.
pub(crate) fn entry<'a>(status: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    status[list].as_array()?.iter().find(|entry| entry["name"] == name)
}

/// `reason@hop` of an entry's last error; `none` when it has none.
pub(crate) fn reason(entry: Option<&Value>) -> String {
    let error = entry.map(|entry| &entry["last_error"]);
    match error {
        Some(error) if !error.is_null() => {
            format!("{}@{}", error["reason"].as_str().unwrap_or("?"), error["hop"])
        }
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasons_are_word_and_hop() {
        let status = json!({"mappings": [
            {"name": "a", "last_error": null},
            {"name": "b", "last_error": {"reason": "conn_lost", "hop": 1}},
        ]});
        assert_eq!(reason(entry(&status, "mappings", "a")), "none");
        assert_eq!(reason(entry(&status, "mappings", "b")), "conn_lost@1");
        assert_eq!(reason(entry(&status, "mappings", "c")), "none");
    }
}
