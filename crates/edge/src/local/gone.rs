//! Whether an application has left for good, or has only ended its direction.
//!
//! What the kernel tells:
//!
//! | the application | TCP | unix |
//! |---|---|---|
//! | ended its direction | `POLLRDHUP` | `POLLRDHUP` |
//! | closed, everything read | FIN, the same as above | `POLLHUP` |
//! | closed with bytes of ours unread | RST: `POLLERR` and `POLLHUP` | `POLLHUP`, `POLLERR` |
//! | was killed | as closed | as closed |
//!
//! So **a full close of a TCP application that had read everything cannot be told from its half-close** until
//! something is written to it: the answer is then an RST, which is seen here. On a unix socket it is told at once.
//!
//! When our own direction was ended too, `POLLHUP` alone says only that both directions have ended, and that is a
//! clean end on both kinds of socket: it does not count as gone. What is lost by it is nothing: had the
//! application left bytes of ours unread, there would be an error.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::LocalStream;

/// How long to wait when there is no file descriptor left for the watch. Existing connections must live on then.
const RETRY: Duration = Duration::from_secs(1);

/// What the end of an application's direction means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// It has ended its direction and may still read ours. On TCP it may have left as well; see the module.
    HalfClosed,
    /// It has left: nobody will read what we send.
    Gone,
}

/// What the end means that was just read from `stream` (a read that gave 0 bytes).
#[must_use]
pub fn end_of_stream(stream: &LocalStream) -> StreamEnd {
    if is_gone(stream) { StreamEnd::Gone } else { StreamEnd::HalfClosed }
}

/// Ends once the application has left for good; see the module for what that means on TCP. Bytes of it that are
/// still unread do not delay this, and are not touched. Pends for ever on a connection whose two directions have
/// both ended cleanly.
///
/// For the times when nobody reads the socket: while waiting for credit, or after the application's half-close.
/// Costs one file descriptor and no timer; cancel-safe.
pub async fn gone(stream: &LocalStream) {
    loop {
        match watch(stream).await {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!(%error, "cannot watch a local connection for its end");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// An epoll of its own, in which the socket is asked for nothing: only `HUP` and `ERR` are left, which are always
/// told. Watching the socket itself (or a duplicate) for readability would not do: after a half-close it is
/// readable for ever.
async fn watch(stream: &LocalStream) -> io::Result<()> {
    let epoll: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, stream, epoll::EventData::new_u64(0), epoll::EventFlags::ET)?;
    let epoll = in_runtime(epoll)?;
    loop {
        if is_gone(stream) {
            return Ok(());
        }
        let mut ready = epoll.readable().await?;
        let mut events: [std::mem::MaybeUninit<epoll::Event>; 1] = [std::mem::MaybeUninit::uninit()];
        // Takes the event, so that the next change makes the epoll readable anew.
        epoll::wait(&epoll, &mut events, Some(&Timespec::default()))?;
        ready.clear_ready();
    }
}

#[expect(
    deprecated,
    reason = "the successor is an unsafe fn; what it asks for, an OwnedFd keeps: open and the same until dropped"
)]
fn in_runtime(epoll: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(epoll, Interest::READABLE)
}

fn is_gone(stream: &LocalStream) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::empty())];
    // A poll that fails (memory) has told nothing; the next change asks again.
    if rustix::event::poll(&mut polled, Some(&Timespec::default())).is_err() {
        return false;
    }
    let told = polled[0].revents();
    told.contains(PollFlags::ERR) || (told.contains(PollFlags::HUP) && !stream.write_ended())
}

#[cfg(test)]
mod tests;
