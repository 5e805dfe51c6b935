//! P4 and P8: a hop that dies without a word, and a name that nobody serves.

use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tonic::Streaming;

use super::{Kind, Outcome, Stage, best_of, echo, next_call_id, report, said, spelled, warm_client};
use crate::clock::{ms_between, now_us};
use crate::proto::v1::{TickReply, TickRequest};
use crate::status;
use crate::target::Target;

/// `fast` is dead within 4.5 s of the last byte; a trip and the ends of both processes fit in the rest.
const DEAD_WITHIN_MS: f64 = 5_000.0;
/// How long the row waits for an end that should have come.
const DEAD_PATIENCE: Duration = Duration::from_secs(6);
/// Once the hop is back, a call must work before an open would have timed out.
const HEALED_WITHIN: Duration = Duration::from_secs(10);
const OFFLINE_WITHIN_MS: f64 = 100.0;
const OFFLINE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a reason may take to show on the status page.
const STATUS_PATIENCE: Duration = Duration::from_secs(1);

/// A hop that swallows everything ends an idle stream at the client and its handler at the server.
pub(super) async fn dead(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let mut client = warm_client(target).await?;
    let call_id = next_call_id();
    let idle = TickRequest { call_id, count: 1, interval_ms: 0 };
    let mut stream = client.tick(idle).await.map_err(said)?.into_inner();
    stream.message().await.map_err(said)?;

    if stage.broken != Some(Kind::DeadHop) {
        stage.hop.swallow();
    }
    let cut_us = now_us();
    let (client_end, client_ms) = stream_end(&mut stream, cut_us).await;
    let left = DEAD_PATIENCE.saturating_sub(Duration::from_micros(now_us() - cut_us));
    let record = report(stage, call_id, left).await;
    let mapping = status::mapping(&stage.status, stage.app_mapping).await;
    drop(stream);
    // Whatever went wrong, the next row needs the hop.
    stage.hop.heal();
    let healed = new_call(target).await;

    let handler_ms = record?.ended_us.map(|ended_us| ms_between(cut_us, ended_us));
    let held = [client_ms, handler_ms].iter().all(|ms| ms.is_some_and(|ms| ms < DEAD_WITHIN_MS));
    let handler = handler_ms.map_or("still running".to_owned(), |ms| format!("ended at {:.2} s", ms / 1e3));
    let reason = match mapping?.last_error {
        Some(error) => format!("/status: {}{}", error.reason, at_hop(error.hop)),
        None => "/status: no error".to_owned(),
    };
    let new = match &healed {
        Ok(took) => format!("new call worked {:.2} s after healing", took.as_secs_f64()),
        Err(error) => format!("no new call in {} s: {error:#}", HEALED_WITHIN.as_secs()),
    };
    Ok(Outcome::of(
        held && healed.is_ok(),
        format!("client {client_end}, handler {handler}; {reason}; {new}"),
    ))
}

/// How an idle stream ended and, if that was an error, how many ms after `cut_us`.
async fn stream_end(stream: &mut Streaming<TickReply>, cut_us: u64) -> (String, Option<f64>) {
    match tokio::time::timeout(DEAD_PATIENCE, stream.message()).await {
        Ok(Err(status)) => {
            let ms = ms_between(cut_us, now_us());
            (format!("{} at {:.2} s", spelled(&status), ms / 1e3), Some(ms))
        }
        Ok(Ok(None)) => ("a CLEAN END".to_owned(), None),
        Ok(Ok(Some(_))) => ("a message that was not sent".to_owned(), None),
        Err(_elapsed) => (format!("still open at {:.2} s", ms_between(cut_us, now_us()) / 1e3), None),
    }
}

/// How long it takes from now until a call on a fresh channel works. Each call is made anew: tonic gives up a
/// call whose connection fails.
async fn new_call(target: &Target) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut last = anyhow::anyhow!("none was answered");
    while let Some(left) = HEALED_WITHIN.checked_sub(began.elapsed()) {
        let call = async {
            let mut client = target.client().await?;
            echo(&mut client, b"healed").await.map_err(said)
        };
        match tokio::time::timeout(left, call).await {
            Ok(Ok(())) => return Ok(began.elapsed()),
            Ok(Err(error)) => last = error,
            Err(_elapsed) => break,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(last)
}

fn at_hop(hop: Option<u64>) -> String {
    hop.map_or(String::new(), |hop| format!(" at hop {hop}"))
}

/// A connection to a name that nobody serves ends at once, and the status page says why.
pub(super) async fn offline(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    tokio::time::sleep_until(stage.offline_from).await;
    best_of(async || {
        let began = Instant::now();
        let mut stream = target.connect().await?;
        let end = tokio::time::timeout(OFFLINE_PATIENCE, stream.read(&mut [0; 64])).await;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let how = match end {
            Ok(Ok(0)) => "closed",
            Ok(Err(_)) => "reset",
            Ok(Ok(_)) => return Ok(Outcome::failed("bytes came from nobody".to_owned())),
            Err(_) => return Ok(Outcome::failed(format!("still open after {ms:.0} ms"))),
        };
        let (named, reason) = offline_reason(stage).await?;
        let measured = format!("{how} after {ms:.1} ms; /status: {reason}");
        Ok(if named { Outcome::timed(ms - OFFLINE_WITHIN_MS, measured) } else { Outcome::failed(measured) })
    })
    .await
}

/// Whether the status page says `offline`, and what it says.
async fn offline_reason(stage: &Stage<'_>) -> anyhow::Result<(bool, String)> {
    let began = Instant::now();
    loop {
        let error = status::mapping(&stage.status, stage.nobody_mapping).await?.last_error;
        match error {
            Some(error) if error.reason == "offline" => return Ok((true, error.reason)),
            other if began.elapsed() > STATUS_PATIENCE => {
                return Ok((false, other.map_or("no error".to_owned(), |error| error.reason)));
            }
            Some(_) | None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
