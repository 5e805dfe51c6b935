//! Links over real carriers: in memory, TCP, TLS over TCP; sessions, splices, goodbyes.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hopline_link::{
    Abort, Code, Config, LinkEnd, Liveness, Mux, OpenError, Session, SessionError, Side, SpliceEnd,
    reset_if_dead, splice, tune_tcp,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};

fn config(side: Side, name: &str) -> Config {
    Config::new(side, [side as u8; 16], name)
}

fn link_over<A, B>(a: A, b: B) -> (Mux, Mux)
where
    A: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let dialer = Mux::spawn(a, config(Side::Dialer, "dialer")).unwrap();
    let listener = Mux::spawn(b, config(Side::Listener, "listener")).unwrap();
    (dialer, listener)
}

async fn in_memory() -> (Mux, Mux) {
    let (a, b) = duplex(256 << 10);
    let (dialer, listener) = link_over(a, b);
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    (dialer, listener)
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (a, b) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (a, b) = (a.unwrap(), b.unwrap().0);
    tune_tcp(&a).unwrap();
    tune_tcp(&b).unwrap();
    (a, b)
}

async fn open(dialer: &Mux, listener: &Mux) -> (Session, Session) {
    let near = dialer.open(&b"h"[..]).unwrap();
    let far = listener.accept().await.unwrap();
    assert_eq!(far.header(), &Bytes::from_static(b"h"));
    far.answer(&b"a"[..]);
    assert_eq!(near.answered().await.unwrap(), Bytes::from_static(b"a"));
    (near, far)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Sends a pattern both ways at once, half-closes, and reads to the end at both sides.
async fn exchange(near: Session, far: Session, len: usize) {
    let side = |session: Session, want: Vec<u8>| async move {
        let (mut read, mut write) = tokio::io::split(session);
        let sent = want.clone();
        let writer = async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let reader = async move {
            let mut got = Vec::new();
            read.read_to_end(&mut got).await.unwrap();
            assert!(got == want, "{} bytes of {}", got.len(), want.len());
        };
        tokio::join!(writer, reader);
    };
    tokio::join!(side(near, pattern(len)), side(far, pattern(len)));
}

#[tokio::test]
async fn bytes_and_ends_over_memory_and_tcp() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    exchange(near, far, 3_000_000).await;

    let (a, b) = tcp_pair().await;
    let (dialer, listener) = link_over(a, b);
    dialer.up().await.unwrap();
    let (near, far) = open(&dialer, &listener).await;
    exchange(near, far, 3_000_000).await;
    // Both directions ended and both handles are gone: the sessions are too.
    while dialer.info().sessions + listener.info().sessions > 0 {
        tokio::task::yield_now().await;
    }
}

/// A relay of two links, and what it forwards.
struct Chain {
    origin: Mux,
    far: Mux,
    outcomes: tokio::sync::mpsc::UnboundedReceiver<SpliceEnd>,
}

async fn chain_of_two() -> Chain {
    let (origin, relay_in) = in_memory().await;
    let (far, relay_out) = in_memory().await;
    let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(left) = relay_in.accept().await {
            match relay_out.open(left.header().clone()) {
                Ok(right) => {
                    let outcome = splice(left, right);
                    let sender = sender.clone();
                    tokio::spawn(async move { sender.send(outcome.await.end) });
                }
                Err(error) => left.abort(Code::OFFLINE, error.to_string()),
            }
        }
    });
    Chain { origin, far, outcomes }
}

#[tokio::test]
async fn a_splice_passes_bytes_ends_and_acknowledgements() {
    let mut chain = chain_of_two().await;
    let (near, far) = open(&chain.origin, &chain.far).await;
    exchange(near, far, 5_000_000).await;
    assert_eq!(chain.outcomes.recv().await, Some(SpliceEnd::Clean));

    // `finish` resolves only when the far reader has everything.
    let (near, mut far) = open(&chain.origin, &chain.far).await;
    near.write_bytes(Bytes::from(pattern(200_000))).await.unwrap();
    let mut finish = tokio_test_spawn(async move {
        let result = near.finish().await;
        (near, result)
    });
    let mut got = vec![0; 199_999];
    far.read_exact(&mut got).await.unwrap();
    assert!(!finish.is_finished());
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest.len(), 1);
    let (_, result) = (&mut finish).await.unwrap();
    result.unwrap();
}

fn tokio_test_spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

/// A future that counts how often it is polled.
struct Polls<F>(F, Arc<AtomicUsize>);

impl<F: Future + Unpin> Future for Polls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll(cx)
    }
}

