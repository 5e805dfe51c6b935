//! The status server on real sockets.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::support::{Running, read_all};
use hopline_admin::{Address, CONNECTION_TIMEOUT, HEADER_TIMEOUT, MAX_CONNECTIONS, ServeError, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

#[tokio::test]
async fn it_answers_what_it_is_for() {
    let server = Running::tcp().await;
    let status = server.get("/status").await;
    assert!(status.starts_with("HTTP/1.1 200 OK\r\n"), "{status}");
    assert!(status.contains("content-type: application/json\r\n"), "{status}");
    assert!(status.contains("cache-control: no-store\r\n"), "{status}");
    assert!(status.contains("connection: close\r\n"), "{status}");
    let body: serde_json::Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["machine"], "web-1");
    assert_eq!(body["role"], "edge");
    assert_eq!(body["healthy"], false, "it has no link");
    assert_eq!(body["findings"][0]["place"], "sidecar_relay");

    let metrics = server.get("/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
    for line in [
        "hopline_healthy 0",
        "hopline_findings{level=\"bad\",place=\"sidecar_relay\",reason=\"none\"} 1",
        "hopline_mapping_sessions_total{mapping=\"of the source\"} 3",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }

    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200"));
    *server.stage.not_ready.lock().unwrap() = Some("no link is up".into());
    let unready = server.get("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
    assert!(unready.ends_with("\r\n\r\nno link is up\n"), "{unready}");
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"), "the process runs all the same");

    let page = server.get("/").await;
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.contains("content-type: text/html; charset=utf-8\r\n"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'; script-src 'sha256-"), "{page}");
    assert!(!page.contains("web-1"), "the page itself holds no data");

    for path in ["/index.html", "/statusx", "/status/", "/STATUS", "/../status", "/metrics/"] {
        let other = server.get(path).await;
        assert!(other.starts_with("HTTP/1.1 404"), "{path}: {other}");
    }
    assert!(server.get("/status?x=1").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn it_only_reads() {
    let server = Running::tcp().await;
    let ask = async |method: &str, rest: &str| {
        server
            .exchange(format!("{method} /status HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n").as_bytes())
            .await
    };
    let head = ask("HEAD", "").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "no body: {head}");
    assert!(!head.contains("content-length: 0"), "{head}");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
        let refused = ask(method, "").await;
        assert!(refused.starts_with("HTTP/1.1 405"), "{method}: {refused}");
        assert!(refused.contains("allow: GET, HEAD\r\n"), "{method}: {refused}");
    }
    let refused = ask("POST", "Content-Length: 1000000\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 405"), "without waiting for a body: {refused}");
    assert_eq!(server.stage.begun.load(Ordering::SeqCst), 1, "the HEAD alone took a snapshot");
}

#[tokio::test]
async fn a_foreign_host_is_refused() {
    let server = Running::tcp().await;
    let table = [
        ("GET /status HTTP/1.1\r\nHost: 127.0.0.1:7801\r\n\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: [::1]\r\n\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: status.example:7801\r\n\r\n", 200),
        ("GET /status HTTP/1.0\r\n\r\n", 200),
        ("GET http://localhost/status HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        ("GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /status HTTP/1.0\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /healthz HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", 421),
        ("GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        ("GET /nothing HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /status HTTP/1.1\r\n\r\n", 400),
        ("GET /status HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        ("GET /status HTTP/1.1\r\nHost: caf\u{e9}\r\n\r\n", 400),
    ];
    assert_eq!(table.len(), 13);
    for (request, wanted) in table {
        let answer = server.exchange(request.as_bytes()).await;
        assert_eq!(answer.get(9..12), Some(wanted.to_string().as_str()), "{request:?}: {answer}");
        assert_eq!(answer.contains("web-1"), wanted == 200, "{request:?}: {answer}");
    }
}

#[tokio::test]
async fn bytes_that_are_no_request_end_the_connection() {
    let server = Running::tcp().await;
    let long_header =
        format!("GET /status HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000)).into_bytes();
    let many_headers =
        format!("GET /status HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(200)).into_bytes();
    let mut noise = Vec::new();
    for index in 0u32..5_000 {
        noise.push((index.wrapping_mul(2_654_435_761) >> 24) as u8);
    }
    let table: [(&str, Vec<u8>); 7] = [
        ("tls", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("h2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("zeros", vec![0; 4_096]),
        ("noise", noise),
        ("long header", long_header),
        ("many headers", many_headers),
        ("long path", format!("GET /{} HTTP/1.1\r\n", "x".repeat(70_000)).into_bytes()),
    ];
    assert_eq!(table.len(), 7);
    for (what, bytes) in table {
        let mut stream = TcpStream::connect(server.tcp_address()).await.unwrap();
        // The server may close before it has taken everything.
        let _ = stream.write_all(&bytes).await;
        let answer = read_all(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
    }
    assert!(server.get("/status").await.starts_with("HTTP/1.1 200"), "it serves on");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_its_headers_too_slowly_is_cut() {
    let server = Running::tcp().await;
    let mut silent = TcpStream::connect(server.tcp_address()).await.unwrap();
    let mut slow = TcpStream::connect(server.tcp_address()).await.unwrap();
    let begin = Instant::now();
    let dripping = async {
        for byte in b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
            if slow.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
        let rest = read_all(&mut slow).await;
        assert!(!rest.contains("200"), "{rest}");
    };
    let waiting = async {
        assert!(!read_all(&mut silent).await.contains("200"));
        begin.elapsed()
    };
    let ((), silent_for) = tokio::join!(dripping, waiting);
    let bound = HEADER_TIMEOUT + Duration::from_secs(2);
    assert!(silent_for >= HEADER_TIMEOUT && silent_for <= bound, "{silent_for:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_cut() {
    let server = Running::tcp().await;
    *server.stage.machine.lock().unwrap() = "m".repeat(16 * 1024 * 1024);
    let mut stream = TcpStream::connect(server.tcp_address()).await.unwrap();
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    stream.readable().await.unwrap();
    tokio::time::sleep(CONNECTION_TIMEOUT + Duration::from_secs(1)).await;
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got).await;
    assert!(got.len() < 16 * 1024 * 1024, "the whole answer came: {} bytes", got.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_connections_at_once_are_all_answered() {
    let server = Running::tcp().await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(TcpStream::connect(server.tcp_address()).await.unwrap());
    }
    // The last come first, so those that wait for room cannot rely on their turn.
    let mut answers = Vec::new();
    for mut stream in streams.into_iter().rev() {
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        answers.push(tokio::spawn(async move { read_all(&mut stream).await }));
    }
    for answer in answers {
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let server = Running::tcp().await;
    let mut idle = Vec::new();
    for round in 0..3 * MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(server.tcp_address()).await.unwrap();
        // Some say a little, and no more.
        if round % 2 == 0 {
            stream.write_all(b"GET").await.unwrap();
        }
        idle.push(stream);
        if round % 16 == 0 {
            assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
        }
    }
    let began = Instant::now();
    assert!(server.get("/status").await.starts_with("HTTP/1.1 200"));
    assert!(began.elapsed() < HEADER_TIMEOUT / 2, "{:?}", began.elapsed());
    // The oldest has gone, and the newest is still there.
    assert!(
        idle[1].read(&mut [0; 1]).await.is_ok_and(|count| count == 0) || idle[1].write(b"x").await.is_err()
    );
    let newest = idle.last_mut().unwrap();
    newest.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    assert!(read_all(newest).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_snapshot_holds_up_snapshots_only() {
    let server = Running::tcp().await;
    let gate = server.stage.gate.lock().await;
    let request = b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut first = TcpStream::connect(server.tcp_address()).await.unwrap();
    first.write_all(request).await.unwrap();
    while server.stage.begun.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let mut others = Vec::new();
    for _ in 0..10 {
        let mut other = TcpStream::connect(server.tcp_address()).await.unwrap();
        other.write_all(request).await.unwrap();
        others.push(other);
    }
    for _ in 0..20 {
        assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(server.stage.begun.load(Ordering::SeqCst), 1, "one snapshot at a time");
    drop(gate);
    assert!(read_all(&mut first).await.starts_with("HTTP/1.1 200"));
    for mut other in others {
        assert!(read_all(&mut other).await.starts_with("HTTP/1.1 200"));
    }
    // Those that wait for a snapshot share it: the ten of them hardly take more than one.
    let begun = server.stage.begun.load(Ordering::SeqCst);
    assert!((2..=11).contains(&begun), "{begun}");
}

#[tokio::test]
async fn a_snapshot_that_panics_is_a_500() {
    let server = Running::tcp().await;
    *server.stage.panic.lock().unwrap() = true;
    let failed = server.get("/status").await;
    assert!(failed.starts_with("HTTP/1.1 500"), "{failed}");
    assert!(server.get("/status").await.starts_with("HTTP/1.1 200"), "the next one works");
}

#[tokio::test]
async fn a_unix_socket_is_private_and_takes_any_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("status.sock");
    let server = Running::at(&Address::Unix(path.clone())).await;
    assert_eq!(server.unix_path(), path);
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: whatever\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn addresses_that_cannot_be_served() {
    for wide in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let error = Server::bind(&Address::Tcp(wide.parse().unwrap())).await.unwrap_err();
        assert!(matches!(error, ServeError::NotLoopback(_)), "{wide}: {error}");
        assert!(error.to_string().contains("127.0.0.1:PORT"), "{error}");
    }
    let server = Running::tcp().await;
    let error = Server::bind(&server.address).await.unwrap_err();
    let wanted = format!("status address {}: in use by another process", server.tcp_address());
    assert_eq!(error.to_string(), wanted);
    let error = Server::bind(&Address::Unix("/nowhere/s.sock".into())).await.unwrap_err();
    let wanted = "status address unix:/nowhere/s.sock: the folder /nowhere does not exist";
    assert_eq!(error.to_string(), wanted);
    assert_eq!(Address::tcp("localhost", 7801).unwrap().to_string(), "127.0.0.1:7801");
    assert_eq!(Address::tcp("::1", 7801).unwrap().to_string(), "[::1]:7801");
    assert_eq!(Address::tcp("relay.example", 7801), None);
}

#[tokio::test]
async fn after_shutdown_nothing_listens() {
    let server = Running::tcp().await;
    let address = server.tcp_address();
    let mut open = TcpStream::connect(address).await.unwrap();
    open.write_all(b"GET /status HT").await.unwrap();
    server.stop().await;
    assert_eq!(read_all(&mut open).await, "");
    let error = TcpStream::connect(address).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
