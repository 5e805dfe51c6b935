//! P2: deadlines and cancels, each measured through the path and directly.

use std::time::Duration;

use anyhow::{Context, bail};
use tonic::Request;
use tonic::transport::Channel;

use super::{
    OVER_DIRECT_MS, Outcome, REPORT_WAIT, Stage, best_of, next_call_id, report, said, spelled, warm_client,
};
use crate::clock::{ms_between, now_us};
use crate::proto::v1::demo_client::DemoClient;
use crate::proto::v1::{DeadlineRequest, NeverRequest};
use crate::target::Target;

const LONG_DEADLINE: Duration = Duration::from_secs(3);
const LEFT_MS: f64 = 2_990.0;
const SHORT_DEADLINE: Duration = Duration::from_secs(1);
const BESIDE_MS: f64 = 10.0;
const CANCEL_AFTER: Duration = Duration::from_millis(500);
const CANCEL_MS: f64 = 20.0;

/// How much of a 3 s deadline the handler has.
pub(super) async fn left_at_handler(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let mut path = warm_client(target).await?;
    let mut direct = warm_client(&stage.direct).await?;
    best_of(async || {
        let (left, header) = left_once(&mut path).await?;
        let (left_direct, _) = left_once(&mut direct).await?;
        let least = LEFT_MS.min(left_direct - OVER_DIRECT_MS);
        let measured = format!("{left:.1} ms left, header {header:.1}; direct {left_direct:.1}");
        Ok(Outcome::timed(least - left, measured))
    })
    .await
}

/// What was left, and what the header said. The header alone would not show time lost on the way, so what
/// was left is the less of it and the time from the handler's begin to the client's deadline.
async fn left_once(client: &mut DemoClient<Channel>) -> anyhow::Result<(f64, f64)> {
    let mut request = Request::new(DeadlineRequest {});
    let called_us = now_us();
    request.set_timeout(LONG_DEADLINE);
    let reply = client.deadline(request).await.map_err(said)?.into_inner();
    let header_us = reply.left_us.context("the handler saw no deadline")?;
    let header = ms_between(0, header_us);
    let until_deadline = LONG_DEADLINE.as_secs_f64() * 1e3 - ms_between(called_us, reply.began_us);
    Ok((header.min(until_deadline), header))
}

/// When a call with a 1 s deadline ended, in ms from the call, at both ends.
struct Ends {
    client: f64,
    /// Infinite when it had not ended [`REPORT_WAIT`] later.
    handler: f64,
    status: String,
}

/// A 1 s deadline ends the call at the client and at the handler.
pub(super) async fn never(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let mut path = warm_client(target).await?;
    let mut direct = warm_client(&stage.direct).await?;
    best_of(async || {
        let reference = ends(stage, &mut direct).await?;
        let seen = ends(stage, &mut path).await?;
        let off = beside(seen.client, reference.client).max(beside(seen.handler, reference.handler));
        let measured = format!(
            "client {:.1} ms, {}, handler {}; direct {:.1} and {}",
            seen.client,
            seen.status,
            end_ms(seen.handler),
            reference.client,
            end_ms(reference.handler),
        );
        Ok(Outcome::timed(off, measured))
    })
    .await
}

/// How far `ended` is outside the promise. Directly the same call may be later than 1 s and 10 ms; then the
/// path may add 5 ms to that. Earlier it must not be.
fn beside(ended: f64, direct: f64) -> f64 {
    let due = SHORT_DEADLINE.as_secs_f64() * 1e3;
    let mut latest = due + BESIDE_MS;
    if direct.is_finite() {
        latest = latest.max(direct + OVER_DIRECT_MS);
    }
    (ended - latest).max(due - BESIDE_MS - ended)
}

fn end_ms(handler: f64) -> String {
    if handler.is_finite() {
        format!("{handler:.1} ms")
    } else {
        format!("still running {} s later", REPORT_WAIT.as_secs())
    }
}

async fn ends(stage: &Stage<'_>, client: &mut DemoClient<Channel>) -> anyhow::Result<Ends> {
    let call_id = next_call_id();
    let mut request = Request::new(NeverRequest { call_id });
    request.set_timeout(SHORT_DEADLINE);
    let called_us = now_us();
    // The deadline is the client's own; the outer limit is for a client that forgets it.
    let answer = tokio::time::timeout(SHORT_DEADLINE * 5, client.never(request)).await;
    let client_us = now_us();
    let status = match answer {
        Ok(Err(status)) => spelled(&status),
        Ok(Ok(_)) => bail!("the handler that never returns has answered"),
        Err(_elapsed) => bail!("the client's deadline did not end the call"),
    };
    let record = report(stage, call_id, REPORT_WAIT).await?;
    let handler = record.ended_us.map_or(f64::INFINITY, |ended_us| ms_between(called_us, ended_us));
    Ok(Ends { client: ms_between(called_us, client_us), handler, status })
}

/// A cancel ends the handler's context.
pub(super) async fn cancel(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let mut path = warm_client(target).await?;
    let mut direct = warm_client(&stage.direct).await?;
    best_of(async || {
        let reference = cancel_once(stage, &mut direct).await?;
        let seen = cancel_once(stage, &mut path).await?;
        let mut most = CANCEL_MS;
        if reference.is_finite() {
            most = most.max(reference + OVER_DIRECT_MS);
        }
        let measured = format!("handler ended {} later; direct {}", end_ms(seen), end_ms(reference));
        // A handler that was gone before the cancel was ended by something else.
        Ok(Outcome::timed((seen - most).max(-seen), measured))
    })
    .await
}

/// From the cancel to the end of the handler's context in ms; infinite when it did not end.
async fn cancel_once(stage: &Stage<'_>, client: &mut DemoClient<Channel>) -> anyhow::Result<f64> {
    let call_id = next_call_id();
    let mut call = Box::pin(client.never(NeverRequest { call_id }));
    if let Ok(answer) = tokio::time::timeout(CANCEL_AFTER, &mut call).await {
        match answer {
            Ok(_) => bail!("the handler that never returns has answered"),
            Err(status) => bail!("the call ended before its cancel: {}", spelled(&status)),
        }
    }
    let cancelled_us = now_us();
    drop(call);
    let record = report(stage, call_id, REPORT_WAIT).await?;
    Ok(record.ended_us.map_or(f64::INFINITY, |ended_us| ms_between(cancelled_us, ended_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_milliseconds_beside_a_second_are_the_promise() {
        assert!(beside(990.0, 1_000.0) <= 0.0);
        assert!(beside(1_010.0, 1_000.0) <= 0.0);
        assert!(beside(989.9, 1_000.0) > 0.0);
        assert!(beside(1_010.1, 1_000.0) > 0.0);
    }

    #[test]
    fn a_late_direct_call_moves_the_later_bound_only() {
        assert!(beside(1_035.0, 1_030.0) <= 0.0);
        assert!(beside(1_035.1, 1_030.0) > 0.0);
        assert!(beside(985.0, 980.0) > 0.0);
    }

    #[test]
    fn a_handler_that_does_not_end_is_outside_whatever_direct_does() {
        assert!(beside(f64::INFINITY, 1_000.0) > 0.0);
        assert!(beside(f64::INFINITY, f64::INFINITY) > 0.0);
    }
}
