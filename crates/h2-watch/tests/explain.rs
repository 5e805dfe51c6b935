//! Cuts that speak (promise P19): a real HTTP/2 client takes every end that is injected, wherever the cut falls.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::client;
use hopline_h2_watch::Cause;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use words::*;

const CAUSE: Cause<'static> = Cause {
    reason: "conn_lost",
    hop: 1,
    between: Some(("relay-a", "db-1")),
    silent: Some(Duration::from_millis(15_000)),
};
const MESSAGE: &str = "hopline: conn_lost at hop 1, relay-a to db-1, silent for 15.0 s";

/// How a call ended for the client.
#[derive(Clone, Debug, PartialEq)]
enum End {
    Status(String, String),
    Broken,
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(future)
}

fn status_of(fields: &http::HeaderMap) -> Option<End> {
    let text = |name| fields.get(name).map(|value| value.to_str().unwrap().to_owned());
    Some(End::Status(text("grpc-status")?, text("grpc-message").unwrap_or_default()))
}

async fn outcome(response: client::ResponseFuture) -> End {
    let Ok(response) = response.await else { return End::Broken };
    assert_eq!(response.status(), 200);
    if let Some(end) = status_of(response.headers()) {
        return end;
    }
    let mut body = response.into_body();
    while let Some(data) = body.data().await {
        let Ok(data) = data else { return End::Broken };
        let _ = body.flow_control().release_capacity(data.len());
    }
    match body.trailers().await {
        Ok(Some(trailers)) => status_of(&trailers).expect("trailers have a status"),
        _ => End::Broken,
    }
}

/// Reads from the client until it has asked for so many streams.
async fn read_requests(io: &mut (impl AsyncReadExt + Unpin), streams: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4_096];
    loop {
        let mut rest = bytes.get(24..).unwrap_or_default();
        let mut seen = 0;
        while let Some((head, after)) = rest.split_at_checked(9) {
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            let Some((_, after)) = after.split_at_checked(length) else { break };
            seen += usize::from(head[3] == HEADERS);
            rest = after;
        }
        if seen == streams && rest.is_empty() {
            return bytes;
        }
        let count = io.read(&mut piece).await.unwrap();
        assert!(count > 0);
        bytes.extend_from_slice(&piece[..count]);
    }
}

/// Plays a server that is cut off after `said`: reads the calls, says that much, then what is injected, and closes.
/// Whether something was.
async fn speak(far: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), said: &[u8], streams: usize) -> bool {
    let mut talk = Talk::fresh();
    talk.client(&read_requests(far, streams).await);
    talk.server(said);
    far.write_all(said).await.unwrap();
    let explained = talk.watcher.explain(&CAUSE);
    if let Some(bytes) = &explained {
        far.write_all(bytes).await.unwrap();
    }
    far.shutdown().await.unwrap();
    explained.is_some()
}

/// What became of the calls of a client whose server was cut off after `said`; None if nothing could be injected.
async fn cut(said: &[u8], streams: usize, table: u32) -> (bool, Vec<End>) {
    let (io, mut far) = duplex(1 << 20);
    let mut builder = client::Builder::new();
    builder.header_table_size(table);
    let (mut send, connection) = builder.handshake::<_, Bytes>(io).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut calls = Vec::new();
    for _ in 0..streams {
        poll_fn(|cx| send.poll_ready(cx)).await.unwrap();
        let request = Request::post("http://localhost/a.B/C").header("content-type", "application/grpc");
        let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
        calls.push(tokio::spawn(outcome(response)));
    }
    let explained = speak(&mut far, said, streams).await;
    // What it sends meanwhile goes nowhere.
    let drain = tokio::spawn(async move { tokio::io::copy(&mut far, &mut tokio::io::sink()).await });
    let mut ends = Vec::new();
    for call in calls {
        ends.push(call.await.unwrap());
    }
    drop(send);
    if let Err(error) = driver.await.unwrap() {
        assert!(!error.is_library(), "the client found a fault after {} bytes: {error}", said.len());
    }
    drain.abort();
    (explained, ends)
}

/// A response's frames, and what a call on each stream may end with after so many of them.
struct Said {
    bytes: Vec<u8>,
    /// Ends of frames, and whether a header block is open there.
    boundaries: Vec<(usize, bool)>,
}

impl Said {
    fn push(&mut self, bytes: &[u8], open: bool) {
        self.bytes.extend_from_slice(bytes);
        self.boundaries.push((self.bytes.len(), open));
    }
}

