//! Models under loom: every order in which a link's driver, its handles and its splices can meet, up to a number of
//! preemptions. A wake-up that gets lost leaves all threads waiting, which loom reports as a deadlock; so does a
//! pair of locks that is taken in two orders.
//!
//! The clock stands still, so no timer helps: whoever is not woken stays asleep. The peer of each link is a pure
//! [`Link`] inside the carrier, which answers at once and needs no thread.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hopline_link_proto::{Code, Config, Event, Link, Read, SessionId, Side, Transmit};
use loom::future::block_on;
use loom::thread::JoinHandle;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::shared::now;
use crate::{Driver, Mux, Session, SpliceEnd, splice};

/// Runs `model` in every order with at most `preemptions` switches away from a thread that could have gone on.
fn check(preemptions: usize, model: fn()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap();
    // All of loom's threads run on this one.
    let _context = runtime.enter();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    // The model's own stack is too small for a link.
    builder.check(move || spawn(model).join().unwrap());
}

fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    loom::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap()
}

/// The far end of a link, as a carrier. It answers what is opened, and gives back what it reads.
struct Echo {
    link: Link,
    out: Transmit,
    sessions: Vec<SessionId>,
}

impl Echo {
    fn new(side: Side) -> Self {
        let link = Link::new(Config::new(side, [2; 16], "echo"), now()).unwrap();
        Self { link, out: Transmit::default(), sessions: Vec::new() }
    }

    fn run(&mut self) {
        while let Some(event) = self.link.poll_event() {
            if let Event::Opened { id, .. } = event {
                self.link.answer(id, Bytes::new());
                self.sessions.push(id);
            }
        }
        for id in &self.sessions {
            loop {
                match self.link.read(now(), *id, usize::MAX) {
                    // What this side has ended itself takes no more.
                    Ok(Read::Data(bytes)) => drop(self.link.write_bytes(*id, bytes)),
                    Ok(Read::End) => break self.link.end(*id),
                    Ok(Read::Pending) | Err(_) => break,
                }
            }
        }
    }
}

