//! A TCP proxy that can be told to swallow everything: the demo's dead hop.
//!
//! While it swallows, both sockets of every connection stay open and are read, and nothing that was read is
//! passed on, an end included. So neither side's kernel notices anything: no FIN, no RST, every byte is
//! acknowledged. Only a link that watches itself can tell.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const BUFFER: usize = 64 * 1024;

/// A running proxy on a loopback port; dropping it cuts every connection through it.
#[derive(Debug)]
pub struct Blackhole {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    swallow: bool,
    /// Healing starts a new generation; connections of an older one are dropped.
    generation: u64,
}

impl Blackhole {
    /// Listens on a free port of 127.0.0.1 and passes each connection on to `upstream`, both ways.
    ///
    /// # Errors
    ///
    /// When no port can be bound.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (mode, watched) = watch::channel(Mode { swallow: false, generation: 0 });
        let task = tokio::spawn(accept(listener, upstream, watched));
        Ok(Self { address, mode, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing comes out, on connections that are open and on new ones alike.
    pub fn swallow(&self) {
        self.mode.send_modify(|mode| mode.swallow = true);
    }

    /// Drops every connection there is and passes new ones on again.
    pub fn heal(&self) {
        self.mode.send_modify(|mode| *mode = Mode { swallow: false, generation: mode.generation + 1 });
    }
}

impl Drop for Blackhole {
    fn drop(&mut self) {
        // The connections' tasks end when the sender of their mode goes.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, watched: watch::Receiver<Mode>) {
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => {
                tokio::spawn(connection(stream, upstream, watched.clone()));
            }
            // Out of descriptors, most likely: whoever dialled tries again, and so do we.
            Err(_error) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}

/// One connection until it ends, is healed away, or the proxy goes.
async fn connection(near: TcpStream, upstream: SocketAddr, watched: watch::Receiver<Mode>) {
    let Mode { swallow, generation } = *watched.borrow();
    let mut healed = watched.clone();
    let healed = healed.wait_for(|mode| mode.generation != generation);
    let pass = async {
        if swallow {
            return discard(near).await;
        }
        let Ok(far) = TcpStream::connect(upstream).await else { return };
        // Without it small frames would wait for acknowledgements of the proxy's own making.
        let _ = (near.set_nodelay(true), far.set_nodelay(true));
        let (near_read, near_write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        let out = pump(near_read, far_write, watched.clone());
        let back = pump(far_read, near_write, watched);
        // An end in one direction leaves the other; an error in either ends both.
        let _ = tokio::try_join!(out, back);
    };
    tokio::select! {
        () = pass => {}
        _ = healed => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    watched: watch::Receiver<Mode>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await;
        if watched.borrow().swallow {
            if matches!(read, Ok(1..)) {
                continue;
            }
            // An end or a reset is swallowed like any byte; the other socket stays open until healed.
            return std::future::pending().await;
        }
        match read? {
            0 => return to.shutdown().await,
            count => to.write_all(&buffer[..count]).await?,
        }
    }
}

async fn discard(mut near: TcpStream) {
    let mut buffer = vec![0; BUFFER];
    while matches!(near.read(&mut buffer).await, Ok(1..)) {}
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A server that sends back what it gets and reports how each connection ended.
    async fn echo() -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<io::Result<()>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ends, ended) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let ends = ends.clone();
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let copied = tokio::io::copy(&mut read, &mut write).await;
                    let _ = ends.send(copied.map(drop));
                });
            }
        });
        (address, ended)
    }

    async fn exchange(stream: &mut TcpStream) {
        stream.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ping");
    }

    /// Nothing may arrive: not a byte, not an end. The wait is the measurement here.
    async fn assert_silent(stream: &mut TcpStream) {
        let read = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0; 1])).await;
        assert!(read.is_err(), "{read:?}");
    }

    #[tokio::test]
    async fn it_passes_bytes_and_ends() {
        let (server, mut ended) = echo().await;
        let hole = Blackhole::start(server).await.unwrap();
        let mut stream = TcpStream::connect(hole.address()).await.unwrap();
        exchange(&mut stream).await;
        stream.shutdown().await.unwrap();
        ended.recv().await.unwrap().unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn while_it_swallows_neither_side_hears_anything() {
        let (server, mut ended) = echo().await;
        let hole = Blackhole::start(server).await.unwrap();
        let mut old = TcpStream::connect(hole.address()).await.unwrap();
        exchange(&mut old).await;

        hole.swallow();
        old.write_all(b"lost").await.unwrap();
        assert_silent(&mut old).await;
        old.shutdown().await.unwrap();
        assert_silent(&mut old).await;
        ended.try_recv().unwrap_err();
        let mut new = TcpStream::connect(hole.address()).await.unwrap();
        new.write_all(b"lost").await.unwrap();
        assert_silent(&mut new).await;

        hole.heal();
        for stream in [&mut old, &mut new] {
            assert!(matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
        }
        ended.recv().await.unwrap().ok();
        exchange(&mut TcpStream::connect(hole.address()).await.unwrap()).await;
    }

    #[tokio::test]
    async fn dropping_it_cuts_what_goes_through_it() {
        let (server, mut ended) = echo().await;
        let hole = Blackhole::start(server).await.unwrap();
        let mut stream = TcpStream::connect(hole.address()).await.unwrap();
        exchange(&mut stream).await;
        drop(hole);
        assert!(matches!(stream.read(&mut [0; 1]).await, Ok(0) | Err(_)));
        ended.recv().await.unwrap().ok();
    }
}
