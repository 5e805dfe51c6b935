//! The gRPC service itself: handlers that answer, stream, hash, and one that never returns.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::clock;
use crate::proto::v1::demo_server::Demo;
use crate::proto::v1::pipe_reply::Kind;
use crate::proto::v1::{
    DeadlineReply, DeadlineRequest, Digest, EchoReply, EchoRequest, NeverReply, NeverRequest, PipeReply,
    PipeRequest, ReportReply, ReportRequest, TickReply, TickRequest,
};
use crate::records::{Records, Running};

/// The longest that `Report` waits for an end.
const MAX_REPORT_WAIT: Duration = Duration::from_secs(60);
/// Replies of `Pipe` that wait for the client to read: small, so that a client that stops reading also
/// stops what it sends.
const PIPE_QUEUE: usize = 4;

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The handlers; clones share their records.
#[derive(Clone, Debug, Default)]
pub(crate) struct DemoService {
    records: Records,
}

#[tonic::async_trait]
impl Demo for DemoService {
    async fn echo(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        Ok(Response::new(EchoReply { payload: request.into_inner().payload }))
    }

    type TickStream = Replies<TickReply>;

    async fn tick(&self, request: Request<TickRequest>) -> Result<Response<Self::TickStream>, Status> {
        let request = request.into_inner();
        let running = self.records.begin(request.call_id);
        let interval = Duration::from_millis(u64::from(request.interval_ms));
        if interval.is_zero() {
            return Ok(Response::new(Box::pin(one_and_then_idle(running))));
        }
        let ticks = futures_util::stream::unfold((1, running), move |(number, running)| async move {
            if number > request.count {
                return None;
            }
            if number > 1 {
                tokio::time::sleep(interval).await;
            }
            Some((Ok(TickReply { number }), (number + 1, running)))
        });
        Ok(Response::new(Box::pin(ticks)))
    }

    type PipeStream = ReceiverStream<Result<PipeReply, Status>>;

    async fn pipe(
        &self,
        request: Request<Streaming<PipeRequest>>,
    ) -> Result<Response<Self::PipeStream>, Status> {
        let (replies, queue) = mpsc::channel(PIPE_QUEUE);
        // Ends by itself with the call: then either the input or the queue's reader is gone.
        tokio::spawn(echo_and_hash(request.into_inner(), replies));
        Ok(Response::new(ReceiverStream::new(queue)))
    }

    async fn never(&self, request: Request<NeverRequest>) -> Result<Response<NeverReply>, Status> {
        let _running = self.records.begin(request.into_inner().call_id);
        std::future::pending().await
    }

    async fn deadline(&self, request: Request<DeadlineRequest>) -> Result<Response<DeadlineReply>, Status> {
        let began_us = clock::now_us();
        Ok(Response::new(DeadlineReply { left_us: timeout_us(request.metadata()), began_us }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportReply>, Status> {
        let ReportRequest { call_id, wait_ms } = request.into_inner();
        let patience = Duration::from_millis(u64::from(wait_ms)).min(MAX_REPORT_WAIT);
        let Some(record) = self.records.wait(call_id, patience).await else {
            return Ok(Response::new(ReportReply::default()));
        };
        Ok(Response::new(ReportReply {
            known: true,
            began_us: record.began_us,
            ended_us: record.ended_us,
            ended_after_ms: record.ended_us.map(|ended| ended.saturating_sub(record.began_us) / 1_000),
        }))
    }
}

fn one_and_then_idle(running: Running) -> impl Stream<Item = Result<TickReply, Status>> {
    let idle = futures_util::stream::once(async move {
        let _running = running;
        std::future::pending().await
    });
    futures_util::stream::iter([Ok(TickReply { number: 1 })]).chain(idle)
}

async fn echo_and_hash(mut chunks: Streaming<PipeRequest>, replies: mpsc::Sender<Result<PipeReply, Status>>) {
    let mut hash = Sha256::new();
    let mut length = 0_u64;
    loop {
        let reply = match chunks.message().await {
            Ok(Some(PipeRequest { chunk })) => {
                hash.update(&chunk);
                length += chunk.len() as u64;
                Ok(PipeReply { kind: Some(Kind::Chunk(chunk)) })
            }
            Ok(None) => break,
            Err(status) => Err(status),
        };
        let failed = reply.is_err();
        if replies.send(reply).await.is_err() || failed {
            return;
        }
    }
    let digest = Digest { length, sha256: Bytes::copy_from_slice(&hash.finalize()) };
    // A client that is gone needs no digest.
    let _ = replies.send(Ok(PipeReply { kind: Some(Kind::Digest(digest)) })).await;
}

/// The call's `grpc-timeout` in microseconds; `None` when there is none or it is malformed.
fn timeout_us(metadata: &MetadataMap) -> Option<u64> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    // At most 8 digits and a unit, so the product stays far below the limit of u64.
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(value * 3_600_000_000),
        "M" => Some(value * 60_000_000),
        "S" => Some(value * 1_000_000),
        "m" => Some(value * 1_000),
        "u" => Some(value),
        "n" => Some(value / 1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &'static str) -> Option<u64> {
        let mut metadata = MetadataMap::new();
        metadata.insert("grpc-timeout", tonic::metadata::MetadataValue::from_static(text));
        timeout_us(&metadata)
    }

    #[test]
    fn every_unit_of_a_timeout_is_read() {
        assert_eq!(parsed("2999986u"), Some(2_999_986));
        assert_eq!(parsed("3010m"), Some(3_010_000));
        assert_eq!(parsed("99999999H"), Some(359_999_996_400_000_000));
        assert_eq!(parsed("2M"), Some(120_000_000));
        assert_eq!(parsed("2S"), Some(2_000_000));
        assert_eq!(parsed("5000n"), Some(5));
    }

    #[test]
    fn a_malformed_timeout_is_none() {
        for text in ["", "u", "1", "1x", "-1u", "+1u", "123456789u", "1.5S"] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
        assert_eq!(timeout_us(&MetadataMap::new()), None);
    }
}
