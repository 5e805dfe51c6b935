//! The server: one tower service that knows the methods.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

use crate::codec::Raw;
use crate::events::emit;
use crate::stream::{Args, Ledger, Source, pour};

/// Serves until the process ends.
pub(crate) async fn serve(listen: SocketAddr, max_streams: u32) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    emit(json!({"event": "listening", "address": listener.local_addr()?.to_string()}));
    let connections = TcpListenerStream::new(listener).map(|accepted| {
        accepted.inspect(|stream| {
            // Without it small answers wait for the other end's delayed acknowledgement.
            let _ = stream.set_nodelay(true);
        })
    });
    let streams = (max_streams > 0).then_some(max_streams);
    let mut builder = tonic::transport::Server::builder().max_concurrent_streams(streams);
    Ok(builder.add_service(Lab).serve_with_incoming(connections).await?)
}

#[derive(Debug, Clone, Copy)]
struct Lab;

impl NamedService for Lab {
    const NAME: &'static str = "lab.Lab";
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

impl Service<http::Request<Body>> for Lab {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(Raw);
            Ok(match request.uri().path() {
                "/lab.Lab/Echo" => grpc.unary(Echo, request).await,
                "/lab.Lab/Never" => grpc.unary(Never, request).await,
                "/lab.Lab/Deadline" => grpc.unary(Deadline, request).await,
                "/lab.Lab/Fail" => grpc.unary(Fail, request).await,
                "/lab.Lab/Ticks" => grpc.streaming(Ticks, request).await,
                "/lab.Lab/Check" => grpc.streaming(Check, request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

/// Says that a handler began, and when it is dropped why it ended: tonic drops a handler whose call is gone, and tells
/// it no reason.
#[derive(Debug)]
struct Visit {
    call: String,
    method: &'static str,
    args: Args,
    ledger: Ledger,
    until: Option<Instant>,
    returned: bool,
}

impl Visit {
    fn new<T>(request: &Request<T>, method: &'static str) -> Result<Self, Status> {
        let text = |key: &str| request.metadata().get(key).and_then(|value| value.to_str().ok());
        let args = text("lab-args").map_or(Ok(Args::default()), serde_json::from_str);
        let args = args.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let until = text("grpc-timeout").and_then(timeout).map(|left| Instant::now() + left);
        let visit = Self {
            call: text("lab-call").unwrap_or_default().to_owned(),
            method,
            args,
            ledger: Ledger::default(),
            until,
            returned: false,
        };
        emit(json!({"event": "handler", "call": visit.call, "method": method, "left_ms": visit.left_ms()}));
        Ok(visit)
    }

    /// What the deadline leaves; none without one.
    fn left_ms(&self) -> Option<f64> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64() * 1e3)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let reason = if self.returned {
            "returned"
        } else if self.until.is_some_and(|until| Instant::now() >= until) {
            "deadline"
        } else {
            "canceled"
        };
        let event = json!({
            "event": "handler_end", "call": self.call, "method": self.method, "reason": reason,
        });
        self.ledger.emit(event);
    }
}

/// `grpc-timeout`: digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let amount: u64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(amount * 3_600),
        'M' => Duration::from_secs(amount * 60),
        'S' => Duration::from_secs(amount),
        'm' => Duration::from_millis(amount),
        'u' => Duration::from_micros(amount),
        'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

struct Echo;

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Answer<Response<Bytes>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let mut visit = Visit::new(&request, "echo")?;
            visit.returned = true;
            Ok(Response::new(request.into_inner()))
        })
    }
}

struct Never;

impl UnaryService<Bytes> for Never {
    type Response = Bytes;
    type Future = Answer<Response<Bytes>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let _visit = Visit::new(&request, "never")?;
            std::future::pending().await
        })
    }
}

struct Fail;

impl UnaryService<Bytes> for Fail {
    type Response = Bytes;
    type Future = Answer<Response<Bytes>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let mut visit = Visit::new(&request, "fail")?;
            visit.returned = true;
            Err(Status::unavailable("as asked"))
        })
    }
}

struct Deadline;

impl UnaryService<Bytes> for Deadline {
    type Response = Bytes;
    type Future = Answer<Response<Bytes>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(async move {
            let mut visit = Visit::new(&request, "deadline")?;
            visit.returned = true;
            let text = visit.left_ms().map_or_else(|| "none".to_owned(), |left| format!("{left:.3}"));
            Ok(Response::new(text.into()))
        })
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

struct Ticks;

impl StreamingService<Bytes> for Ticks {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answer<Response<Messages>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let visit = Visit::new(&request, "ticks")?;
            let message = Bytes::from(vec![0; visit.args.bytes.max(1)]);
            let every = Duration::from_millis(visit.args.every_ms);
            // The stream owns the visit: it is dropped with it.
            let messages = tokio_stream::once(()).chain(ticker(every)).map(move |()| {
                let _held = &visit;
                Ok(message.clone())
            });
            Ok(Response::new(Box::pin(messages) as Messages))
        })
    }
}

/// A beat each `every`, the first after `every`; none for ever when it is zero.
fn ticker(every: Duration) -> Pin<Box<dyn Stream<Item = ()> + Send>> {
    if every.is_zero() {
        return Box::pin(tokio_stream::pending());
    }
    let beats = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    Box::pin(tokio_stream::wrappers::IntervalStream::new(beats).map(drop))
}

struct Check;

impl StreamingService<Bytes> for Check {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answer<Response<Messages>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let mut visit = Visit::new(&request, "check")?;
            let (into, out) = mpsc::channel(1);
            let (failed, failure) = mpsc::channel::<Status>(1);
            let (args, ledger) = (visit.args.clone(), visit.ledger.clone());
            let source = Source::new(args.seed.wrapping_add(1));
            let poured = tokio::spawn(pour(
                source,
                ledger.clone(),
                args.receive,
                args.chunk,
                args.receive_rate,
                into.clone(),
            ));
            let watch = tokio::spawn(ledger.clone().watch(visit.call.clone()));
            let mut requests = request.into_inner();
            tokio::spawn(async move {
                let outcome = loop {
                    // The other end of `into` is dropped when the call is gone, of whatever reason.
                    tokio::select! {
                        message = requests.next() => match message {
                            Some(Ok(bytes)) => ledger.received(&bytes),
                            Some(Err(status)) => break Err(status),
                            None => break Ok(()),
                        },
                        () = into.closed() => break Err(Status::cancelled("gone")),
                    }
                };
                let complete = matches!(poured.await, Ok(true));
                watch.abort();
                match outcome {
                    Ok(()) => visit.returned = complete,
                    // Nobody listens any more when the call is gone.
                    Err(status) => drop(failed.send(status).await),
                }
                drop(visit);
                drop(into);
            });
            let errors = ReceiverStream::new(failure).map(Err);
            Ok(Response::new(Box::pin(ReceiverStream::new(out).map(Ok).chain(errors)) as Messages))
        })
    }
}
