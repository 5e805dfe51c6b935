//! Reads `/status` over HTTP, as anyone outside would.

use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

/// No status page of the demo comes near this; a body that is longer is an error.
const MAX_BODY: usize = 1024 * 1024;
/// A status page that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(5);

/// The part of an edge's `/status` that the rows judge by.
#[derive(Debug, Deserialize)]
pub(crate) struct Status {
    mappings: Vec<Mapping>,
}

/// One `connect:` entry of the sidecar.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mapping {
    name: String,
    pub(crate) sessions: Sessions,
    #[serde(default)]
    pub(crate) last_error: Option<LastError>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Sessions {
    pub(crate) open: u64,
    pub(crate) total: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LastError {
    pub(crate) reason: String,
    pub(crate) hop: Option<u64>,
}

/// The mapping `name` of the edge whose status page is at `base` (`http://HOST:PORT`).
pub(crate) async fn mapping(base: &str, name: &str) -> anyhow::Result<Mapping> {
    let body = tokio::time::timeout(PATIENCE, get(base, "/status"))
        .await
        .with_context(|| format!("{base}/status did not answer within {} s", PATIENCE.as_secs()))??;
    let status: Status =
        serde_json::from_slice(&body).with_context(|| format!("{base}/status is not as documented"))?;
    let found = status.mappings.into_iter().find(|mapping| mapping.name == name);
    found.with_context(|| format!("{base}/status has no mapping {name:?}"))
}

async fn get(base: &str, path: &str) -> anyhow::Result<Bytes> {
    let host = base.strip_prefix("http://").with_context(|| format!("{base} is not an http:// address"))?;
    let stream = TcpStream::connect(host).await.with_context(|| format!("connecting to {base}"))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header("host", host).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
    connection.abort();
    if !code.is_success() {
        bail!("{base}{path} answered {code}");
    }
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => bail!("{base}{path}: {error}"),
    }
}
