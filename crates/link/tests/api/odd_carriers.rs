//! Carriers that behave as carriers may: they keep what is written until they are flushed, take a byte at a time, break at
//! a flush, never hang up.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hopline_link::{Code, LinkEnd, Liveness, Mux, Side};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream, DuplexStream, ReadBuf, duplex,
};
use tokio::time::Instant;

use crate::{config, open};

/// What is noted of a carrier, and how it is to behave.
#[derive(Default)]
struct Ways {
    flushes: AtomicUsize,
    shut: AtomicBool,
    flush_fails: AtomicBool,
    takes_nothing: AtomicBool,
}

struct Odd {
    inner: DuplexStream,
    ways: Arc<Ways>,
}

fn odd(inner: DuplexStream) -> (Odd, Arc<Ways>) {
    let ways = Arc::new(Ways::default());
    (Odd { inner, ways: Arc::clone(&ways) }, ways)
}

impl AsyncRead for Odd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Odd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if self.ways.takes_nothing.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(0));
        }
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.ways.flushes.fetch_add(1, Ordering::SeqCst);
        if self.ways.flush_fails.load(Ordering::SeqCst) {
            return Poll::Ready(Err(std::io::Error::other("the flush failed")));
        }
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.ways.shut.store(true, Ordering::SeqCst);
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A carrier may keep what was written until it is flushed: nothing waits in it while there is nothing more to write. In
/// virtual time: what waited would leave with the next ping at best, seconds later.
#[tokio::test(start_paused = true)]
async fn a_carrier_that_keeps_bytes_until_a_flush() {
    let (a, b) = duplex(1 << 20);
    let began = Instant::now();
    // Larger than anything that is written here at once.
    let buffered = |carrier| BufStream::with_capacity(8 << 10, 1 << 20, carrier);
    let dialer = Mux::spawn(buffered(a), config(Side::Dialer, "a")).unwrap();
    let listener = Mux::spawn(buffered(b), config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    for len in [1, 100, 20_000, 300_000] {
        let (near, far) = open(&dialer, &listener).await;
        let ((mut near, mut near_write), (mut far, mut far_write)) = (near.split(), far.split());
        let sent = vec![7; len];
        let forth = async {
            near_write.write_all(&sent).await.unwrap();
            near_write.shutdown().await.unwrap();
        };
        let back = async {
            far_write.write_all(&sent).await.unwrap();
            far_write.shutdown().await.unwrap();
        };
        let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
        let all =
            async { tokio::join!(forth, back, near.read_to_end(&mut at_near), far.read_to_end(&mut at_far)) };
        let done = tokio::time::timeout(Duration::from_secs(1), all).await;
        let ((), (), at_near_end, at_far_end) = done.expect("nothing waits for a ping");
        assert_eq!((at_near_end.unwrap(), at_far_end.unwrap()), (len, len));
        assert!(at_near == sent && at_far == sent, "other bytes of {len}");
    }
    // The goodbye leaves as well.
    dialer.close(Code::SHUTDOWN, "done");
    assert!(matches!(listener.closed().await, LinkEnd::Goodbye(abort) if abort.message == "done"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// A carrier that fails where bytes leave is lost, at once and with its own words.
#[tokio::test(start_paused = true)]
async fn a_carrier_that_fails_is_lost_at_once() {
    for (what, says) in [("flush", "the flush failed"), ("write", "write zero")] {
        let (a, b) = duplex(1 << 20);
        let (a, ways) = odd(a);
        let dialer = Mux::spawn(a, config(Side::Dialer, "a")).unwrap();
        let listener = Mux::spawn(b, config(Side::Listener, "b")).unwrap();
        dialer.up().await.unwrap();
        let (near, far) = open(&dialer, &listener).await;
        let began = Instant::now();
        match what {
            "flush" => ways.flush_fails.store(true, Ordering::SeqCst),
            _ => ways.takes_nothing.store(true, Ordering::SeqCst),
        }
        near.write_bytes(vec![1; 10].into()).await.unwrap();
        let end = dialer.closed().await;
        assert!(matches!(end, LinkEnd::CarrierLost { .. }), "{what}: {end}");
        assert!(end.to_string().contains(says), "{what}: {end}");
        let abort = near.read_bytes().await.unwrap_err();
        assert_eq!((abort.code, abort.hops), (Code::CONN_LOST, 0), "{what}");
        // The driver lets go of its carrier, which is how the peer learns it.
        let told = loop {
            // What had left before may be read first.
            if let Err(abort) = far.read_bytes().await {
                break abort;
            }
        };
        assert_eq!(told.code, Code::CONN_LOST, "{what}");
        assert!(began.elapsed() < Duration::from_secs(1), "{what}: {:?}", began.elapsed());
    }
}

/// Who says goodbye ends the carrier behind it, and waits for the peer to hang up: not at all for one that has, and not
/// for long for one that does not.
#[tokio::test(start_paused = true)]
async fn a_goodbye_is_followed_by_the_end_of_the_carrier() {
    // The peer hangs up.
    let (a, b) = duplex(1 << 20);
    let (a, ways) = odd(a);
    let (dialer, driver) = Mux::new(a, config(Side::Dialer, "a")).unwrap();
    let driver = tokio::spawn(driver);
    let listener = Mux::spawn(b, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    let began = Instant::now();
    dialer.close(Code::SHUTDOWN, "done");
    assert!(matches!(driver.await.unwrap(), LinkEnd::Closed(_)));
    assert!(ways.shut.load(Ordering::SeqCst), "the carrier was told");
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());

    // It does not: a third of a second is what it gets.
    let (a, mut b) = duplex(1 << 20);
    let (a, ways) = odd(a);
    let (dialer, driver) = Mux::new(a, config(Side::Dialer, "a")).unwrap();
    let over = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&over);
    let driver = tokio::spawn(driver.when_over(move |end, _| {
        assert!(matches!(end, LinkEnd::Closed(_)));
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let began = Instant::now();
    dialer.close(Code::SHUTDOWN, "done");
    assert!(matches!(driver.await.unwrap(), LinkEnd::Closed(_)));
    assert!(ways.shut.load(Ordering::SeqCst), "the carrier was told");
    let took = began.elapsed();
    assert!((Duration::from_millis(300)..Duration::from_millis(400)).contains(&took), "{took:?}");
    assert_eq!(over.load(Ordering::SeqCst), 1, "once");
    // Nothing holds the carrier any more.
    b.read_to_end(&mut Vec::new()).await.unwrap();
}

/// A peer that is dead gets no goodbye and no time for one: no end of stream that a reset would have to wait behind.
#[tokio::test(start_paused = true)]
async fn a_dead_peer_gets_no_time() {
    let (a, b) = duplex(1 << 20);
    let (a, ways) = odd(a);
    let mut setup = config(Side::Dialer, "a");
    setup.liveness = Some(Liveness::FAST);
    let (dialer, driver) = Mux::new(a, setup).unwrap();
    let driver = tokio::spawn(driver);
    let (listener, deaf) = Mux::new(b, config(Side::Listener, "b")).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let deaf = tokio::spawn(async move {
        let mut deaf = Box::pin(deaf);
        tokio::select! {
            _ = &mut deaf => {}
            _ = stopped => {}
        }
        // It stays, and does nothing.
        std::future::pending::<()>().await;
        drop(deaf);
    });
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    stop.send(()).unwrap();
    let began = Instant::now();
    let end = driver.await.unwrap();
    assert!(matches!(end, LinkEnd::DeadPeer { .. }), "{end}");
    assert!(!ways.shut.load(Ordering::SeqCst), "no end of stream for one that is not heard");
    let took = began.elapsed();
    assert!((Duration::from_millis(4_400)..Duration::from_millis(4_600)).contains(&took), "{took:?}");
    deaf.abort();
}

/// A driver that is dropped takes its link along: whoever waits at it is told, at both ends, and nobody is told of an
/// orderly end.
#[tokio::test(start_paused = true)]
async fn a_driver_that_is_dropped_takes_its_link_along() {
    let (a, b) = duplex(1 << 20);
    let (dialer, driver) = Mux::new(a, config(Side::Dialer, "a")).unwrap();
    let over = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&over);
    let driver = tokio::spawn(driver.when_over(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let listener = Mux::spawn(b, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    let (near, far) = open(&dialer, &listener).await;
    let began = Instant::now();
    driver.abort();
    assert_eq!(near.read_bytes().await.unwrap_err().code, Code::CONN_LOST);
    assert_eq!(far.read_bytes().await.unwrap_err().code, Code::CONN_LOST);
    assert!(matches!(dialer.closed().await, LinkEnd::CarrierLost { .. }));
    assert!(matches!(listener.closed().await, LinkEnd::CarrierLost { .. }));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(over.load(Ordering::SeqCst), 0);
}
