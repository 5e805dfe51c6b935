//! One session beside one connection: bytes both ways, ends, resets.
//!
//! The same at both ends of the path. At the sidecar the connection is an application's, at the agent it is the
//! server's. Bytes go on as they come, by reference.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hopline_link::{Abort, Code, Session};
use tokio::time::timeout;

use crate::local::{LocalStream, StreamEnd, end_of_stream, gone};

/// Bytes read from a connection at once.
const READ: usize = 64 << 10;
/// After one side broke: for how long the other may take none of the bytes that are left for it.
const LAST_BYTES: Duration = Duration::from_secs(1);
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
    /// The connection's owner went away without ending it. The session has been told.
    Left,
}

impl Broken {
    /// What the session is told.
    pub(crate) fn abort(&self) -> Abort {
        match self {
            Self::Session(abort) | Self::Local(abort) => abort.clone(),
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
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    buffer: BytesMut,
    ended: bool,
}

impl Inbound {
    /// The connection has ended this direction.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
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
        match read(local, &mut self.buffer).await {
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
                Some(bytes) => session.write_bytes(bytes).await.map_err(Broken::Session)?,
                None => session.end(),
            }
        }
        Ok(())
    }
}

/// The direction from the session to the connection: what is left of it.
#[derive(Debug, Default)]
struct Outbound {
    piece: Bytes,
    /// The connection was told the session's end.
    ended: bool,
}

impl Outbound {
    /// Gives the connection some bytes; false at the session's end, which it was then told. Cancel safe.
    async fn step(&mut self, session: &Session, local: &LocalStream) -> Result<bool, Broken> {
        if self.piece.is_empty() {
            match session.read_bytes().await.map_err(Broken::Session)? {
                Some(piece) => self.piece = piece,
                None => {
                    self.ended = true;
                    return end(local).map(|()| false);
                }
            }
        }
        let written = write(local, &self.piece).await.map_err(|error| Broken::local(&error))?;
        self.piece.advance(written);
        Ok(true)
    }

    async fn run(&mut self, session: &Session, local: &LocalStream) -> Result<(), Broken> {
        while self.step(session, local).await? {}
        Ok(())
    }
}

/// Carries bytes until both directions have ended, or until one side breaks. Afterwards the connection is closed:
/// by an ordinary close if all was clean, else by a reset.
///
/// When one side breaks, the other still gets what had arrived before, for as long as it takes it: the last answer
/// of a server is worth more than the reset behind it.
pub(crate) async fn pump(
    connection: Connection,
    mut inbound: Inbound,
    session: &Session,
) -> Result<(), Broken> {
    let Some(local) = connection.stream() else { return Ok(()) };
    let mut outbound = Outbound::default();
    let result = both_ways(local, &mut inbound, &mut outbound, session).await;
    match &result {
        Ok(()) => connection.close(),
        Err(Broken::Session(abort)) => {
            while let Ok(Ok(true)) = timeout(LAST_BYTES, outbound.step(session, local)).await {}
            // Who left at the far end had said everything, and its end is on its way to the connection's owner: a reset
            // would overtake it, and throw away what lies in the kernel. The owner's next write meets one.
            if outbound.ended && abort.code == Code::PEER_RESET {
                connection.close();
            }
        }
        Err(broken @ (Broken::Local(_) | Broken::Left)) => {
            let all_read = last_inbound(&mut inbound, local, session).await;
            // An abort waits for no credit: what still waits for some would be dropped, here or further on. So it goes
            // out behind that; and behind the acknowledgement of one who closed when it had said everything. On TCP
            // such a close is not told from a half-close, and does not come by here.
            let closed = all_read && local.is_unix() && matches!(broken, Broken::Left);
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

async fn both_ways(
    local: &LocalStream,
    inbound: &mut Inbound,
    outbound: &mut Outbound,
    session: &Session,
) -> Result<(), Broken> {
    let ends = async {
        let mut forth = pin!(inbound.run(local, session));
        let mut back = pin!(outbound.run(session, local));
        tokio::select! {
            ended = &mut forth => {
                ended?;
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

/// Sends what lies in the connection's queue after it broke. True if that was all, up to an end without an error.
async fn last_inbound(inbound: &mut Inbound, local: &LocalStream, session: &Session) -> bool {
    let mut left = LAST_QUEUE;
    while left > 0 && !inbound.ended {
        let Ok(Ok(())) = timeout(LAST_BYTES, session.writable()).await else { return false };
        match timeout(LAST_BYTES, read(local, &mut inbound.buffer)).await {
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

async fn read(local: &LocalStream, buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    loop {
        poll_fn(|cx| local.poll_read_ready(cx)).await?;
        // Only when something is there: an idle connection keeps no buffer.
        buffer.reserve(READ);
        match local.try_read_buf(buffer) {
            Ok(0) => return Ok(None),
            Ok(_) => {
                let bytes = buffer.split().freeze();
                if buffer.capacity() < READ / 4 {
                    *buffer = BytesMut::new();
                }
                return Ok(Some(bytes));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn end(local: &LocalStream) -> Result<(), Broken> {
    match local.shutdown_write() {
        Ok(()) => Ok(()),
        // It was closed from the other side in this moment; what it had is delivered.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        Err(error) => Err(Broken::local(&error)),
    }
}

/// Writes some of it, as soon as the connection takes any.
async fn write(local: &LocalStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        poll_fn(|cx| local.poll_write_ready(cx)).await?;
        match local.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}
