//! One session beside one connection: bytes both ways, ends, resets.
//!
//! The same at both ends of the path. At the sidecar the connection is an application's, at the agent it is the
//! server's. Bytes go on as they come, by reference. For as long as a session is young, what its connection has said is
//! kept as well: see [`kept`](crate::kept).

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hopline_admin::counts::ByteCounter;
use hopline_link::{Abort, Code, Session};
use tokio::time::timeout;

use crate::inspect::Inspected;
use crate::kept::{Kept, Memory};
use crate::local::{LocalStream, StreamEnd, end_of_stream, gone};

/// Most bytes read from a connection at once.
const READ_MOST: usize = 64 << 10;
/// Room for the first bytes of a connection, and for those of one that says little.
const READ_LEAST: usize = 4 << 10;
/// After one side broke: for how long the other may take none of the bytes that are left for it.
const LAST_BYTES: Duration = Duration::from_secs(1);
/// The same for a connection whose other end is in this process, and is read as long as there is somebody to read.
const PATIENT: Duration = Duration::from_secs(24 * 3600);
/// How long the far reader may take for all that was left for it, the end included.
const LAST_END: Duration = Duration::from_secs(3);
/// Most bytes that are still taken from a broken connection. No queue of the kernel is larger by default; one that
/// was only half closed could go on for ever.
const LAST_QUEUE: usize = 8 << 20;

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
    /// The connection's owner went away without ending it. The session has been told.
    Left,
}

impl Broken {
    /// What the session is told.
    pub(crate) fn abort(&self) -> Abort {
        match self {
            Self::Session(abort) | Self::Local(abort) | Self::Closed(abort) => abort.clone(),
            Self::Left => Abort::new(Code::PEER_RESET, "the connection was closed by its owner"),
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the system may name any error; these say that a host is silent"
    )]
    fn local(error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
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

/// The direction from the connection to the session: what is left of it.
#[derive(Debug)]
pub(crate) struct Inbound {
    buffer: BytesMut,
    /// Bytes to make room for at the next read: little for who says little.
    read: usize,
    ended: bool,
    /// Everything that was read so far, while it may have to be said again.
    kept: Option<Kept>,
    /// Bytes that the connection gave.
    sent: u64,
    count: Arc<ByteCounter>,
    inspected: Option<Arc<Inspected>>,
}

impl Inbound {
    /// The connection has ended this direction.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Nothing was said, not even an end.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.ended && self.kept.as_ref().is_some_and(Kept::is_empty)
    }

    /// What was said asks nothing of a server, and the connection has not ended.
    pub(crate) fn is_harmless(&self) -> bool {
        !self.ended && self.kept.as_ref().is_some_and(Kept::is_harmless)
    }

    /// Whether the next bytes would be kept too.
    pub(crate) fn has_room(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.room() > 0)
    }

