//! Beside the h2 crate, on the same bytes: what its server and client were told, a watcher counted, or it gave up.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

#[expect(dead_code, reason = "shared with the other tests")]
mod words;

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::{client, server};
use hopline_h2_watch::{EndedBy, Inspect, Limits, MappingWatch};
use http::{HeaderMap, HeaderValue, Request, Response};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use words::Talk;

const BUFFER: usize = 1 << 20;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Carries bytes between two pipes and shows them to a watcher, in random pieces.
async fn carry(mut client: DuplexStream, mut server: DuplexStream, talk: &mut Talk, rng: &mut ChaCha8Rng) {
    let (mut up, mut down) = (vec![0; 8_192], vec![0; 8_192]);
    loop {
        let most = rng.random_range(1..4_096);
        tokio::select! {
            biased;
            count = client.read(&mut up[..most]) => match count {
                Ok(count @ 1..) => {
                    talk.client(&up[..count]);
                    if server.write_all(&up[..count]).await.is_err() { return }
                }
                _ => return,
            },
            count = server.read(&mut down[..most]) => match count {
                Ok(count @ 1..) => {
                    talk.server(&down[..count]);
                    if client.write_all(&down[..count]).await.is_err() { return }
                }
                _ => return,
            },
        }
    }
}

/// What the peers know of the calls that they made.
#[derive(Debug, Default, PartialEq)]
struct Truth {
    calls: u64,
    others: u64,
    timeouts: Duration,
    ended: [u64; 18],
}

/// A request of any kind: plain, with fields that are kept, secret, long, coded.
fn any_request(rng: &mut ChaCha8Rng, truth: &mut Truth) -> Request<()> {
    let grpc = rng.random_bool(0.9);
    let mut request = Request::post(format!("http://localhost/pkg.Service/Method{}", rng.random_range(0..5)));
    if grpc {
        truth.calls += 1;
        request = request.header("content-type", "application/grpc").header("te", "trailers");
        let millis = rng.random_range(1..50_000_u32);
        truth.timeouts += Duration::from_millis(millis.into());
        request = request.header("grpc-timeout", format!("{millis}m"));
    } else {
        truth.others += 1;
    }
    for field in 0..rng.random_range(0..6) {
        let length = if rng.random_bool(0.02) { 17_000 } else { rng.random_range(0..60) };
        let text: String = (0..length).map(|_| char::from(rng.random_range(0x20_u8..0x7f))).collect();
        let mut value = HeaderValue::from_str(text.trim()).unwrap();
        value.set_sensitive(rng.random_bool(0.2));
        request = request.header(format!("x-field-{field}"), value);
    }
    request.body(()).unwrap()
}

async fn serve(io: DuplexStream, table: u32) {
    let mut builder = server::Builder::new();
    builder.max_header_list_size(1 << 20).header_table_size(table);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(io).await else { return };
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let status = request.uri().path().bytes().last().unwrap_or(b'0') - b'0';
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from(u16::from(status) * 4));
        let answer = Response::builder().header("content-type", "application/grpc");
        if status == 4 {
            let answer = answer.header("grpc-status", "16").body(()).unwrap();
            respond.send_response(answer, true).unwrap();
        } else {
            let mut body = respond.send_response(answer.body(()).unwrap(), false).unwrap();
            body.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), false).unwrap();
            body.send_trailers(trailers).unwrap();
        }
    }
}

/// Calls by an h2 client to an h2 server; what both of them said is what was counted.
async fn converse(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (client_io, near) = duplex(BUFFER);
    let (far, server_io) = duplex(BUFFER);
    let table = |rng: &mut ChaCha8Rng| [0, 100, 4_096, 65_536][rng.random_range(0..4)];
    tokio::spawn(serve(server_io, table(&mut rng)));
    let mut builder = client::Builder::new();
    builder.header_table_size(table(&mut rng)).max_header_list_size(1 << 20);
    let mut truth = Truth::default();
    let count = rng.random_range(1..20);
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(any_request(&mut rng, &mut truth));
    }
    let calls = tokio::spawn(async move {
        let (mut send, connection) = builder.handshake::<_, Bytes>(client_io).await.unwrap();
        let driver = tokio::spawn(connection);
        let mut statuses = Vec::new();
        for request in requests {
            let grpc = request.headers().contains_key("grpc-timeout");
            poll_fn(|cx| send.poll_ready(cx)).await.unwrap();
            let (response, _) = send.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            let header = response.headers().get("grpc-status").cloned();
            let mut body = response.into_body();
            while let Some(data) = body.data().await {
                body.flow_control().release_capacity(data.unwrap().len()).unwrap();
            }
            let trailers = body.trailers().await.unwrap().unwrap_or_default();
            let status = header.or_else(|| trailers.get("grpc-status").cloned()).unwrap();
            if grpc {
                statuses.push(status.to_str().unwrap().parse::<usize>().unwrap());
            }
        }
        drop(send);
        driver.await.unwrap().unwrap();
        statuses
    });
    let mut talk = Talk::fresh();
    carry(near, far, &mut talk, &mut rng).await;
    for status in calls.await.unwrap() {
        truth.ended[status] += 1;
    }
    assert_eq!(talk.watcher.inspect(), Inspect::H2c, "seed {seed}");
    let counters = talk.counters();
    let seen = Truth {
        calls: counters.calls,
        others: counters.other_requests,
        timeouts: counters.deadline_left.sum(),
        ended: counters.ended,
    };
    assert_eq!(seen, truth, "seed {seed}");
}

