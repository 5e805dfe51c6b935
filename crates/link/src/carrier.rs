//! What carries a link, how one is dialled, and what a socket needs before a link runs over it.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;

use hopline_link_proto::LinkEnd;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Unsent bytes that the kernel may hold for a link. What lies there can't be overtaken by a ping; less would
/// starve a fast network between two wake-ups.
const NOTSENT_LOWAT: u32 = 128 << 10;

/// An ordered byte stream that a link can run over: TCP, TLS, a unix socket, a pipe in memory, and anything else
/// that reads and writes.
pub trait Carrier: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Carrier for T {}

/// A carrier of any kind. Costs one virtual call for each batch of frames.
pub type BoxCarrier = Box<dyn Carrier>;

impl std::fmt::Debug for dyn Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Carrier")
    }
}

/// A future as the traits of this crate return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes a new carrier to the same peer each time it is asked; every closure `|| async { io::Result<carrier> }`
/// does.
pub trait Dial: Send + Sync + 'static {
    /// One attempt. It may hang: who dials bounds it. Dropping it ends the attempt.
    fn dial(&self) -> BoxFuture<'_, io::Result<BoxCarrier>>;
}

impl<F, T, C> Dial for F
where
    F: Fn() -> T + Send + Sync + 'static,
    T: Future<Output = io::Result<C>> + Send + 'static,
    C: Carrier,
{
    fn dial(&self) -> BoxFuture<'_, io::Result<BoxCarrier>> {
        let dialled = self();
        Box::pin(async move { Ok(Box::new(dialled.await?) as BoxCarrier) })
    }
}

/// Dials `host:port` over TCP, the name resolved anew each time, the socket fit for a link.
pub fn tcp(address: impl Into<String>) -> impl Dial {
    let address = address.into();
    move || {
        let address = address.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            tune_tcp(&stream)?;
            Ok(stream)
        }
    }
}

/// Dials a unix socket.
pub fn unix(path: impl Into<PathBuf>) -> impl Dial {
    let path = path.into();
    move || UnixStream::connect(path.clone())
}

/// Makes a TCP socket fit for a link, before or after a TLS handshake: no Nagle (against delayed
/// acknowledgements it costs 43 ms per open), and a bounded queue of unsent bytes below the link.
///
/// # Errors
/// What the kernel says, for a socket that is no longer one.
pub fn tune_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOTSENT_LOWAT)
}

/// Has the kernel reset the connection, instead of closing it, where the link ended because its peer was not heard any
/// more. That peer may still hear us: a reset goes out at once, and a goodbye waits behind everything that the peer
/// has not acknowledged, for as long as TCP's retransmission has come to back off. To be called by
/// [`Driver::when_over`](crate::Driver::when_over).
pub fn reset_if_dead(end: &LinkEnd, stream: &TcpStream) {
    if matches!(end, LinkEnd::DeadPeer { .. }) {
        // A socket that is gone needs no reset.
        let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
    }
}
