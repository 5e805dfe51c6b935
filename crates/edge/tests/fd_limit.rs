//! What the local sockets do when the process has no file descriptors left (F28). Alone in its program, because the
//! limit is the whole process's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hopline_edge::local::{ListenSpec, LocalListener, gone};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Counts what is logged at `INFO` and above.
struct Counting(Arc<AtomicUsize>);

impl tracing::Subscriber for Counting {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Takes every file descriptor that the process may still open.
fn use_up() -> Vec<std::fs::File> {
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

#[tokio::test]
async fn f28_without_descriptors_it_waits_and_comes_back() {
    let lines = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Counting(Arc::clone(&lines))).expect("the only one");
    let spec = ListenSpec::Tcp { host: "127.0.0.1".into(), port: 0 };
    let mut listener = LocalListener::bind("ledger", &spec).await.unwrap();
    let health = listener.health();
    let address = listener.tcp_addresses()[0];
    let mut old_app = TcpStream::connect(address).await.unwrap();
    let mut old = listener.accept().await;
    assert_eq!(health.trouble(), None);

    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: limit.maximum }).unwrap();
    // The new application's descriptor is the last one; none is left to accept it.
    let mut taken = use_up();
    drop(taken.pop());
    let mut new_app = TcpStream::connect(address).await.unwrap();

    let begin = Instant::now();
    // Cancelled again and again, as in a loop that has other things to do: the pause must hold all the same.
    while health.trouble().is_none_or(|trouble| trouble.failures < 4) {
        let accepted = tokio::time::timeout(Duration::from_millis(5), listener.accept()).await;
        assert!(accepted.is_err(), "accepted without a descriptor");
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300), "four tries in {took:?}");
    let trouble = health.trouble().unwrap();
    assert!(trouble.message.contains("Too many open files"), "{}", trouble.message);
    assert_eq!(lines.load(Ordering::SeqCst), 1, "one line for four failures");

    // The existing connection works on, and its watch waits rather than ends.
    old_app.write_all(b"x").await.unwrap();
    let mut byte = [0; 1];
    old.read_exact(&mut byte).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(50), gone(&old)).await.is_err());

    drop(taken);
    let mut stream =
        tokio::time::timeout(Duration::from_secs(20), listener.accept()).await.expect("it comes back");
    assert_eq!(health.trouble(), None);
    new_app.write_all(b"y").await.unwrap();
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(byte, *b"y");
    assert_eq!(lines.load(Ordering::SeqCst), 1, "nor a line for each recovery");
}
