//! The client: calls as stdin asks for them, on one channel.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

use crate::codec::Raw;
use crate::events::emit;
use crate::stream::{Args, Ledger, Source, pour};

/// How the channel pings.
#[derive(Debug)]
pub(crate) struct Keepalive {
    /// 0: not at all.
    pub(crate) interval_ms: u64,
    pub(crate) timeout_ms: u64,
    /// Without calls too.
    pub(crate) idle: bool,
}

/// One line of stdin.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Command {
    op: String,
    call: String,
    method: String,
    deadline_ms: u64,
    cancel_after_ms: u64,
    send: u64,
    send_rate: u64,
    read_most: u64,
    #[serde(flatten)]
    args: Args,
}

type Open = Arc<Mutex<HashMap<String, oneshot::Sender<()>>>>;

/// Obeys stdin until it ends or says `quit`.
pub(crate) async fn run(target: &str, keepalive: &Keepalive, window: u32) -> anyhow::Result<()> {
    let channel = channel(target, keepalive, window)?;
    emit(json!({"event": "ready"}));
    let open = Open::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command: Command = serde_json::from_str(&line).with_context(|| format!("command {line:?}"))?;
        match command.op.as_str() {
            "call" => start(channel.clone(), &open, command),
            "cancel" => cancel(&open, &command.call),
            // tonic has no state to ask.
            "state" => emit(json!({"event": "state", "state": "none"})),
            "quit" => break,
            other => bail!("no such op: {other:?}"),
        }
    }
    Ok(())
}

fn channel(target: &str, keepalive: &Keepalive, window: u32) -> anyhow::Result<Channel> {
    let path = target.strip_prefix("unix:").map(PathBuf::from);
    let uri = if path.is_some() { "http://localhost".to_owned() } else { format!("http://{target}") };
    let mut endpoint = Endpoint::from_shared(uri)?;
    if keepalive.interval_ms > 0 {
        endpoint = endpoint
            .http2_keep_alive_interval(Duration::from_millis(keepalive.interval_ms))
            .keep_alive_timeout(Duration::from_millis(keepalive.timeout_ms))
            .keep_alive_while_idle(keepalive.idle);
    }
    if window > 0 {
        endpoint = endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
    }
    let Some(path) = path else { return Ok(endpoint.connect_lazy()) };
    let dial = move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
    };
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(dial)))
}

fn start(channel: Channel, open: &Open, command: Command) {
    let (stop, stopped) = oneshot::channel();
    open.lock().unwrap_or_else(PoisonError::into_inner).insert(command.call.clone(), stop);
    emit(json!({"event": "start", "call": command.call, "method": command.method}));
    if command.cancel_after_ms > 0 {
        let (open, call) = (Arc::clone(open), command.call.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(command.cancel_after_ms)).await;
            cancel(&open, &call);
        });
    }
    let open = Arc::clone(open);
    tokio::spawn(async move {
        let ledger = Ledger::default();
        let outcome = tokio::select! {
            outcome = call(channel, &command, &ledger) => outcome,
            // Dropping the call is how tonic cancels.
            _ = stopped => Err(Status::cancelled("cancelled by the application")),
        };
        let mut end = json!({"event": "end", "call": command.call, "status": "OK", "message": ""});
        match outcome {
            Ok(more) => {
                if let Some(left) = more {
                    end["left_ms"] = left;
                }
            }
            Err(status) => {
                end["status"] = json!(word(status.code()));
                end["message"] = json!(status.message());
            }
        }
        ledger.emit(end);
        cancel(&open, &command.call);
    });
}

fn cancel(open: &Open, call: &str) {
    if let Some(stop) = open.lock().unwrap_or_else(PoisonError::into_inner).remove(call) {
        // The call may have ended by itself.
        let _ = stop.send(());
    }
}

/// Makes one call; gives the time left that a `deadline` handler saw.
async fn call(channel: Channel, command: &Command, ledger: &Ledger) -> Result<Option<Value>, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    match command.method.as_str() {
        "echo" => {
            let bytes = Source::new(command.args.seed).take(command.args.bytes);
            ledger.sent(&bytes);
            let answer = grpc.unary(request(command, bytes)?, path("Echo"), Raw).await?;
            ledger.received(answer.get_ref());
            Ok(None)
        }
        "never" => {
            grpc.unary(request(command, Bytes::new())?, path("Never"), Raw).await?;
            Ok(None)
        }
        "fail" => {
            grpc.unary(request(command, Bytes::new())?, path("Fail"), Raw).await?;
            Ok(None)
        }
        "deadline" => {
            let answer = grpc.unary(request(command, Bytes::new())?, path("Deadline"), Raw).await?;
            let text = String::from_utf8_lossy(answer.get_ref()).into_owned();
            Ok(text.parse::<f64>().ok().map(|left| json!(left)))
        }
        "ticks" => {
            let request = request(command, Bytes::new())?;
            let mut messages = grpc.server_streaming(request, path("Ticks"), Raw).await?.into_inner();
            let mut n = 0;
            while messages.message().await?.is_some() {
                n += 1;
                emit(json!({"event": "message", "call": command.call, "n": n}));
                if n == command.read_most {
                    // Until it is cancelled, or its process ends.
                    std::future::pending::<()>().await;
                }
            }
            Ok(None)
        }
        "check" => check(grpc, command, ledger).await,
        other => Err(Status::unimplemented(format!("no such method: {other}"))),
    }
}

async fn check(mut grpc: Grpc<Channel>, command: &Command, ledger: &Ledger) -> Result<Option<Value>, Status> {
    let (into, out) = mpsc::channel(1);
    let source = Source::new(command.args.seed);
    let chunk = command.args.chunk;
    let pouring = tokio::spawn(pour(source, ledger.clone(), command.send, chunk, command.send_rate, into));
    let watch = tokio::spawn(ledger.clone().watch(command.call.clone()));
    let outcome = async {
        let request = request(command, ReceiverStream::new(out))?;
        let mut messages = grpc.streaming(request, path("Check"), Raw).await?.into_inner();
        while let Some(bytes) = messages.message().await? {
            ledger.received(&bytes);
        }
        Ok(None)
    }
    .await;
    watch.abort();
    pouring.abort();
    outcome
}

fn request<T>(command: &Command, body: T) -> Result<Request<T>, Status> {
    let mut request = Request::new(body);
    let args = serde_json::to_string(&command.args).map_err(|error| Status::internal(error.to_string()))?;
    for (key, text) in [("lab-call", command.call.clone()), ("lab-args", args)] {
        let value = text.parse().map_err(|_| Status::internal(format!("{key} is no metadata: {text}")))?;
        request.metadata_mut().insert(key, value);
    }
    if command.deadline_ms > 0 {
        request.set_timeout(Duration::from_millis(command.deadline_ms));
    }
    Ok(request)
}

fn path(method: &str) -> PathAndQuery {
    // The names of this file are good paths; `/` would be answered with UNIMPLEMENTED.
    format!("/lab.Lab/{method}").parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

/// The code's name as the specification writes it.
fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
