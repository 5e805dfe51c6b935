//! The examples do what they say. Where time passes it is the paused clock's, so nobody waits.

#![expect(dead_code, unreachable_pub, reason = "each example has a main of its own")]

#[path = "../examples/dead_middle_hop.rs"]
mod dead_middle_hop;
#[path = "../examples/deadlines.rs"]
mod deadlines;
#[path = "../examples/quickstart.rs"]
mod quickstart;
#[path = "../examples/relay.rs"]
mod relay;

use std::io;
use std::time::Duration;

use hopline_link::{Code, Config, LinkEnd, Liveness, Mux, OpenFailed, Side};
use tokio::net::{TcpListener, TcpStream};

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

#[tokio::test]
async fn a_relay_in_sixty_lines() {
    let lines = include_str!("../examples/relay.rs").lines().count();
    assert!(lines <= 60, "{lines} lines");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let relayed = tokio::spawn(relay::relay(listener, async { drop(stopped.await) }));
    let within = Duration::from_secs(10);
    let connect = async |name: &str| {
        let carrier = TcpStream::connect(address.as_str()).await.unwrap();
        let mux = Mux::spawn(carrier, Config::new(Side::Dialer, [name.as_bytes()[0]; 16], name)).unwrap();
        mux.up().await.unwrap();
        mux
    };
    let (server, client) = (connect("server").await, connect("client").await);
    let serves = tokio::spawn(async move {
        let session = server.accept().await.unwrap();
        session.answer("here");
        (session, server)
    });
    // The relay knows a peer once it has read its hello; until then it says that there is nobody.
    let session = loop {
        match client.open_within("server", within).await {
            Ok(session) => break session,
            Err(OpenFailed::Refused(abort)) if abort.code == Code::NOT_FOUND => {
                tokio::task::yield_now().await;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(session.answered().await.unwrap(), "here");
    let _served = serves.await.unwrap();
    let refused = client.open_within("nobody", within).await.unwrap_err();
    assert!(
        matches!(refused, OpenFailed::Refused(abort) if (abort.code, abort.hops) == (Code::NOT_FOUND, 1))
    );
    stop.send(()).unwrap();
    relayed.await.unwrap();
    assert_eq!(session.aborted().await.code, Code::SHUTDOWN);
}
