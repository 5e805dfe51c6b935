//! gRPC through the path: a tonic client on the mappings, a tonic server behind the agent.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use hopline_demo::proto::v1::demo_client::DemoClient;
use hopline_demo::proto::v1::pipe_reply::Kind as Reply;
use hopline_demo::proto::v1::{DeadlineRequest, EchoRequest, PipeRequest, ReportRequest, TickRequest};
use hopline_demo::{Listener, MAX_MESSAGE, serve};
use hyper_util::rt::TokioIo;
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::harness::{Kind, Slot, pattern, shared};

pub(crate) type Client = DemoClient<Channel>;

pub(crate) async fn client(slot: &Slot, kind: Kind) -> Client {
    match kind {
        Kind::Unix => client_of_socket(slot.path().to_owned()).await,
        Kind::Tcp => client_at(slot.address()).await,
    }
}

/// A client of the unix socket at this path.
pub(crate) async fn client_of_socket(path: PathBuf) -> Client {
    let connect = move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://localhost");
    demo_client(endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap())
}

/// A client that dials this address.
pub(crate) async fn client_at(address: SocketAddr) -> Client {
    let connect = move |_| async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(TokioIo::new(stream))
    };
    let endpoint = Endpoint::from_static("http://localhost");
    demo_client(endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap())
}

fn demo_client(channel: Channel) -> Client {
    let client = DemoClient::new(channel);
    client.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)
}

/// The demo's service on the slot's socket, for as long as the guard lives.
pub(crate) fn server(slot: &Slot) -> Runtime {
    server_on(&slot.server)
}

/// The same on any socket.
pub(crate) fn server_on(listener: &TcpListener) -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = listener.try_clone().unwrap();
    listener.set_nonblocking(true).unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        tokio::spawn(serve(Listener::Tcp(listener), std::future::pending()));
    });
    runtime
}

/// An application, whose connections close when it is dropped.
pub(crate) fn app() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs `test` with a client of each kind, on a service of its own.
fn with_client<F: Future<Output = ()>>(test: impl Fn(Client) -> F) {
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let _server = server(slot);
        app().block_on(async { test(client(slot, kind).await).await });
        world.settled(slot);
        // P3: one channel is one session.
        assert_eq!(world.mapping(&slot.name(kind)).sessions.total, 1);
        assert_eq!(world.service(&slot.name(kind)).sessions.total, 1);
        assert_eq!(world.mapping(&slot.name(kind)).last_error, None);
    }
}

pub(crate) async fn echo(client: &mut Client, payload: Vec<u8>) {
    let reply = client.echo(EchoRequest { payload: payload.clone().into() }).await.unwrap();
    assert!(reply.into_inner().payload == payload, "another payload");
}

/// P1, P3: unary calls, a stream, and more calls on one channel.
#[test]
fn p3_one_channel_is_one_session() {
    with_client(async |mut client| {
        for number in 0..20 {
            echo(&mut client, vec![number; 100]).await;
        }
        let ticks = TickRequest { call_id: 0, count: 10, interval_ms: 1 };
        let mut ticks = client.tick(ticks).await.unwrap().into_inner();
        let mut numbers = Vec::new();
        while let Some(tick) = ticks.message().await.unwrap() {
            numbers.push(tick.number);
        }
        assert_eq!(numbers, Vec::from_iter(1..=10));
        for number in 0..5 {
            echo(&mut client, vec![number; 100]).await;
        }
    });
}

/// P1: messages of 16 MiB, both ways.
#[test]
fn p1_messages_of_16_mib() {
    with_client(async |mut client| {
        echo(&mut client, pattern(1, 16 << 20)).await;
        echo(&mut client, pattern(2, 16 << 20)).await;
    });
}

/// P1: both directions of one stream at once, checked by both ends.
#[test]
fn p1_bidirectional_stream() {
    const CHUNKS: u64 = 64;
    with_client(async |mut client| {
        let chunk = |seed| pattern(seed, 32 << 10);
        let requests =
            tokio_stream::iter((0..CHUNKS).map(move |seed| PipeRequest { chunk: chunk(seed).into() }));
        let mut replies = client.pipe(requests).await.unwrap().into_inner();
        let (mut hash, mut seed) = (Sha256::new(), 0);
        while let Some(reply) = replies.message().await.unwrap() {
            match reply.kind.unwrap() {
                Reply::Chunk(back) => {
                    assert!(back == chunk(seed), "chunk {seed} is another");
                    hash.update(&back);
                    seed += 1;
                }
                Reply::Digest(digest) => {
                    assert_eq!(seed, CHUNKS);
                    assert_eq!(digest.length, CHUNKS * (32 << 10));
                    assert_eq!(digest.sha256[..], hash.clone().finalize()[..]);
                }
            }
        }
        assert_eq!(seed, CHUNKS);
    });
}

/// F20, F211: cancelled calls end their handlers, and only theirs.
#[test]
fn f20_cancels_reach_the_handlers() {
    const CALLS: u64 = 100;
    with_client(async |mut client| {
        let mut calls = JoinSet::new();
        for call_id in 1..=CALLS {
            let ticks = TickRequest { call_id, count: 1, interval_ms: 0 };
            let mut ticks = client.tick(ticks).await.unwrap().into_inner();
            // The handler runs, and stays idle from here on.
            assert_eq!(ticks.message().await.unwrap().unwrap().number, 1);
            calls.spawn(async move {
                let _ticks = ticks;
                std::future::pending::<()>().await;
            });
        }
        let survivor = TickRequest { call_id: CALLS + 1, count: 1, interval_ms: 0 };
        let _survivor = client.tick(survivor).await.unwrap();
        calls.shutdown().await;
        for call_id in 1..=CALLS {
            ended(&mut client, call_id).await;
        }
        let report = ReportRequest { call_id: CALLS + 1, wait_ms: 0 };
        assert_eq!(client.report(report).await.unwrap().into_inner().ended_us, None);
    });
}

/// When the handler of a call has ended, by what the server recorded.
pub(crate) async fn ended(client: &mut Client, call_id: u64) -> u64 {
    let report = client.report(ReportRequest { call_id, wait_ms: 5_000 }).await.unwrap().into_inner();
    assert!(report.known, "the server never saw call {call_id}");
    report.ended_us.unwrap_or_else(|| panic!("the handler of call {call_id} still runs"))
}

/// F212: the application goes with 100 open streams, without a word on any; all their handlers end.
#[test]
fn f212_application_with_open_streams_goes() {
    const CALLS: u64 = 100;
    let world = shared();
    for kind in Kind::BOTH {
        let slot = world.slot();
        let _server = server(slot);
        let app = app();
        let streams = app.block_on(async {
            let mut client = client(slot, kind).await;
            let mut streams = Vec::new();
            for call_id in 1..=CALLS {
                let ticks = TickRequest { call_id, count: 1, interval_ms: 0 };
                let mut stream = client.tick(ticks).await.unwrap().into_inner();
                stream.message().await.unwrap();
                streams.push(stream);
            }
            streams
        });
        self::app().block_on(async {
            let mut other = client(slot, kind).await;
            let now_us = other.deadline(DeadlineRequest {}).await.unwrap().into_inner().began_us;
            // As when a process is killed: the socket closes, and nobody is left to cancel the calls.
            std::thread::scope(|scope| scope.spawn(|| drop(app)).join().unwrap());
            for call_id in 1..=CALLS {
                let took_us = ended(&mut other, call_id).await - now_us;
                assert!(took_us < 1_000_000, "{kind:?}: call {call_id} ended after {took_us} us");
            }
        });
        drop(streams);
        world.settled(slot);
    }
}
