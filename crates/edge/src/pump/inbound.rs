//! The direction from a connection to its session.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use hopline_accounting::ByteCounter;
use hopline_link::{Abort, Session};
use tokio::time::{Instant, timeout_at};

use super::replay::{ReplayBuffer, ReplayMemory};
use super::{Beside, Broken, READ_LEAST, READ_MOST};
use crate::inspect::Inspected;
use crate::local::{LocalStream, StreamEnd, end_of_stream, gone};

/// Most bytes that are still taken from a broken connection. No queue of the kernel is larger by default; one that
/// was only half closed could go on for ever.
pub(crate) const LAST_QUEUE: usize = 8 << 20;

/// The direction from the connection to the session: what is left of it.
#[derive(Debug)]
pub(crate) struct Inbound {
    beside: Beside,
    buffer: BytesMut,
    /// Bytes to make room for at the next read: little for who says little.
    read: usize,
    ended: bool,
    /// Everything that was read so far; `None` once the replay window has ended.
    replay_buffer: Option<ReplayBuffer>,
    /// What is still to be replayed to a session that resumes another.
    replay: VecDeque<Bytes>,
    /// The session is to be told the connection's end.
    end_due: bool,
    /// Since when the session has taken nothing that waits for it.
    stalled: Option<Instant>,
    /// Bytes that the connection gave.
    sent: u64,
    count: Arc<ByteCounter>,
    inspected: Option<Arc<Inspected>>,
}

/// What may be read of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Everything that is read must be buffered: the session may have to be opened again, and a request without its beginning
    /// must not go out.
    All,
    /// As long as there is room; after that the session can no longer be resumed.
    Some,
    /// Nothing more is read, for the owner of the connection is gone: the session gets what was read before.
    Nothing,
}

impl Inbound {
    pub(super) fn new(
        memory: &ReplayMemory,
        beside: Beside,
        count: &Arc<ByteCounter>,
        inspected: Option<Arc<Inspected>>,
    ) -> Self {
        Self {
            beside,
            buffer: BytesMut::new(),
            read: READ_LEAST,
            ended: false,
            replay_buffer: Some(ReplayBuffer::new(memory)),
            replay: VecDeque::new(),
            end_due: false,
            stalled: None,
            sent: 0,
            count: Arc::clone(count),
            inspected,
        }
    }

    /// The connection has ended this direction, and the session was told everything.
    pub(crate) fn is_done(&self) -> bool {
        self.ended && !self.is_replaying()
    }