/// Stream 1 is answered whole, 3 has a response in pieces, 5 gets trailers alone, 7 nothing.
fn said() -> Said {
    let mut said = Said { bytes: Vec::new(), boundaries: vec![(0, false)] };
    said.push(&settings(&[(3, 100)]), false);
    said.push(&frame(SETTINGS, ACK, 0, &[]), false);
    said.push(&response(1), false);
    said.push(&message(1, 5), false);
    let block = block(&[(":status", "200"), ("content-type", "application/grpc")]);
    said.push(&frame(HEADERS, 0, 3, &block[..20]), true);
    said.push(&frame(CONTINUATION, END_HEADERS, 3, &block[20..]), false);
    said.push(&ping(0, 7), false);
    said.push(&trailers(1, "0", "fine"), false);
    said.push(&frame(DATA, 0, 3, &[0, 0, 0, 0, 6, 1, 2]), false);
    said.push(&frame(DATA, 0, 3, &[3, 4, 5, 6]), false);
    said.push(&frame(DATA, 8, 3, &[1, 0, 0, 0, 0, 0, 0]), false);
    said.push(
        &headers(5, END_STREAM, &[(":status", "200"), ("grpc-status", "5"), ("grpc-message", "no")]),
        false,
    );
    said.push(&goaway(0x7fff_ffff, 0, "leaving"), false);
    said.push(&message(3, 0), false);
    said
}

/// Checks what a client made of a server that was cut off at each byte of what it said.
fn check_every_byte(said: &Said, mut cut: impl FnMut(usize) -> (bool, Vec<End>)) {
    let explained = End::Status("14".to_owned(), MESSAGE.to_owned());
    let (mut spoke, mut silent) = (0, 0);
    for at in 0..=said.bytes.len() {
        let (injected, ends) = cut(at);
        let whole = said.boundaries.iter().position(|(end, open)| *end == at && !open);
        assert_eq!(injected, whole.is_some(), "after {at} bytes");
        let Some(frames) = whole else {
            silent += 1;
            assert_eq!(ends[3], End::Broken, "after {at} bytes");
            continue;
        };
        spoke += 1;
        let fine = End::Status("0".to_owned(), "fine".to_owned());
        let refused = End::Status("5".to_owned(), "no".to_owned());
        // Between the two pieces of its message, stream 3 ends with the connection.
        let third = if frames == 9 { End::Broken } else { explained.clone() };
        let expected = [
            if frames >= 8 { fine } else { explained.clone() },
            third,
            if frames >= 12 { refused } else { explained.clone() },
            explained.clone(),
        ];
        assert_eq!(ends, expected, "after {at} bytes, {frames} frames");
    }
    assert_eq!((spoke, spoke + silent), (said.boundaries.len() - 1, said.bytes.len() + 1));
}

#[test]
fn a_client_takes_every_end_at_every_byte() {
    let said = said();
    check_every_byte(&said, |at| block_on(cut(&said.bytes[..at], 4, 4_096)));
}

#[test]
#[ignore = "needs Node.js, whose HTTP/2 is nghttp2: cargo test -p hopline-h2-watch --test explain -- --ignored"]
fn nghttp2_takes_every_end_at_every_byte() {
    let said = said();
    let cuts = said.bytes.len() + 1;
    let (spoke, lines) = block_on(nghttp2(&said, cuts));
    assert_eq!((spoke.len(), lines.len()), (cuts, cuts));
    check_every_byte(&said, |at| {
        // ERR_HTTP2_ERROR is nghttp2's own word for bytes that it does not take.
        let (ends, error) = &lines[at];
        assert!(!error.contains("ERR_HTTP2_ERROR"), "after {at} bytes: {error}");
        (spoke[at], ends.clone())
    });
}

