//! Unary calls and their latency, and how many sessions a channel's calls are.

use std::time::{Duration, Instant};

use tonic::Status;

use super::{Outcome, Stage, echo, said, spelled, warm_client};
use crate::proto::v1::TickRequest;
use crate::status;
use crate::target::Target;

const CALLS: usize = 200;
const CALLS_BY_TCP: usize = 20;
/// How long a session may take to show on the status page.
const STATUS_PATIENCE: Duration = Duration::from_secs(1);

/// P1: every call is answered with its own payload.
pub(super) async fn calls(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let mut latencies = Vec::with_capacity(CALLS);
    let mut failures = run(target, CALLS, &mut latencies).await?;
    let by_socket = latencies.len();
    failures.extend(run(&stage.app_tcp, CALLS_BY_TCP, &mut Vec::new()).await?);

    latencies.sort_unstable();
    let latency = match (percentile(&latencies, 50), percentile(&latencies, 99)) {
        (Some(p50), Some(p99)) => format!("p50 {:.2} ms, p99 {:.2} ms", millis(p50), millis(p99)),
        _none => "no latency".to_owned(),
    };
    let Some(first) = failures.first() else {
        return Ok(Outcome::of(true, format!("{} OK; {latency}", by_socket + CALLS_BY_TCP)));
    };
    let failed = format!("{} failed, first {}; {latency}", failures.len(), spelled(first));
    Ok(Outcome::of(false, failed))
}

/// Makes `count` calls one after the other; returns those that failed.
async fn run(target: &Target, count: usize, latencies: &mut Vec<Duration>) -> anyhow::Result<Vec<Status>> {
    let mut client = warm_client(target).await?;
    let mut failures = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        match echo(&mut client, b"a payload of a few dozen bytes").await {
            Ok(()) => latencies.push(began.elapsed()),
            Err(status) => failures.push(status),
        }
    }
    Ok(failures)
}

/// The smallest value that `percent` of `sorted` do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// P3: whatever a channel carries, it is one session.
pub(super) async fn one_session(stage: &Stage<'_>, target: &Target) -> anyhow::Result<Outcome> {
    let before = status::mapping(&stage.status, stage.app_mapping).await?.sessions;
    let mut client = target.client().await?;
    for _ in 0..20 {
        echo(&mut client, b"before the stream").await.map_err(said)?;
    }
    let request = TickRequest { call_id: 0, count: 5, interval_ms: 2 };
    let mut ticks = client.tick(request).await.map_err(said)?.into_inner();
    let mut seen = 0;
    while ticks.message().await.map_err(said)?.is_some() {
        seen += 1;
    }
    anyhow::ensure!(seen == 5, "{seen} of 5 messages came through the stream");
    for _ in 0..5 {
        echo(&mut client, b"after the stream").await.map_err(said)?;
    }

    // The channel is still open here; only the count of all sessions cannot be moved by older rows' ends.
    let began = Instant::now();
    let after = loop {
        let after = status::mapping(&stage.status, stage.app_mapping).await?.sessions;
        if after.total > before.total || began.elapsed() > STATUS_PATIENCE {
            break after;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    drop(client);
    let new = after.total.saturating_sub(before.total);
    let measured =
        format!("{new} new (total {} to {}), {} open meanwhile", before.total, after.total, after.open);
    Ok(Outcome::of(new == 1, measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&sorted, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&sorted[..1], 99), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 99), None);
    }
}
