//! `hopline up`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use hopline_config::{Checked, EdgeConfig, Env, Faults, MAX_FILE_BYTES, parse_edge};
use hopline_edge::Edge;
use hopline_identity::Machine;

use crate::args::Up;
use crate::commands::renewal::Renewal;
use crate::logging::Logging;
use crate::signals::{How, Next, Stop};
use crate::{files, limits, logging};

/// Reads an edge's file.
pub(crate) fn parse(path: &Path) -> anyhow::Result<Result<Checked<EdgeConfig>, Faults>> {
    let text = files::read(path, MAX_FILE_BYTES)?;
    Ok(parse_edge(&text, &env(&path.display().to_string())))
}

/// What a config file may take from the environment.
pub(crate) fn env(file: &str) -> Env {
    let env = Env::new(file);
    let env = match std::env::current_dir() {
        Ok(folder) => env.working_dir(folder),
        Err(_) => env,
    };
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) => env.runtime_dir(folder),
        None => env,
    }
}

pub(crate) async fn run(args: Up, mut stop: Stop) -> anyhow::Result<ExitCode> {
    let checked = match parse(&args.config)? {
        Ok(checked) => checked,
        Err(faults) => {
            logging::say(&faults.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut logging = logging::start(&checked.config.log);
    limits::log_open_files();
    for notice in &checked.notices {
        tracing::info!("{notice}");
    }
    let folder = files::machine_state(args.state)?;
    let machine = Machine::load(&folder)?;
    let mut renewal = Renewal::watch(folder, &machine);
    tracing::info!(
        machine = %machine.name(),
        services = checked.config.services.len(),
        mappings = checked.config.connect.len(),
        version = env!("CARGO_PKG_VERSION"),
        "edge starts"
    );
    let mut edge = tokio::select! {
        edge = Edge::launch(checked.config, machine) => edge.context("can't start")?,
        _ = stop.wait() => return Ok(ExitCode::SUCCESS),
    };
    // A mapping whose socket is open may carry sessions while the next one's is being opened.
    let early = tokio::select! {
        () = edge.open() => None,
        how = stop.wait() => Some(how),
    };
    if let Some(address) = edge.status_addr() {
        tracing::info!(%address, "status address open");
    }
    let how = loop {
        if let Some(how) = early {
            break how;
        }
        tokio::select! {
            next = stop.next() => match next {
                Next::Stop(how) => break how,
                Next::Reload => {
                    reload(&mut edge, &mut logging, &args.config).await;
                    renewal.take_up(&edge).await;
                }
            },
            () = renewal.changed() => renewal.take_up(&edge).await,
        }
    };
    let drain = edge.drain_time();
    if how == How::Drain {
        tokio::select! {
            () = edge.drain(drain) => {}
            () = stop.again() => tracing::info!("a second signal: no more waiting"),
        }
    }
    tracing::info!("stopping");
    edge.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// Takes over a changed file; one with faults changes nothing.
async fn reload(edge: &mut Edge, logging: &mut Logging, path: &Path) {
    let checked = match parse(path) {
        Ok(Ok(checked)) => checked,
        Ok(Err(faults)) => return tracing::error!("nothing was reloaded: {faults}"),
        Err(error) => return tracing::error!("nothing was reloaded: {}", files::causes(&error)),
    };
    let log = checked.config.log;
    let mut done = edge.reload(checked.config).await;
    if logging.reload(&log) {
        done.not_applied.retain(|key| *key != "log");
    }
    tracing::info!(
        added = ?done.added, changed = ?done.changed, removed = ?done.removed, services = ?done.services,
        "config file reloaded"
    );
    if !done.not_applied.is_empty() {
        tracing::warn!(keys = ?done.not_applied, "these keys have changed and need a restart");
    }
}
