//! P14: deadlines are local; a passed one is `TimedOut` and the session lives; a spliced session's write deadline
//! aborts both ways.

use std::io;
use std::time::Duration;

use hopline_link::{Abort, Code, LinkEnd, Session, SessionError, SpliceEnd, SpliceSide, splice};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::{in_memory, one_session, open, two_hops};

const SHORT: Duration = Duration::from_millis(200);

fn timed_out(error: &io::Error) -> &SessionError {
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    SessionError::of(error).unwrap()
}

/// Writes until nothing more is taken: the far side does not read.
async fn fill(session: &mut Session) -> usize {
    session.set_write_deadline(Instant::now() + SHORT);
    let mut taken = 0;
    loop {
        match session.write(&[7; 4096]).await {
            Ok(n) => taken += n,
            Err(error) => {
                assert_eq!(timed_out(&error), &SessionError::WriteDeadline);
                return taken;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_passed_read_deadline_is_timed_out_and_the_session_lives() {
    let (near, mut far) = one_session().await;
    let began = Instant::now();
    far.set_read_deadline(began + SHORT);
    let mut byte = [0];
    let error = far.read(&mut byte).await.unwrap_err();
    assert_eq!(timed_out(&error), &SessionError::ReadDeadline);
    assert_eq!(began.elapsed(), SHORT);
    assert_eq!(far.abort_reason(), None);

    // Passed is passed, also when bytes are there; they are kept for the next read.
    near.write_bytes("xy".into()).await.unwrap();
    far.read_bytes_are_there().await;
    assert_eq!(timed_out(&far.read(&mut byte).await.unwrap_err()), &SessionError::ReadDeadline);
    far.set_read_deadline(Instant::now() + SHORT);
    assert_eq!(far.read(&mut byte).await.unwrap(), 1);
    assert_eq!(&byte, b"x");
    tokio::time::sleep(SHORT).await;
    timed_out(&far.read(&mut byte).await.unwrap_err());
    far.set_read_deadline(None);
    assert_eq!(far.read(&mut byte).await.unwrap(), 1);
    assert_eq!(&byte, b"y");
    // By reference there is no deadline.
    far.set_read_deadline(Instant::now());
    near.write_bytes("z".into()).await.unwrap();
    assert_eq!(far.read_bytes().await.unwrap().unwrap(), "z");
}

trait Arrived {
    async fn read_bytes_are_there(&self);
}

impl Arrived for Session {
    async fn read_bytes_are_there(&self) {
        while self.counters().unread == 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_hears_of_a_new_deadline() {
    let (_near, far) = one_session().await;
    let (mut read, write) = far.split();
    let began = Instant::now();
    let waits = tokio::spawn(async move {
        let error = read.read(&mut [0]).await.unwrap_err();
        (error, began.elapsed())
    });
    tokio::time::sleep(SHORT).await;
    write.session().set_read_deadline(Instant::now() + 2 * SHORT);
    tokio::time::sleep(SHORT).await;
    // Sooner than the one before.
    write.session().set_read_deadline(Instant::now());
    let (error, elapsed) = waits.await.unwrap();
    timed_out(&error);
    assert!(elapsed < 2 * SHORT + Duration::from_millis(10), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_passed_write_deadline_takes_nothing_and_the_session_lives() {
    let (mut near, mut far) = one_session().await;
    let began = Instant::now();
    let taken = fill(&mut near).await;
    assert_eq!(began.elapsed(), SHORT);
    let counters = near.counters();
    assert_eq!((counters.sent + counters.unsent, counters.send_credit), (taken as u64, 0));
    // Also with room, a passed deadline takes nothing.
    let mut got = vec![0; taken];
    far.read_exact(&mut got).await.unwrap();
    timed_out(&near.write(b"x").await.unwrap_err());
    near.set_write_deadline(None);
    near.write_all(b"end").await.unwrap();
    near.shutdown().await.unwrap();
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"end");
    assert_eq!(far.counters().received, taken as u64 + 3);
    assert_eq!(near.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn an_abort_that_says_timeout_is_no_deadline() {
    let (near, mut far) = one_session().await;
    near.abort(Code::TIMEOUT, "mine has passed");
    let error = far.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let want = Abort { hops: 1, ..Abort::new(Code::TIMEOUT, "mine has passed") };
    assert_eq!(SessionError::of(&error), Some(&SessionError::Aborted(want)));
}

/// Both sessions of a relay, before they are joined.
async fn unjoined() -> ((Session, Session), (Session, Session)) {
    let (origin, relay_in) = in_memory().await;
    let (relay_out, far) = in_memory().await;
    let near = origin.open(&b"h"[..]).unwrap();
    let left = relay_in.accept().await.unwrap();
    let right = relay_out.open(left.header().clone()).unwrap();
    let far = far.accept().await.unwrap();
    far.answer(&b""[..]);
    ((near, left), (right, far))
}

#[tokio::test(start_paused = true)]
async fn a_write_deadline_passed_on_a_spliced_session_aborts_both_ways() {
    for set_before in [true, false] {
        let ((near, left), (right, far)) = unjoined().await;
        let began = Instant::now();
        if set_before {
            right.set_write_deadline(began + SHORT);
        }
        let spliced = splice(left, right);
        if !set_before {
            spliced.set_write_deadline(SpliceSide::Right, began + 9 * SHORT);
            spliced.set_write_deadline(SpliceSide::Right, began + SHORT);
        }
        near.answered().await.unwrap();
        let SpliceEnd::Aborted(abort) = spliced.await.end else { panic!("a clean end") };
        assert_eq!((abort.code, began.elapsed()), (Code::TIMEOUT, SHORT));
        for end in [near, far] {
            let abort = end.read_bytes().await.unwrap_err();
            assert_eq!((abort.code, abort.hops), (Code::TIMEOUT, 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_deadline_that_was_met_or_taken_away_aborts_nothing() {
    let ((mut near, left), (right, mut far)) = unjoined().await;
    let spliced = splice(left, right);
    spliced.set_write_deadline(SpliceSide::Right, Instant::now() + SHORT);
    spliced.set_write_deadline(SpliceSide::Left, Instant::now() + SHORT);
    spliced.set_write_deadline(SpliceSide::Left, None);
    near.write_all(b"in time").await.unwrap();
    near.shutdown().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    near.finish().await.unwrap();
    tokio::time::sleep(10 * SHORT).await;
    far.write_all(b"later").await.unwrap();
    far.shutdown().await.unwrap();
    near.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"in timelater");
    assert_eq!(spliced.await.end, SpliceEnd::Clean);
}

#[tokio::test(start_paused = true)]
async fn a_forwarding_hop_has_no_idle_limit() {
    let (origin, far) = two_hops().await;
    let (mut near, mut far) = open(&origin, &far).await;
    near.shutdown().await.unwrap();
    tokio::time::sleep(Duration::from_secs(12 * 3600)).await;
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    tokio::time::sleep(Duration::from_secs(12 * 3600)).await;
    far.write_all(b"still here").await.unwrap();
    far.shutdown().await.unwrap();
    let mut got = String::new();
    near.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "still here");
}

#[tokio::test(start_paused = true)]
async fn a_dead_peer_is_an_error_of_its_own() {
    let (a, mut b) = tokio::io::duplex(256 << 10);
    let (c, mut d) = tokio::io::duplex(256 << 10);
    let dialer = hopline_link::Mux::spawn(a, crate::config(hopline_link::Side::Dialer, "d")).unwrap();
    let listener = hopline_link::Mux::spawn(c, crate::config(hopline_link::Side::Listener, "l")).unwrap();
    let wire = async { tokio::io::copy_bidirectional(&mut b, &mut d).await };
    let mut near = tokio::select! {
        _ = wire => panic!("the wire ended"),
        near = async {
            dialer.up().await.unwrap();
            open(&dialer, &listener).await.0
        } => near,
    };
    // `b` and `d` are still open, and nobody carries anything between them.
    let error = near.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    let silent = Duration::from_secs(15);
    assert_eq!(SessionError::of(&error), Some(&SessionError::DeadPeer { silent }));
    assert_eq!(near.link_end(), Some(LinkEnd::DeadPeer { silent }));
    let abort = SessionError::of(&error).unwrap().abort().unwrap();
    assert_eq!((abort.code, abort.hops, abort.silent_ms), (Code::CONN_LOST, 0, Some(15_000)));
}
