//! Nodes: names, both directions, forwards, drains, what is not admitted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hopline_link::{
    Arrived, Code, Config, Dial, DialFailed, Node, NodeConfig, Observation, OpenFailed, Session, Side,
    SpliceEnd, TrustedNames, tcp, unix,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;

const WITHIN: Duration = Duration::from_secs(10);

fn node(name: &str) -> Node {
    Node::builder(Arc::new(TrustedNames::new(name).unwrap()), node_config(name)).build()
}

fn node_config(name: &str) -> NodeConfig {
    NodeConfig::new(Config::new(Side::Dialer, [name.as_bytes()[0]; 16], name))
}

/// Dials another node of this process.
fn memory(to: &Node) -> impl Dial {
    let to = to.clone();
    move || {
        let (near, far) = duplex(256 << 10);
        let to = to.clone();
        tokio::spawn(async move { to.take(far).await });
        async move { Ok(near) }
    }
}

/// Answers everything, and gives back what it reads.
fn echo(node: &Node) {
    let node = node.clone();
    tokio::spawn(async move {
        while let Some(Arrived { mut session, peer }) = node.accept().await {
            tokio::spawn(async move {
                session.answer(peer);
                let mut all = Vec::new();
                session.read_to_end(&mut all).await.unwrap();
                session.write_all(&all).await.unwrap();
                session.finish().await
            });
        }
    });
}

async fn says(mut session: Session, what: &str) {
    session.write_all(what.as_bytes()).await.unwrap();
    session.shutdown().await.unwrap();
    let mut back = String::new();
    session.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, what);
}

