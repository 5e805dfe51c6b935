//! What a dropped future costs: each async method is polled until it waits, dropped, and what it was about is done
//! all the same.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use hopline_link::{
    Code, Config, Mux, Node, NodeConfig, OpenFailed, Pool, Session, Side, SpliceEnd, TrustedNames, close_all,
    forward,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;

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
async fn a_forward_that_was_dropped_leaves_the_sessions_joined() {
    let (origin, relay_in) = in_memory().await;
    let (relay_out, target) = in_memory().await;
    let mut near = origin.open(&b"h"[..]).unwrap();
    let left = relay_in.accept().await.unwrap();
    let right = relay_out.open(left.header().clone()).unwrap();
    cut(forward(left, right, Some(WITHIN)));
    let mut far = target.accept().await.unwrap();
    far.answer(&b""[..]);
    near.write_all(b"joined").await.unwrap();
    near.shutdown().await.unwrap();
    let mut got = String::new();
    far.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "joined");
}

fn node(name: &str) -> Node {
    let config = NodeConfig::new(Config::new(Side::Dialer, [1; 16], name));
    Node::builder(Arc::new(TrustedNames::new(name).unwrap()), config).build()
}

/// Dials `to` once it is told that it may.
fn gate(to: &Node) -> (impl hopline_link::Dial, tokio::sync::watch::Sender<bool>) {
    let (sender, open) = tokio::sync::watch::channel(false);
    let to = to.clone();
    let dial = move || {
        let (mut open, to) = (open.clone(), to.clone());
        async move {
            drop(open.wait_for(|open| *open).await);
            let (near, far): (DuplexStream, _) = duplex(1 << 16);
            tokio::spawn(async move { to.take(far).await });
            Ok(near)
        }
    };
    (dial, sender)
}

async fn quiet(node: &Node, peer: &str) {
    let pool = node.pool(peer).unwrap();
    while pool.links().iter().any(|link| link.sessions > 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn opens_of_pools_and_nodes_that_were_dropped_leave_nothing() {
    let (alpha, beta) = (node("alpha"), node("beta"));
    let (dial, may) = gate(&beta);
    alpha.connect("beta", dial);
    // While no link is up.
    cut_later(alpha.open("beta", "h", WITHIN), 3).await;
    cut_later(alpha.pool("beta").unwrap().link(WITHIN), 3).await;
    may.send_replace(true);
    alpha.pool("beta").unwrap().link(WITHIN).await.unwrap();
    // While nobody answers.
    cut_later(alpha.open("beta", "dropped", WITHIN), 3).await;
    let dropped = beta.accept().await.unwrap().session;
    assert_eq!(dropped.header(), "dropped");
    assert_eq!(dropped.read_bytes().await.unwrap_err().code, Code::PEER_RESET);
    quiet(&alpha, "beta").await;
    // The next is not disturbed.
    cut_later(beta.accept(), 3).await;
    let (opened, arrived) = tokio::join!(alpha.open("beta", "next", WITHIN), async {
        let arrived = beta.accept().await.unwrap();
        arrived.session.answer(&b""[..]);
        arrived
    });
    opened.unwrap();
    assert_eq!(arrived.session.header(), "next");
}

#[tokio::test(start_paused = true)]
async fn a_forward_of_a_node_that_was_dropped_before_it_joined_refuses() {
    let (alpha, relay, beta) = (node("alpha"), node("relay"), node("beta"));
    let (dial, may) = gate(&relay);
    may.send_replace(true);
    alpha.connect("relay", dial);
    let (dial, _never) = gate(&beta);
    relay.connect("beta", dial);
    let opened = tokio::spawn({
        let alpha = alpha.clone();
        async move { alpha.open("relay", "h", WITHIN).await }
    });
    let session = relay.accept().await.unwrap().session;
    cut_later(relay.forward(session, "beta", "h", None), 3).await;
    let failed = opened.await.unwrap().unwrap_err();
    assert!(matches!(failed, OpenFailed::Refused(abort) if abort.code == Code::PEER_RESET));
}

#[tokio::test(start_paused = true)]
async fn drains_that_were_dropped_go_on() {
    let (alpha, beta) = (node("alpha"), node("beta"));
    let (dial, may) = gate(&beta);
    may.send_replace(true);
    alpha.connect("beta", dial);
    let (session, arrived) = tokio::join!(alpha.open("beta", "h", WITHIN), async {
        let arrived = beta.accept().await.unwrap();
        arrived.session.answer(&b""[..]);
        arrived
    });
    let session = session.unwrap();
    let pool = alpha.pool("beta").unwrap();
    cut_later(pool.drain(WITHIN), 3).await;
    assert_eq!(pool.open("h", WITHIN).await.unwrap_err(), OpenFailed::Leaving);
    cut_later(beta.drain(WITHIN), 3).await;
    assert!(beta.accept().await.is_none());
    // At the deadline of whichever was first.
    let abort = session.read_bytes().await.unwrap_err();
    assert_eq!(abort.code, Code::DRAIN_DEADLINE);
    drop(arrived);
    while !pool.links().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_serve_that_was_dropped_accepts_no_more_and_keeps_its_links() {
    let (alpha, beta) = (node("alpha"), node("beta"));
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let mut serve = Box::pin(beta.serve(socket));
    alpha.connect("beta", hopline_link::tcp(address.clone()));
    let pool = alpha.pool("beta").unwrap();
    tokio::select! {
        () = &mut serve => panic!("it serves until the drain"),
        link = async {
            // Up at both ends.
            while beta.peers().is_empty() {
                tokio::task::yield_now().await;
            }
            pool.link(WITHIN).await
        } => drop(link.unwrap()),
    }
    drop(serve);
    assert!(tokio::net::TcpStream::connect(&address).await.is_err());
    let (opened, arrived) = tokio::join!(alpha.open("beta", "h", WITHIN), async {
        let arrived = beta.accept().await.unwrap();
        arrived.session.answer(&b""[..]);
        arrived
    });
    assert_eq!((opened.unwrap().abort_reason(), arrived.peer), (None, "alpha".into()));
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

#[tokio::test]
async fn a_connection_whose_taking_was_dropped_is_closed() {
    let beta = node("beta");
    let (mut near, far) = duplex(1 << 16);
    cut_later(beta.take(far), 3).await;
    let mut said = Vec::new();
    near.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, b"hopline-name/1\x04beta");
    assert!(beta.peers().is_empty());
}

/// All of them can be awaited in a task of any thread.
#[test]
fn every_future_is_send() {
    fn is_send<T: Send>(_: &T) -> usize {
        1
    }
    fn count(mux: &Mux, session: &Session, pool: &Pool, node: &Node) -> usize {
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
            + is_send(&pool.open("", WITHIN))
            + is_send(&pool.link(WITHIN))
            + is_send(&pool.drain(WITHIN))
            + is_send(&node.open("", "", WITHIN))
            + is_send(&node.accept())
            + is_send(&node.drain(WITHIN))
            + is_send(&node.take(duplex(1).0))
    }
    let _ = count;
    let _ = |socket: TcpListener, node: &Node| is_send(&node.serve(socket));
    let _ = |left: Session, right: Session| is_send(&forward(left, right, None));
    let _ = |left: Session, node: &Node| is_send(&node.forward(left, "", "", None));
}
