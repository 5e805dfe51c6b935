//! One session beside one connection: bytes both ways, ends, resets.
//!
//! The same at both ends of the path. At the sidecar the connection is an application's, at the agent it is the
//! server's. Bytes go on as they come, by reference. Within the replay window, what the
//! connection wrote stays in a replay buffer as well: see [`replay`].

mod inbound;
mod outbound;
pub(crate) mod replay;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hopline_accounting::ByteCounter;
use hopline_link::{Abort, Code, Session};
use tokio::time::{Instant, timeout, timeout_at};

use crate::inspect::Inspected;
use crate::local::{LocalStream, gone};
pub(crate) use inbound::{Inbound, Keep, LAST_QUEUE};
use outbound::{Outbound, write};
use replay::ReplayMemory;

/// Most bytes read from a connection at once: half of what may wait in a session, so that a session which is read into
/// while no more than this waits never holds more.
const READ_MOST: usize = 32 << 10;
/// Room for the first bytes of a connection, and for those of one that says little.
const READ_LEAST: usize = 4 << 10;
/// After one side broke: for how long the other may take none of the bytes that are left for it, the time before included.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// The same for a connection whose other end is in this process, and is read as long as there is somebody to read.
const PATIENT: Duration = Duration::from_secs(24 * 3600);
/// The same where a connection was reset and it is the far reader who takes nothing: a reset throws away what is under
/// way directly too, and who reads nothing is to learn of it at once.
const STUCK: Duration = Duration::from_millis(300);
/// After an application has closed its connection behind its last bytes, and the far reader takes what comes: for how long
/// they may be on their way, and the end behind them.
const LAST_END: Duration = Duration::from_secs(3);

/// What is at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// An application that a mapping has accepted.
    Application,
    /// A server that the agent has dialled.
    Server,
}

/// How a pump ended, if not clean.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The session was aborted, by the far side or by the death of a link.
    Session(Abort),
    /// The connection broke: its owner reset it (`peer_reset`), or its host fell silent (`forward_dead`). The session
    /// has been told.
    Local(Abort),
    /// The connection takes nothing any more, and its owner had ended it before. The session has been told.
    Closed(Abort),
    /// The connection's owner closed it without ending it. The session has been told.
    PeerGone,
}

impl Broken {
    /// What the session is told.
    pub(crate) fn abort(&self) -> Abort {
        match self {
            Self::Session(abort) | Self::Local(abort) | Self::Closed(abort) => abort.clone(),
            Self::PeerGone => Abort::new(Code::PEER_RESET, "the connection was closed by its owner"),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the system may name any error; these say that a host is silent"
    )]
    fn local(error: &io::Error, beside: Beside) -> Self {
        let code = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
                if beside == Beside::Server =>
            {
                Code::FORWARD_DEAD
            }
            // Linux tells a reset so where an end had come before it, which may still lie unread.
            io::ErrorKind::BrokenPipe => {
                return Self::Closed(Abort::new(Code::PEER_RESET, error.to_string()));
            }
            _ => Code::PEER_RESET,
        };
        Self::Local(Abort::new(code, error.to_string()))
    }

    /// What became of a connection that is [`gone`]: it was reset, its host is silent, or its owner has closed it.
    fn gone(local: &LocalStream, beside: Beside) -> Self {
        match local.take_error() {
            Ok(Some(error)) | Err(error) => Self::local(&error, beside),
            Ok(None) => Self::PeerGone,
        }
    }
}

/// A connection that is reset if it is dropped before it was carried to its end: a cut must not look like a close.
#[derive(Debug)]
pub(crate) struct Connection(Option<LocalStream>);

impl Connection {
    pub(crate) fn new(stream: LocalStream) -> Self {
        Self(Some(stream))
    }

    /// Ends with the ordinary close, as for one whose owner has left.
    pub(crate) fn close(mut self) {
        drop(self.0.take());
    }

    pub(crate) fn stream(&self) -> Option<&LocalStream> {
        self.0.as_ref()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.reset();
        }
    }
}

/// How far both directions between one connection and its session have come. While the replay buffer is complete, another
/// session can resume the first one.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) inbound: Inbound,
    outbound: Outbound,
    beside: Beside,
    /// After both ends came: the connection's was the first.
    connection_first: bool,
}

impl Flow {
    /// Nothing was carried yet.
    pub(crate) fn new(
        memory: &ReplayMemory,
        beside: Beside,
        count: &Arc<ByteCounter>,
        inspected: Option<Arc<Inspected>>,
    ) -> Self {
        let inbound = Inbound::new(memory, beside, count, inspected.clone());
        let outbound = Outbound::new(beside, count, inspected);
        Self { inbound, outbound, beside, connection_first: false }
    }

    /// Whether another session can resume this one.
    pub(crate) fn is_replayable(&self) -> bool {
        self.inbound.is_replayable()
    }

    /// Ends the replay window: from here on no other session can resume this one.
    pub(crate) fn end_replay_window(&mut self) {
        self.inbound.end_replay_window();
    }

    /// Bytes that came from the connection so far.
    pub(crate) fn sent(&self) -> u64 {
        self.inbound.sent()
    }

    /// Bytes that came from the session so far.
    pub(crate) fn received(&self) -> u64 {
        self.outbound.received()
    }

    /// Both directions have come to their ends.
    pub(crate) fn is_over(&self) -> bool {
        self.inbound.is_done() && self.outbound.is_ended()
    }

    /// Of two ends, the connection's was the first.
    pub(crate) fn is_connection_first(&self) -> bool {
        self.connection_first
    }

    /// The next session replays everything from its first byte.
    pub(crate) fn expect_repeats(&mut self) {
        self.outbound.expect_repeats();
    }

