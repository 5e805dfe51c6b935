//! A session's two directions as handles of their own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::session::Session;

/// The reading half of a [`Session`]. Dropping it changes nothing while the writing half lives; when both are gone
/// the session's own rule holds, so input that was not read to its end makes that an abort.
#[derive(Debug)]
pub struct ReadHalf(Arc<Session>);

/// The writing half of a [`Session`]. Dropping it before its end was sent aborts the session with `peer_reset`:
/// nobody is left who could end it, and a cut must not look like an end. After `shutdown` a drop changes nothing
/// while the reading half lives.
#[derive(Debug)]
pub struct WriteHalf {
    session: Arc<Session>,
    /// A drop means nothing: the session is whole again.
    reunited: bool,
}

pub(crate) fn halves(session: Session) -> (ReadHalf, WriteHalf) {
    let session = Arc::new(session);
    (ReadHalf(Arc::clone(&session)), WriteHalf { session, reunited: false })
}

/// Two halves that are not of one session: both come back.
#[derive(Debug, thiserror::Error)]
#[error("the two halves are not of one session")]
pub struct ReuniteError(pub ReadHalf, pub WriteHalf);

impl ReadHalf {
    /// The session: for deadlines, counters, aborts, and reads by reference.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.0
    }

    /// The whole session again.
    ///
    /// # Errors
    /// The halves are of two sessions.
    pub fn reunite(self, mut write: WriteHalf) -> Result<Session, ReuniteError> {
        if !Arc::ptr_eq(&self.0, &write.session) {
            return Err(ReuniteError(self, write));
        }
        write.reunited = true;
        drop(write);
        Ok(Arc::into_inner(self.0).expect("there are no handles but the two halves"))
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_into(cx, buf)
    }
}

impl WriteHalf {
    /// The session: for deadlines, counters, aborts, `finish`, and writes by reference.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.session.poll_write_from(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.session.shut_down())
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if !self.reunited {
            self.session.abort_unless_ended("the writing half was dropped before its end");
        }
    }
}
