//! A session's handle.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use hopline_link_proto::{Abort, Code, LinkEnd, Read, SendState, SessionCounters, SessionId, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::deadline::{self, Deadlines, Direction};
use crate::error::SessionError;
use crate::halves::{ReadHalf, WriteHalf, halves};
use crate::shared::{Guard, LinkState, Shared, Slot, Waiters, now};

/// Most bytes that one [`Session::read_bytes`] gives.
const READ_PIECE: usize = 64 << 10;

/// One two-way byte stream of a link.
///
/// `AsyncRead` and `AsyncWrite`, and the same by reference with [`Session::read_bytes`] and
/// [`Session::write_bytes`], which copy nothing. `shutdown` sends the end; [`Session::finish`] also waits until
/// the far reader has everything. Dropping a session before `shutdown`, or with input not read to its end, aborts
/// it with `peer_reset`; a drop after both directions ended is clean, and the end is still delivered.
///
/// Bytes received before an abort stay readable, then reads fail. One task may read while another writes: each
/// direction has one waker. [`Session::split`] gives each task its half.
///
/// # Errors of reads and writes
///
/// [`SessionError`] is inside the [`io::Error`]. A passed deadline is `TimedOut`, and the session lives.
#[derive(Debug)]
pub struct Session {
    guard: Arc<Guard>,
    id: SessionId,
    /// None when it is empty: the handle of an idle session is kept small.
    header: Option<Box<Bytes>>,
}

impl Session {
    pub(crate) fn new(guard: Arc<Guard>, id: SessionId, header: Bytes) -> Self {
        Self { guard, id, header: (!header.is_empty()).then(|| Box::new(header)) }
    }

