//! `hopline status`.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use hopline_admin::client::fetch;
use hopline_admin::{status, text};

use crate::args::Status;
use crate::signals::Stop;
use crate::{files, streams};

/// Columns when nobody says how many there are.
const WIDTH: usize = 100;

pub(crate) async fn run(args: Status) -> anyhow::Result<ExitCode> {
    let (shown, healthy) = show(&args).await?;
    files::say(&shown)?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `hopline status --watch`, until a signal ends it.
pub(crate) async fn watch(args: Status, mut stop: Stop) -> anyhow::Result<ExitCode> {
    let terminal = std::io::stdout().is_terminal();
    let mut code = ExitCode::FAILURE;
    loop {
        let turn = async {
            let (shown, healthy) = show(&args).await.unwrap_or_else(|error| {
                // It may be back in a second.
                (format!("{}\n", files::causes(&error)), false)
            });
            let screen = if terminal { screen(&shown, rows()) } else { shown };
            // A reader that stops must not hold up a signal.
            let written =
                tokio::task::spawn_blocking(move || streams::write_stdout(screen.as_bytes())).await?;
            anyhow::Ok((healthy, written))
        };
        tokio::select! {
            turn = turn => {
                let (healthy, written) = turn?;
                code = if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE };
                match written {
                    Ok(()) => {}
                    // Whoever watched has seen enough.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(code),
                    Err(error) => return Err(error).context("writing to stdout"),
                }
            }
            _ = stop.wait() => return Ok(code),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            _ = stop.wait() => return Ok(code),
        }
    }
}

/// A text over the one before, in place and without a flicker; what a terminal of so many rows has no room for is counted.
fn screen(text: &str, rows: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    let room = rows.saturating_sub(1).max(1);
    let (shown, left) = if lines.len() > room { lines.split_at(room - 1) } else { (&lines[..], &[][..]) };
    let mut screen = "\x1b[H".to_owned();
    for line in shown {
        // Clears what the line before left to the right of it.
        screen += &format!("{line}\x1b[K\n");
    }
    if !left.is_empty() {
        screen += &format!("... and {} more lines\x1b[K\n", left.len());
    }
    screen + "\x1b[J"
}

fn rows() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| usize::from(size.ws_row));
    size.ok().filter(|rows| *rows > 0).unwrap_or(usize::MAX)
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

#[cfg(test)]
mod tests {
    use super::screen;

    #[test]
    fn a_screen_is_drawn_over_the_one_before_and_never_scrolls() {
        assert_eq!(screen("a\nb\n", 24), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[J");
        let long: String = (0..100).map(|n| format!("{n}\n")).collect();
        for rows in [1, 2, 3, 24, 100, 101, usize::MAX] {
            let drawn = screen(&long, rows);
            let lines = drawn.matches('\n').count();
            assert!(lines < rows.max(2), "{lines} lines in {rows} rows");
            let shown = lines - usize::from(drawn.contains("more lines"));
            let left =
                if shown < 100 { format!("... and {} more lines", 100 - shown) } else { String::new() };
            assert!(drawn.contains(&left), "{rows} rows: {drawn:?}");
        }
    }
}
