use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
}
const BOTH: [Kind; 2] = [Kind::Tcp, Kind::Unix];

/// An application's end, with blocking calls.
struct App(socket2::Socket);

impl App {
    fn half_close(&self) {
        self.0.shutdown(Shutdown::Write).unwrap();
    }

    fn reset(self) {
        self.0.set_linger(Some(Duration::ZERO)).unwrap();
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn read(&mut self, size: usize) {
        let mut bytes = vec![0; size];
        self.0.read_exact(&mut bytes).unwrap();
    }
}

async fn pair(kind: Kind) -> (LocalStream, App) {
    match kind {
        Kind::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let app = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            (LocalStream::from(stream), App(app.into()))
        }
        Kind::Unix => {
            let (stream, app) = std::os::unix::net::UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            (LocalStream::from(UnixStream::from_std(stream).unwrap()), App(app.into()))
        }
    }
}

/// In virtual time this ends as soon as nothing is left to happen.
async fn stays(stream: &LocalStream) -> bool {
    tokio::time::timeout(Duration::from_secs(3_600), gone(stream)).await.is_err()
}

/// In real time: the kernel may need a moment to bring the news.
async fn leaves(stream: &LocalStream) -> bool {
    in_real_time(gone(stream)).await
}

async fn in_real_time(leaving: impl Future<Output = ()>) -> bool {
    tokio::time::resume();
    let left = tokio::time::timeout(Duration::from_secs(20), leaving).await.is_ok();
    tokio::time::pause();
    left
}

async fn send(stream: &LocalStream, bytes: &[u8]) {
    std::future::poll_fn(|cx| stream.poll_write_ready(cx)).await.unwrap();
    assert_eq!(stream.try_write(bytes).unwrap(), bytes.len());
}

async fn read_to_end(stream: &mut LocalStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test(start_paused = true)]
async fn an_application_that_is_there_stays() {
    for kind in BOTH {
        let (stream, mut app) = pair(kind).await;
        assert!(stays(&stream).await, "{kind:?}: idle");
        app.write(b"unread");
        assert!(stays(&stream).await, "{kind:?}: with unread data");
    }
}

#[tokio::test(start_paused = true)]
async fn a_half_close_is_no_leaving() {
    for kind in BOTH {
        for unread in [0, 1, 10_000] {
            let (mut stream, mut app) = pair(kind).await;
            app.write(&vec![7; unread]);
            app.half_close();
            assert!(stays(&stream).await, "{kind:?}, {unread} unread");
            assert_eq!(read_to_end(&mut stream).await.len(), unread);
            assert_eq!(end_of_stream(&stream), StreamEnd::HalfClosed, "{kind:?}");
            assert!(stays(&stream).await, "{kind:?}, its end was read");
            send(&stream, b"reply").await;
            app.read(5);
            assert!(stays(&stream).await, "{kind:?}, it reads on");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_close_of_a_unix_socket_is_leaving() {
    for unread in [0, 1, 10_000] {
        let (mut stream, mut app) = pair(Kind::Unix).await;
        app.write(&vec![7; unread]);
        drop(app);
        assert!(leaves(&stream).await, "{unread} unread");
        assert_eq!(read_to_end(&mut stream).await.len(), unread, "what it had sent is still there");
        assert_eq!(end_of_stream(&stream), StreamEnd::Gone);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_leaving() {
    for unread in [0, 1, 10_000] {
        let (stream, mut app) = pair(Kind::Tcp).await;
        app.write(&vec![7; unread]);
        app.reset();
        assert!(leaves(&stream).await, "{unread} unread");
        // It was only looked at: the error is still the reader's.
        let mut byte = [0; 1];
        assert_eq!(stream.try_read(&mut byte).is_ok(), unread > 0, "{unread} unread");
    }
}

#[tokio::test(start_paused = true)]
async fn a_close_over_unread_bytes_of_ours_is_leaving() {
    for kind in BOTH {
        let (stream, app) = pair(kind).await;
        send(&stream, b"never read").await;
        drop(app);
        assert!(leaves(&stream).await, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_tcp_application_is_told_by_the_next_write() {
    let (mut stream, app) = pair(Kind::Tcp).await;
    drop(app);
    assert!(stays(&stream).await, "a FIN alone may be a half-close");
    assert_eq!(read_to_end(&mut stream).await, b"");
    assert_eq!(end_of_stream(&stream), StreamEnd::HalfClosed);
    send(&stream, b"is anybody there").await;
    assert!(leaves(&stream).await);
    assert_eq!(end_of_stream(&stream), StreamEnd::Gone);
}

#[tokio::test(start_paused = true)]
async fn leaving_wakes_whoever_waits_after_a_half_close() {
    for kind in BOTH {
        let (stream, app) = pair(kind).await;
        app.half_close();
        let mut waiting = pin!(gone(&stream));
        assert!(tokio::time::timeout(Duration::from_secs(60), &mut waiting).await.is_err(), "{kind:?}");
        match kind {
            Kind::Tcp => app.reset(),
            Kind::Unix => drop(app),
        }
        assert!(in_real_time(waiting).await, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_directions_ended_is_no_leaving() {
    for kind in BOTH {
        let (mut stream, app) = pair(kind).await;
        stream.shutdown_write().unwrap();
        assert!(stays(&stream).await, "{kind:?}: ours");
        app.half_close();
        assert_eq!(read_to_end(&mut stream).await, b"");
        assert_eq!(end_of_stream(&stream), StreamEnd::HalfClosed, "{kind:?}");
        assert!(stays(&stream).await, "{kind:?}: both");
        drop(app);
        assert!(stays(&stream).await, "{kind:?}: a clean end");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_after_our_end_is_leaving() {
    let (stream, app) = pair(Kind::Tcp).await;
    stream.shutdown_write().unwrap();
    app.reset();
    assert!(leaves(&stream).await, "reset");
    for kind in BOTH {
        let (stream, app) = pair(kind).await;
        send(&stream, b"never read").await;
        stream.shutdown_write().unwrap();
        drop(app);
        assert!(leaves(&stream).await, "{kind:?}: closed over unread bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_application_has_left() {
    for kind in BOTH {
        let (stream, app) = pair(kind).await;
        // Unread bytes: without them the FIN of a killed TCP application looks like a half-close.
        send(&stream, b"never read").await;
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(OwnedFd::from(app.0)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stayed = stays(&stream).await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stayed, "{kind:?}");
        assert!(leaves(&stream).await, "{kind:?}");
    }
}

struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn traffic_and_a_half_close_wake_nobody() {
    for kind in BOTH {
        let (stream, mut app) = pair(kind).await;
        let wakes = Arc::new(Wakes(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut waiting = pin!(gone(&stream));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for _ in 0..200 {
            app.write(b"request");
            send(&stream, &[1; 1_000]).await;
            app.read(1_000);
            // Lets the runtime look at the sockets.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        app.half_close();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "{kind:?}");
        match kind {
            Kind::Tcp => app.reset(),
            Kind::Unix => drop(app),
        }
        let woken = async {
            while wakes.0.load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(in_real_time(woken).await, "{kind:?}: and the leaving does");
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_dropped_does_not_delay_a_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut app = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let stream = LocalStream::from(listener.accept().await.unwrap().0);
    assert!(stays(&stream).await);
    stream.reset();
    let error = app.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(SockRef::from(&app).take_error().unwrap().is_none());
}