    pub(crate) fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.guard.0
    }

    /// The link's number for this session; unique on its link.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// What the peer's open said; empty for a session that this side opened.
    #[must_use]
    pub fn header(&self) -> &Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.header.as_deref().unwrap_or(&EMPTY)
    }

    /// Takes a session that the peer opened: its first window goes out. A second call changes nothing.
    pub fn answer(&self, header: impl Into<Bytes>) {
        let header = header.into();
        self.shared().with_bytes(|state| state.link.answer(self.id, header));
    }

    /// Waits for the answer to our open; gives its header. Cancel safe.
    ///
    /// # Errors
    /// How the open was refused.
    pub async fn answered(&self) -> Result<Bytes, Abort> {
        poll_fn(|cx| {
            self.wait(
                cx,
                |waiters| &mut waiters.rare().answer,
                |state| match state.link.answered(self.id) {
                    Ok(Some(header)) => Poll::Ready(Ok(header)),
                    Ok(None) => Poll::Pending,
                    Err(abort) => Poll::Ready(Err(abort)),
                },
            )
        })
        .await
    }

    /// Gives up: both ends read this reason, behind what was sent before.
    pub fn abort(&self, code: Code, message: impl Into<String>) {
        self.abort_with(Abort::new(code, message));
    }

    /// Passes on an abort that came from elsewhere, with its hops.
    pub fn abort_with(&self, abort: Abort) {
        self.shared().with(|state| state.link.abort(self.id, abort));
    }

    /// How the session ended, if by an abort of either side or the death of its link.
    #[must_use]
    pub fn abort_reason(&self) -> Option<Abort> {
        self.shared().peek(|state| state.link.abort_reason(self.id).cloned())
    }

    /// How the session's own link ended, if it did: `DeadPeer` when its peer fell silent. An abort with hops of 0
    /// may come from it.
    #[must_use]
    pub fn link_end(&self) -> Option<LinkEnd> {
        self.shared().peek(|state| state.link.end_of_link().cloned())
    }

    /// What this session has carried, and what it holds at this end.
    #[must_use]
    pub fn counters(&self) -> SessionCounters {
        self.shared().peek(|state| state.link.session_counters(self.id).unwrap_or_default())
    }

    /// From `deadline` on, reads through [`AsyncRead`] fail with `TimedOut`, also when bytes are there; a read that
    /// waits is told. Nothing is lost: under a new deadline, or `None`, reading goes on where it stopped.
    ///
    /// It is this handle's own: nothing of it travels, and a session that is spliced has none. The methods that take
    /// and give [`Bytes`] are for forwarders and wait without a deadline; `tokio::time::timeout` bounds them, since
    /// they are cancel safe.
    pub fn set_read_deadline(&self, deadline: impl Into<Option<Instant>>) {
        self.set_deadline(Direction::Read, deadline.into());
    }

    /// From `deadline` on, writes through [`AsyncWrite`] fail with `TimedOut` and take nothing, also when there is
    /// room; a write that waits is told. What was taken before still goes out.
    ///
    /// [`splice`](crate::splice()) takes it over: see [`Spliced::set_write_deadline`](crate::Spliced::set_write_deadline).
    pub fn set_write_deadline(&self, deadline: impl Into<Option<Instant>>) {
        self.set_deadline(Direction::Write, deadline.into());
    }

    fn set_deadline(&self, direction: Direction, at: Option<Instant>) {
        let waits = self.shared().peek(|state| {
            let waiters = state.link.tag(self.id)?.waiters()?;
            Deadlines::set(waiters, direction, at);
            match direction {
                Direction::Read => waiters.read.take(),
                Direction::Write => waiters.take_write(),
            }
        });
        // It looks again, and waits for the new deadline.
        if let Some(waker) = waits {
            waker.wake();
        }
    }

    /// Two handles, one for each direction, for two tasks. Dropping the writing half before its end aborts the
    /// session; see [`WriteHalf`].
    #[must_use]
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        halves(self)
    }

    /// Waits until the session is aborted by either side, or its link dies; never resolves for one that ends
    /// clean. For who holds a session without reading it: it takes the reader's place. Cancel safe.
    pub async fn aborted(&self) -> Abort {
        poll_fn(|cx| {
            self.wait(
                cx,
                |waiters| &mut waiters.read,
                |state| match state.link.abort_reason(self.id) {
                    Some(abort) => Poll::Ready(abort.clone()),
                    None => Poll::Pending,
                },
            )
        })
        .await
    }

    /// The next bytes, by reference; `None` is the peer's end. Cancel safe.
    ///
    /// # Errors
    /// How the session ended, behind everything that came before.
    pub async fn read_bytes(&self) -> Result<Option<Bytes>, Abort> {
        poll_fn(|cx| self.poll_read_bytes(cx)).await
    }

    /// Polls for what [`Session::read_bytes`] waits for.
    pub fn poll_read_bytes(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Abort>> {
        self.wait(
            cx,
            |waiters| &mut waiters.read,
            |state| match state.link.read(now(), self.id, READ_PIECE) {
                Ok(Read::Data(bytes)) => Poll::Ready(Ok(Some(bytes))),
                Ok(Read::End) => Poll::Ready(Ok(None)),
                Ok(Read::Pending) => Poll::Pending,
                Err(abort) => Poll::Ready(Err(abort)),
            },
        )
    }

    /// Writes `bytes` whole, by reference. Waits until the session takes them; cancelled before, nothing of them
    /// was written, and they are dropped.
    ///
    /// # Errors
    /// How the session ended.
    pub async fn write_bytes(&self, bytes: Bytes) -> Result<(), Abort> {
        loop {
            self.writable().await?;
            // Another task may have taken the room meanwhile.
            let taken = self.shared().with(|state| state.link.write_bytes(self.id, bytes.clone()))?;
            if taken != Write::Pending {
                return Ok(());
            }
        }
    }

    /// Waits until the session takes bytes. Cancel safe.
    ///
    /// # Errors
    /// How the session ended.
    pub async fn writable(&self) -> Result<(), Abort> {
        poll_fn(|cx| self.poll_writable(cx)).await
    }

    /// Polls for what [`Session::writable`] waits for.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<Result<(), Abort>> {
        self.wait(
            cx,
            |waiters| &mut waiters.rare().write,
            |state| match state.link.ready_to_write(self.id) {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(abort) => Poll::Ready(Err(abort)),
            },
        )
    }

    /// Waits until some of the bytes that were written have left for the peer; gives the count of those that still
    /// wait, at once if there are none. For who is about to abort: an abort drops what waits. Cancel safe.
    ///
    /// # Errors
    /// How the session ended.
    pub async fn sending(&self) -> Result<usize, Abort> {
        let mut first = None;
        poll_fn(|cx| {
            self.wait(
                cx,
                |waiters| &mut waiters.rare().write,
                |state| {
                    if let Some(abort) = state.link.abort_reason(self.id) {
                        return Poll::Ready(Err(abort.clone()));
                    }
                    let waiting = state.link.bytes_queued(self.id);
                    if waiting == 0 || waiting < *first.get_or_insert(waiting) {
                        return Poll::Ready(Ok(waiting));
                    }
                    state.link.notify_when_sent(self.id);
                    Poll::Pending
                },
            )
        })
        .await
    }

    /// Sends the end: the peer reads everything, then the end.
    pub fn end(&self) {
        self.shared().with_bytes(|state| state.link.end(self.id));
    }

    /// Sends the end and waits until the far reader has taken everything, however many links away. Cancel safe.
    ///
    /// # Errors
    /// How the session ended instead.
    pub async fn finish(&self) -> Result<(), Abort> {
        self.end();
        poll_fn(|cx| {
            self.wait(
                cx,
                |waiters| &mut waiters.rare().write,
                |state| match state.link.send_state(self.id) {
                    Ok(SendState::Acknowledged) => Poll::Ready(Ok(())),
                    Ok(SendState::Open | SendState::Ending) => Poll::Pending,
                    Err(abort) => Poll::Ready(Err(abort)),
                },
            )
        })
        .await
    }

    /// Tries; if pending, leaves a waker where the event of that kind finds it.
    fn wait<T>(
        &self,
        cx: &Context<'_>,
        place: impl FnOnce(&mut Waiters) -> &mut Option<Waker>,
        attempt: impl FnOnce(&mut LinkState) -> Poll<T>,
    ) -> Poll<T> {
        let ready = |state: &mut LinkState| {
            let result = attempt(state);
            if result.is_pending()
                && let Some(waiters) = state.link.tag(self.id).and_then(Slot::waiters)
            {
                let place = place(waiters);
                match place {
                    Some(waker) if waker.will_wake(cx.waker()) => {}
                    _ => *place = Some(cx.waker().clone()),
                }
            }
            result
        };
        // Reading may grant credit, which the driver has to send.
        self.shared().with_bytes(ready)
    }
}

