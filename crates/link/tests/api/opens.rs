//! Opens that wait for their answer.

use std::time::Duration;

use hopline_link::{Code, Mux, OpenError, OpenFailed, Side};
use tokio::time::Instant;

use crate::{config, in_memory, two_hops};

const WITHIN: Duration = Duration::from_secs(3);

#[tokio::test]
async fn an_open_gives_an_answered_session() {
    let (origin, far) = two_hops().await;
    let opened = tokio::spawn(async move { origin.open_within(&b"who"[..], WITHIN).await });
    let session = far.accept().await.unwrap();
    assert_eq!(session.header(), "who");
    session.answer(&b"me"[..]);
    let near = opened.await.unwrap().unwrap();
    assert_eq!(near.answered().await.unwrap(), "me");
}

#[tokio::test]
async fn a_refusal_has_its_hop() {
    let (origin, far) = two_hops().await;
    let opened = tokio::spawn(async move { origin.open_within(&b"who"[..], WITHIN).await });
    far.accept().await.unwrap().abort(Code::REFUSED, "not you");
    let Err(OpenFailed::Refused(abort)) = opened.await.unwrap() else { panic!("not refused") };
    assert_eq!((abort.code, abort.hops, abort.message.as_str()), (Code::REFUSED, 2, "not you"));
}

#[tokio::test(start_paused = true)]
async fn no_answer_in_time_is_the_openers_own_and_reaches_the_far_end() {
    let (origin, far) = two_hops().await;
    let began = Instant::now();
    let (opened, session) = tokio::join!(origin.open_within(&b"who"[..], WITHIN), far.accept());
    assert_eq!(opened.unwrap_err(), OpenFailed::TimedOut { within: WITHIN });
    assert_eq!(began.elapsed(), WITHIN);
    let abort = session.unwrap().read_bytes().await.unwrap_err();
    assert_eq!((abort.code, abort.hops), (Code::TIMEOUT, 2));
}

#[tokio::test(start_paused = true)]
async fn the_time_covers_a_hello_that_does_not_come() {
    let (carrier, _silent) = tokio::io::duplex(4096);
    let mux = Mux::spawn(carrier, config(Side::Dialer, "d")).unwrap();
    let began = Instant::now();
    let failed = mux.open_within(&b""[..], WITHIN).await.unwrap_err();
    assert_eq!((failed, began.elapsed()), (OpenFailed::TimedOut { within: WITHIN }, WITHIN));
    // And a link that ends before its hello ends the open.
    let failed = mux.open_within(&b""[..], 10 * WITHIN).await.unwrap_err();
    assert!(matches!(failed, OpenFailed::NotOpened(OpenError::Down(_))), "{failed}");
}

#[tokio::test]
async fn a_dropped_open_leaves_nothing_behind() {
    let (dialer, listener) = in_memory().await;
    let mut opened = Box::pin(dialer.open_within(&b"h"[..], WITHIN));
    let session = tokio::select! {
        biased;
        _ = &mut opened => panic!("nobody answers"),
        session = listener.accept() => session.unwrap(),
    };
    drop(opened);
    assert_eq!(session.read_bytes().await.unwrap_err().code, Code::PEER_RESET);
    drop(session);
    while dialer.info().sessions + listener.info().sessions > 0 {
        tokio::task::yield_now().await;
    }
}
