//! What a socket needs before a link runs over it, and when it goes.

use std::io;

use hopline_link_proto::LinkEnd;
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
