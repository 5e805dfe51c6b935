//! Clocks that are wrong and set later, at a relay and at a machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use hopline_identity::{Clock, DateFault, Machine, RelayState};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::common::{name, relay_with_machine};

const DAY_S: u64 = 86_400;

/// A clock that a test sets, in seconds since 1970.
#[derive(Clone)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn at(seconds: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seconds)))
    }

    fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let hands = self.clone();
        Clock::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(hands.0.load(Ordering::Relaxed)))
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// One handshake of a link, and the text of what failed.
async fn handshake(machine: &Machine, relay: &RelayState) -> Result<(), std::io::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let tcp = TcpStream::connect(listener.local_addr()?).await?;
    let (served, _) = listener.accept().await?;
    let acceptor = TlsAcceptor::from(relay.server_config());
    let connector = TlsConnector::from(machine.client_config());
    let name = hopline_identity::relay_server_name();
    let (near, far) = tokio::join!(connector.connect(name, tcp), acceptor.accept(served));
    near?;
    far.map(drop)
}

/// The relay starts with a clock of 1970, one that is behind by more than its certificate lives, one that is past its
/// authority: once it is set, edges link, without a restart.
#[tokio::test]
async fn a_relay_whose_clock_was_wrong_at_its_start_serves_when_it_is_set() {
    let (_relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    // So late that a certificate that was dated by such a clock has ended.
    let right = now_s() + 200 * DAY_S;
    for wrong in [5, 1_767_225_600, right - 400 * DAY_S, right + 8000 * DAY_S] {
        let hands = Hands::at(wrong);
        let relay = RelayState::open_by(relay_dir.path(), &name("relay-a"), hands.clock()).unwrap();
        hands.set(right);
        let machine = Machine::load_by(machine_dir.path(), hands.clock()).unwrap();
        handshake(&machine, &relay).await.unwrap_or_else(|error| panic!("started at {wrong}: {error}"));
    }
}

/// A relay that runs for longer than its certificate lives has another one by then.
#[tokio::test]
async fn a_relay_that_runs_for_years_renews_its_own_certificate() {
    let (_relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    // It has run for most of a year when the machine joins.
    let hands = Hands::at(now_s() - 300 * DAY_S);
    let relay = RelayState::open_by(relay_dir.path(), &name("relay-a"), hands.clock()).unwrap();
    let machine = Machine::load_by(machine_dir.path(), hands.clock()).unwrap();
    for days in [0, 60, 100, 200, 300, 364] {
        hands.set(now_s() + days * DAY_S);
        handshake(&machine, &relay).await.unwrap_or_else(|error| panic!("after {days} days: {error}"));
    }
    // The machine's own certificate has an end, which is what is said then.
    hands.set(now_s() + 366 * DAY_S);
    assert!(matches!(machine.check_dates(), Err(DateFault::Expired { .. })));
}

/// A machine with a wrong clock can't link, says why, and links when the clock is set.
#[tokio::test]
async fn a_machine_whose_clock_is_wrong_links_when_it_is_set() {
    let (_relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let relay = RelayState::open(relay_dir.path(), &name("relay-a")).unwrap();
    let hands = Hands::at(5);
    let machine = Machine::load_by(machine_dir.path(), hands.clock()).unwrap();
    let fault = machine.check_dates().unwrap_err();
    assert!(matches!(fault, DateFault::NotValidYet { .. }), "{fault}");
    assert!(fault.to_string().contains("it says 1970-01-01"), "{fault}");
    let error = handshake(&machine, &relay).await.unwrap_err();
    let said = machine.clock_fault(&error).unwrap();
    assert!(said.contains("1970-01-01") && said.contains("clock"), "{said}");
    hands.set(now_s());
    machine.check_dates().unwrap();
    handshake(&machine, &relay).await.unwrap();
    // Days behind is no fault: certificates reach back further than that.
    hands.set(now_s() - 20 * DAY_S);
    handshake(&machine, &relay).await.unwrap();
}
