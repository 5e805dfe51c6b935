//! A proxy with one fault, put between the application and the sidecar's socket by `--break`.
//!
//! The rows measure the same with and without it: what turns a row red is what the fault does to the path,
//! never a changed number.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::target::Target;

const BUFFER: usize = 64 * 1024;
/// Buffers on their way through a delay; with [`BUFFER`] this bounds the memory of one direction.
const DELAYED: usize = 64;

/// What the proxy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Everything, a connect and an end included, arrives this much later.
    Delay(Duration),
    /// The connection is cut after so many bytes from the application.
    CutAfter(u64),
    /// One bit of the application's byte at this offset is flipped.
    FlipAt(u64),
    /// A second, unused connection is made beside each one.
    ExtraConnection,
}

/// A running proxy on a loopback port; dropping it stops new connections.
#[derive(Debug)]
pub(crate) struct FaultyProxy {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl FaultyProxy {
    pub(crate) async fn start(upstream: Target, fault: Fault) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let upstream = Arc::new(upstream);
        let task = tokio::spawn(async move {
            while let Ok((near, _peer)) = listener.accept().await {
                let upstream = Arc::clone(&upstream);
                // What went wrong with a connection is seen at its two ends; there is nobody else to tell.
                tokio::spawn(async move { connection(near, &upstream, fault).await.ok() });
            }
        });
        Ok(Self { address, task })
    }

    pub(crate) fn target(&self) -> Target {
        Target::Tcp(self.address)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(near: TcpStream, upstream: &Target, fault: Fault) -> io::Result<()> {
    near.set_nodelay(true)?;
    let delay = if let Fault::Delay(delay) = fault { delay } else { Duration::ZERO };
    tokio::time::sleep(delay).await;
    let far = upstream.connect().await?;
    let _beside = if fault == Fault::ExtraConnection { Some(upstream.connect().await?) } else { None };
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = tokio::io::split(far);
    let out = pump(near_read, far_write, delay, |offset, bytes| damage(fault, offset, bytes));
    let back = pump(far_read, near_write, delay, |_offset, _bytes| Ok(()));
    tokio::try_join!(out, back)?;
    Ok(())
}

/// Does to `bytes`, which begin at `offset` of what the application sent, what the fault says.
fn damage(fault: Fault, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    match fault {
        Fault::CutAfter(limit) if offset + bytes.len() as u64 > limit => {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        Fault::FlipAt(position) => {
            let within = position.checked_sub(offset).and_then(|index| usize::try_from(index).ok());
            if let Some(byte) = within.and_then(|index| bytes.get_mut(index)) {
                *byte ^= 1;
            }
            Ok(())
        }
        Fault::CutAfter(_) | Fault::Delay(_) | Fault::ExtraConnection => Ok(()),
    }
}

/// Copies with a delay; reading goes on while earlier bytes wait, so a delay costs no throughput.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    damage: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (queue, mut delayed) = mpsc::channel::<(Instant, Vec<u8>)>(DELAYED);
    let read = async move {
        let mut buffer = vec![0; BUFFER];
        let mut offset = 0;
        loop {
            let count = from.read(&mut buffer).await?;
            damage(offset, &mut buffer[..count])?;
            offset += count as u64;
            // An empty buffer stands for the end.
            let sent = queue.send((Instant::now() + delay, buffer[..count].to_vec())).await;
            if count == 0 || sent.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = delayed.recv().await {
            tokio::time::sleep_until(due).await;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::try_join!(read, write)?;
    Ok(())
}
