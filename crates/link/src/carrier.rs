//! What a carrier's socket needs before a link runs over it.

use std::io;

use tokio::net::TcpStream;

/// Unsent bytes that the kernel may hold for a link. What lies there can't be overtaken by a ping; less would
/// starve a fast network between two wake-ups.
const NOTSENT_LOWAT: u32 = 128 << 10;

/// Makes a TCP socket fit for a link, before or after a TLS handshake: no Nagle (against delayed
/// acknowledgements it costs 43 ms per open), and a bounded queue of unsent bytes below the link.
///
/// # Errors
/// What the kernel says, for a socket that is no longer one.
pub fn tune_tcp(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOTSENT_LOWAT)
}
