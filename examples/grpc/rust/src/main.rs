//! A Rust client on a mapping: `cargo run TARGET SECONDS`.
//!
//! TARGET is `unix:/run/user/1000/hopline/ledger.sock`, or `http://127.0.0.1:7901` for a TCP mapping.

use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

/// Of a call with all its tries.
const DEADLINE: Duration = Duration::from_secs(10);

/// In place of a generated stub.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// In place of a generated stub.
#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// One channel for the whole process, without keepalive; its clones share one connection.
fn channel(target: &str) -> Result<Channel, tonic::transport::Error> {
    let Some(path) = target.strip_prefix("unix:").map(str::to_owned) else {
        return Ok(Endpoint::from_shared(target.to_owned())?.connect_lazy());
    };
    // The URI says what the server reads as `:authority`; the connector says where to go.
    let dial = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    };
    Ok(Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(dial)))
}

/// One try. The server should know how much time is left. A generated client has `check(request)` in place of the rest.
async fn check(channel: Channel, until: Instant) -> Result<HealthCheckResponse, Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request.set_timeout(until.saturating_duration_since(Instant::now()));
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    client.unary(request, path, tonic_prost::ProstCodec::default()).await.map(tonic::Response::into_inner)
}

/// Whether a broken path may be the reason. tonic says UNKNOWN for a connection that breaks, and at times CANCELLED; an
/// application's own UNKNOWN and CANCELLED look the same, but have no source.
fn is_broken_path(status: &Status) -> bool {
    let broken = std::error::Error::source(status).is_some();
    match status.code() {
        Code::Unavailable => true,
        Code::Unknown | Code::Cancelled => broken,
        _ => false,
    }
}

/// The call with its deadline, which covers all tries. Only for methods that may run twice.
async fn check_again(channel: &Channel) -> Result<HealthCheckResponse, Status> {
    let until = Instant::now() + DEADLINE;
    let tries = async {
        let mut backoff = Duration::from_millis(200);
        for _ in 1..5 {
            match check(channel.clone(), until).await {
                Err(status) if is_broken_path(&status) => {}
                done => return done,
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(Duration::from_secs(2));
        }
        check(channel.clone(), until).await
    };
    // tonic's own timeout reads CANCELLED, and ends at the response's headers.
    timeout(DEADLINE, tries)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the deadline has passed")))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(target), Some(seconds)) = (args.next(), args.next()) else {
        return Err("TARGET SECONDS".into());
    };
    let channel = channel(&target)?;
    let end = Instant::now() + Duration::from_secs(seconds.parse()?);
    let (mut good, mut failed) = (0, 0);
    while Instant::now() < end {
        match check_again(&channel).await {
            Ok(_) => good += 1,
            Err(status) => {
                failed += 1;
                eprintln!("{status}");
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    println!("{good} good, {failed} failed");
    Ok(())
}