    /// The next bytes of the connection, as soon as the session takes some; `None` is its end. Cancel safe: what
    /// was read is returned at once.
    pub(crate) async fn next(
        &mut self,
        local: &LocalStream,
        session: &Session,
    ) -> Result<Option<Bytes>, Broken> {
        tokio::select! {
            biased;
            ready = session.writable() => ready.map_err(Broken::Session)?,
            // Nobody reads the connection while the session is full: a reset must be seen all the same.
            () = gone(local) => return Err(Broken::Left),
        }
        match self.read(local).await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) if end_of_stream(local) == StreamEnd::Gone => Err(Broken::Left),
            Ok(None) => {
                self.ended = true;
                Ok(None)
            }
            Err(error) => Err(Broken::local(&error)),
        }
    }

    /// Carries everything up to the connection's end.
    async fn run(&mut self, local: &LocalStream, session: &Session) -> Result<(), Broken> {
        while !self.ended {
            match self.next(local, session).await? {
                // It is kept before it goes out, and the session takes it at once: a cancelled run loses nothing.
                Some(bytes) => session.write_bytes(bytes).await.map_err(Broken::Session)?,
                None => session.end(),
            }
        }
        Ok(())
    }

    async fn read(&mut self, local: &LocalStream) -> io::Result<Option<Bytes>> {
        loop {
            poll_fn(|cx| local.poll_read_ready(cx)).await?;
            // Only when something is there: an idle connection keeps no buffer.
            self.buffer.reserve(self.read);
            match local.try_read_buf(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(n) => {
                    let bytes = self.buffer.split().freeze();
                    self.resize(n);
                    self.sent += n as u64;
                    self.count.send(n);
                    if let Some(inspected) = &self.inspected {
                        inspected.handle_from_application(&bytes);
                    }
                    if let Some(kept) = &mut self.kept
                        && !kept.push(&bytes)
                    {
                        self.kept = None;
                    }
                    return Ok(Some(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
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

/// The direction from the session to the connection: what is left of it.
#[derive(Debug)]
struct Outbound {
    piece: Bytes,
    /// Bytes that the session gave, those in `piece` included.
    received: u64,
    /// Bytes that the session will give once more.
    repeats: u64,
    /// The connection was told the session's end.
    ended: bool,
    count: Arc<ByteCounter>,
    inspected: Option<Arc<Inspected>>,
}

impl Outbound {
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
                    let message = "a session that was taken up again said less than before";
                    return Err(Broken::Session(Abort::new(Code::PROTOCOL, message)));
                }
                None => {
                    self.ended = true;
                    return end(local).map(|()| false);
                }
            }
        }
        let held_up = || {
            if let Some(inspected) = &self.inspected {
                inspected.handle_held_up();
            }
        };
        let written = write(local, &self.piece, held_up).await.map_err(|error| Broken::local(&error))?;
        if let Some(inspected) = &self.inspected {
            inspected.handle_from_server(&self.piece[..written]);
        }
        self.piece.advance(written);
        Ok(true)
    }

    async fn run(&mut self, session: &Session, local: &LocalStream) -> Result<(), Broken> {
        while self.step(session, local).await? {}
        Ok(())
    }
}

/// Both directions between one connection and the session beside it: how far they have come. While what the
/// connection has said is kept, another session can take the first one's place.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) inbound: Inbound,
    outbound: Outbound,
    /// After both ends came: the connection's was the first.
    connection_first: bool,
}

impl Flow {
    /// Nothing was carried yet.
    pub(crate) fn new(memory: &Memory, count: &Arc<ByteCounter>, inspected: Option<Arc<Inspected>>) -> Self {
        let inbound = Inbound {
            buffer: BytesMut::new(),
            read: READ_LEAST,
            ended: false,
            kept: Some(Kept::new(memory)),
            sent: 0,
            count: Arc::clone(count),
            inspected: inspected.clone(),
        };
        let outbound = Outbound {
            piece: Bytes::new(),
            received: 0,
            repeats: 0,
            ended: false,
            count: Arc::clone(count),
            inspected,
        };
        Self { inbound, outbound, connection_first: false }
    }

    /// Whether another session may take the place of the one that was used so far.
    pub(crate) fn is_kept(&self) -> bool {
        self.inbound.kept.is_some()
    }

    /// From here on no other session can take the place of the one that is used.
    pub(crate) fn forget(&mut self) {
        self.inbound.kept = None;
    }

    /// Bytes that came from the connection so far.
    pub(crate) fn sent(&self) -> u64 {
        self.inbound.sent
    }

    /// Bytes that came from the session so far.
    pub(crate) fn received(&self) -> u64 {
        self.outbound.received
    }

    /// Both directions have come to their ends.
    pub(crate) fn is_over(&self) -> bool {
        self.inbound.ended && self.outbound.ended
    }

    /// Of two ends, the connection's was the first.
    pub(crate) fn is_connection_first(&self) -> bool {
        self.connection_first
    }

    /// The next session says everything once more from its first byte.
    pub(crate) fn expect_repeats(&mut self) {
        self.outbound.repeats = self.outbound.received;
    }

    /// Says to a new session what the connection has said so far, but for the first `from` bytes; false if that is not
    /// kept.
    ///
    /// # Errors
    /// How the session ended.
    pub(crate) async fn say_again(&self, session: &Session, from: u64) -> Result<bool, Abort> {
        let Some(pieces) = self.inbound.kept.as_ref().and_then(|kept| kept.since(from)) else {
            return Ok(false);
        };
        for piece in pieces {
            session.write_bytes(piece).await?;
        }
        if self.inbound.ended {
            session.end();
        }
        Ok(true)
    }

    /// Carries bytes until both directions have ended, or until one side breaks. May be called again, also with another
    /// session, and also after it was cancelled.
    pub(crate) async fn run(&mut self, local: &LocalStream, session: &Session) -> Result<(), Broken> {
        let over = self.is_over();
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
                        () = gone(local) => Err(Broken::Left),
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
                let patience = if local.is_patient() { PATIENT } else { LAST_BYTES };
                while let Ok(Ok(true)) = timeout(patience, self.outbound.step(session, local)).await {}
                // Who left at the far end had said everything, and its end is on its way to the connection's owner: a
                // reset would overtake it, and throw away what lies in the kernel. The owner's next write meets one.
                if self.outbound.ended && abort.code == Code::PEER_RESET {
                    connection.close();
                } else if !self.outbound.ended
                    && self.outbound.piece.is_empty()
                    && let Some(words) = last_words(abort)
                {
                    say_last(connection, &words).await;
                }
            }
            Err(broken @ (Broken::Local(_) | Broken::Closed(_) | Broken::Left)) => {
                let was_ended = self.inbound.ended;
                let all_read = last_inbound(&mut self.inbound, local, session).await;
                // An abort waits for no credit: what still waits for some would be dropped, here or further on. So it
                // goes out behind that; and behind the acknowledgement of one who closed when it had said everything.
                // On TCP a close comes by here only when something was written behind it before its end was read.
                let closed = all_read
                    && !matches!(broken, Broken::Local(_))
                    && (!was_ended || (local.is_unix() && matches!(broken, Broken::Left)));
                if closed {
                    session.end();
                }
                while let Ok(Ok(1..)) = timeout(LAST_BYTES, session.sending()).await {}
                if closed {
                    let _ = timeout(LAST_END, session.finish()).await;
                }
                session.abort_with(broken.abort());
            }
        }
        result
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
        let mut left = LAST_QUEUE;
        let mut buffer = BytesMut::new();
        while left > 0 {
            poll_fn(|cx| local.poll_read_ready(cx)).await?;
            buffer.clear();
            buffer.reserve(READ_LEAST);
            match local.try_read_buf(&mut buffer) {
                Ok(0) => break,
                Ok(n) => left = left.saturating_sub(n),
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

/// Sends what lies in the connection's queue after it broke. True if that was all, up to an end without an error.
async fn last_inbound(inbound: &mut Inbound, local: &LocalStream, session: &Session) -> bool {
    inbound.kept = None;
    let mut left = LAST_QUEUE;
    while left > 0 && !inbound.ended {
        let Ok(Ok(())) = timeout(LAST_BYTES, session.writable()).await else { return false };
        match timeout(LAST_BYTES, inbound.read(local)).await {
            Ok(Ok(Some(bytes))) => {
                left = left.saturating_sub(bytes.len());
                if session.write_bytes(bytes).await.is_err() {
                    return false;
                }
            }
            Ok(Ok(None)) => inbound.ended = true,
            Ok(Err(_)) | Err(_) => return false,
        }
    }
    inbound.ended
}

fn end(local: &LocalStream) -> Result<(), Broken> {
    match local.shutdown_write() {
        Ok(()) => Ok(()),
        // It was closed from the other side in this moment; what it had is delivered.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        Err(error) => Err(Broken::local(&error)),
    }
}

/// Writes some of it, as soon as the connection takes any; `held_up` is called when it takes none.
async fn write(local: &LocalStream, bytes: &[u8], held_up: impl Fn()) -> io::Result<usize> {
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

#[cfg(test)]
mod tests;
