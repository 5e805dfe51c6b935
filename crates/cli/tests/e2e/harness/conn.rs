//! One end of a connection: the application's or the server's.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{AT_ONCE, PATIENCE};

/// A blocking connection whose calls give up after [`PATIENCE`].
#[derive(Debug)]
pub(crate) enum Conn {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Eof,
    Reset,
}

macro_rules! either {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            Conn::Tcp($stream) => $call,
            Conn::Unix($stream) => $call,
        }
    };
}

impl Conn {
    /// An application connects. Who refuses it may be quicker than `connect` returns, which then fails with ECONNRESET
    /// and has taken the news from the socket: a connection that was just as surely reset stands in for it.
    pub(crate) fn connect(address: impl ToSocketAddrs) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Self::Tcp(listener.accept().unwrap().0).reset();
            stream
        });
        Self::Tcp(stream).patient()
    }

    pub(crate) fn patient(self) -> Self {
        self.set_patience(PATIENCE);
        if let Self::Tcp(stream) = &self {
            stream.set_nodelay(true).unwrap();
        }
        self
    }

    pub(crate) fn set_patience(&self, patience: Duration) {
        either!(self, stream => {
            stream.set_read_timeout(Some(patience)).unwrap();
            stream.set_write_timeout(Some(patience)).unwrap();
        });
    }

    pub(crate) fn handle(&self) -> Self {
        match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone().unwrap()),
            Self::Unix(stream) => Self::Unix(stream.try_clone().unwrap()),
        }
    }

    /// Ends the writing direction.
    pub(crate) fn end(&self) {
        either!(self, stream => stream.shutdown(std::net::Shutdown::Write)).unwrap();
    }

    /// Resets a TCP connection; a unix socket is closed.
    pub(crate) fn reset(self) {
        if let Self::Tcp(stream) = &self {
            SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }

    /// Reads exactly so many bytes.
    pub(crate) fn chunk(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads to the end, and says which end it was. Nothing within [`PATIENCE`] fails the test.
    pub(crate) fn drain(&mut self) -> (Vec<u8>, Ended) {
        let mut bytes = Vec::new();
        // What was read before an error stays in `bytes`.
        let ended = match self.read_to_end(&mut bytes) {
            Ok(_) => Ended::Eof,
            Err(error) => {
                assert!(is_reset(&error), "after {} bytes: {error}", bytes.len());
                Ended::Reset
            }
        };
        (bytes, ended)
    }

    /// The same, for an end that comes at once, or within a trip.
    pub(crate) fn drain_at_once(&mut self) -> (Vec<u8>, Ended) {
        self.drain_within(AT_ONCE)
    }

    /// The same, for an end that comes by then.
    pub(crate) fn drain_within(&mut self, limit: Duration) -> (Vec<u8>, Ended) {
        let began = Instant::now();
        let drained = self.drain();
        assert!(began.elapsed() < limit, "its end came after {:?}, not within {limit:?}", began.elapsed());
        drained
    }

    /// Reads to a clean end.
    pub(crate) fn read_to_eof(&mut self) -> Vec<u8> {
        let (bytes, ended) = self.drain();
        assert_eq!(ended, Ended::Eof, "after {} bytes", bytes.len());
        bytes
    }

    /// Writes until that fails, and checks that it fails because the connection is broken.
    pub(crate) fn write_until_broken(&mut self) {
        let piece = [7; 16 << 10];
        loop {
            if let Err(error) = self.write_all(&piece) {
                assert!(is_reset(&error), "{error}");
                return;
            }
        }
    }
}

/// Carries so many bytes from one end of a session to the other.
pub(crate) fn carry(from: &mut Conn, to: &mut Conn, len: usize) {
    let bytes = pattern(len as u64, len);
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&bytes).unwrap());
        assert!(to.chunk(len) == bytes, "other bytes");
    });
}

/// Carries more both ways than is kept of a young session: it is not taken up again on another path.
pub(crate) fn grow_old(app: &mut Conn, server: &mut Conn) {
    const MORE: usize = 256 << 10;
    carry(app, server, MORE);
    carry(server, app, MORE);
}

/// Whether it says that the connection is broken. The kernel tells so once by `ECONNRESET`, then by `EPIPE`.
fn is_reset(error: &io::Error) -> bool {
    [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe].contains(&error.kind())
}

impl Read for Conn {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.read(buf))
    }
}

impl Write for Conn {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<Conn> for OwnedFd {
    fn from(conn: Conn) -> Self {
        either!(conn, stream => stream.into())
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