    /// The connection has ended this direction.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The connection has written nothing, not even an end.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.ended && self.replay_buffer.as_ref().is_some_and(ReplayBuffer::is_empty)
    }

    /// No server acts on what was written, and the connection has not ended.
    pub(crate) fn is_safe_to_replay(&self) -> bool {
        !self.ended && self.replay_buffer.as_ref().is_some_and(ReplayBuffer::is_safe_to_replay)
    }

    /// The replay buffer holds everything that was written.
    pub(super) fn is_replayable(&self) -> bool {
        self.replay_buffer.is_some()
    }

    /// Drops the replay buffer. A replay that has begun still goes on to its end.
    pub(super) fn end_replay_window(&mut self) {
        self.replay_buffer = None;
    }

    /// Bytes that came from the connection so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Since when the session has taken nothing of what waits for it; now, if it takes what comes.
    pub(super) fn stalled_since(&self) -> Instant {
        self.stalled.unwrap_or_else(Instant::now)
    }

    /// Replays to the next session everything from this offset on, before anything else. False if that is not buffered: then
    /// the session must not be used.
    pub(super) fn replay(&mut self, from: u64) -> bool {
        let Some(pieces) = self.replay_buffer.as_ref().and_then(|buffer| buffer.tail(from)) else {
            return false;
        };
        self.replay = pieces.into();
        self.end_due = self.ended;
        self.stalled = None;
        true
    }

    /// The replay to the session is not complete.
    pub(crate) fn is_replaying(&self) -> bool {
        !self.replay.is_empty() || self.end_due
    }

    /// There is something to replay, or room to buffer what the connection writes next.
    pub(crate) fn may_step(&self) -> bool {
        let has_room = || self.replay_buffer.as_ref().is_some_and(|buffer| buffer.room() > 0);
        self.is_replaying() || (!self.ended && has_room())
    }

    /// Tells the session the next that it has not been told: bytes, or the connection's end. Does nothing where there is
    /// something to read and no room to keep it. Cancel safe.
    pub(crate) async fn step(
        &mut self,
        local: &LocalStream,
        session: &Session,
        keep: Keep,
    ) -> Result<(), Broken> {
        let (stalled, buffer) = (&mut self.stalled, &mut self.buffer);
        let mut room = pin!(room(session));
        let writable = poll_fn(|cx| {
            let ready = room.as_mut().poll(cx);
            if ready.is_ready() {
                *stalled = None;
            } else if stalled.is_none() {
                *stalled = Some(Instant::now());
                // Who is not read keeps no room to read into.
                *buffer = BytesMut::new();
            }
            ready
        });
        tokio::select! {
            biased;
            ready = writable => ready.map_err(Broken::Session)?,
            // Nobody reads the connection while the session is full: a reset must be seen all the same.
            () = gone(local), if keep != Keep::Nothing => return Err(Broken::gone(local, self.beside)),
        }
        // It has room now, and nobody else writes to it: nothing that was taken from here is lost to a cancelled wait.
        if let Some(piece) = self.replay.front() {
            session.write_bytes(piece.clone()).await.map_err(Broken::Session)?;
            self.replay.pop_front();
            return Ok(());
        }
        if !self.ended {
            match self.read(local, keep).await {
                Ok(Some(bytes)) => return session.write_bytes(bytes).await.map_err(Broken::Session),
                Ok(None) if !self.ended => return Ok(()),
                Ok(None) if end_of_stream(local) == StreamEnd::Gone => {
                    self.ended = false;
                    return Err(Broken::PeerGone);
                }
                Ok(None) => {}
                Err(error) => return Err(Broken::local(&error, self.beside)),
            }
        }
        self.end_due = false;
        session.end();
        Ok(())
    }

    /// Carries everything up to the connection's end.
    pub(super) async fn run(&mut self, local: &LocalStream, session: &Session) -> Result<(), Broken> {
        while !self.is_done() {
            self.step(local, session, Keep::Some).await?;
        }
        Ok(())
    }

    /// Sends what lies in the connection's queue after it broke, for as long as the session takes some of it within
    /// `patience`, counted from `since` at first. True if that was all, up to an end without an error.
    pub(super) async fn run_last(
        &mut self,
        local: &LocalStream,
        session: &Session,
        mut since: Instant,
        patience: Duration,
    ) -> bool {
        self.replay_buffer = None;
        let mut remaining = LAST_QUEUE;
        while let Some(piece) = self.replay.front() {
            let taken = timeout_at(since + patience, session.write_bytes(piece.clone())).await;
            let Ok(Ok(())) = taken else { return false };
            self.replay.pop_front();
            since = Instant::now();
        }
        while remaining > 0 && !self.ended {
            let Ok(Ok(())) = timeout_at(since + patience, room(session)).await else { return false };
            since = Instant::now();
            self.stalled = None;
            match timeout_at(since + patience, self.read(local, Keep::Some)).await {
                Ok(Ok(Some(bytes))) => {
                    remaining = remaining.saturating_sub(bytes.len());
                    if session.write_bytes(bytes).await.is_err() {
                        return false;
                    }
                }
                Ok(Ok(None)) => {}
                Ok(Err(_)) | Err(_) => return false,
            }
        }
        self.ended
    }

    /// Bytes of the connection; `None` at its end, or if they can't be kept as they are to be.
    async fn read(&mut self, local: &LocalStream, keep: Keep) -> io::Result<Option<Bytes>> {
        loop {
            poll_fn(|cx| local.poll_read_ready(cx)).await?;
            let most = match (keep, &mut self.replay_buffer) {
                (Keep::All, Some(buffer)) => buffer.reserve(self.read),
                (Keep::All, None) | (Keep::Nothing, _) => 0,
                (Keep::Some, _) => self.read,
            };
            if most == 0 {
                return Ok(None);
            }
            // Only when something is there: an idle connection keeps no buffer.
            self.buffer.reserve(most);
            let read = local.try_read_buf(&mut (&mut self.buffer).limit(most));
            match read {
                Ok(0) => {
                    self.ended = true;
                    self.release();
                    return Ok(None);
                }
                Ok(n) => {
                    let bytes = self.buffer.split().freeze();
                    self.resize(n);
                    self.sent += n as u64;
                    self.count.send(n);
                    if let Some(inspected) = &self.inspected {
                        inspected.handle_from_application(&bytes);
                    }
                    if let Some(buffer) = &mut self.replay_buffer
                        && !buffer.push(&bytes)
                    {
                        self.replay_buffer = None;
                    }
                    return Ok(Some(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.release(),
                Err(error) => return Err(error),
            }
        }
    }

    fn release(&mut self) {
        if let Some(buffer) = &mut self.replay_buffer {
            buffer.release();
        }
    }

    /// Makes room by what came last: more when it was all that there was room for, less when it was little.
    fn resize(&mut self, came: usize) {
        if came >= self.read {
            self.read = (self.read * 4).min(READ_MOST);
        } else if came < self.read / 8 {
            self.read = (self.read / 2).max(READ_LEAST);
        }
        // What is left of a large buffer is not kept for little.
        if self.buffer.capacity() < self.read / 4 || self.buffer.capacity() > 4 * self.read {
            self.buffer = BytesMut::new();
        }
    }
}

/// Waits until a whole read fits into what may wait in the session. Cancel safe.
async fn room(session: &Session) -> Result<(), Abort> {
    loop {
        session.writable().await?;
        if session.counters().unsent <= READ_MOST as u64 {
            return Ok(());
        }
        session.sending().await?;
    }
}