#[tokio::test]
async fn one_link_serves_opens_of_both_sides() {
    let (alpha, beta) = (node("alpha"), node("beta"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    alpha.connect("beta", tcp(listener.local_addr().unwrap().to_string()));
    let served = tokio::spawn({
        let beta = beta.clone();
        async move { beta.serve(listener).await }
    });
    echo(&alpha);
    echo(&beta);
    let session = alpha.open("beta", &b"h"[..], WITHIN).await.unwrap();
    assert_eq!(session.answered().await.unwrap(), "alpha");
    says(session, "there").await;
    // Beta has never dialled.
    assert_eq!(beta.peers(), ["alpha"]);
    let session = beta.open("alpha", &b"h"[..], WITHIN).await.unwrap();
    assert_eq!(session.answered().await.unwrap(), "beta");
    says(session, "and back").await;
    assert_eq!(beta.pool("alpha").unwrap().links().len(), 1);

    tokio::join!(beta.drain(WITHIN), served).1.unwrap();
    assert!(beta.accept().await.is_none());
    assert_eq!(beta.open("alpha", &b"h"[..], WITHIN).await.unwrap_err(), OpenFailed::Leaving);
}

#[tokio::test]
async fn names_that_nobody_has_fail_at_once() {
    let alpha = node("alpha");
    let failed = alpha.open("beta", &b"h"[..], WITHIN).await.unwrap_err();
    assert_eq!((failed.clone(), failed.abort().code), (OpenFailed::NoPeer("beta".into()), Code::NOT_FOUND));
}

#[tokio::test]
async fn unix_sockets_carry_nodes_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("beta.sock");
    let (alpha, beta) = (node("alpha"), node("beta"));
    let listener = UnixListener::bind(&path).unwrap();
    let serve = beta.clone();
    let served = tokio::spawn(async move { serve.serve(listener).await });
    alpha.connect("beta", unix(path));
    echo(&beta);
    says(alpha.open("beta", &b"h"[..], WITHIN).await.unwrap(), "over unix").await;
    served.abort();
}

#[tokio::test(start_paused = true)]
async fn a_forward_carries_on_and_bounds_its_answer() {
    let (alpha, relay, omega) = (node("alpha"), node("relay"), node("omega"));
    alpha.connect("relay", memory(&relay));
    relay.connect("omega", memory(&omega));
    let carries = relay.clone();
    let limit = Duration::from_secs(2);
    tokio::spawn(async move {
        while let Some(Arrived { session, .. }) = carries.accept().await {
            let (relay, to) = (carries.clone(), String::from_utf8(session.header().to_vec()).unwrap());
            tokio::spawn(async move { relay.forward(session, &to, "from the relay", Some(limit)).await });
        }
    });
    // Nobody accepts at omega yet.
    let began = Instant::now();
    let failed = alpha.open("relay", "omega", WITHIN).await.unwrap_err();
    let OpenFailed::Refused(abort) = failed else { panic!("{failed}") };
    assert_eq!((abort.code, abort.hops, began.elapsed()), (Code::TIMEOUT, 1, limit));
    let late = omega.accept().await.unwrap().session;
    assert_eq!(late.header(), "from the relay");
    let abort = late.read_bytes().await.unwrap_err();
    assert_eq!((abort.code, abort.hops), (Code::TIMEOUT, 1));
    // An answered one may last.
    echo(&omega);
    let session = alpha.open("relay", "omega", WITHIN).await.unwrap();
    assert_eq!(session.answered().await.unwrap(), "relay");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    says(session, "an hour later").await;
    // Nobody has that name.
    let failed = alpha.open("relay", "psi", WITHIN).await.unwrap_err();
    assert!(matches!(failed, OpenFailed::Refused(abort) if (abort.code, abort.hops) == (Code::NOT_FOUND, 1)));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_admitted_reads_why() {
    let config = NodeConfig { max_peers: 2, max_links_per_peer: 1, ..node_config("relay") };
    let seen = Arc::new(Mutex::new(Vec::new()));
    let count = Arc::clone(&seen);
    let relay = Node::builder(Arc::new(TrustedNames::new("relay").unwrap()), config)
        .admit(|name| name != "mallory")
        .observer(move |seen: &Observation<'_>| count.lock().unwrap().push(seen.label()))
        .build();
    let bring = |name: &'static str| {
        let relay = relay.clone();
        async move {
            let other = node(name);
            let (near, far) = duplex(256 << 10);
            let once = Mutex::new(Some(near));
            other.connect("relay", move || {
                let near = once.lock().unwrap().take();
                async move { near.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) }
            });
            let taken = relay.take(far).await;
            (other, taken)
        }
    };
    let refused = |result: Result<String, DialFailed>| {
        let Err(DialFailed::NotAdmitted { why, .. }) = result else { panic!("{result:?}") };
        why
    };
    assert_eq!(refused(bring("mallory").await.1), "this peer may not connect");
    let (_alpha, taken) = bring("alpha").await;
    assert_eq!(taken.unwrap(), "alpha");
    assert_eq!(refused(bring("alpha").await.1), "it has as many links as it may have");
    let (beta, taken) = bring("beta").await;
    assert_eq!(taken.unwrap(), "beta");
    assert_eq!(refused(bring("gamma").await.1), "there are as many peers as there may be");
    // A place that is free again may be taken.
    beta.drain(WITHIN).await;
    tokio::time::sleep(WITHIN).await;
    assert_eq!(relay.peers(), ["alpha"]);
    let (_gamma, taken) = bring("gamma").await;
    assert_eq!(taken.unwrap(), "gamma");
    tokio::time::sleep(WITHIN).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.iter().filter(|label| **label == "accept_failed").count(), 3, "{seen:?}");
    assert_eq!(seen.iter().filter(|label| **label == "link_up").count(), 3, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn garbage_and_silence_are_no_peers() {
    let relay = node("relay");
    let (mut near, far) = duplex(4096);
    near.write_all(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n").await.unwrap();
    let failed = relay.take(far).await.unwrap_err();
    assert!(matches!(failed, DialFailed::Auth(_)), "{failed}");
    let (_near, far) = duplex(4096);
    let began = Instant::now();
    let failed = relay.take(far).await.unwrap_err();
    assert!(matches!(failed, DialFailed::TimedOut(_)), "{failed}");
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert!(relay.peers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_forwards_run_to_their_end() {
    let (alpha, relay, omega) = (node("alpha"), node("relay"), node("omega"));
    alpha.connect("relay", memory(&relay));
    relay.connect("omega", memory(&omega));
    echo(&omega);
    let opened = tokio::spawn({
        let alpha = alpha.clone();
        async move { alpha.open("relay", "omega", WITHIN).await }
    });
    let Arrived { session, .. } = relay.accept().await.unwrap();
    let carried = tokio::spawn({
        let relay = relay.clone();
        async move { relay.forward(session, "omega", "h", None).await }
    });
    let session = opened.await.unwrap().unwrap();
    let draining = tokio::spawn({
        let relay = relay.clone();
        async move { relay.drain(Duration::from_secs(60)).await }
    });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let began = Instant::now();
    says(session, "to the end").await;
    draining.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(carried.await.unwrap().end, SpliceEnd::Clean);
}

#[tokio::test(start_paused = true)]
async fn what_has_arrived_and_nobody_took_is_refused_by_a_drain_as_safe_to_repeat() {
    let (alpha, beta) = (node("alpha"), node("beta"));
    alpha.connect("beta", memory(&beta));
    let mux = alpha.pool("beta").unwrap().link(WITHIN).await.unwrap();
    // More than wait in the node, so that some wait in the link.
    let sessions: Vec<Session> = (0..200).map(|_| mux.open("h").unwrap()).collect();
    while beta.pool("alpha").is_err() || beta.pool("alpha").unwrap().links()[0].sessions < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let began = Instant::now();
    let drain = beta.drain(Duration::from_secs(60));
    let refused = async {
        for session in &sessions {
            assert_eq!(session.answered().await.unwrap_err().code, Code::DRAINING);
        }
    };
    tokio::join!(drain, refused);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}
