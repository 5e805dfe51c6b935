//! The rows of the table: each measures one promise from the outside, as an application would.

mod bulk;
mod deadlines;
mod hops;
mod unary;

use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::blackhole::Blackhole;
use crate::fault::{Fault, FaultyProxy};
use crate::proto::v1::demo_client::DemoClient;
use crate::proto::v1::{EchoRequest, ReportReply, ReportRequest};
use crate::target::Target;

/// A row that has not ended by then counts as not held, so the demo always ends.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a row that measures a few milliseconds may try; see [`best_of`].
const TRIES: u32 = 3;
/// What the path may add where the same calls made directly are themselves later than the promise.
const OVER_DIRECT_MS: f64 = 5.0;
/// How long a row waits for the server to see the end of a call.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The row's name, as `--break` takes it.
    pub name: &'static str,
    /// The promise in design.md's numbering.
    pub promise: &'static str,
    /// What was done.
    pub what: String,
    /// What was promised of it.
    pub expected: String,
    /// What was seen.
    pub measured: String,
    /// Whether that is within the promise.
    pub held: bool,
    /// How often it was measured until it held, or was given up. What missed before stands in `measured`.
    pub tries: u32,
}

/// Which row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unary,
    Deadline,
    Never,
    Cancel,
    Bulk,
    Session,
    DeadHop,
    Offline,
}

/// What the rows need to know of the path that they measure.
#[derive(Clone, Debug)]
pub(crate) struct Stage<'a> {
    /// The sidecar's unix socket for the demo's service.
    pub(crate) app: Target,
    /// The same service by the sidecar's TCP mapping.
    pub(crate) app_tcp: Target,
    /// A mapping whose service nobody publishes.
    pub(crate) nobody: Target,
    /// The server itself: the reference, and where the rows ask how a handler ended.
    pub(crate) direct: Target,
    /// The sidecar's status page, `http://HOST:PORT`.
    pub(crate) status: String,
    /// The names of `app` and `nobody` there.
    pub(crate) app_mapping: &'static str,
    pub(crate) nobody_mapping: &'static str,
    /// Stands between agent and relay.
    pub(crate) hop: &'a Blackhole,
    /// From when on an unknown name is refused at once: a relay that has just started holds opens.
    pub(crate) offline_from: Instant,
    /// The row that has a fault put before it.
    pub(crate) broken: Option<Kind>,
}

/// What one measurement gave. `off` orders tries: how far outside the promise it was.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    measured: String,
    held: bool,
    off: f64,
    tries: u32,
}

impl Kind {
    /// All rows in the order of the table. `Offline` is last, since it waits for the relay's age.
    pub(crate) const ALL: [Self; 8] = [
        Self::Unary,
        Self::Deadline,
        Self::Never,
        Self::Cancel,
        Self::Bulk,
        Self::Session,
        Self::DeadHop,
        Self::Offline,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Deadline => "deadline",
            Self::Never => "never",
            Self::Cancel => "cancel",
            Self::Bulk => "bulk",
            Self::Session => "session",
            Self::DeadHop => "dead-hop",
            Self::Offline => "offline",
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    fn promise(self) -> &'static str {
        match self {
            Self::Unary | Self::Bulk => "P1",
            Self::Deadline | Self::Never | Self::Cancel => "P2",
            Self::Session => "P3",
            Self::DeadHop => "P4",
            Self::Offline => "P8",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Unary => "200 unary calls by unix socket, 20 by TCP",
            Self::Deadline => "a call with a 3 s deadline",
            Self::Never => "a 1 s deadline on a handler that never returns",
            Self::Cancel => "a call cancelled after 500 ms",
            Self::Bulk => "100 MiB through one stream and back",
            Self::Session => "20 calls, a stream, 5 calls on one channel",
            Self::DeadHop => "agent to relay swallows every byte; idle stream, liveness fast",
            Self::Offline => "a service that nobody publishes",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Unary => "all OK",
            Self::Deadline => "2,990 ms or more left at the handler",
            Self::Never => "both ends at 1 s, 10 ms at most beside it",
            Self::Cancel => "handler ends 20 ms later at most",
            Self::Bulk => "SHA-256 equal, both ways",
            Self::Session => "1 session in /status",
            Self::DeadHop => "stream and handler end in under 5 s; a new call works once healed",
            Self::Offline => "ends in under 100 ms; /status: offline",
        }
    }

    /// What `--break` puts between the application and the sidecar for this row. The dead hop has none: its
    /// fault is a hop that does not die.
    fn fault(self) -> Option<Fault> {
        match self {
            Self::Unary => Some(Fault::CutAfter(4_000)),
            Self::Deadline | Self::Never | Self::Cancel | Self::Offline => {
                Some(Fault::Delay(Duration::from_millis(150)))
            }
            Self::Bulk => Some(Fault::FlipAt(bulk::LENGTH / 2)),
            Self::Session => Some(Fault::ExtraConnection),
            Self::DeadHop => None,
        }
    }
}

/// Measures one row; whatever goes wrong is a row that did not hold.
pub(crate) async fn measure(kind: Kind, stage: &Stage<'_>) -> Row {
    let outcome = match tokio::time::timeout(PATIENCE, outcome(kind, stage)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::failed(format!("{error:#}")),
        Err(_elapsed) => Outcome::failed(format!("no end within {} s", PATIENCE.as_secs())),
    };
    Row {
        name: kind.name(),
        promise: kind.promise(),
        what: kind.what().to_owned(),
        expected: kind.expected().to_owned(),
        measured: outcome.measured,
        held: outcome.held,
        tries: outcome.tries,
    }
}

