//! One session beside one connection: bytes both ways, ends, resets.
//!
//! The same at both ends of the path. At the sidecar the connection is an application's, at the agent it is the
//! server's. Bytes go on as they come, by reference.

use std::future::poll_fn;
use std::io;
use std::pin::pin;

use bytes::{Buf, Bytes, BytesMut};
use hopline_link::{Abort, Code, Session};

use crate::local::{LocalStream, StreamEnd, end_of_stream, gone};

/// Bytes read from a connection at once.
const READ: usize = 64 << 10;

/// How a pump ended, if not clean.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The session was aborted, by the far side or by the death of a link.
    Session(Abort),
    /// The connection was reset, or its owner went away without ending it. The session has been told.
    Local(String),
}

impl Broken {
    pub(crate) fn went_away() -> Self {
        Self::Local("the connection was closed by its owner".to_owned())
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
            () = gone(local) => return Err(Broken::went_away()),
        }
        match read(local, &mut self.buffer).await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) if end_of_stream(local) == StreamEnd::Gone => Err(Broken::went_away()),
            Ok(None) => {
                self.ended = true;
                Ok(None)
            }
            Err(error) => Err(Broken::Local(error.to_string())),
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

/// Carries bytes until both directions have ended, or until one side breaks. Afterwards the connection is closed:
/// by an ordinary close if all was clean, else by a reset.
pub(crate) async fn pump(connection: Connection, inbound: Inbound, session: &Session) -> Result<(), Broken> {
    let Some(local) = connection.stream() else { return Ok(()) };
    let result = both_ways(local, inbound, session).await;
    match &result {
        Ok(()) => connection.close(),
        Err(Broken::Session(_)) => {}
        Err(Broken::Local(message)) => session.abort(Code::PEER_RESET, message.as_str()),
    }
    result
}

async fn both_ways(local: &LocalStream, mut inbound: Inbound, session: &Session) -> Result<(), Broken> {
    let mut forth = pin!(inbound.run(local, session));
    let mut back = pin!(session_to_local(session, local));
    tokio::select! {
        ended = &mut forth => {
            ended?;
            tokio::select! {
                ended = back => ended,
                // Nobody reads the connection any more: that its owner has left must be seen all the same.
                () = gone(local) => Err(Broken::went_away()),
            }
        }
        ended = &mut back => {
            ended?;
            forth.await
        }
    }
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

/// Until the session's end.
async fn session_to_local(session: &Session, local: &LocalStream) -> Result<(), Broken> {
    while let Some(bytes) = session.read_bytes().await.map_err(Broken::Session)? {
        write_all(local, bytes).await.map_err(|error| Broken::Local(error.to_string()))?;
    }
    match local.shutdown_write() {
        Ok(()) => Ok(()),
        // It was closed from the other side in this moment; what it had is delivered.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        Err(error) => Err(Broken::Local(error.to_string())),
    }
}

async fn write_all(local: &LocalStream, mut bytes: Bytes) -> io::Result<()> {
    while bytes.has_remaining() {
        poll_fn(|cx| local.poll_write_ready(cx)).await?;
        match local.try_write(&bytes) {
            Ok(n) => bytes.advance(n),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
