//! Reads the status of a running process.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};

use crate::text::sanitise;

/// How long a fetch may take in all.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read.
pub const MAX_ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// How much of a refusal's text is shown.
const MAX_REFUSAL_CHARS: usize = 200;

/// Why no status was read. Each text is one line and says what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address is none.
    #[error("{0:?} is no status address: give HOST:PORT, http://HOST:PORT or unix:PATH")]
    Address(String),
    /// Nobody listens there.
    #[error("nothing listens at {0}: is `hopline up` running with `status:` set?")]
    NothingListens(String),
    /// The socket belongs to somebody else.
    #[error("not allowed to connect to {0}: run this as the user that runs hopline")]
    NotAllowed(String),
    /// The address could not be reached, or the connection broke.
    #[error("cannot read the status at {address}: {error}")]
    Connect {
        /// The address as given.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// No whole answer within [`TIMEOUT`].
    #[error("{0} did not answer within 5 s: the process may be stopped or overloaded")]
    Timeout(String),
    /// What answers there does not speak HTTP, or broke off.
    #[error("what answers at {address} is no status address ({error})")]
    NotHttp {
        /// The address as given.
        address: String,
        /// What was wrong with its answer.
        error: hyper::Error,
    },
    /// The answer is longer than [`MAX_ANSWER_BYTES`].
    #[error("the answer of {0} is longer than 16 MiB")]
    TooLong(String),
    /// The answer is another status than 200.
    #[error("{address} answered {status}: {text}")]
    Refused {
        /// The address as given.
        address: String,
        /// The HTTP status.
        status: StatusCode,
        /// The first line of the answer, without control characters.
        text: String,
    },
    /// The answer is no JSON.
    #[error("what answers at {address} is no status address (its answer is no JSON: {error})")]
    NotJson {
        /// The address as given.
        address: String,
        /// What was wrong with it.
        error: serde_json::Error,
    },
}

/// Reads `/status` at `address`: `HOST:PORT`, `http://HOST:PORT` or `unix:PATH`. The JSON is as sent; see
/// [`crate::status::Status::from_value`].
///
/// # Errors
///
/// See [`FetchError`].
pub async fn fetch(address: &str) -> Result<serde_json::Value, FetchError> {
    let target = Target::parse(address).ok_or_else(|| FetchError::Address(address.to_owned()))?;
    match tokio::time::timeout(TIMEOUT, fetch_from(address, &target)).await {
        Ok(fetched) => fetched,
        Err(_) => Err(FetchError::Timeout(address.to_owned())),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Target {
    fn parse(address: &str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return (!path.is_empty()).then(|| Self::Unix(path.into()));
        }
        let address = address.strip_prefix("http://").unwrap_or(address);
        let address = address.strip_suffix("/status").or(address.strip_suffix('/')).unwrap_or(address);
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok())?,
            None => Some(host).filter(|host| is_host_name(host))?,
        };
        Some(Self::Tcp { host: host.to_owned(), port })
    }

    fn host_header(&self) -> String {
        match self {
            Self::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }
}

fn is_host_name(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

async fn fetch_from(address: &str, target: &Target) -> Result<serde_json::Value, FetchError> {
    let connect = |error: io::Error| connect_error(address, error);
    let host = target.host_header();
    match target {
        Target::Tcp { host: name, port } => {
            let stream = TcpStream::connect((name.as_str(), *port)).await.map_err(connect)?;
            exchange(address, &host, TokioIo::new(stream)).await
        }
        Target::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(connect)?;
            exchange(address, &host, TokioIo::new(stream)).await
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "io::ErrorKind has no end; the rest is shown as it is")]
fn connect_error(address: &str, error: io::Error) -> FetchError {
    let address = address.to_owned();
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => FetchError::NothingListens(address),
        io::ErrorKind::PermissionDenied => FetchError::NotAllowed(address),
        _ => FetchError::Connect { address, error },
    }
}

async fn exchange<I>(address: &str, host: &str, io: TokioIo<I>) -> Result<serde_json::Value, FetchError>
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let http = |error| FetchError::NotHttp { address: address.to_owned(), error };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(http)?;
    let request = Request::get("/status")
        .header(header::HOST, host)
        .header(header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .expect("the path is fixed and the host was checked");
    let answer = async {
        let answer = sender.send_request(request).await.map_err(http)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES)
            .collect()
            .await
            .map_err(|error| body_error(address, error))?;
        Ok((status, body.to_bytes()))
    };
    // The connection has no task of its own: it is driven here, and dropped with the answer.
    let (status, body) = tokio::select! {
        answer = answer => answer?,
        never = drive(connection) => match never {},
    };
    if status != StatusCode::OK {
        let text = String::from_utf8_lossy(&body);
        let line = text.lines().next().unwrap_or_default();
        let text = sanitise(line).chars().take(MAX_REFUSAL_CHARS).collect();
        return Err(FetchError::Refused { address: address.to_owned(), status, text });
    }
    serde_json::from_slice(&body).map_err(|error| FetchError::NotJson { address: address.to_owned(), error })
}

/// Runs the connection. Its end is no event of its own: the answer, or its error, is.
async fn drive(connection: impl Future<Output = Result<(), hyper::Error>>) -> std::convert::Infallible {
    let _ = connection.await;
    std::future::pending().await
}

fn body_error(address: &str, error: Box<dyn std::error::Error + Send + Sync>) -> FetchError {
    let address = address.to_owned();
    if error.is::<LengthLimitError>() {
        return FetchError::TooLong(address);
    }
    match error.downcast::<hyper::Error>() {
        Ok(error) => FetchError::NotHttp { address, error: *error },
        Err(other) => FetchError::Connect { address, error: io::Error::other(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_three_forms() {
        let tcp = |host: &str, port| Some(Target::Tcp { host: host.to_owned(), port });
        let table = [
            ("127.0.0.1:7801", tcp("127.0.0.1", 7801)),
            ("localhost:1", tcp("localhost", 1)),
            ("http://127.0.0.1:7801", tcp("127.0.0.1", 7801)),
            ("http://localhost:7801/", tcp("localhost", 7801)),
            ("http://localhost:7801/status", tcp("localhost", 7801)),
            ("[::1]:7801", tcp("::1", 7801)),
            ("unix:/run/h.sock", Some(Target::Unix("/run/h.sock".into()))),
            ("unix:", None),
            ("7801", None),
            (":7801", None),
            ("::1:7801", None),
            ("localhost:0", None),
            ("localhost:70000", None),
            ("localhost", None),
            ("https://localhost:1", None),
            ("local host:1", None),
            ("a\r\nb:1", None),
            ("", None),
        ];
        assert_eq!(table.len(), 18);
        for (text, wanted) in table {
            assert_eq!(Target::parse(text), wanted, "{text:?}");
        }
    }
}
