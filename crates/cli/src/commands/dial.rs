//! `hopline dial`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use hopline_config::{Checked, EdgeConfig, parse_edge};
use hopline_edge::{Edge, LocalStream};
use hopline_identity::Machine;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

use crate::args::Dial;
use crate::commands::up::env;
use crate::signals::Stop;
use crate::{files, logging};

pub(crate) async fn run(args: Dial) -> anyhow::Result<ExitCode> {
    let pipe = args.listen == "-";
    // With `-` nobody connects by the socket: it is one that nobody can name.
    let listen = if pipe { "127.0.0.1:0" } else { args.listen.as_str() };
    let Checked { mut config, .. } = file_of(&args, listen)?;
    if pipe {
        config.log.level = hopline_config::LogLevel::Error;
    }
    logging::start(&config.log);
    let machine = Machine::load(&files::machine_state(args.state)?)?;
    let mut stop = Stop::listen()?;
    let edge = Edge::start(config, machine).await.context("can't start")?;
    let service = args.service.to_string();
    let code = if pipe {
        tokio::select! {
            result = carry_stdio(&edge, &service) => match result {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    files::say_error(&format!("hopline: {service}: {error:#}"));
                    ExitCode::FAILURE
                }
            },
            _ = stop.wait() => ExitCode::FAILURE,
        }
    } else {
        if let Some(listens) = edge.listens(&service) {
            files::say(&format!("{listens}\n"))?;
        }
        stop.wait().await;
        ExitCode::SUCCESS
    };
    edge.shutdown().await;
    Ok(code)
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
    parse_edge(text.as_bytes(), &env("--listen")).map_err(|faults| anyhow::anyhow!("{faults}"))
}

/// Stdin and stdout are the connection.
async fn carry_stdio(edge: &Edge, service: &str) -> anyhow::Result<()> {
    let (ours, theirs) = UnixStream::pair().context("a pair of sockets")?;
    let (mut from_service, mut to_service) = ours.into_split();
    let input = async {
        tokio::io::copy(&mut tokio::io::stdin(), &mut to_service).await?;
        to_service.shutdown().await
    };
    let output = async {
        let mut stdout = tokio::io::stdout();
        tokio::io::copy(&mut from_service, &mut stdout).await?;
        stdout.flush().await
    };
    let carried =
        async { edge.connect(service, LocalStream::from(theirs)).await.map_err(anyhow::Error::new) };
    let output_and_end = async { tokio::try_join!(carried, async { output.await.context("stdout") }) };
    tokio::pin!(output_and_end);
    tokio::select! {
        // Stdin may stay open for ever: the service's end is what ends the command.
        done = &mut output_and_end => done.map(|_| ()),
        read = input => {
            read.context("stdin")?;
            output_and_end.await.map(|_| ())
        }
    }
}
