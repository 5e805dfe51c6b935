//! Reads `/status` over HTTP, as anyone outside would, and takes from it what the rows judge by.
//!
//! The fields are declared here once more, not shared with the edge that writes them: a renamed field then
//! fails a row, as it would fail every other reader.

use anyhow::Context;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct Status {
    mappings: Vec<Mapping>,
}

/// One `connect:` entry of the sidecar.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mapping {
    name: String,
    pub(crate) sessions: Sessions,
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
    let value = hopline_admin::client::fetch(base).await?;
    let status: Status =
        serde_json::from_value(value).with_context(|| format!("{base}/status is not as documented"))?;
    let found = status.mappings.into_iter().find(|mapping| mapping.name == name);
    found.with_context(|| format!("{base}/status has no mapping {name:?}"))
}
