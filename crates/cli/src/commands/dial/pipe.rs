//! Stdin and stdout as one end of a session.

use std::io;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use hopline_config::MappingConfig;
use hopline_edge::{Edge, LocalStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::stdio::{self, Output};
use crate::streams;

/// Once the server has ended: for how long stdin may be still before it counts as ended too. It may stay open for
/// ever, as ssh's does; but an upload to a server that has only ended its own direction goes on.
const STILL: Duration = Duration::from_millis(250);
/// Between two looks whether anybody can read stdout.
const LOOK: Duration = Duration::from_millis(500);
/// How long what was read from stdin may take to the server once nobody reads stdout.
const LEAVING: Duration = Duration::from_secs(4);
/// Read from the session at once.
const PIECE: usize = 64 << 10;

/// How the pipe came to its end.
enum Ended {
    /// The session is over, and everything that it gave is written.
    Session(anyhow::Result<()>),
    /// There is nobody for its output.
    Stdout(io::Error),
    /// Its input can't be read.
    Stdin(io::Error),
}

/// Carries stdin to the service and what comes back to stdout; resolves when the session is over and all of it written.
///
/// # Errors
/// How the session ended, unless clean, or what is wrong with stdin or stdout.
pub(super) async fn carry(edge: &Edge, mapping: MappingConfig) -> anyhow::Result<()> {
    let (ours, theirs) = UnixStream::pair().context("a pair of sockets")?;
    let mut session = pin!(edge.connect(mapping, LocalStream::from(theirs).patient()));
    let mut over = None;
    let ended = {
        let (from_service, to_service) = ours.into_split();
        let input = stdio::input().context("stdin")?;
        let output = Output::start().context("stdout")?;
        let (written, is_written) = watch::channel(false);
        let mut forth = pin!(forth(input, to_service, is_written));
        let mut back = pin!(back(from_service, output));
        let (mut stdin_ended, mut all_written) = (false, false);
        loop {
            if all_written && let Some(over) = over.take() {
                break Ended::Session(over);
            }
            tokio::select! {
                result = &mut session, if over.is_none() => over = Some(result.map_err(anyhow::Error::new)),
                result = &mut back, if !all_written => match result {
                    Ok(()) => {
                        all_written = true;
                        written.send_replace(true);
                    }
                    Err(error) => break Ended::Stdout(error),
                },
                result = &mut forth, if !stdin_ended => match result {
                    Ok(()) => stdin_ended = true,
                    Err(error) => break Ended::Stdin(error),
                },
                () = stdout_gone(), if stdin_ended && !all_written => {
                    break Ended::Stdout(io::ErrorKind::BrokenPipe.into());
                }
            }
        }
    };
    match ended {
        Ended::Session(result) => result,
        Ended::Stdin(error) => Err(error).context("stdin can't be read"),
        Ended::Stdout(error) => {
            // Both ends of our socket are closed: the session sees an application that has left.
            if over.is_none() {
                let _ = timeout(LEAVING, session).await;
            }
            Err(error).context("stdout can't be written")
        }
    }
}

/// From stdin to the session. Resolves at the end of stdin, or once the session takes nothing more.
async fn forth(
    mut input: mpsc::Receiver<io::Result<Vec<u8>>>,
    mut to_service: OwnedWriteHalf,
    mut server_ended: watch::Receiver<bool>,
) -> io::Result<()> {
    loop {
        let piece = tokio::select! {
            piece = input.recv() => piece,
            _ = server_ended.wait_for(|ended| *ended) => timeout(STILL, input.recv()).await.unwrap_or(None),
        };
        let piece = piece.unwrap_or_else(|| Ok(Vec::new()))?;
        // What is wrong with the session is said by the session.
        if piece.is_empty() {
            let _ = to_service.shutdown().await;
            break;
        }
        if to_service.write_all(&piece).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// From the session to stdout, to the last byte.
async fn back(mut from_service: OwnedReadHalf, mut output: Output) -> io::Result<()> {
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let read = tokio::select! {
            // A broken session is an end here; what broke it is said by the session.
            read = from_service.read_buf(&mut piece) => read.unwrap_or(0),
            result = output.written() => return result,
        };
        if read == 0 {
            break;
        }
        // Most pieces are small, and many may wait.
        piece.shrink_to_fit();
        output.push(piece).await?;
    }
    output.end();
    output.written().await?;
    // Whoever reads it has the end at once, though there may still be something to read from stdin.
    let _ = streams::close_stdout();
    Ok(())
}

async fn stdout_gone() {
    loop {
        tokio::time::sleep(LOOK).await;
        if streams::is_stdout_gone() {
            return;
        }
    }
}