    /// Replays to the next session what the connection wrote, from this offset on. False if that is not buffered: then no other
    /// session can resume this one.
    #[must_use]
    pub(crate) fn replay(&mut self, from: u64) -> bool {
        self.inbound.replay(from)
    }

    /// Carries bytes until both directions have ended, or until one side breaks. May be called again, also with another
    /// session, and also after it was cancelled.
    pub(crate) async fn run(&mut self, local: &LocalStream, session: &Session) -> Result<(), Broken> {
        let over = self.is_over();
        let beside = self.beside;
        let (inbound, outbound, first) = (&mut self.inbound, &mut self.outbound, &mut self.connection_first);
        let ends = async {
            if over {
                // Only the session's own end is still to be read again; the connection may be closed already.
                return outbound.run(session, local).await;
            }
            let mut forth = pin!(inbound.run(local, session));
            let mut back = pin!(outbound.run(session, local));
            tokio::select! {
                ended = &mut forth => {
                    ended?;
                    *first = true;
                    tokio::select! {
                        ended = back => ended,
                        // Nobody reads the connection any more: that its owner has left must be seen all the same.
                        () = gone(local) => Err(Broken::gone(local, beside)),
                    }
                }
                ended = &mut back => {
                    ended?;
                    forth.await
                }
            }
        };
        tokio::select! {
            biased;
            ended = ends => ended,
            // Both directions may be held up by the connection: that the far side has left must be seen all the same.
            abort = session.aborted() => Err(Broken::Session(abort)),
        }
    }

    /// Ends what [`Flow::run`] ended with `result`: the connection is closed, by an ordinary close if all was clean, else
    /// by a reset.
    ///
    /// When one side broke, the other still gets what had arrived before, for as long as it takes it: the last answer
    /// of a server is worth more than the reset behind it.
    ///
    /// `last_words` are asked for when a fault has cut the connection, once everything of the far side that can be
    /// delivered was; if there are some, the connection ends behind them.
    ///
    /// Gives how it ended in the end: when all was clean here, the far side may still fail to get the last bytes. Until it
    /// has them the session is not over, and a drain waits for it.
    pub(crate) async fn close(
        &mut self,
        connection: Connection,
        session: &Session,
        result: Result<(), Broken>,
        last_words: impl FnOnce(&Abort) -> Option<Vec<u8>>,
    ) -> Result<(), Broken> {
        let Some(local) = connection.stream() else { return result };
        match &result {
            Ok(()) => {
                connection.close();
                return session.finish().await.map_err(Broken::Session);
            }
            Err(Broken::Session(abort)) => {
                self.outbound.run_last(session, local, abort).await;
                // Who left at the far end had said everything, and its end is on its way to the connection's owner: a
                // reset would overtake it, and throw away what lies in the kernel. The owner's next write meets one.
                if self.outbound.is_ended() && abort.code == Code::PEER_RESET {
                    connection.close();
                } else if !self.outbound.is_ended()
                    && self.outbound.is_given()
                    && let Some(words) = last_words(abort)
                {
                    say_last(connection, &words).await;
                }
            }
            Err(broken @ (Broken::Local(_) | Broken::Closed(_) | Broken::PeerGone)) => {
                self.send_last(local, session, broken).await;
                session.abort_with(broken.abort());
            }
        }
        result
    }

    /// Sends what the connection had said before it broke. An abort waits for no credit: what still waits for some would
    /// be dropped, here or further on. So it goes out behind that; and behind the acknowledgement of one who closed when
    /// it had said everything. On TCP a close comes by here only when something was written behind it before its end
    /// was read.
    async fn send_last(&mut self, local: &LocalStream, session: &Session, broken: &Broken) {
        let was_ended = self.inbound.is_ended();
        let is_reset = matches!(broken, Broken::Local(_));
        let mut since = self.inbound.stalled_since();
        let counters = session.counters();
        let is_held_up = counters.unsent > 0 && counters.send_credit == 0;
        let patience = match (is_reset, is_held_up) {
            (true, true) => STUCK,
            (true, false) | (false, true) => LAST_BYTES,
            // It is on its way.
            (false, false) => {
                since = Instant::now();
                LAST_END
            }
        };
        let all_read = self.inbound.run_last(local, session, since, patience).await;
        let closed =
            all_read && !is_reset && (!was_ended || (local.is_unix() && matches!(broken, Broken::PeerGone)));
        if closed {
            session.end();
        }
        if all_read {
            since = Instant::now();
        }
        while let Ok(Ok(1..)) = timeout_at(since + patience, session.sending()).await {
            since = Instant::now();
        }
        if closed {
            let _ = timeout_at(since + LAST_END, session.finish()).await;
        }
    }
}

/// Ends a connection behind these words. What its owner still says is read for a moment: a connection that is closed
/// with unread bytes is reset, and the reset may overtake the words. One that does not take them is reset.
pub(crate) async fn say_last(connection: Connection, mut words: &[u8]) {
    let Some(local) = connection.stream() else { return };
    let said = timeout(LAST_BYTES, async {
        while !words.is_empty() {
            words = &words[write(local, words, || ()).await?..];
        }
        local.shutdown_write()?;
        let mut remaining = LAST_QUEUE;
        let mut buffer = BytesMut::new();
        while remaining > 0 {
            poll_fn(|cx| local.poll_read_ready(cx)).await?;
            buffer.clear();
            buffer.reserve(READ_LEAST);
            match local.try_read_buf(&mut buffer) {
                Ok(0) => break,
                Ok(n) => remaining = remaining.saturating_sub(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        io::Result::Ok(())
    });
    match said.await {
        // Its owner reads, and will close; or it has.
        Ok(Ok(())) => connection.close(),
        Err(_) if words.is_empty() => connection.close(),
        Ok(Err(_)) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests;
