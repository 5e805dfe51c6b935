//! The one loop of a link: read, tell the time, write.

use std::fmt;
use std::future::Future;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hopline_link_proto::{LinkEnd, Transmit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::inbox::Inbox;
use crate::shared::{Shared, now};

/// Bytes taken from the core at once: what a ping may have to wait behind here.
const BATCH: usize = 64 << 10;
/// Pieces in one vectored write.
const PIECES: usize = 64;
/// How a connection ended whose peer is gone without a word.
const ENDED: &str = "the peer's side of the connection ended without a goodbye";
/// Turns before other tasks of the runtime get theirs.
const BUDGET: usize = 4;
/// How long a goodbye may take to leave, and the peer to hang up behind it. A peer that is dead gets no time.
const GOODBYE: Duration = Duration::from_millis(300);

/// Drives one link: a future that resolves when the link is over and its goodbye has left.
pub struct Driver<C> {
    carrier: C,
    shared: Arc<Shared>,
    inbox: Inbox,
    out: Transmit,
    timer: Pin<Box<Sleep>>,
    /// Another turn is due, though nothing was read or written.
    again: bool,
    ending: Option<Ending>,
    when_over: Option<WhenOver<C>>,
}

/// What is done with a carrier whose link is over.
type WhenOver<C> = Box<dyn FnOnce(&LinkEnd, &mut C) + Send>;

/// The last moments of a link.
struct Ending {
    end: LinkEnd,
    until: Instant,
    /// Our last byte is out, and the carrier was told so, if it is to be told.
    shut: bool,
}

impl<C> fmt::Debug for Driver<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("out", &self.out.len()).finish_non_exhaustive()
    }
}

impl<C> Drop for Driver<C> {
    fn drop(&mut self) {
        // Also when the driver is dropped early: nobody will hear from this link again.
        self.shared.turn(|link| link.handle_carrier_end(now(), "the link's driver was dropped"));
        self.shared.status.send_modify(|status| status.carrier_closed = true);
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Driver<C> {
    pub(crate) fn new(carrier: C, shared: Arc<Shared>) -> Self {
        Self {
            carrier,
            shared,
            inbox: Inbox::new(),
            out: Transmit::default(),
            timer: Box::pin(sleep_until(Instant::now())),
            again: false,
            ending: None,
            when_over: None,
        }
    }

    /// Calls `act` when the link is over and the goodbye has left or has had its time, before the carrier is dropped;
    /// not when the driver is dropped early. For a TCP carrier: [`reset_if_dead`](crate::reset_if_dead).
    #[must_use]
    pub fn when_over(mut self, act: impl FnOnce(&LinkEnd, &mut C) + Send + 'static) -> Self {
        self.when_over = Some(Box::new(act));
        self
    }

    #[cfg(test)]
    pub(crate) fn carrier_mut(&mut self) -> &mut C {
        &mut self.carrier
    }

    /// Reads once. True if something came.
    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        let result = pin!(self.carrier.read_buf(self.inbox.with_room())).poll(cx);
        let Poll::Ready(result) = result else { return false };
        let inbox = self.inbox.bytes();
        // What it gives to send goes out in this same turn.
        self.shared.turn(|link| match result {
            Ok(0) => link.handle_carrier_end(now(), ENDED),
            Ok(_) => link.handle_bytes(now(), inbox),
            Err(error) => link.handle_carrier_end(now(), why(&error)),
        });
        true
    }

    /// Tells the core the time if it asked for it. The carrier was read before: what waited there has been heard.
    fn tick(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.shared.peek(|state| state.link.poll_timeout()) else { return false };
        let at = Instant::from_std(at);
        while at > Instant::now() {
            // A timer that is set for an earlier time is left alone, and set anew when that has come: each frame moves
            // the deadline a little, and a reset takes the runtime's lock.
            if at < self.timer.deadline() || self.timer.is_elapsed() {
                self.timer.as_mut().reset(at);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return false;
            }
        }
        self.shared.turn(|link| link.handle_timeout(now()));
        self.inbox.shrink();
        true
    }

    /// Writes what the core gives. True if something left.
    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.out.is_empty() {
            let out = &mut self.out;
            // Splices that move when bytes leave may give this link more to send.
            self.again |= self.shared.turn(|link| {
                link.poll_transmit(now(), out, BATCH);
            });
        }
        if self.out.is_empty() {
            // Nothing more to say: what a buffering carrier holds must leave too.
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.carrier).poll_flush(cx) {
                self.fail(&error);
            }
            return false;
        }
        let mut slices = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.out.pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        match Pin::new(&mut self.carrier).poll_write_vectored(cx, &slices[..count]) {
            Poll::Ready(Ok(0)) => self.fail(&std::io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(n)) => self.out.advance(n),
            Poll::Ready(Err(error)) => self.fail(&error),
            Poll::Pending => return false,
        }
        true
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.out = Transmit::default();
        self.shared.turn(|link| link.handle_carrier_end(now(), why(error)));
        self.again = true;
    }

    /// The link is over: the goodbye leaves if it can, and the peer gets a moment to hang up, so that the kernel
    /// does not answer what it still sends with a reset that overtakes the goodbye.
    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        let end = self.shared.peek(|state| state.link.end_of_link().cloned());
        let Some(end) = end else { return Poll::Pending };
        let ending = self.ending.get_or_insert_with(|| {
            let time = match end {
                LinkEnd::Closed(_) | LinkEnd::Protocol(_) => GOODBYE,
                LinkEnd::DeadPeer { .. }
                | LinkEnd::Goodbye(_)
                | LinkEnd::CarrierLost { .. }
                | LinkEnd::NoHello => Duration::ZERO,
            };
            // Who is not heard gets no end of stream: a reset that follows would wait for it (see `reset_if_dead`).
            let shut = matches!(end, LinkEnd::DeadPeer { .. });
            Ending { end, until: Instant::now() + time, shut }
        });
        let (until, over) = (ending.until, ending.end.clone());
        while self.write(cx) {}
        if self.out.is_empty() {
            if let Some(ending) = &mut self.ending
                && !ending.shut
            {
                ending.shut = Pin::new(&mut self.carrier).poll_shutdown(cx).is_ready();
            }
            loop {
                self.inbox.bytes().clear();
                match pin!(self.carrier.read_buf(self.inbox.with_room())).poll(cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(over),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => break,
                }
            }
        }
        if Instant::now() >= until {
            return Poll::Ready(over);
        }
        self.timer.as_mut().reset(until);
        if self.timer.as_mut().poll(cx).is_ready() { Poll::Ready(over) } else { Poll::Pending }
    }
}

/// What a carrier's error is called. TLS calls an end without its own goodbye an error, and explains it to programmers.
fn why(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::UnexpectedEof { ENDED.to_owned() } else { error.to_string() }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Future for Driver<C> {
    type Output = LinkEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        let this = self.get_mut();
        this.shared.driver.register(cx.waker());
        for _ in 0..BUDGET {
            if let Poll::Ready(end) = this.poll_ending(cx) {
                if let Some(act) = this.when_over.take() {
                    act(&end, &mut this.carrier);
                }
                return Poll::Ready(end);
            }
            if this.ending.is_some() {
                return Poll::Pending;
            }
            let mut busy = this.read(cx);
            // Time is told only when there was nothing to read.
            busy = busy || this.tick(cx);
            busy |= this.write(cx);
            busy |= std::mem::take(&mut this.again);
            if !busy {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
