//! Pools: growth, losses, drains, dials that hang.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hopline_link::{
    Authenticate, Authenticated, Code, Dial, Mux, Observation, OpenFailed, Pool, PoolConfig, Role, Session,
    Side, TrustedNames,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config;

const WITHIN: Duration = Duration::from_secs(10);

/// The far ends of what a pool dials.
struct Far(mpsc::UnboundedReceiver<DuplexStream>);

fn memory() -> (impl Dial, Far) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let dial = move || {
        let (near, far) = duplex(256 << 10);
        let sent = sender.send(far);
        async move { sent.map(|()| near).map_err(|_| io::ErrorKind::ConnectionRefused.into()) }
    };
    (dial, Far(receiver))
}

fn names(name: &str) -> Arc<dyn Authenticate> {
    Arc::new(TrustedNames::new(name).unwrap())
}

impl Far {
    /// The next link that the pool brings up.
    async fn link(&mut self) -> Mux {
        let raw = self.0.recv().await.unwrap();
        let auth = names("far").authenticate(Box::new(raw), Role::Listener).await;
        let Authenticated { carrier, peer } = auth.unwrap();
        assert_eq!(peer, "near");
        let mux = Mux::spawn(carrier, config(Side::Listener, "far")).unwrap();
        mux.up().await.unwrap();
        mux
    }

    /// A link whose sessions are all answered, and kept.
    async fn answering(&mut self) -> (Mux, Arc<Mutex<Vec<Session>>>) {
        let mux = self.link().await;
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (link, keep) = (mux.clone(), Arc::clone(&kept));
        tokio::spawn(async move {
            while let Some(session) = link.accept().await {
                session.answer(&b""[..]);
                keep.lock().unwrap().push(session);
            }
        });
        (mux, kept)
    }

    fn dials_so_far(&mut self) -> usize {
        std::iter::from_fn(|| self.0.try_recv().ok()).count()
    }
}

fn pool_config() -> PoolConfig {
    PoolConfig::new(config(Side::Dialer, "near"))
}

fn pool(config: PoolConfig, dial: impl Dial) -> Pool {
    Pool::builder("far", names("near"), config).spawn(dial)
}

async fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(600), "it never comes to that");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_waits_for_the_first_link() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let opened = tokio::spawn({
        let pool = pool.clone();
        async move { pool.open(&b"h"[..], WITHIN).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_mux, kept) = far.answering().await;
    let session = opened.await.unwrap().unwrap();
    assert_eq!(session.abort_reason(), None);
    assert_eq!((kept.lock().unwrap().len(), pool.links().len(), pool.last_fault()), (1, 1, None));
}

#[tokio::test(start_paused = true)]
async fn a_lost_link_is_back_within_a_second_and_opens_wait_for_it() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let (mux, _) = far.answering().await;
    pool.open(&b"h"[..], WITHIN).await.unwrap();
    mux.close(Code::SHUTDOWN, "restart");
    until(|| pool.links().is_empty()).await;
    let began = Instant::now();
    let (opened, _far) = tokio::join!(pool.open(&b"h"[..], WITHIN), far.answering());
    opened.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn more_sessions_get_more_links_and_fewer_let_them_go() {
    let (dial, mut far) = memory();
    let config = PoolConfig { sessions_per_link: 2, max_links: 3, ..pool_config() };
    let pool = pool(config, dial);
    let mut far_links = vec![far.answering().await];
    let mut sessions = Vec::new();
    for links in 2..=3 {
        for _ in 0..2 {
            sessions.push(pool.open(&b"h"[..], WITHIN).await.unwrap());
        }
        far_links.push(far.answering().await);
        until(|| pool.links().len() == links).await;
    }
    for _ in 0..20 {
        sessions.push(pool.open(&b"h"[..], WITHIN).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((far.dials_so_far(), pool.links().len()), (0, 3), "no more than max_links");
    let per_link: Vec<u32> = pool.links().iter().map(|link| link.sessions).collect();
    assert!(per_link.iter().all(|n| (7..=9).contains(n)), "{per_link:?}");
    drop(sessions);
    far_links.iter().for_each(|(_, kept)| kept.lock().unwrap().clear());
    until(|| pool.links().len() == 1).await;
    pool.open(&b"h"[..], WITHIN).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_link_that_drains_is_replaced_before_it_breaks() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let (old, kept) = far.answering().await;
    let mut session = pool.open(&b"h"[..], WITHIN).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    old.drain(Duration::from_secs(60));
    let (_new, new_kept) = far.answering().await;
    until(|| pool.links().len() == 2).await;
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    let _beside = pool.open(&b"h"[..], WITHIN).await.unwrap();
    assert_eq!((kept.lock().unwrap().len(), new_kept.lock().unwrap().len()), (1, 1));
    // The old session has not noticed.
    let mut theirs = kept.lock().unwrap().pop().unwrap();
    session.write_all(b"still here").await.unwrap();
    session.shutdown().await.unwrap();
    let mut got = String::new();
    theirs.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "still here");
    theirs.shutdown().await.unwrap();
    session.read_to_end(&mut Vec::new()).await.unwrap();
    session.finish().await.unwrap();
    // And the old link goes when it has nothing left.
    until(|| old.watch().borrow().drained).await;
    old.close(Code::SHUTDOWN, "drained");
    until(|| pool.links().len() == 1).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(far.dials_so_far(), 0);
}

#[tokio::test(start_paused = true)]
async fn beside_a_silent_link_another_is_dialled() {
    // Two pipes whose middle this test carries, until it does not.
    let (sender, mut pipes) = mpsc::unbounded_channel();
    let dial = move || {
        let ((near, a), (b, far)) = (duplex(256 << 10), duplex(256 << 10));
        drop(sender.send((a, b, far)));
        async move { Ok(near) }
    };
    let pool = pool(pool_config(), dial);
    let (far_ends, far) = mpsc::unbounded_channel();
    let mut far = Far(far);
    let (mut a, mut b, end) = pipes.recv().await.unwrap();
    far_ends.send(end).unwrap();
    let carry = tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut a, &mut b) => {}
            // Longer than a ping waits for its answer, shorter than a death takes.
            () = tokio::time::sleep(Duration::from_secs(20)) => {}
        }
        (a, b)
    });
    let _first = far.answering().await;
    let _silent = carry.await.unwrap();
    let began = Instant::now();
    let (mut a, mut b, end) = pipes.recv().await.unwrap();
    // Suspect 2 s after a ping that goes out after 5 s of silence, not dead after 15.
    assert!(began.elapsed() < Duration::from_millis(7_100), "{:?}", began.elapsed());
    far_ends.send(end).unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut a, &mut b).await });
    let (_second, kept) = far.answering().await;
    pool.open(&b"h"[..], WITHIN).await.unwrap();
    assert_eq!(kept.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_hangs_does_not_hold_up_the_next() {
    let (working, mut far) = memory();
    let (attempts, working) = (Arc::new(AtomicUsize::new(0)), Arc::new(working));
    let counted = Arc::clone(&attempts);
    // Of a type whose future does not borrow.
    let dial = move || {
        let (n, working) = (counted.fetch_add(1, Ordering::Relaxed), Arc::clone(&working));
        async move { if n < 3 { std::future::pending().await } else { working.dial().await } }
    };
    let pool = pool(pool_config(), dial);
    let began = Instant::now();
    let (opened, _far) = tokio::join!(pool.open(&b"h"[..], WITHIN), far.answering());
    opened.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(attempts.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_accepts_and_closes_is_dialled_ever_less_often() {
    let (dial, mut far) = memory();
    let _pool = pool(pool_config(), dial);
    let began = Instant::now();
    let mut links = 0;
    while began.elapsed() < Duration::from_secs(600) {
        let Ok(mux) = tokio::time::timeout(Duration::from_secs(60), far.link()).await else { break };
        mux.close(Code::REFUSED, "not now");
        links += 1;
    }
    assert!((20..40).contains(&links), "{links} links in 10 min");
}

#[tokio::test(start_paused = true)]
async fn who_is_not_the_peer_gets_no_session() {
    let (dial, mut far) = memory();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let count = Arc::clone(&seen);
    let pool = Pool::builder("somebody else", names("near"), pool_config())
        .observer(move |seen: &Observation<'_>| count.lock().unwrap().push(seen.label()))
        .spawn(dial);
    let answers = tokio::spawn(async move { while far.link_or_not().await {} });
    let failed = pool.open(&b"h"[..], WITHIN).await.unwrap_err();
    let OpenFailed::NoLink { within, why } = &failed else { panic!("{failed}") };
    assert_eq!(*within, WITHIN);
    assert!(why.contains(r#"the peer is "far", not "somebody else""#), "{why}");
    assert_eq!(failed.abort().code, Code::OFFLINE);
    answers.abort();
    let seen = seen.lock().unwrap();
    let dials = seen.iter().filter(|label| **label == "dial_failed").count();
    // At least one a second.
    assert!((10..40).contains(&dials), "{seen:?}");
    assert_eq!(seen.last(), Some(&"open_failed"));
}

impl Far {
    async fn link_or_not(&mut self) -> bool {
        let Some(raw) = self.0.recv().await else { return false };
        let _ = names("far").authenticate(Box::new(raw), Role::Listener).await;
        true
    }
}

#[tokio::test(start_paused = true)]
async fn only_so_many_opens_wait() {
    let (dial, _far) = memory();
    let pool = pool(PoolConfig { max_waiting: 2, ..pool_config() }, dial);
    let waits = || {
        let pool = pool.clone();
        tokio::spawn(async move { pool.open(&b"h"[..], WITHIN).await.unwrap_err() })
    };
    let (first, second) = (waits(), waits());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let third = pool.open(&b"h"[..], WITHIN).await.unwrap_err();
    assert_eq!((third.clone(), third.abort().code), (OpenFailed::TooManyWaiting(2), Code::OVERLOAD));
    for waited in [first, second] {
        assert!(matches!(waited.await.unwrap(), OpenFailed::NoLink { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_goes_out_again_after_draining_alone() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let mux = far.link().await;
    let refuses = async {
        mux.accept().await.unwrap().abort(Code::DRAINING, "further on");
        mux.accept().await.unwrap().abort(Code::OFFLINE, "nobody there");
    };
    let (opened, ()) = tokio::join!(pool.open(&b"h"[..], WITHIN), refuses);
    assert!(matches!(opened, Err(OpenFailed::Refused(abort)) if abort.code == Code::OFFLINE));
    assert!(tokio::time::timeout(WITHIN, mux.accept()).await.is_err(), "once is enough");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_sessions_and_cuts_them_at_its_deadline() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let (mux, _kept) = far.answering().await;
    let session = pool.open(&b"h"[..], WITHIN).await.unwrap();
    let began = Instant::now();
    let (deadline, waits) = (Duration::from_secs(5), pool.clone());
    let (opened, ()) = tokio::join!(
        async {
            tokio::task::yield_now().await;
            waits.open(&b"h"[..], WITHIN).await
        },
        pool.drain(deadline)
    );
    assert_eq!(opened.unwrap_err(), OpenFailed::Leaving);
    assert_eq!(began.elapsed(), deadline);
    assert_eq!(session.read_bytes().await.unwrap_err().code, Code::DRAIN_DEADLINE);
    mux.closed().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(far.dials_so_far(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_handles_nothing_is_dialled_and_links_end_with_their_sessions() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let (mux, kept) = far.answering().await;
    let session = pool.open(&b"h"[..], WITHIN).await.unwrap();
    drop(pool);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let theirs = kept.lock().unwrap().pop().unwrap();
    theirs.write_bytes("kept".into()).await.unwrap();
    assert_eq!(session.read_bytes().await.unwrap().unwrap(), "kept");
    drop(session);
    mux.closed().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(far.dials_so_far(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_links_of_its_own_dials_at_the_first_open() {
    let (dial, mut far) = memory();
    let pool = pool(PoolConfig { min_links: 0, ..pool_config() }, dial);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(far.dials_so_far(), 0);
    let (opened, (mux, kept)) = tokio::join!(pool.open(&b"h"[..], WITHIN), far.answering());
    opened.unwrap();
    kept.lock().unwrap().clear();
    // Idle again, it lets go.
    mux.closed().await;
    until(|| pool.links().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_peer_opens_to_a_pool_is_refused() {
    let (dial, mut far) = memory();
    let _pool = pool(pool_config(), dial);
    let mux = far.link().await;
    let failed = mux.open_within(&b"h"[..], WITHIN).await.unwrap_err();
    assert!(matches!(failed, OpenFailed::Refused(abort) if abort.code == Code::REFUSED));
}

#[tokio::test(start_paused = true)]
async fn a_link_that_drains_takes_no_sessions_at_either_end() {
    let (dialer, listener) = crate::in_memory().await;
    let (_near, _far) = crate::open(&dialer, &listener).await;
    assert!(dialer.takes_sessions() && listener.takes_sessions());
    dialer.drain(WITHIN);
    assert!(!dialer.takes_sessions());
    until(|| !listener.takes_sessions()).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_its_user_drains_is_replaced() {
    let (dial, mut far) = memory();
    let pool = pool(pool_config(), dial);
    let (_first, _kept) = far.answering().await;
    let _session = pool.open("h", WITHIN).await.unwrap();
    pool.link(WITHIN).await.unwrap().drain(Duration::from_secs(60));
    let began = Instant::now();
    let (opened, _second) = tokio::join!(pool.open("h", WITHIN), far.answering());
    opened.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
