//! A real relay in this process, and the places that its clients take.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::time::{Duration, SystemTime};

use hopline_identity::{Machine, TokenSpec, create_token, join, relay_server_name};
use hopline_link::{Config, Mux, Side};
use hopline_names::Grants;
use hopline_relay::{Relay, RelayConfig};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// More links than carriers may be in their handshake at once; few enough for a soft limit of 1,024 descriptors, of which
/// each takes two here.
const LINKS: usize = 300;
/// Links of one machine, of 32 that it may have.
const EACH: usize = 30;

async fn link(machine: &Machine, address: std::net::SocketAddr) -> Mux {
    let stream = TcpStream::connect(address).await.unwrap();
    let tls = TlsConnector::from(machine.client_config()).connect(relay_server_name(), stream).await.unwrap();
    let mux = Mux::spawn(tls, Config::new(Side::Dialer, [7; 16], machine.name().as_str())).unwrap();
    mux.up().await.unwrap();
    mux
}

/// A place in the handshake is given back once the link is up: links that are up keep nobody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_are_up_take_no_place_of_the_handshake() {
    let folder = TempDir::new().unwrap();
    let mut config = RelayConfig::new(folder.path().join("relay"));
    config.listen = "127.0.0.1:0".to_owned();
    let state = config.state.clone();
    let relay = Relay::start(config).await.unwrap();
    let address = relay.local_addr().unwrap();
    let spec = TokenSpec {
        relay: address.to_string(),
        grants: Grants { publish: Vec::new(), dial: vec!["*".parse().unwrap()] },
        ttl: Duration::from_secs(600),
        uses: u32::try_from(LINKS / EACH).unwrap(),
    };
    let token = create_token(&state, &spec, SystemTime::now()).unwrap();
    let mut links = Vec::new();
    for number in 0..LINKS / EACH {
        let name = format!("machine-{number}");
        let machine = join(&token, &name.parse().unwrap(), &folder.path().join(&name)).await.unwrap();
        for _ in 0..EACH {
            let up = tokio::time::timeout(Duration::from_secs(10), link(&machine, address)).await;
            links.push(up.unwrap_or_else(|_| panic!("link {} has no place", links.len())));
        }
    }
    assert_eq!(links.len(), LINKS);
    assert!(links.iter().all(|link| link.watch().borrow().down.is_none()), "each of them is up still");
    relay.shutdown().await;
}
