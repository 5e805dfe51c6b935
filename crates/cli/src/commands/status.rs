//! `hopline status`.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use hopline_admin::client::fetch;
use hopline_admin::{status, text};

use crate::args::Status;
use crate::files;
use crate::signals::Stop;

/// Columns when nobody says how many there are.
const WIDTH: usize = 100;

pub(crate) async fn run(args: Status) -> anyhow::Result<ExitCode> {
    if !args.watch {
        let (shown, healthy) = show(&args).await?;
        files::say(&shown)?;
        return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut stop = Stop::listen()?;
    let terminal = std::io::stdout().is_terminal();
    loop {
        let shown = match show(&args).await {
            Ok((shown, _)) => shown,
            // It may be back in a second.
            Err(error) => format!("{error:#}\n"),
        };
        files::say(if terminal { "\x1b[H\x1b[2J" } else { "" })?;
        files::say(&shown)?;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            _ = stop.wait() => return Ok(ExitCode::SUCCESS),
        }
    }
}

async fn show(args: &Status) -> anyhow::Result<(String, bool)> {
    let value = fetch(&args.address).await?;
    let raw = args.json.then(|| serde_json::to_string_pretty(&value)).transpose()?;
    let status = status::Status::from_value(value)?;
    let shown = match raw {
        Some(raw) => raw + "\n",
        None => {
            let colour =
                std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            text::render(&status, width(), colour)
        }
    };
    Ok((shown, status.healthy()))
}

fn width() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    said.or_else(|| Some(usize::from(rustix::termios::tcgetwinsize(std::io::stdout()).ok()?.ws_col)))
        .filter(|columns| *columns > 0)
        .unwrap_or(WIDTH)
}