impl Session {
    /// Like [`Session::wait`], as far as the direction's deadline goes.
    fn wait_within<T>(
        &self,
        cx: &Context<'_>,
        direction: Direction,
        attempt: impl FnOnce(&mut LinkState) -> Poll<Result<T, Abort>>,
    ) -> Poll<io::Result<T>> {
        let too_late = || match direction {
            Direction::Read => Poll::Ready(Err(SessionError::ReadDeadline.into())),
            Direction::Write => Poll::Ready(Err(SessionError::WriteDeadline.into())),
        };
        self.wait(
            cx,
            |waiters| match direction {
                Direction::Read => &mut waiters.read,
                Direction::Write => &mut waiters.rare().write,
            },
            |state| {
                if deadline::has_passed(state, self.id, direction) {
                    return too_late();
                }
                match attempt(state) {
                    Poll::Ready(Ok(value)) => Poll::Ready(Ok(value)),
                    Poll::Ready(Err(abort)) => {
                        Poll::Ready(Err(SessionError::from_core(state, self.id, abort).into()))
                    }
                    Poll::Pending
                        if deadline::poll_passed(state, self.id, direction, cx.waker()).is_ready() =>
                    {
                        too_late()
                    }
                    Poll::Pending => Poll::Pending,
                }
            },
        )
    }

    pub(crate) fn poll_read_into(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let id = self.id;
        let out = buf.initialize_unfilled();
        let n = ready!(self.wait_within(cx, Direction::Read, |state| {
            match state.link.read_into(now(), id, out) {
                Ok(Some(0)) => Poll::Pending,
                Ok(Some(n)) => Poll::Ready(Ok(n)),
                Ok(None) => Poll::Ready(Ok(0)),
                Err(abort) => Poll::Ready(Err(abort)),
            }
        }))?;
        buf.advance(n);
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_write_from(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.wait_within(cx, Direction::Write, |state| match state.link.write(self.id, buf) {
            Ok(Write::Taken(n)) => Poll::Ready(Ok(n)),
            Ok(Write::Pending) => Poll::Pending,
            Err(abort) => Poll::Ready(Err(abort)),
        })
    }

    pub(crate) fn abort_unless_ended(&self, message: &str) {
        self.shared().with(|state| {
            if state.link.send_state(self.id) == Ok(SendState::Open) {
                state.link.abort(self.id, Abort::new(Code::PEER_RESET, message));
            }
        });
    }

    /// Sends the end; fails if the session is over already.
    pub(crate) fn shut_down(&self) -> io::Result<()> {
        self.end();
        self.shared().peek(|state| match state.link.abort_reason(self.id).cloned() {
            Some(abort) => Err(SessionError::from_core(state, self.id, abort).into()),
            None => Ok(()),
        })
    }
}

impl AsyncRead for Session {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_into(cx, buf)
    }
}

impl AsyncWrite for Session {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_from(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was taken goes out by itself; `finish` is how to know that it arrived.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shut_down())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // What waited is dropped behind the lock: its task may hold other sessions of this link.
        drop(self.shared().with(|state| {
            // A splice has taken the session over: it will release it.
            let slot = state.link.tag(self.id)?;
            if slot.splice().is_some() {
                return None;
            }
            let waited = std::mem::take(slot);
            state.link.release(self.id);
            Some(waited)
        }));
    }
}
