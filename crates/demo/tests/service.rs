//! The service as a gRPC client meets it, over both kinds of listener.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use hopline_demo::proto::v1::demo_client::DemoClient;
use hopline_demo::proto::v1::{DeadlineRequest, EchoRequest, NeverRequest, ReportRequest, TickRequest};
use hopline_demo::{Listener, MAX_MESSAGE, serve};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const LONG_MS: u32 = 30_000;

struct Running {
    channel: Channel,
    stop: oneshot::Sender<()>,
    server: JoinHandle<Result<(), hopline_demo::ServeError>>,
}

impl Running {
    async fn tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let (stop, server) = start(Listener::Tcp(listener));
        Self { channel: Endpoint::from_shared(uri).unwrap().connect().await.unwrap(), stop, server }
    }

    async fn unix(folder: &tempfile::TempDir) -> Self {
        let path = folder.path().join("demo.sock");
        let (stop, server) = start(Listener::Unix(UnixListener::bind(&path).unwrap()));
        let connector = tower::service_fn(move |_uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        Self { channel: endpoint.connect_with_connector(connector).await.unwrap(), stop, server }
    }

    fn client(&self) -> DemoClient<Channel> {
        let client = DemoClient::new(self.channel.clone());
        client.max_decoding_message_size(MAX_MESSAGE * 2).max_encoding_message_size(MAX_MESSAGE * 2)
    }
}

fn start(listener: Listener) -> (oneshot::Sender<()>, JoinHandle<Result<(), hopline_demo::ServeError>>) {
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(serve(listener, async {
        stopped.await.ok();
    }));
    (stop, server)
}

#[tokio::test]
async fn it_serves_a_unix_socket_and_ends_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::unix(&folder).await;
    let reply = running.client().echo(EchoRequest { payload: "over unix".into() }).await.unwrap();
    assert_eq!(reply.into_inner().payload, "over unix");
    running.stop.send(()).unwrap();
    drop(running.channel);
    running.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_message_may_be_close_to_64_mib_and_not_more() {
    let running = Running::tcp().await;
    let payload = bytes::Bytes::from(vec![7; MAX_MESSAGE - 1024]);
    let reply = running.client().echo(EchoRequest { payload: payload.clone() }).await.unwrap();
    assert!(reply.into_inner().payload == payload);
    let too_long = bytes::Bytes::from(vec![7; MAX_MESSAGE + 1]);
    let status = running.client().echo(EchoRequest { payload: too_long }).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
}

#[tokio::test]
async fn ticks_are_counted_and_an_idle_stream_ends_with_its_client() {
    let running = Running::tcp().await;
    let request = TickRequest { call_id: 1, count: 3, interval_ms: 1 };
    let mut stream = running.client().tick(request).await.unwrap().into_inner();
    let mut numbers = Vec::new();
    while let Some(tick) = stream.message().await.unwrap() {
        numbers.push(tick.number);
    }
    assert_eq!(numbers, [1, 2, 3]);

    let request = TickRequest { call_id: 2, count: 0, interval_ms: 0 };
    let mut stream = running.client().tick(request).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().number, 1);
    let running_still = ReportRequest { call_id: 2, wait_ms: 0 };
    let report = running.client().report(running_still).await.unwrap().into_inner();
    assert!(report.known && report.ended_us.is_none(), "{report:?}");
    drop(stream);
    let ended = ReportRequest { call_id: 2, wait_ms: LONG_MS };
    let report = running.client().report(ended).await.unwrap().into_inner();
    assert!(report.ended_us.unwrap() >= report.began_us, "{report:?}");
}

#[tokio::test]
async fn a_deadline_reaches_the_handler_and_ends_the_one_that_never_returns() {
    let running = Running::tcp().await;
    let mut client = running.client();
    let reply = client.deadline(DeadlineRequest {}).await.unwrap().into_inner();
    assert_eq!(reply.left_us, None);
    let mut request = Request::new(DeadlineRequest {});
    request.set_timeout(std::time::Duration::from_secs(30));
    let reply = client.deadline(request).await.unwrap().into_inner();
    assert_eq!(reply.left_us, Some(30_000_000));

    let mut request = Request::new(NeverRequest { call_id: 9 });
    request.set_timeout(std::time::Duration::from_millis(100));
    let status = client.never(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    let ended = ReportRequest { call_id: 9, wait_ms: LONG_MS };
    let report = client.report(ended).await.unwrap().into_inner();
    assert!(report.known && report.ended_after_ms.is_some(), "{report:?}");
}

#[tokio::test]
async fn a_call_that_never_was_is_not_known() {
    let running = Running::tcp().await;
    let report = running.client().report(ReportRequest { call_id: 4, wait_ms: 0 }).await.unwrap();
    assert!(!report.into_inner().known);
}

async fn reflected(channel: Channel, request: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let mut client = ServerReflectionClient::new(channel);
    let replies = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let reply: ServerReflectionResponse = replies.into_inner().message().await.unwrap().unwrap();
    reply.message_response.unwrap()
}

#[tokio::test]
async fn reflection_lists_the_service_and_describes_it() {
    let running = Running::tcp().await;
    let listed = reflected(running.channel.clone(), MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<&str> = listed.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&"hopline.demo.v1.Demo"), "{names:?}");

    let symbol = MessageRequest::FileContainingSymbol("hopline.demo.v1.Demo".to_owned());
    let described = reflected(running.channel, symbol).await;
    let MessageResponse::FileDescriptorResponse(described) = described else { panic!("{described:?}") };
    assert_eq!(described.file_descriptor_proto.len(), 1);
}

#[tokio::test]
async fn older_clients_ask_for_reflection_in_v1alpha() {
    use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;

    let running = Running::tcp().await;
    let request = tonic_reflection::pb::v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileByFilename("hopline/demo/v1/demo.proto".to_owned())),
    };
    let mut client = ServerReflectionClient::new(running.channel);
    let replies = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let reply = replies.into_inner().message().await.unwrap().unwrap();
    let text = format!("{:?}", reply.message_response);
    assert!(text.starts_with("Some(FileDescriptorResponse"), "{text}");
}