/// Whether something was injected after each byte, and what a client on nghttp2 made of it: its calls' ends, and the
/// error of its session.
async fn nghttp2(said: &Said, cuts: usize) -> (Vec<bool>, Vec<(Vec<End>, String)>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = std::process::Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nghttp2/client.mjs"))
        .args([port.to_string(), cuts.to_string(), "4".to_owned()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("Node.js");
    let mut spoke = Vec::new();
    for at in 0..cuts {
        let (mut far, _) = listener.accept().await.unwrap();
        spoke.push(speak(&mut far, &said.bytes[..at], 4).await);
        // Until the client has closed: unread bytes would make a reset of our close, before it has read all.
        tokio::io::copy(&mut far, &mut tokio::io::sink()).await.unwrap();
    }
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    (spoke, text.lines().map(read_line).collect())
}

/// `{"ends":[["14","why"],null],"error":null}`, as the client prints it. No text in it has a quote or a backslash.
fn read_line(line: &str) -> (Vec<End>, String) {
    let (ends, error) = line.strip_prefix("{\"ends\":[").unwrap().split_once("],\"error\":").unwrap();
    let ends = ends.replace("null", "[\"\",\"\"]");
    let ends = ends.split("],[").map(|end| {
        let mut texts = end.split('"').skip(1).step_by(2).map(str::to_owned);
        let (status, message) = (texts.next().unwrap(), texts.next().unwrap());
        if status.is_empty() { End::Broken } else { End::Status(status, message) }
    });
    (ends.collect(), error.to_owned())
}

#[test]
fn a_client_that_has_lowered_its_table() {
    let hello = [settings(&[]), frame(SETTINGS, ACK, 0, &[])].concat();
    for table in [0, 64, 4_096] {
        let (injected, ends) = block_on(cut(&hello, 2, table));
        assert!(injected);
        assert_eq!(ends, vec![End::Status("14".to_owned(), MESSAGE.to_owned()); 2], "{table}");
    }
}

#[test]
fn the_table_is_announced_once_and_only_where_it_was_lowered() {
    let injected = |table: u32, blocks: &[u8]| {
        let mut talk = Talk::fresh();
        talk.client(&[PREFACE, &settings(&[(1, table)]), &request(1, "1S"), &request(3, "1S")].concat());
        talk.server(&[settings(&[]), blocks.to_vec()].concat());
        let bytes = talk.watcher.explain(&CAUSE).unwrap();
        bytes.windows(2).filter(|two| *two == [0x20, 0x88] || *two == [0x20, 0x10]).count()
    };
    assert_eq!(injected(4_096, &[]), 0);
    assert_eq!(injected(0, &[]), 1);
    let said = frame(HEADERS, END_HEADERS, 1, &[0x20, 0x88]);
    assert_eq!(injected(0, &said), 0);
}

#[test]
fn who_gets_nothing() {
    // Nobody speaks HTTP/2, or nobody has spoken yet, or the watcher gave up.
    let mut talk = Talk::fresh();
    assert_eq!(talk.watcher.explain(&CAUSE), None);
    talk.client(&[PREFACE, &settings(&[])].concat());
    assert_eq!(talk.watcher.explain(&CAUSE), None, "still connecting");
    talk.server(&settings(&[]));
    let bare = goaway(0, 0, MESSAGE);
    assert_eq!(talk.watcher.explain(&CAUSE).unwrap(), bare, "connected, without a call");
    // A call that the client has reset, one that is none, one beyond the server's own GOAWAY.
    talk.client(&[request(1, "1S"), reset(1, 8), headers(3, 0, &[(":method", "GET")])].concat());
    assert_eq!(talk.watcher.explain(&CAUSE).unwrap(), goaway(3, 0, MESSAGE));
    talk.client(&[request(5, "1S"), request(7, "1S")].concat());
    talk.server(&goaway(5, 0, "leaving"));
    let bytes = talk.watcher.explain(&CAUSE).unwrap();
    assert!(bytes.ends_with(&goaway(5, 0, MESSAGE)));
    assert_eq!((bytes[3], bytes[8]), (HEADERS, 5));
    assert_eq!(bytes.windows(4).filter(|four| *four == b"grpc").count(), 3, "one call");
    talk.server(&[goaway(3, 0, "leaving"), goaway(0x7fff_ffff, 0, "leaving")].concat());
    assert_eq!(talk.watcher.explain(&CAUSE).unwrap(), goaway(3, 0, MESSAGE), "the lowest that was said");
    talk.server(&frame(PING, 0, 0, &[1]));
    assert_eq!(talk.watcher.explain(&CAUSE), None, "gave up");
}

/// Inside a message grpc-go would read INTERNAL; others take it.
#[test]
fn inside_a_message_it_depends_on_the_client() {
    for (agent, speaks) in
        [("grpc-go/1.85.0", false), ("tonic/0.14.9", true), ("grpc-java-netty/1.85.1", false)]
    {
        let mut talk = Talk::begin();
        talk.client(&request_of(1, "1S", "localhost", agent));
        talk.server(&[response(1), frame(DATA, 0, 1, &[0, 0, 0, 0, 9, 1])].concat());
        talk.counters();
        let bytes = talk.watcher.explain(&CAUSE).unwrap();
        assert_eq!(bytes[3] == HEADERS, speaks, "{agent}");
        assert!(bytes.ends_with(&goaway(1, 0, MESSAGE)));
    }
}

#[test]
fn a_long_message_is_cut_and_escaped() {
    let mut talk = Talk::begin();
    talk.client(&request(1, "1S"));
    let name = "ä%".repeat(400);
    let bytes = talk.watcher.explain(&Cause { between: Some((&name, "b")), ..CAUSE }).unwrap();
    assert!(bytes.len() < 16_384);
    let hello = [settings(&[]), frame(SETTINGS, ACK, 0, &[])].concat();
    let (_, ends) = block_on(cut(&hello, 1, 4_096));
    assert_eq!(ends[0], End::Status("14".to_owned(), MESSAGE.to_owned()));
}
