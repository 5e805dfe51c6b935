//! The frame: everything is started, the rows are measured, the table is printed, everything is stopped.

use std::future::Future;
use std::io::Write;
use std::pin::pin;

use anyhow::{Context, anyhow, bail};
use serde_json::json;

use crate::path::{NOBODY, Path, SERVICE};
use crate::rows::{Kind, Row, Stage, measure};
use crate::server::LocalServer;
use crate::table;
use crate::target::Target;

/// What `hopline demo` was asked for.
#[derive(Clone, Debug, Default)]
pub struct DemoOptions {
    /// Keep everything up after the table, until Ctrl-C or SIGTERM.
    pub stay: bool,
    /// Print the table as JSON.
    pub json: bool,
    /// Put a fault before this row; `list` prints the rows' names instead of measuring.
    pub break_row: Option<String>,
}

/// Runs the demo and prints to `out`; says whether every row held. Needs tokio's multi-threaded runtime with
/// I/O and time, and takes about 15 s. `stopped` ends it early, and takes everything down in either case.
///
/// # Errors
///
/// When `break_row` names no row, when a part of the path does not start, when `out` cannot be written, or
/// when it is ended before its last row. A row that cannot be measured is no error but a row that did not hold.
pub async fn run(
    options: DemoOptions,
    stopped: impl Future<Output = ()>,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let mut stopped = pin!(stopped);
    let broken = match options.break_row.as_deref() {
        None => None,
        Some("list") => {
            for kind in Kind::ALL {
                writeln!(out, "{}", kind.name())?;
            }
            return Ok(true);
        }
        Some(name) => Some(kind_by_name(name)?),
    };

    let folder = tempfile::Builder::new().prefix("hopline-demo-").tempdir().context("a temporary folder")?;
    let server = LocalServer::start().await.context("starting the gRPC service")?;
    let path = Path::start(folder.path(), server.address()).await?;
    let result = tokio::select! {
        result = on_path(options.json, broken, &path, &server, out) => result,
        () = &mut stopped => Err(anyhow!("stopped before the last row")),
    };
    let result = match result {
        Ok(held) if options.stay => match stay(&path, out) {
            Ok(()) => {
                stopped.await;
                Ok(held)
            }
            Err(error) => Err(error),
        },
        ended => ended,
    };
    path.shutdown().await;
    result
}

fn stay(path: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    write!(out, "{}", by_hand(path))?;
    Ok(out.flush()?)
}

async fn on_path(
    json: bool,
    broken: Option<Kind>,
    path: &Path,
    server: &LocalServer,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let stage = Stage {
        app: Target::Unix(path.socket.clone()),
        app_tcp: Target::Tcp(path.tcp),
        nobody: Target::Unix(path.nobody.clone()),
        direct: Target::Tcp(server.address()),
        status: path.status.clone(),
        app_mapping: SERVICE,
        nobody_mapping: NOBODY,
        hop: &path.hop,
        offline_from: path.offline_from,
        broken,
    };
    print_rows(&stage, json, out).await
}

fn kind_by_name(name: &str) -> anyhow::Result<Kind> {
    let Some(kind) = Kind::by_name(name) else {
        bail!("no row is called {name:?}; the rows are {}", Kind::ALL.map(Kind::name).join(", "));
    };
    Ok(kind)
}

/// Measures every row and prints it: as text each row as soon as it is known, as JSON all at the end.
pub(crate) async fn print_rows(
    stage: &Stage<'_>,
    as_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let mut rows: Vec<Row> = Vec::with_capacity(Kind::ALL.len());
    if !as_json {
        write!(out, "{}", table::head())?;
    }
    for kind in Kind::ALL {
        out.flush()?;
        let row = measure(kind, stage).await;
        if !as_json {
            write!(out, "{}", table::row(&row))?;
        }
        rows.push(row);
    }
    let red = rows.iter().filter(|row| !row.held).count();
    let again = rows.iter().filter(|row| row.held && row.tries > 1).count();
    if as_json {
        serde_json::to_writer_pretty(&mut *out, &json!({ "rows": rows, "all_held": red == 0 }))?;
        writeln!(out)?;
    } else {
        writeln!(out, "\n{}", verdict(rows.len(), red, again))?;
        writeln!(out, "{NOTE}")?;
    }
    out.flush()?;
    Ok(red == 0)
}

/// Why the statuses above are not those of the gRPC specification.
const NOTE: &str = "\
The client is tonic. It reads CANCELLED for its own deadline and UNKNOWN for a connection that broke;
clients in Go, Java, Python and Node read DEADLINE_EXCEEDED and UNAVAILABLE there.";

fn verdict(rows: usize, red: usize, again: usize) -> String {
    match (red, again) {
        (0, 0) => format!("All {rows} rows held."),
        (0, again) => format!("All {rows} rows held, {again} of them not at the first try."),
        (red, _) => format!("{red} of {rows} rows did NOT hold."),
    }
}

/// How to go on by hand; every line works as printed while the demo stays up.
fn by_hand(path: &Path) -> String {
    format!(
        "\n\
         Still running; Ctrl-C ends it. The service answers reflection:\n\n  \
           grpcurl -plaintext -d '{{\"payload\":\"aG9wbGluZQ==\"}}' {tcp} hopline.demo.v1.Demo/Echo\n  \
           grpcurl -plaintext -unix -d '{{\"count\":3,\"interval_ms\":500}}' '{socket}' hopline.demo.v1.Demo/Tick\n\n\
         unix socket   {socket}\n\
         TCP           {tcp}\n\
         status        {status}/status\n",
        tcp = path.tcp,
        socket = path.socket.display(),
        status = path.status,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn printed(break_row: &str) -> anyhow::Result<(bool, String)> {
        let mut out = Vec::new();
        let options = DemoOptions { break_row: Some(break_row.to_owned()), ..DemoOptions::default() };
        let held = run(options, std::future::pending(), &mut out).await?;
        Ok((held, String::from_utf8(out)?))
    }

    #[test]
    fn a_second_try_is_not_told_as_a_first() {
        assert_eq!(verdict(8, 0, 0), "All 8 rows held.");
        assert_eq!(verdict(8, 0, 2), "All 8 rows held, 2 of them not at the first try.");
        assert_eq!(verdict(8, 1, 2), "1 of 8 rows did NOT hold.");
    }

    #[tokio::test]
    async fn the_list_of_rows_is_one_name_a_line() {
        let (held, list) = printed("list").await.unwrap();
        assert!(held);
        assert_eq!(list.lines().count(), Kind::ALL.len());
        assert!(list.lines().all(|name| Kind::by_name(name).is_some()), "{list}");
    }

    #[tokio::test]
    async fn an_unknown_row_is_an_error_that_names_the_known_ones() {
        let error = printed("lunch").await.unwrap_err().to_string();
        assert!(error.contains("lunch") && error.contains("dead-hop"), "{error}");
    }
}
