//! What the last handle of a link leaves behind.

use std::time::Duration;

use hopline_link::{Code, LinkEnd, SpliceEnd, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::{in_memory, open};

#[tokio::test]
async fn what_a_clean_session_left_is_delivered_although_no_handle_is_left() {
    let (dialer, listener) = in_memory().await;
    let (mut near, mut far) = open(&dialer, &listener).await;
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    near.write_all(&[9; 60_000]).await.unwrap();
    near.shutdown().await.unwrap();
    let mut got = Vec::new();
    near.read_to_end(&mut got).await.unwrap();
    drop((near, dialer));
    got.clear();
    far.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [9; 60_000]);
    // The acknowledgement of our end was left to it, too.
    far.finish().await.unwrap();
    assert!(matches!(listener.closed().await, LinkEnd::Goodbye(abort) if abort.code == Code::SHUTDOWN));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_does_not_keep_an_unused_link() {
    let (dialer, listener) = in_memory().await;
    let (mut near, far) = open(&dialer, &listener).await;
    far.end();
    assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
    near.write_all(&[9; 100_000]).await.unwrap();
    near.shutdown().await.unwrap();
    let began = Instant::now();
    drop((near, dialer));
    listener.closed().await;
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    // What was received stays readable, and then comes the reason.
    let mut got = 0;
    let abort = loop {
        match far.read_bytes().await {
            Ok(bytes) => got += bytes.unwrap().len(),
            Err(abort) => break abort,
        }
    };
    assert!(got > 0);
    assert_eq!(abort.code, Code::DRAIN_DEADLINE);
}

#[tokio::test]
async fn opens_that_nobody_will_take_are_refused_as_safe_to_repeat() {
    let (dialer, listener) = in_memory().await;
    let (near, far) = open(&dialer, &listener).await;
    let unanswered = near_open(&dialer, &listener).await;
    drop(listener);
    drop(far);
    assert_eq!(unanswered.answered().await.unwrap_err().code, Code::DRAINING);
    drop(near);
}

/// An open that has arrived and that nobody has accepted.
async fn near_open(dialer: &hopline_link::Mux, listener: &hopline_link::Mux) -> hopline_link::Session {
    let session = dialer.open(&b"h"[..]).unwrap();
    while listener.info().sessions < 2 {
        tokio::task::yield_now().await;
    }
    session
}

#[tokio::test]
async fn a_splice_keeps_its_links_in_use() {
    let (origin, relay_in) = in_memory().await;
    let (relay_out, target) = in_memory().await;
    let mut near = origin.open(&b"h"[..]).unwrap();
    let left = relay_in.accept().await.unwrap();
    let right = relay_out.open(left.header().clone()).unwrap();
    let spliced = splice(left, right);
    drop((relay_in, relay_out));
    let mut far = target.accept().await.unwrap();
    far.answer(&b""[..]);
    far.shutdown().await.unwrap();
    let mut got = Vec::new();
    let write = async {
        near.write_all(&[3; 400_000]).await.unwrap();
        near.finish().await.unwrap();
    };
    let ((), read) = tokio::join!(write, far.read_to_end(&mut got));
    assert_eq!(read.unwrap(), 400_000);
    assert_eq!(near.read(&mut [0]).await.unwrap(), 0);
    let outcome = spliced.await;
    assert_eq!((outcome.end, outcome.forth, outcome.back), (SpliceEnd::Clean, 400_000, 0));
    // With the splice the last use of the relay's links is gone.
    drop((near, far));
    assert!(matches!(origin.closed().await, LinkEnd::Goodbye(_)));
    assert!(matches!(target.closed().await, LinkEnd::Goodbye(_)));
}
