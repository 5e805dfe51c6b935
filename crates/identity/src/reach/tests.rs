use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::RelayState;
use crate::token::tests::name;

/// A relay that takes TLS connections at an address of this machine.
async fn relay(state: &RelayState) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(state.server_config());
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            // A client that turns away is no fault of the relay.
            tokio::spawn(async move { drop(acceptor.accept(tcp).await) });
        }
    });
    address
}

/// Nothing listens there.
async fn refused(host: &str) -> Option<SocketAddr> {
    let listener = TcpListener::bind((host, 0)).await.ok()?;
    listener.local_addr().ok()
}

fn state() -> (RelayState, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (RelayState::open(dir.path(), &name("relay-a")).unwrap(), dir)
}

async fn raced(addresses: &[SocketAddr], state: &RelayState) -> Result<SocketAddr, String> {
    let config = Arc::new(join_client_config(state.authority_fingerprint()).unwrap());
    let reached = race(addresses, &config, Instant::now() + JOIN_TIMEOUT).await;
    let reached =
        reached.map_err(|attempts| ReachError { relay: "relay:1".to_owned(), why: Why::Attempts(attempts) });
    reached.map(|stream| stream.get_ref().0.peer_addr().unwrap()).map_err(|error| error.to_string())
}

/// A dead address refuses, says nothing, or is somebody else's: the good one is found behind each of them, and behind all.
#[tokio::test]
async fn a_dead_address_does_not_keep_a_machine_from_joining() {
    let ((state, _dir), (other, _other_dir)) = (state(), state());
    let good = relay(&state).await;
    let stranger = relay(&other).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut dead = vec![refused("127.0.0.1").await.unwrap(), silent.local_addr().unwrap(), stranger];
    // Not every machine has IPv6.
    dead.extend(refused("::1").await);
    for address in &dead {
        assert_eq!(raced(&[*address, good], &state).await, Ok(good), "behind {address}");
    }
    dead.push(good);
    assert_eq!(raced(&dead, &state).await, Ok(good));
}

#[tokio::test(start_paused = true)]
async fn each_address_is_listed_with_its_cause() {
    let ((state, _dir), (other, _other_dir)) = (state(), state());
    let (refused, stranger) = (refused("127.0.0.1").await.unwrap(), relay(&other).await);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = (silent.local_addr().unwrap(), silent);
    let text = raced(&[silent.0, refused, stranger], &state).await.unwrap_err();
    for part in [
        format!("{}: no answer within 10 s", silent.0),
        format!("{refused}: connection refused"),
        format!("{stranger}: this is not the relay that the token was made for"),
    ] {
        assert!(text.contains(&part), "{text}");
    }
    assert!(text.starts_with("cannot join at relay:1: ") && !text.contains("os error"), "{text}");
}

#[test]
fn families_take_turns() {
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
    let resolved = list(&["[::1]:1", "[::2]:1", "[::1]:1", "10.0.0.1:1", "10.0.0.2:1"]);
    assert_eq!(in_turn(resolved), list(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1"]));
    assert_eq!(in_turn(Vec::new()), []);
}

#[tokio::test]
async fn localhost_is_both_loopbacks() {
    let found = resolve("LocalHost:7443").await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(found.iter().any(SocketAddr::is_ipv6) && found.iter().any(SocketAddr::is_ipv4));
}