impl AsyncRead for Echo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.run();
        if this.out.is_empty() {
            this.link.poll_transmit(now(), &mut this.out, usize::MAX);
        }
        let Some(piece) = this.out.pieces.front().cloned() else {
            // Only what this link's own driver writes makes the peer speak: it looks again by itself.
            return if this.link.end_of_link().is_some() { Poll::Ready(Ok(())) } else { Poll::Pending };
        };
        let n = piece.len().min(buf.remaining());
        buf.put_slice(&piece[..n]);
        this.out.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Echo {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.link.handle_bytes(now(), &mut BytesMut::from(buf));
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A link that is up, its driver not yet in a thread of its own.
fn link(side: Side) -> (Mux, Driver<Echo>) {
    let far = match side {
        Side::Dialer => Side::Listener,
        Side::Listener => Side::Dialer,
    };
    let (mux, mut driver) = Mux::new(Echo::new(far), Config::new(side, [1; 16], "near")).unwrap();
    poll_once(&mut driver);
    (mux, driver)
}

fn poll_once(driver: &mut Driver<Echo>) {
    assert!(Pin::new(driver).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

fn drive(driver: Driver<Echo>) -> JoinHandle<()> {
    spawn(move || drop(block_on(driver)))
}

#[test]
fn a_write_reaches_the_driver_and_its_echo_the_reader() {
    check(2, || {
        let (mux, driver) = link(Side::Dialer);
        let driver = drive(driver);
        let session = mux.open(Bytes::new()).unwrap();
        block_on(async {
            session.write_bytes(Bytes::from_static(b"x")).await.unwrap();
            assert_eq!(session.read_bytes().await.unwrap().unwrap(), "x");
            session.finish().await.unwrap();
            assert_eq!(session.read_bytes().await.unwrap(), None);
        });
        drop(session);
        // The last handle: the driver must hear of it.
        drop(mux);
        driver.join().unwrap();
    });
}

#[test]
fn two_halves_in_two_threads() {
    check(1, || {
        let (mux, driver) = link(Side::Dialer);
        let driver = drive(driver);
        let (read, write) = mux.open(Bytes::new()).unwrap().split();
        drop(mux);
        let writer = spawn(move || {
            block_on(async {
                write.session().write_bytes(Bytes::from_static(b"x")).await.unwrap();
                write.session().finish().await.unwrap();
            });
        });
        block_on(async {
            assert_eq!(read.session().read_bytes().await.unwrap().unwrap(), "x");
            assert_eq!(read.session().read_bytes().await.unwrap(), None);
        });
        drop(read);
        writer.join().unwrap();
        driver.join().unwrap();
    });
}

#[test]
fn an_abort_reaches_every_waiter() {
    check(2, || {
        let (mux, driver) = link(Side::Dialer);
        let driver = drive(driver);
        let session = Arc::new(mux.open(Bytes::new()).unwrap());
        let reader = Arc::clone(&session);
        let reader = spawn(move || block_on(reader.read_bytes()).unwrap_err().code);
        session.abort(Code::REFUSED, "enough");
        assert_eq!(block_on(session.finish()).unwrap_err().code, Code::REFUSED);
        assert_eq!(reader.join().unwrap(), Code::REFUSED);
        drop((session, mux));
        driver.join().unwrap();
    });
}

#[test]
fn a_closed_link_wakes_the_acceptor() {
    check(3, || {
        let (mux, driver) = link(Side::Dialer);
        let driver = drive(driver);
        let acceptor = mux.clone();
        let acceptor = spawn(move || block_on(acceptor.accept()).is_none());
        mux.close(Code::SHUTDOWN, "stopping");
        assert!(acceptor.join().unwrap());
        driver.join().unwrap();
    });
}

#[test]
fn a_new_deadline_reaches_a_read_that_waits() {
    check(3, || {
        let (mux, _driver) = link(Side::Dialer);
        let (mut read, write) = mux.open(Bytes::new()).unwrap().split();
        let reader = spawn(move || {
            let mut byte = [0];
            let mut buf = ReadBuf::new(&mut byte);
            block_on(poll_fn(|cx| Pin::new(&mut read).poll_read(cx, &mut buf))).unwrap_err().kind()
        });
        write.session().set_read_deadline(tokio::time::Instant::now());
        assert_eq!(reader.join().unwrap(), io::ErrorKind::TimedOut);
    });
}

/// A session that the link's peer has opened, in which it has said this and ended.
fn opened(mux: &Mux, driver: &mut Driver<Echo>, said: &'static [u8]) -> Session {
    let echo = driver.carrier_mut();
    let id = echo.link.open(Bytes::from_static(b"h")).unwrap();
    echo.link.write_bytes(id, Bytes::from_static(said)).unwrap();
    echo.link.end(id);
    echo.sessions.push(id);
    poll_once(driver);
    block_on(mux.accept()).unwrap()
}

#[test]
fn a_splice_between_two_drivers() {
    check(1, || {
        let (left, mut left_driver) = link(Side::Listener);
        let (right, right_driver) = link(Side::Dialer);
        let session = opened(&left, &mut left_driver, b"x");
        let drivers = [drive(left_driver), drive(right_driver)];
        let spliced = splice(session, right.open(Bytes::new()).unwrap());
        drop((left, right));
        let outcome = block_on(spliced);
        assert_eq!((outcome.end, outcome.forth, outcome.back), (SpliceEnd::Clean, 1, 1));
        for driver in drivers {
            driver.join().unwrap();
        }
    });
}

#[test]
fn two_splices_that_cross_take_their_locks_in_one_order() {
    check(2, || {
        let (one, mut one_driver) = link(Side::Listener);
        let (two, mut two_driver) = link(Side::Listener);
        let (from_one, from_two) = (opened(&one, &mut one_driver, b""), opened(&two, &mut two_driver, b""));
        let forth = splice(from_one, two.open(Bytes::new()).unwrap());
        let back = splice(from_two, one.open(Bytes::new()).unwrap());
        let aborts = [forth, back].map(|spliced| {
            spawn(move || {
                spliced.abort(Code::REFUSED, "enough");
                block_on(spliced).end
            })
        });
        for end in aborts {
            assert!(matches!(end.join().unwrap(), SpliceEnd::Aborted(abort) if abort.code == Code::REFUSED));
        }
    });
}