/// Each poll beyond what is needed is a wake-up, on a busy runtime one of another thread: for each message the driver
/// that reads it, for each the one that sends it.
#[tokio::test]
async fn a_message_through_a_relay_wakes_each_driver_once() {
    const MESSAGES: usize = 100;
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = |carrier, side| {
        let (mux, driver) = Mux::new(carrier, config(side, "relay")).unwrap();
        tokio::spawn(Polls(driver, Arc::clone(&polls)));
        mux
    };
    let ((a, b), (c, d)) = (duplex(64 << 10), duplex(64 << 10));
    let origin = Mux::spawn(a, config(Side::Dialer, "origin")).unwrap();
    let relay_in = counted(b, Side::Listener);
    let relay_out = counted(c, Side::Dialer);
    let far = Mux::spawn(d, config(Side::Listener, "far")).unwrap();
    origin.up().await.unwrap();
    relay_out.up().await.unwrap();

    let mut near = origin.open(&b""[..]).unwrap();
    let left = relay_in.accept().await.unwrap();
    let _splice = splice(left, relay_out.open(&b""[..]).unwrap());
    let mut echo = far.accept().await.unwrap();
    echo.answer(&b""[..]);
    near.answered().await.unwrap();
    let before = polls.load(Ordering::Relaxed);
    let mut message = [7; 64];
    for _ in 0..MESSAGES {
        near.write_all(&message).await.unwrap();
        echo.read_exact(&mut message).await.unwrap();
        echo.write_all(&message).await.unwrap();
        near.read_exact(&mut message).await.unwrap();
    }
    // There and back, read here and sent there; a few for credit and the round trip.
    let polls = polls.load(Ordering::Relaxed) - before;
    assert!(polls <= MESSAGES * 4 + 20, "{polls} polls for {MESSAGES} messages there and back");
}

#[tokio::test]
async fn aborts_and_dead_links_cross_a_splice_with_their_hops() {
    let mut chain = chain_of_two().await;
    let (near, mut far) = open(&chain.origin, &chain.far).await;
    near.write_bytes(Bytes::from_static(b"before")).await.unwrap();
    near.abort(Code::app(3).unwrap(), "enough");
    let mut got = Vec::new();
    let error = far.read_to_end(&mut got).await.unwrap_err();
    assert_eq!(got, b"before");
    let Some(SessionError::Aborted(abort)) = SessionError::of(&error) else { panic!("{error}") };
    assert_eq!((abort.code, abort.hops, abort.message.as_str()), (Code::app(3).unwrap(), 2, "enough"));
    assert!(matches!(chain.outcomes.recv().await, Some(SpliceEnd::Aborted(_))));

    let (near, _far) = open(&chain.origin, &chain.far).await;
    chain.far.close(Code::SHUTDOWN, "stopping");
    let abort = near.read_bytes().await.unwrap_err();
    assert_eq!((abort.code, abort.hops), (Code::SHUTDOWN, 2));
}

#[tokio::test]
async fn a_link_reaches_itself_through_a_relay() {
    let (edge, relay) = in_memory().await;
    tokio::spawn(async move {
        while let Some(left) = relay.accept().await {
            let right = relay.open(left.header().clone()).unwrap();
            drop(splice(left, right));
        }
    });
    let near = edge.open(&b"self"[..]).unwrap();
    let far = edge.accept().await.unwrap();
    far.answer(&b""[..]);
    exchange(near, far, 1_000_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_carrier_that_swallows_everything_is_dead_at_the_bound() {
    let (a, swallowed) = duplex(1 << 20);
    let (b, swallowed_too) = duplex(1 << 20);
    let mut setup = config(Side::Dialer, "dialer");
    setup.liveness = Some(Liveness::FAST);
    let dialer = Mux::spawn(a, setup).unwrap();
    let listener = Mux::spawn(b, config(Side::Listener, "listener")).unwrap();
    let bridge = tokio::spawn(bridge(swallowed, swallowed_too));
    dialer.up().await.unwrap();
    let (near, far) = open(&dialer, &listener).await;
    bridge.abort();
    // The bridge's ends were dropped with it: keep the carriers open, but deaf.
    let began = tokio::time::Instant::now();
    let abort = near.read_bytes().await.unwrap_err();
    assert_eq!(abort.code, Code::CONN_LOST);
    assert!(began.elapsed() <= Duration::from_millis(4_500));
    assert_eq!(far.read_bytes().await.unwrap_err().code, Code::CONN_LOST);
}

async fn bridge(mut a: DuplexStream, mut b: DuplexStream) {
    let _ = tokio::io::copy_bidirectional(&mut a, &mut b).await;
}

/// What a listener says first.
async fn hello(name: &str) -> Vec<u8> {
    let (carrier, mut capture) = duplex(1 << 20);
    let _listener = Mux::spawn(carrier, config(Side::Listener, name)).unwrap();
    let mut hello = vec![0; 4_096];
    let n = capture.read(&mut hello).await.unwrap();
    hello.truncate(n);
    hello
}

#[tokio::test(start_paused = true)]
async fn silence_without_an_end_of_the_carrier_is_found_too() {
    let (a, mut peer) = duplex(1 << 20);
    let mut setup = config(Side::Dialer, "dialer");
    setup.liveness = Some(Liveness::FAST);
    let dialer = Mux::spawn(a, setup).unwrap();
    // A hello by hand, then nothing, with the carrier open.
    peer.write_all(&hello("listener").await).await.unwrap();
    dialer.up().await.unwrap();
    let began = tokio::time::Instant::now();
    let end = dialer.closed().await;
    assert!(matches!(end, LinkEnd::DeadPeer { .. }), "{end}");
    assert_eq!(began.elapsed().as_millis(), 4_500);
}

/// In real time: a kernel's socket is on the way. The far end never sends, so only a reset tells it.
#[tokio::test]
async fn a_peer_that_is_no_longer_heard_is_told_by_a_reset() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(tokio::net::TcpStream::connect(address), listener.accept());
    let mut far = far.unwrap().0;
    let mut setup = config(Side::Dialer, "dialer");
    setup.liveness = Some("fast,interval=250ms,timeout=250ms".parse().unwrap());
    let (dialer, driver) = Mux::new(near.unwrap(), setup).unwrap();
    let driver = tokio::spawn(driver.when_over(|end, stream| reset_if_dead(end, stream)));
    far.write_all(&hello("listener").await).await.unwrap();
    dialer.up().await.unwrap();
    assert!(matches!(driver.await.unwrap(), LinkEnd::DeadPeer { .. }));
    let mut rest = Vec::new();
    let error = far.read_to_end(&mut rest).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn goodbyes_carry_their_reason_and_garbage_is_refused() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    listener.close(Code::SHUTDOWN, "stopping");
    let LinkEnd::Goodbye(abort) = dialer.closed().await else { panic!() };
    assert_eq!((abort.code, abort.message.as_str()), (Code::SHUTDOWN, "stopping"));
    assert_eq!(near.read_bytes().await.unwrap_err().hops, 1);
    assert_eq!(far.read_bytes().await.unwrap_err().hops, 0);
    assert!(matches!(dialer.open(Bytes::new()), Err(OpenError::Down(_))));
    assert!(dialer.accept().await.is_none());

    let (a, mut stranger) = duplex(4_096);
    let mux = Mux::spawn(a, config(Side::Listener, "x")).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(mux.closed().await, LinkEnd::Protocol(_)));
    assert!(mux.up().await.is_err());
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).await.unwrap();
}