#[test]
fn calls_of_an_h2_client_to_an_h2_server() {
    for seed in 0..100 {
        block_on(converse(seed));
    }
}

/// The bytes of an h2 client that makes a few calls and waits.
async fn client_bytes(seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (io, mut far) = duplex(BUFFER);
    let mut truth = Truth::default();
    let (mut send, mut connection) = client::handshake(io).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..rng.random_range(1..8) {
        poll_fn(|cx| send.poll_ready(cx)).await.unwrap();
        waiting.push(send.send_request(any_request(&mut rng, &mut truth), true).unwrap());
        // Each poll writes what there is.
        assert!(
            poll_fn(|cx| std::task::Poll::Ready(Future::poll(std::pin::Pin::new(&mut connection), cx)))
                .await
                .is_pending()
        );
    }
    drop((connection, send, waiting));
    let mut bytes = Vec::new();
    far.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// What an h2 server makes of these bytes: calls, and the sum of their deadlines.
async fn server_view(bytes: &[u8]) -> (u64, Duration) {
    let (io, mut near) = duplex(BUFFER);
    near.write_all(bytes).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(near);
    let end = tokio::spawn(async move { writer.shutdown().await });
    let drain = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    let mut seen = (0, Duration::ZERO);
    if let Ok(mut connection) = server::handshake(io).await {
        while let Some(Ok((request, _respond))) = connection.accept().await {
            let field = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
            if field("content-type") == Some("application/grpc") {
                seen.0 += 1;
                let millis = field("grpc-timeout").and_then(|text| text.strip_suffix('m'));
                let millis =
                    millis.filter(|text| text.len() <= 8 && text.bytes().all(|b| b.is_ascii_digit()));
                seen.1 +=
                    Duration::from_millis(millis.and_then(|text| text.parse().ok()).unwrap_or_default());
            }
        }
    }
    end.abort();
    drain.abort();
    seen
}

/// Bytes with faults in them. A watcher may see calls that the server refused; where they agree on the number, they
/// agree on the deadlines, and it never sees fewer unless it gave up.
#[test]
fn faulty_bytes_and_an_h2_server() {
    let (mut equal, mut gave_up, mut more) = (0, 0, 0);
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (bytes, (calls, timeouts)) = block_on(async {
            let mut bytes = client_bytes(seed).await;
            for _ in 0..rng.random_range(0..4) {
                let at = rng.random_range(24..bytes.len());
                bytes[at] = bytes[at].wrapping_add(rng.random_range(1..255));
            }
            let view = server_view(&bytes).await;
            (bytes, view)
        });
        let mut talk = Talk::fresh();
        talk.mapping = MappingWatch::new(true, Limits::default(), talk.now);
        talk.watcher = talk.mapping.connect(talk.now);
        talk.client(&bytes);
        let inspect = talk.watcher.inspect();
        talk.watcher.close(EndedBy::Application, talk.now);
        let counters = talk.counters();
        if matches!(inspect, Inspect::GaveUp(_)) {
            gave_up += 1;
        } else if counters.calls == calls {
            assert_eq!(counters.deadline_left.sum(), timeouts, "seed {seed}");
            equal += 1;
        } else {
            assert!(counters.calls > calls, "seed {seed}: {} and {calls}", counters.calls);
            more += 1;
        }
    }
    assert!(equal > 75 && gave_up > 20, "equal {equal}, gave up {gave_up}, more {more}");
}
