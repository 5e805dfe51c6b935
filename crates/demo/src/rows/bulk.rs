//! P1: 100 MiB through one stream and back, with a checksum made at each end.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Outcome, said, warm_client};
use crate::proto::v1::pipe_reply::Kind;
use crate::proto::v1::{Digest, PipeRequest};
use crate::target::Target;

/// Bytes in each direction.
pub(super) const LENGTH: u64 = 100 * 1024 * 1024;
const CHUNK: usize = 256 * 1024;
/// Chunks made ahead of what the channel has taken.
const AHEAD: usize = 4;

pub(super) async fn echo(target: &Target) -> anyhow::Result<Outcome> {
    let mut client = warm_client(target).await?;
    let began = Instant::now();
    let (chunks, queue) = mpsc::channel(AHEAD);
    let sender = tokio::spawn(send(chunks));
    let mut replies = client.pipe(ReceiverStream::new(queue)).await.map_err(said)?.into_inner();

    let mut back = Sha256::new();
    let mut length = 0_u64;
    let mut at_server = None;
    while let Some(reply) = replies.message().await.map_err(said).with_context(|| after(length))? {
        ensure!(at_server.is_none(), "a reply came after the digest");
        match reply.kind {
            Some(Kind::Chunk(chunk)) => {
                back.update(&chunk);
                length += chunk.len() as u64;
            }
            Some(Kind::Digest(digest)) => at_server = Some(digest),
            None => bail!("an empty reply"),
        }
    }
    let took = began.elapsed().as_secs_f64();
    let at_server = at_server.with_context(|| format!("clean end without a digest {}", after(length)))?;
    let sent = sender.await.context("the sending task")?;
    let back = Digest { length, sha256: Bytes::copy_from_slice(&back.finalize()) };

    let wrong: Vec<&str> = [("there", &at_server), ("back", &back)]
        .into_iter()
        .filter(|(_, digest)| **digest != sent)
        .map(|(way, _)| way)
        .collect();
    let verdict = match wrong[..] {
        [] => "equal".to_owned(),
        _ => format!("NOT equal on the way {}", wrong.join(" and ")),
    };
    let rate = LENGTH as f64 / 1e6 / took;
    Ok(Outcome::of(wrong.is_empty(), format!("{verdict}; {took:.2} s, {rate:.0} MB/s each way at once")))
}

fn after(length: u64) -> String {
    format!("after {length} bytes back")
}

/// Sends the stream's bytes and returns their digest. Chunks differ, so that one that is lost, doubled or
/// out of place shows.
async fn send(chunks: mpsc::Sender<PipeRequest>) -> Digest {
    let mut hash = Sha256::new();
    let mut length = 0;
    let mut block = noise();
    while length < LENGTH {
        block[..8].copy_from_slice(&length.to_le_bytes());
        let chunk = Bytes::copy_from_slice(&block);
        hash.update(&chunk);
        length += chunk.len() as u64;
        if chunks.send(PipeRequest { chunk }).await.is_err() {
            break;
        }
    }
    Digest { length, sha256: Bytes::copy_from_slice(&hash.finalize()) }
}

/// One chunk of bytes without a pattern (xorshift64).
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = Vec::with_capacity(CHUNK);
    while block.len() < CHUNK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    block
}
