//! One application's connection to a mapping.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// An application's connection: TCP or unix.
///
/// Beside `AsyncRead` and `AsyncWrite` it has the calls of both kinds that need no `&mut`, so that one task can read
/// and write without splitting it. Write to it in one of the two ways only, and end the writing by
/// [`LocalStream::shutdown_write`] or `poll_shutdown`, not by the file descriptor: [`gone`](super::gone()) must
/// know whether our own direction was ended.
#[derive(Debug)]
pub struct LocalStream {
    io: Io,
    write_ended: AtomicBool,
    patient: bool,
}

#[derive(Debug)]
enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Calls the method of the same name on whichever stream it is.
macro_rules! either {
    ($self:expr, $stream:ident => $call:expr) => {
        match &$self.io {
            Io::Tcp($stream) => $call,
            Io::Unix($stream) => $call,
        }
    };
}

impl From<TcpStream> for LocalStream {
    fn from(stream: TcpStream) -> Self {
        Self { io: Io::Tcp(stream), write_ended: AtomicBool::new(false), patient: false }
    }
}

impl From<UnixStream> for LocalStream {
    fn from(stream: UnixStream) -> Self {
        Self { io: Io::Unix(stream), write_ended: AtomicBool::new(false), patient: false }
    }
}

impl LocalStream {
    /// Whether it is a unix socket: these have no reset, see [`LocalStream::reset`].
    #[must_use]
    pub fn is_unix(&self) -> bool {
        matches!(self.io, Io::Unix(_))
    }

    /// What is left for it when its session breaks is written however long that takes, or until its other end is
    /// closed. For one whose other end is in this process: an application that stops reading would hold it up for ever.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// See [`LocalStream::patient`].
    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// Our address and the peer's; `None` for a unix socket, and where the system does not tell.
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        match &self.io {
            Io::Tcp(stream) => stream.local_addr().ok().zip(stream.peer_addr().ok()),
            Io::Unix(_) => None,
        }
    }

    /// Turns Nagle's algorithm off or on. Does nothing on a unix socket, which has none.
    ///
    /// # Errors
    ///
    /// What the system says, for example of a connection that was reset meanwhile.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        match &self.io {
            Io::Tcp(stream) => stream.set_nodelay(nodelay),
            Io::Unix(_) => Ok(()),
        }
    }

    /// Takes the error that the connection broke by, if it did: reads that follow see an end in its place.
    ///
    /// # Errors
    ///
    /// What the system says when it can't tell.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        either!(self, stream => stream.take_error())
    }

    /// Whether bytes of the application wait to be read.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        rustix::io::ioctl_fionread(self).is_ok_and(|unread| unread > 0)
    }

    /// Ends the connection as a fault: RST on TCP, which throws away what the application has not been sent yet.
    ///
    /// A unix socket has no reset: it is closed, and the application may take that for a clean end (P17). When
    /// bytes of the application are still unread, Linux makes it `ECONNRESET` there too.
    pub fn reset(self) {
        if let Io::Tcp(stream) = &self.io {
            // It fails only on a socket that is already dead, and that needs no reset.
            let _ = stream.set_zero_linger();
        }
    }

    /// Ends our direction: the application reads an end after everything written so far.
    ///
    /// # Errors
    ///
    /// `NotConnected` when the application has reset the connection.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.write_ended.store(true, Ordering::Release);
        either!(self, stream => SockRef::from(stream).shutdown(std::net::Shutdown::Write))
    }

    /// Whether our own direction was ended.
    pub(super) fn write_ended(&self) -> bool {
        self.write_ended.load(Ordering::Acquire)
    }

    /// Ready when [`LocalStream::try_read`] may give something (bytes, an end or an error).
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_read_ready(cx))
    }

    /// Ready when [`LocalStream::try_write`] may take something or give an error.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => stream.poll_write_ready(cx))
    }

    /// Reads without waiting; 0 is the end of the application's direction.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is nothing yet.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(buf))
    }

    /// Reads without waiting, into the spare room of `buf`; 0 is the end of the application's direction.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is nothing yet.
    pub fn try_read_buf<B: bytes::BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        either!(self, stream => stream.try_read_buf(buf))
    }

    /// Writes without waiting.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is no room.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_write(buf))
    }

    /// Writes several pieces without waiting.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is no room.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => stream.try_write_vectored(bufs))
    }
}

impl AsFd for LocalStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}

impl AsyncRead for LocalStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for LocalStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Io::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        either!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Neither kind keeps anything back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write())
    }
}

#[cfg(test)]
mod tests;
