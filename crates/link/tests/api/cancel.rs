//! What a dropped future costs: each async method is polled until it waits, dropped, and what it was about is done
//! all the same.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use hopline_link::{Code, Mux, Session, Side, SpliceEnd, close_all};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use crate::{config, in_memory, one_session};

const WITHIN: Duration = Duration::from_secs(10);

/// Polls once, with a waker that wakes nobody; it must wait; drops it.
fn cut<T>(future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "it did not wait");
}

/// The same, and lets everything else run between polls: it has to drop wherever it may wait.
async fn cut_later<T>(future: impl Future<Output = T>, turns: usize) {
    let mut future = pin!(future);
    for _ in 0..turns {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "it did not wait");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn links_come_up_and_end_for_the_next_who_waits() {
    let (a, b) = duplex(1 << 16);
    let dialer = Mux::spawn(a, config(Side::Dialer, "d")).unwrap();
    cut(dialer.up());
    cut(dialer.closed());
    cut(dialer.driver_done());
    let listener = Mux::spawn(b, config(Side::Listener, "l")).unwrap();
    dialer.up().await.unwrap();
    cut(close_all(std::slice::from_ref(&dialer), Code::SHUTDOWN, "stopping", WITHIN));
    dialer.driver_done().await;
    assert_eq!(dialer.closed().await.abort().code, Code::SHUTDOWN);
    assert_eq!(listener.closed().await.abort().code, Code::SHUTDOWN);
}

#[tokio::test]
async fn an_accept_that_was_dropped_leaves_the_session_to_the_next() {
    let (dialer, listener) = in_memory().await;
    cut_later(listener.accept(), 3).await;
    let near = dialer.open(&b"h"[..]).unwrap();
    while listener.info().sessions == 0 {
        tokio::task::yield_now().await;
    }
    let far = listener.accept().await.unwrap();
    cut(near.answered());
    far.answer(&b"a"[..]);
    assert_eq!(near.answered().await.unwrap(), "a");
    // And an answer that was read once is there for whoever asks again.
    assert_eq!(near.answered().await.unwrap(), "a");
}

#[tokio::test]
async fn reads_that_were_dropped_lose_no_byte() {
    let (near, mut far) = one_session().await;
    for round in 0..100u8 {
        cut(far.read_bytes());
        cut(far.read_exact(&mut [0]));
        cut(far.aborted());
        near.write_bytes(vec![round, round].into()).await.unwrap();
        let mut got = [0; 2];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(got, [round; 2]);
    }
    near.abort(Code::REFUSED, "enough");
    assert_eq!(far.aborted().await.code, Code::REFUSED);
}

#[tokio::test(start_paused = true)]
async fn writes_that_were_dropped_wrote_nothing() {
    let (mut near, mut far) = one_session().await;
    // Full: the far side does not read. The clock moves only when nothing else does.
    let mut written = 0;
    while let Ok(result) = tokio::time::timeout(Duration::from_millis(50), near.write(&[1; 8192])).await {
        written += result.unwrap();
    }
    cut(near.write(b"dropped"));
    cut(near.write_bytes("dropped".into()));
    cut(near.writable());
    cut(near.sending());
    let reader = tokio::spawn(async move {
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        far.shutdown().await.unwrap();
        got
    });
    near.writable().await.unwrap();
    near.write_bytes("written".into()).await.unwrap();
    while near.sending().await.unwrap() > 0 {}
    // The end goes out with the first poll; the wait for the far reader may begin again.
    cut(near.finish());
    near.finish().await.unwrap();
    let got = reader.await.unwrap();
    assert_eq!((got.len(), &got[written..]), (written + 7, &b"written"[..]));
}

#[tokio::test]
async fn a_splice_outlives_whoever_waited_for_it() {
    let (origin, relay_in) = in_memory().await;
    let (relay_out, target) = in_memory().await;
    let near = origin.open(&b"h"[..]).unwrap();
    let left = relay_in.accept().await.unwrap();
    let right = relay_out.open(left.header().clone()).unwrap();
    let mut spliced = hopline_link::splice(left, right);
    cut(&mut spliced);
    let far = target.accept().await.unwrap();
    far.answer(&b""[..]);
    near.end();
    far.end();
    assert_eq!(near.read_bytes().await.unwrap(), None);
    assert_eq!(far.read_bytes().await.unwrap(), None);
    assert_eq!(spliced.await.end, SpliceEnd::Clean);
}

/// All of them can be awaited in a task of any thread.
#[test]
fn every_future_is_send() {
    fn is_send<T: Send>(_: &T) -> usize {
        1
    }
    fn count(mux: &Mux, session: &Session) -> usize {
        is_send(&mux.up())
            + is_send(&mux.closed())
            + is_send(&mux.driver_done())
            + is_send(&mux.open_within("", WITHIN))
            + is_send(&mux.accept())
            + is_send(&close_all(&[], Code::SHUTDOWN, "", WITHIN))
            + is_send(&session.answered())
            + is_send(&session.aborted())
            + is_send(&session.read_bytes())
            + is_send(&session.write_bytes("".into()))
            + is_send(&session.writable())
            + is_send(&session.sending())
            + is_send(&session.finish())
    }
    let _ = count;
}