async fn outcome(kind: Kind, stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let socket = if kind == Kind::Offline { &stage.nobody } else { &stage.app };
    let entry = Entry::open(kind, stage, socket).await?;
    match kind {
        Kind::Unary => unary::calls(stage, &entry.target).await,
        Kind::Deadline => deadlines::left_at_handler(stage, &entry.target).await,
        Kind::Never => deadlines::never(stage, &entry.target).await,
        Kind::Cancel => deadlines::cancel(stage, &entry.target).await,
        Kind::Bulk => bulk::echo(&entry.target).await,
        Kind::Session => unary::one_session(stage, &entry.target).await,
        Kind::DeadHop => hops::dead(stage, &entry.target).await,
        Kind::Offline => hops::offline(stage, &entry.target).await,
    }
}

/// The way in for one row: the sidecar's socket, or a faulty proxy before it.
struct Entry {
    target: Target,
    _proxy: Option<FaultyProxy>,
}

impl Entry {
    async fn open(kind: Kind, stage: &Stage<'_>, socket: &Target) -> anyhow::Result<Self> {
        match kind.fault() {
            Some(fault) if stage.broken == Some(kind) => {
                let proxy = FaultyProxy::start(socket.clone(), fault).await?;
                Ok(Self { target: proxy.target(), _proxy: Some(proxy) })
            }
            Some(_) | None => Ok(Self { target: socket.clone(), _proxy: None }),
        }
    }
}

impl Outcome {
    fn of(held: bool, measured: String) -> Self {
        Self { measured, held, off: 0.0, tries: 1 }
    }

    fn failed(measured: String) -> Self {
        Self::of(false, measured)
    }

    /// Held when nothing is out of bounds; `off_ms` says by how much the worst figure is.
    fn timed(off_ms: f64, measured: String) -> Self {
        Self { measured, held: off_ms <= 0.0, off: off_ms, tries: 1 }
    }
}

/// Measures until a try holds, at most [`TRIES`] times, and returns the best with the number of tries and by how much the
/// others missed.
///
/// The bounds are a few milliseconds and the machine may be busy with other things; a path that is too slow
/// is too slow every time. An error is no timing and is not tried again.
async fn best_of(mut attempt: impl AsyncFnMut() -> anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
    let mut best = attempt().await?;
    let mut misses = Vec::new();
    while !best.held && best.tries < TRIES {
        let mut next = attempt().await?;
        next.tries = best.tries + 1;
        if next.held || next.off < best.off {
            misses.push(best.off);
            best = next;
        } else {
            misses.push(next.off);
            best.tries = next.tries;
        }
    }
    best.measured += &match (best.tries, best.held) {
        (1, _) => "; first try".to_owned(),
        (tries, true) => format!("; try {tries}, after {} outside", spelled_ms(&misses)),
        (tries, false) => format!("; best of {tries} tries, {:.1} ms outside", best.off),
    };
    Ok(best)
}

fn spelled_ms(figures: &[f64]) -> String {
    let spelled: Vec<String> = figures.iter().map(|ms| format!("{ms:.1} ms")).collect();
    spelled.join(" and ")
}

/// A client on a fresh channel that has made a call, as P2 asks: the first call pays for the connection.
async fn warm_client(target: &Target) -> anyhow::Result<DemoClient<Channel>> {
    let mut client = target.client().await.with_context(|| format!("connecting to {target}"))?;
    for _ in 0..3 {
        echo(&mut client, b"warm").await.map_err(said).context("the channel's first calls")?;
    }
    Ok(client)
}

/// One unary call; a wrong payload in the answer is DATA_LOSS.
async fn echo(client: &mut DemoClient<Channel>, payload: &'static [u8]) -> Result<(), Status> {
    let request = EchoRequest { payload: bytes::Bytes::from_static(payload) };
    let reply = client.echo(Request::new(request)).await?.into_inner();
    if reply.payload == payload { Ok(()) } else { Err(Status::data_loss("another payload came back")) }
}

/// What the server knows of `call_id`, asked directly: the path under test may be dead.
async fn report(stage: &Stage<'_>, call_id: u64, patience: Duration) -> anyhow::Result<ReportReply> {
    let mut client = stage.direct.client().await.context("connecting to the server")?;
    let wait_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let reply = client.report(ReportRequest { call_id, wait_ms }).await.map_err(said)?.into_inner();
    anyhow::ensure!(reply.known, "the server never saw the call");
    Ok(reply)
}

/// A fresh id for a call that the server is to remember.
fn next_call_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// A status as an error that reads as a line of the table.
#[expect(clippy::needless_pass_by_value, reason = "its one use is map_err")]
fn said(status: Status) -> anyhow::Error {
    anyhow::anyhow!("{}", spelled(&status))
}

/// `CANCELLED "Timeout expired"`: the code as the gRPC specification spells it, and the message.
fn spelled(status: &Status) -> String {
    format!("{} \"{}\"", code_name(status.code()), status.message())
}

fn code_name(code: Code) -> &'static str {
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

#[cfg(test)]
mod tests;
