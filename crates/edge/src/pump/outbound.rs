//! The direction from a session to its connection.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use hopline_accounting::ByteCounter;
use hopline_link::{Abort, Code, Session};
use tokio::time::{Instant, timeout_at};

use super::{Beside, Broken, LAST_BYTES, PATIENT, STUCK};
use crate::inspect::Inspected;
use crate::local::LocalStream;

/// The direction from the session to the connection: what is left of it.
#[derive(Debug)]
pub(super) struct Outbound {
    beside: Beside,
    piece: Bytes,
    /// Bytes that the session gave, those in `piece` included.
    received: u64,
    /// Bytes that the session will give once more.
    repeats: u64,
    /// The connection was told the session's end.
    ended: bool,
    /// Since when the connection has taken nothing of what waits for it.
    stalled: Option<Instant>,
    count: Arc<ByteCounter>,
    inspected: Option<Arc<Inspected>>,
}

impl Outbound {
    pub(super) fn new(beside: Beside, count: &Arc<ByteCounter>, inspected: Option<Arc<Inspected>>) -> Self {
        Self {
            beside,
            piece: Bytes::new(),
            received: 0,
            repeats: 0,
            ended: false,
            stalled: None,
            count: Arc::clone(count),
            inspected,
        }
    }

    /// Bytes that the session gave so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The connection was told the session's end.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The connection was given everything that was taken from the session.
    pub(super) fn is_given(&self) -> bool {
        self.piece.is_empty()
    }

    /// The next session says everything once more from its first byte.
    pub(super) fn expect_repeats(&mut self) {
        self.repeats = self.received;
    }

    /// Gives the connection what is left after the session was aborted, for as long as it takes some of it in time.
    pub(super) async fn run_last(&mut self, session: &Session, local: &LocalStream, abort: &Abort) {
        let is_reset = self.beside == Beside::Server && abort.code == Code::PEER_RESET;
        let patience = match is_reset {
            _ if local.is_patient() => PATIENT,
            true => STUCK,
            false => LAST_BYTES,
        };
        let mut since = self.stalled.unwrap_or_else(Instant::now);
        while let Ok(Ok(true)) = timeout_at(since + patience, self.step(session, local)).await {
            since = Instant::now();
        }
    }

    /// Gives the connection some bytes; false at the session's end, which it was then told. Cancel safe.
    async fn step(&mut self, session: &Session, local: &LocalStream) -> Result<bool, Broken> {
        while self.piece.is_empty() {
            match session.read_bytes().await.map_err(Broken::Session)? {
                Some(mut piece) => {
                    let known = usize::try_from(self.repeats).unwrap_or(usize::MAX).min(piece.len());
                    piece.advance(known);
                    self.repeats -= known as u64;
                    self.received += piece.len() as u64;
                    self.count.receive(piece.len());
                    self.piece = piece;
                }
                None if self.repeats > 0 => {
                    let message = "a resumed session replayed less than it had sent";
                    return Err(Broken::Session(Abort::new(Code::PROTOCOL, message)));
                }
                None => {
                    self.ended = true;
                    return end(local, self.beside).map(|()| false);
                }
            }
        }
        let (stalled, inspected) = (&mut self.stalled, &self.inspected);
        let held_up = || {
            stalled.get_or_insert_with(Instant::now);
            if let Some(inspected) = inspected {
                inspected.handle_held_up();
            }
        };
        let written = write(local, &self.piece, held_up).await;
        self.stalled = None;
        let written = written.map_err(|error| Broken::local(&error, self.beside))?;
        if let Some(inspected) = &self.inspected {
            inspected.handle_from_server(&self.piece[..written]);
        }
        self.piece.advance(written);
        Ok(true)
    }

    pub(super) async fn run(&mut self, session: &Session, local: &LocalStream) -> Result<(), Broken> {
        while self.step(session, local).await? {}
        Ok(())
    }
}

fn end(local: &LocalStream, beside: Beside) -> Result<(), Broken> {
    match local.shutdown_write() {
        Ok(()) => Ok(()),
        // It was closed from the other side in this moment; what it had is delivered.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        Err(error) => Err(Broken::local(&error, beside)),
    }
}

/// Writes some of it, as soon as the connection takes any; `held_up` is called when it takes none.
pub(super) async fn write(local: &LocalStream, bytes: &[u8], mut held_up: impl FnMut()) -> io::Result<usize> {
    loop {
        poll_fn(|cx| {
            let ready = local.poll_write_ready(cx);
            if ready.is_pending() {
                held_up();
            }
            ready
        })
        .await?;
        match local.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}
