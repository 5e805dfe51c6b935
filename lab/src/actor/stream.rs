//! A connection by TCP or by a unix socket, alike.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// A connected stream. Reading and writing go by a shared reference, so that two threads can do one each.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Dials `HOST:PORT` or `unix:PATH`. No read and no write waits longer than `patience`.
    pub(super) fn dial(address: &str, patience: Duration) -> io::Result<Self> {
        let stream = match address.strip_prefix("unix:") {
            Some(path) => Self::Unix(UnixStream::connect(path)?),
            None => Self::Tcp(TcpStream::connect(address)?),
        };
        stream.prepare(patience)?;
        Ok(stream)
    }

    fn prepare(&self, patience: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))
            }
        }
    }

    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).read(buffer),
            Self::Unix(stream) => (&*stream).read(buffer),
        }
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Unix(stream) => (&*stream).write(bytes),
        }
    }

    /// How long a read or write waits from now on.
    pub(super) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.prepare(patience)
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&*stream).write_all(bytes),
            Self::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }

    /// Ends it with a reset, whoever else still holds it; a unix socket has none and is only shut down.
    pub(super) fn reset(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => Ok(rustix::net::connect_unspec(stream)?),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        }
    }
}

/// A listener of either kind.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on `HOST:PORT` or `unix:PATH`.
    pub(super) fn bind(address: &str) -> io::Result<Self> {
        Ok(match address.strip_prefix("unix:") {
            Some(path) => Self::Unix(UnixListener::bind(path)?),
            None => Self::Tcp(TcpListener::bind(address)?),
        })
    }

    /// The next connection.
    pub(super) fn accept(&self, patience: Duration) -> io::Result<Stream> {
        let stream = match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        };
        stream.prepare(patience)?;
        Ok(stream)
    }

    /// Makes it refuse, and a waiting `accept` fail.
    pub(super) fn stop(&self) -> io::Result<()> {
        let how = rustix::net::Shutdown::Both;
        match self {
            Self::Tcp(listener) => rustix::net::shutdown(listener, how)?,
            Self::Unix(listener) => rustix::net::shutdown(listener, how)?,
        }
        Ok(())
    }
}
