//! `hopline dial`.

mod pipe;
mod stdio;

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use hopline_config::{Checked, EdgeConfig, MappingConfig, parse_edge};
use hopline_edge::Edge;
use hopline_identity::Machine;

use crate::args::Dial;
use crate::commands::up::env;
use crate::signals::{How, Stop};
use crate::{files, limits, logging};

/// After a drain: how long what came last may take to stdout.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

pub(crate) async fn run(args: Dial, mut stop: Stop) -> anyhow::Result<ExitCode> {
    let pipe = args.listen == "-";
    // As a pipe it listens nowhere: the mapping is checked like any other, and taken out again.
    let Checked { mut config, .. } = file_of(&args, if pipe { "127.0.0.1:0" } else { &args.listen })?;
    config.passing = true;
    let mapping = if pipe { config.connect.pop() } else { None };
    if pipe {
        config.log.level = hopline_config::LogLevel::Error;
    }
    logging::start(&config.log);
    limits::log_open_files();
    let machine = Machine::load(&files::machine_state(args.state)?)?;
    machine.check_dates()?;
    let edge = tokio::select! {
        edge = Edge::launch(config, machine) => edge.context("can't start")?,
        how = stop.wait() => match pipe {
            true => anyhow::bail!("{}: {}", args.service, stopped_by(how)),
            false => return Ok(ExitCode::SUCCESS),
        },
    };
    let service = args.service.to_string();
    let early = tokio::select! {
        () = edge.open() => None,
        how = stop.wait() => Some(how),
    };
    let result = match (mapping, early) {
        (Some(_), Some(how)) => Err(anyhow::anyhow!("{service}: {}", stopped_by(how))),
        (Some(mapping), None) => piped(&edge, mapping, &mut stop).await.with_context(|| service),
        (None, Some(how)) => {
            drain(&edge, how, &mut stop).await;
            Ok(())
        }
        (None, None) => listening(&edge, &service, &mut stop).await,
    };
    edge.shutdown().await;
    result.map(|()| ExitCode::SUCCESS)
}

/// The config file that this command line stands for, so that both are checked by the same rules.
fn file_of(args: &Dial, listen: &str) -> anyhow::Result<Checked<EdgeConfig>> {
    let timeout = Duration::from_millis(u64::try_from(args.open_timeout.as_millis())?);
    let text = format!(
        "connect:\n  {}: {{ listen: {}, open_timeout: {}ms }}\n",
        args.service,
        serde_json::to_string(listen)?,
        timeout.as_millis()
    );
    parse_edge(text.as_bytes(), &env("--listen")).map_err(|faults| {
        // There is no file: its lines and keys would mean nothing to whoever wrote the command.
        let said: Vec<&str> = faults.as_slice().iter().map(|fault| fault.message.as_str()).collect();
        anyhow::anyhow!("{}", said.join("; "))
    })
}

/// Serves a socket until it is told to stop.
async fn listening(edge: &Edge, service: &str, stop: &mut Stop) -> anyhow::Result<()> {
    // Somebody waits for it: what can't be opened now is an error, not something to try again.
    if let Some(trouble) = edge.trouble(service) {
        anyhow::bail!(trouble);
    }
    let said = edge.listens(service).map(|listens| format!("{listens}\n")).unwrap_or_default();
    // Whoever reads stdout may be slow; a signal must not wait for that.
    let said = tokio::task::spawn_blocking(move || files::say(&said));
    let how = tokio::select! {
        said = said => {
            said??;
            stop.wait().await
        }
        how = stop.wait() => how,
    };
    drain(edge, how, stop).await;
    Ok(())
}

/// What is open may run on, unless a signal says otherwise.
async fn drain(edge: &Edge, how: How, stop: &mut Stop) {
    if how == How::Drain {
        tokio::select! {
            () = edge.drain(edge.drain_time()) => {}
            () = stop.again() => {}
        }
    }
}

/// Stdin and stdout are the connection.
async fn piped(edge: &Edge, mapping: MappingConfig, stop: &mut Stop) -> anyhow::Result<()> {
    let mut carried = pin!(pipe::carry(edge, mapping));
    let how = tokio::select! {
        result = &mut carried => return result,
        how = stop.wait() => how,
    };
    if how == How::Drain {
        tokio::select! {
            result = &mut carried => return result,
            () = edge.drain(edge.drain_time()) => {
                if let Ok(result) = tokio::time::timeout(LAST_OUTPUT, &mut carried).await {
                    return result;
                }
            }
            () = stop.again() => {}
        }
    }
    anyhow::bail!(stopped_by(how))
}

fn stopped_by(how: How) -> &'static str {
    match how {
        How::Drain => "ended by a signal, and the session was still open at the drain's deadline",
        How::Now => "ended by SIGINT",
    }
}
