//! The rows against a double of the path: byte proxies in place of sidecar and agent, a heartbeat in place of
//! a link's liveness, and a status page with the few fields that the rows read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;

use super::*;
use crate::run::print_rows;
use crate::server::LocalServer;

/// The rows measure milliseconds: the test in which all must hold has this crate's processors to itself. Rows
/// that must be red are red on a busy machine too.
static BUSY: RwLock<()> = RwLock::const_new(());

struct Double {
    server: LocalServer,
    hop: Blackhole,
    folder: tempfile::TempDir,
    tcp: SocketAddr,
    status: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

/// What the double's status page shows, and the sessions' common end.
struct State {
    open: AtomicU64,
    total: AtomicU64,
    conn_lost: AtomicBool,
    /// Refuses to name the reason for a connection to nobody.
    silent: AtomicBool,
    /// Every change ends all the sessions there are.
    deaths: watch::Sender<u64>,
}

impl Double {
    async fn start() -> Self {
        let server = LocalServer::start().await.unwrap();
        let state = Arc::new(State {
            open: AtomicU64::new(0),
            total: AtomicU64::new(0),
            conn_lost: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            deaths: watch::channel(0).0,
        });
        let folder = tempfile::tempdir().unwrap();
        let mut tasks = JoinSet::new();

        let agent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hop = Blackhole::start(agent.local_addr().unwrap()).await.unwrap();
        tasks.spawn(serve_tcp(agent, Target::Tcp(server.address()), Arc::clone(&state), false));

        let through = Target::Tcp(hop.address());
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp_address = tcp.local_addr().unwrap();
        tasks.spawn(serve_tcp(tcp, through.clone(), Arc::clone(&state), false));
        let app = UnixListener::bind(folder.path().join("app.sock")).unwrap();
        tasks.spawn(serve_unix(app, through.clone(), Arc::clone(&state)));
        let nobody = UnixListener::bind(folder.path().join("nobody.sock")).unwrap();
        tasks.spawn(async move { while nobody.accept().await.is_ok() {} });
        tasks.spawn(heartbeat(through, Arc::clone(&state)));
        let status = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let status_address = status.local_addr().unwrap();
        tasks.spawn(serve_status(status, Arc::clone(&state)));
        Self { server, hop, folder, tcp: tcp_address, status: status_address, state, _tasks: tasks }
    }

    fn stage(&self, broken: Option<Kind>) -> Stage<'_> {
        Stage {
            app: Target::Unix(self.folder.path().join("app.sock")),
            app_tcp: Target::Tcp(self.tcp),
            nobody: Target::Unix(self.folder.path().join("nobody.sock")),
            direct: Target::Tcp(self.server.address()),
            status: format!("http://{}", self.status),
            app_mapping: "demo",
            nobody_mapping: "nobody",
            hop: &self.hop,
            offline_from: Instant::now(),
            broken,
        }
    }
}

async fn serve_tcp(listener: TcpListener, upstream: Target, state: Arc<State>, counted: bool) {
    while let Ok((near, _)) = listener.accept().await {
        near.set_nodelay(true).unwrap();
        tokio::spawn(session(near, upstream.clone(), Arc::clone(&state), counted));
    }
}

async fn serve_unix(listener: UnixListener, upstream: Target, state: Arc<State>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(session(near, upstream.clone(), Arc::clone(&state), true));
    }
}

async fn session(mut near: impl crate::target::Stream, upstream: Target, state: Arc<State>, counted: bool) {
    let mut dead = state.deaths.subscribe();
    dead.mark_unchanged();
    let count = u64::from(counted);
    state.total.fetch_add(count, Relaxed);
    state.open.fetch_add(count, Relaxed);
    if let Ok(mut far) = upstream.connect().await {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            _ = dead.changed() => {}
        }
    }
    state.open.fetch_sub(count, Relaxed);
}

/// Calls through the hop; a call that is not answered within a second is the death of all sessions.
async fn heartbeat(through: Target, state: Arc<State>) {
    let beat = Duration::from_millis(100);
    loop {
        let beating = async {
            let mut client = through.client().await.ok()?;
            loop {
                let answer = tokio::time::timeout(Duration::from_secs(1), super::echo(&mut client, b"beat"));
                answer.await.ok()?.ok()?;
                tokio::time::sleep(beat).await;
            }
        };
        let _stopped: Option<()> = beating.await;
        state.conn_lost.store(true, Relaxed);
        state.deaths.send_modify(|deaths| *deaths += 1);
        tokio::time::sleep(beat).await;
    }
}

