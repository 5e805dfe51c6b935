//! The sockets on which edges connect.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

/// Connections that may wait in the kernel to be accepted.
pub(crate) const BACKLOG: i32 = 1_024;
/// How often a free port of IPv6 is tried that may be taken at IPv4.
const PORTS: usize = 16;

/// One socket, or two: `[::]` is every address of IPv6 and of IPv4.
#[derive(Debug)]
pub(crate) struct Sockets {
    all: Vec<TcpListener>,
    /// The one that is asked first, the next time.
    turn: usize,
}

impl Sockets {
    /// Listens on `HOST:PORT`. Of a host name's addresses it takes the first that it can have. A machine that lacks IPv6, or
    /// IPv4, has `[::]` at the other alone.
    pub(crate) async fn bind(address: &str) -> io::Result<Self> {
        let mut failed = None;
        for address in tokio::net::lookup_host(address).await? {
            match bind_all(address) {
                Ok(all) => return Ok(Self { all, turn: 0 }),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
    }

    /// Where they listen, with real ports.
    pub(crate) fn local_addrs(&self) -> io::Result<Vec<SocketAddr>> {
        self.all.iter().map(TcpListener::local_addr).collect()
    }

    /// The next connection of any of them. Cancel safe.
    pub(crate) async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        // In turns, or a flood at one would starve the other.
        self.turn = (self.turn + 1) % self.all.len();
        let (before, after) = self.all.split_at(self.turn);
        std::future::poll_fn(|cx| {
            let mut ready = after.iter().chain(before).map(|listener| listener.poll_accept(cx));
            ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

fn bind_all(address: SocketAddr) -> io::Result<Vec<TcpListener>> {
    let SocketAddr::V6(v6) = address else { return Ok(vec![bind(address)?]) };
    if !v6.ip().is_unspecified() {
        return Ok(vec![bind(address)?]);
    }
    let mut left = if v6.port() == 0 { PORTS } else { 1 };
    loop {
        left -= 1;
        let of_v6 = match bind(address) {
            Ok(listener) => listener,
            Err(error) if is_missing(&error) => {
                let listener = bind((Ipv4Addr::UNSPECIFIED, v6.port()).into())?;
                tracing::info!("this machine has no IPv6: the relay listens on IPv4 only");
                return Ok(vec![listener]);
            }
            Err(error) => return Err(error),
        };
        let port = of_v6.local_addr()?.port();
        match bind((Ipv4Addr::UNSPECIFIED, port).into()) {
            Ok(of_v4) => return Ok(vec![of_v6, of_v4]),
            Err(error) if is_missing(&error) => {
                tracing::info!("this machine has no IPv4: the relay listens on IPv6 only");
                return Ok(vec![of_v6]);
            }
            Err(error) if left == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Whatever the system's default is: IPv4 has a socket of its own.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Whether the machine lacks this version of IP.
fn is_missing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Whether trying again is of use: an address that comes up late, or one that another process still has. What this user
/// may not have stays so.
pub(crate) fn may_come(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn both_versions_of_ip_at_one_port() {
        let mut sockets = Sockets::bind("[::]:0").await.unwrap();
        let addresses = sockets.local_addrs().unwrap();
        assert!(addresses.iter().all(|address| address.port() == addresses[0].port()));
        assert_eq!(addresses.len(), 2, "of a machine that has both: {addresses:?}");
        for host in ["127.0.0.1", "::1"] {
            for _ in 0..3 {
                let host: std::net::IpAddr = host.parse().unwrap();
                let _dialled = TcpStream::connect((host, addresses[0].port())).await.unwrap();
                let (mut accepted, from) = sockets.accept().await.unwrap();
                assert_eq!(from.ip(), host, "no mapped address");
                drop(_dialled);
                assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
            }
        }
    }

    #[tokio::test]
    async fn a_busy_port_of_either_is_busy() {
        for (taken, wanted) in [("0.0.0.0:0", "[::]"), ("[::]:0", "0.0.0.0"), ("[::]:0", "[::]")] {
            let holder = Sockets::bind(taken).await.unwrap();
            let port = holder.local_addrs().unwrap()[0].port();
            let error = Sockets::bind(&format!("{wanted}:{port}")).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{taken} {wanted}");
            assert!(may_come(&error));
        }
    }

    #[tokio::test]
    async fn an_explicit_address_is_that_one_alone() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0"] {
            let addresses = Sockets::bind(address).await.unwrap().local_addrs().unwrap();
            assert_eq!(addresses.len(), 1);
            assert_eq!(addresses[0].ip(), address.parse::<SocketAddr>().unwrap().ip());
        }
    }
}