#[tokio::test]
async fn the_last_handle_says_goodbye() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    drop(dialer);
    far.write_bytes(Bytes::from_static(b"the link lives as long as its sessions")).await.unwrap();
    assert!(near.read_bytes().await.unwrap().is_some());
    drop(near);
    assert!(matches!(listener.closed().await, LinkEnd::Goodbye(_)));
}

#[tokio::test]
async fn a_cancelled_read_loses_nothing() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    for round in 0..200u32 {
        tokio::select! {
            biased;
            _ = far.read_bytes() => panic!("nothing was sent yet"),
            () = tokio::task::yield_now() => {}
        }
        near.write_bytes(Bytes::copy_from_slice(&round.to_be_bytes())).await.unwrap();
        assert_eq!(far.read_bytes().await.unwrap().unwrap(), &round.to_be_bytes()[..]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_at_once_over_a_splice() {
    let chain = Arc::new(chain_of_two().await);
    let far = chain.far.clone();
    tokio::spawn(async move {
        while let Some(mut session) = far.accept().await {
            session.answer(&b""[..]);
            tokio::spawn(async move {
                let mut got = Vec::new();
                session.read_to_end(&mut got).await.unwrap();
                session.write_all(&got).await.unwrap();
                session.finish().await.unwrap();
            });
        }
    });
    let mut tasks = Vec::new();
    for index in 0..200usize {
        let chain = Arc::clone(&chain);
        tasks.push(tokio::spawn(async move {
            let mut session = chain.origin.open(Bytes::new()).unwrap();
            let want = pattern(index * 1_000 + 1);
            // The far side echoes only after our end: what does not fit its memory must not be needed.
            session.write_all(&want).await.unwrap();
            session.shutdown().await.unwrap();
            let mut got = Vec::new();
            session.read_to_end(&mut got).await.unwrap();
            assert!(got == want);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn who_waits_for_the_sending_loses_nothing_by_an_abort() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    assert_eq!(near.sending().await, Ok(0));
    // More than the window of a reader that has not read yet.
    let sent = Bytes::from(pattern(200_000));
    let abort = Abort::new(Code::PEER_RESET, "done");
    let sender = async {
        near.write_bytes(sent.clone()).await.unwrap();
        while near.sending().await.unwrap() > 0 {}
        near.abort_with(abort.clone());
        assert_eq!(near.sending().await, Err(abort.clone()));
    };
    let reader = async {
        let mut got = Vec::new();
        loop {
            match far.read_bytes().await {
                Ok(bytes) => got.extend_from_slice(&bytes.unwrap()),
                Err(abort) => return (got, abort.code),
            }
        }
    };
    let ((), (got, code)) = tokio::join!(sender, reader);
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert_eq!(code, Code::PEER_RESET);
}