async fn serve_status(listener: TcpListener, state: Arc<State>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        assert!(request.starts_with(b"GET /status HTTP/1.1\r\n"));
        let error =
            |shown: bool, reason: &str| shown.then(|| json!({ "reason": reason, "hop": 1, "message": "" }));
        let body = json!({
            "machine": "double",
            "mappings": [
                { "name": "nobody", "listen": "unix:nobody.sock", "sessions": { "open": 0, "total": 0 },
                  "last_error": error(!state.silent.load(Relaxed), "offline") },
                { "name": "demo", "listen": "unix:app.sock", "last_error": error(state.conn_lost.load(Relaxed), "conn_lost"),
                  "sessions": { "open": state.open.load(Relaxed), "total": state.total.load(Relaxed) } },
            ],
        })
        .to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_holds_on_a_healthy_path() {
    let _alone = BUSY.write().await;
    let double = Double::start().await;
    let mut out = Vec::new();
    let held = print_rows(&double.stage(None), true, &mut out).await.unwrap();
    let table: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert!(held, "{table:#}");
    assert_eq!(table["all_held"], true);
    assert_eq!(table["rows"].as_array().unwrap().len(), 8);
}

/// What the row measures when its own fault is in the way; it must not hold.
async fn broken(kind: Kind) -> String {
    let _beside_others = BUSY.read().await;
    let double = Double::start().await;
    let row = measure(kind, &double.stage(Some(kind))).await;
    assert!(!row.held, "{row:?}");
    row.measured
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_a_connection_that_is_cut_are_red() {
    let measured = broken(Kind::Unary).await;
    assert!(measured.contains("failed, first "), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_way_shows_in_what_is_left_of_a_deadline() {
    let measured = broken(Kind::Deadline).await;
    assert!(measured.contains("best of 3 tries"), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_way_shows_in_the_handlers_end_at_a_deadline() {
    let measured = broken(Kind::Never).await;
    assert!(measured.contains("CANCELLED \"Timeout expired\""), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_way_shows_in_the_handlers_end_after_a_cancel() {
    broken(Kind::Cancel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_flipped_bit_in_100_mib_is_red() {
    let measured = broken(Kind::Bulk).await;
    assert!(measured.contains("NOT equal on the way there and back"), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_session_beside_the_channels_is_red() {
    let measured = broken(Kind::Session).await;
    assert!(measured.starts_with("2 new"), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hop_that_does_not_die_is_red() {
    let measured = broken(Kind::DeadHop).await;
    assert!(measured.contains("still open") && measured.contains("still running"), "{measured}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_refusal_is_red() {
    broken(Kind::Offline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_without_its_reason_is_red() {
    let _beside_others = BUSY.read().await;
    let double = Double::start().await;
    double.state.silent.store(true, Relaxed);
    let row = measure(Kind::Offline, &double.stage(None)).await;
    assert!(!row.held && row.measured.contains("no error"), "{row:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_not_there_is_red_and_not_an_error() {
    let _beside_others = BUSY.read().await;
    let double = Double::start().await;
    let mut stage = double.stage(None);
    stage.app = Target::Unix(double.folder.path().join("missing.sock"));
    let row = measure(Kind::Unary, &stage).await;
    assert!(!row.held && row.measured.contains("missing.sock"), "{row:?}");
}

#[tokio::test]
async fn the_best_try_is_kept_and_counted() {
    let mut figures = vec![3.0, 1.0, 2.0].into_iter();
    let outcome =
        best_of(async || Ok(Outcome::timed(figures.next().unwrap(), "late".to_owned()))).await.unwrap();
    assert_eq!((outcome.off, outcome.held, outcome.tries), (1.0, false, 3));
    assert_eq!(outcome.measured, "late; best of 3 tries, 1.0 ms outside");

    let mut figures = vec![3.0, 0.0].into_iter();
    let outcome =
        best_of(async || Ok(Outcome::timed(figures.next().unwrap(), "fine".to_owned()))).await.unwrap();
    assert_eq!((outcome.held, outcome.tries), (true, 2));
    assert_eq!(outcome.measured, "fine; try 2, after 3.0 ms outside");

    let outcome = best_of(async || Ok(Outcome::timed(-1.0, "fine".to_owned()))).await.unwrap();
    assert_eq!((outcome.measured.as_str(), outcome.tries), ("fine; first try", 1));
}
