//! The examples do what they say. Where time passes it is the paused clock's, so nobody waits.

#![expect(dead_code, unreachable_pub, reason = "each example has a main of its own")]

#[path = "../examples/dead_middle_hop.rs"]
mod dead_middle_hop;
#[path = "../examples/deadlines.rs"]
mod deadlines;
#[path = "../examples/pool_over_a_drain.rs"]
mod pool_over_a_drain;
#[path = "../examples/quickstart.rs"]
mod quickstart;
#[path = "../examples/relay.rs"]
mod relay;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hopline_link::{
    Code, Config, LinkEnd, Liveness, Node, NodeConfig, OpenFailed, Pool, PoolConfig, Side, TrustedNames, tcp,
};
use tokio::net::TcpListener;

#[tokio::test]
async fn quickstart() {
    assert_eq!(quickstart::run().await.unwrap(), "hello, world");
}

#[tokio::test(start_paused = true)]
async fn deadlines_across_two_hops() {
    let outcome = deadlines::run().await.unwrap();
    assert_eq!(outcome.budget, "5s");
    assert_eq!(outcome.read, (io::ErrorKind::TimedOut, Duration::from_millis(200)));
    let abort = outcome.abort;
    assert_eq!(
        (abort.code, abort.hops, abort.message.as_str()),
        (Code::app(1).unwrap(), 2, "caller gave up")
    );
}

#[tokio::test(start_paused = true)]
async fn a_dead_middle_hop() {
    let outcome = dead_middle_hop::run(Liveness::DEFAULT).await.unwrap();
    // P5: the middle of three is hop 1 for both ends, within its bound.
    for (abort, after) in [outcome.origin, outcome.far] {
        assert_eq!((abort.code, abort.hops), (Code::CONN_LOST, 1), "{abort:?}");
        assert!((10..=15).contains(&after.as_secs()) && after.as_millis() <= 15_000, "{after:?}");
    }
    assert!(matches!(outcome.beside, LinkEnd::DeadPeer { .. }), "{}", outcome.beside);
}

#[tokio::test(start_paused = true)]
async fn a_pool_over_a_drain() {
    let outcome = pool_over_a_drain::run().await.unwrap();
    assert_eq!(outcome.calls.len(), 21);
    assert_eq!(outcome.calls[0], "old");
    assert!(outcome.calls[1..].iter().all(|who| who == "new"), "{:?}", outcome.calls);
    assert_eq!(outcome.stream, "the stream has not noticed");
}

#[tokio::test]
async fn a_relay_in_sixty_lines() {
    let lines = include_str!("../examples/relay.rs").lines().count();
    assert!(lines <= 60, "{lines} lines");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relayed = tokio::spawn(relay::relay(listener, async { drop(stopped.await) }));
    let within = Duration::from_secs(10);
    let names = |name: &str| Arc::new(TrustedNames::new(name).unwrap());
    let config = |name: &str| Config::new(Side::Dialer, [name.as_bytes()[0]; 16], name);
    let server = Node::builder(names("server"), NodeConfig::new(config("server"))).build();
    server.connect("relay", tcp(address.clone()));
    // The relay knows it once its link is up at both ends; until then it says that there is nobody.
    server.pool("relay").unwrap().link(within).await.unwrap();
    let client =
        Pool::builder("relay", names("client"), PoolConfig::new(config("client"))).spawn(tcp(address));
    let accepted = tokio::spawn(async move {
        let arrived = server.accept().await.unwrap();
        arrived.session.answer("here");
        (arrived, server)
    });
    let session = loop {
        match client.open("server", within).await {
            Ok(session) => break session,
            Err(OpenFailed::Refused(abort)) if abort.code == Code::NOT_FOUND => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(session.answered().await.unwrap(), "here");
    let (arrived, _server) = accepted.await.unwrap();
    assert_eq!(arrived.peer, "relay");
    let refused = client.open("nobody", within).await.unwrap_err();
    assert!(
        matches!(refused, OpenFailed::Refused(abort) if (abort.code, abort.hops) == (Code::NOT_FOUND, 1))
    );
    // With nothing open the drain is over at once.
    drop((session, arrived));
    stop.send(()).unwrap();
    relayed.await.unwrap();
}
