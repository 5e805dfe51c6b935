use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::net::TcpListener;

use super::*;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

async fn listener(ip: IpAddr) -> TcpListener {
    TcpListener::bind((ip, 0)).await.unwrap()
}

/// A loopback address on which nothing listens: the socket holds the port, so nobody else can take it.
fn closed(ip: IpAddr) -> (socket2::Socket, SocketAddr) {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address((ip, 0).into()), socket2::Type::STREAM, None)
            .unwrap();
    socket.bind(&SocketAddr::new(ip, 0).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// A loopback address that answers nothing: its queue is full, so Linux drops every further SYN.
struct Silent {
    address: SocketAddr,
    _kept: (socket2::Socket, std::net::TcpStream),
}

fn silent(ip: IpAddr) -> Silent {
    let (socket, address) = closed(ip);
    socket.listen(0).unwrap();
    let filler = std::net::TcpStream::connect(address).unwrap();
    Silent { address, _kept: (socket, filler) }
}

/// With the files of the system; none of these names asks a name server.
async fn dial(host: &str, port: u16, options: &DialOptions) -> Result<TcpStream, DialError> {
    super::dial(&Resolver::default(), host, port, options).await
}

fn within(timeout: Duration) -> DialOptions {
    DialOptions { timeout, ..DialOptions::default() }
}

/// The shortest of a few runs: a busy machine may hold one up, hardly all.
async fn shortest(mut run: impl AsyncFnMut() -> Duration) -> Duration {
    let mut shortest = run().await;
    for _ in 0..3 {
        shortest = shortest.min(run().await);
    }
    shortest
}

async fn race_for(
    addresses: &[SocketAddr],
    timeout: Duration,
) -> (Result<TcpStream, Vec<Attempt>>, Duration) {
    let begin = Instant::now();
    let options = DialOptions::default();
    let raced = race(addresses, begin + timeout, &options, |stream, _| std::future::ready(Ok(stream))).await;
    (raced, begin.elapsed())
}

#[tokio::test]
async fn f139_localhost_is_found_in_either_family() {
    for ip in [V4, V6] {
        let server = listener(ip).await;
        let address = server.local_addr().unwrap();
        let took = shortest(async || {
            let begin = Instant::now();
            let stream = dial("localhost", address.port(), &DialOptions::default()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), address);
            begin.elapsed()
        });
        let took = took.await;
        assert!(took < Duration::from_millis(300), "{took:?}");
    }
}

#[tokio::test]
async fn addresses_in_figures_are_dialled() {
    for (ip, host) in [(V4, "127.0.0.1"), (V6, "::1")] {
        let server = listener(ip).await;
        let address = server.local_addr().unwrap();
        let stream = dial(host, address.port(), &DialOptions::default()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
    }
}

#[tokio::test]
async fn the_forward_socket_has_its_options() {
    let server = listener(V4).await;
    let port = server.local_addr().unwrap().port();
    for user_timeout in [None, Some(GRPC_USER_TIMEOUT)] {
        let options = DialOptions { user_timeout, ..DialOptions::default() };
        let stream = dial("127.0.0.1", port, &options).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.out_of_band_inline().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(socket.tcp_user_timeout().unwrap(), user_timeout);
    }
}

#[tokio::test]
async fn a_refusal_lists_each_address() {
    // Held in both families, so that the other one is closed as well.
    let (_kept, address) = closed(V6);
    let port = address.port();
    let error = dial("localhost", port, &DialOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, DialKind::Refused);
    let wanted = format!(
        "dial localhost:{port}: refused ([::1]:{port}: connection refused; 127.0.0.1:{port}: connection refused)"
    );
    assert_eq!(error.to_string(), wanted);
}

#[tokio::test]
async fn a_name_that_does_not_resolve() {
    // A label of 64 letters is refused by the resolver itself, so no query leaves the machine.
    let host = format!("{}.invalid", "x".repeat(64));
    let error = dial(&host, 1, &DialOptions::default()).await.unwrap_err();
    assert_eq!(error.kind, DialKind::Name);
    assert!(error.attempts.is_empty());
    assert!(error.to_string().starts_with(&format!("dial {host}:1: no such host (")), "{error}");
}

#[tokio::test]
async fn a_refused_address_is_passed_at_once() {
    let (_kept, dead) = closed(V4);
    let server = listener(V6).await;
    let good = server.local_addr().unwrap();
    let took = shortest(async || {
        let (stream, took) = race_for(&[dead, good], Duration::from_secs(10)).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
        took
    });
    let took = took.await;
    assert!(took < STAGGER, "{took:?}");
}

#[tokio::test]
async fn f140_two_silent_addresses_cost_two_staggers() {
    let (six, four) = (silent(V6), silent(V4));
    let server = listener(V4).await;
    let good = server.local_addr().unwrap();
    let took = shortest(async || {
        let (stream, took) = race_for(&[six.address, four.address, good], Duration::from_secs(10)).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), good);
        took
    });
    let took = took.await;
    assert!(took >= 2 * STAGGER && took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn silence_ends_at_the_timeout() {
    let hole = silent(V4);
    let begin = Instant::now();
    let error =
        dial("127.0.0.1", hole.address.port(), &within(Duration::from_millis(400))).await.unwrap_err();
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(error.kind, DialKind::Timeout);
    let address = hole.address;
    assert_eq!(error.to_string(), format!("dial {address}: no answer in time ({address}: no answer)"));
}

#[tokio::test]
async fn what_was_not_reached_in_time_is_counted() {
    let hole = silent(V4);
    let (_kept, dead) = closed(V6);
    let (raced, _) = race_for(&[hole.address, dead], Duration::from_millis(100)).await;
    let failed = raced.unwrap_err();
    assert_eq!(failed.len(), 1, "the second waits for its turn: {failed:?}");
    let (raced, took) = race_for(&[dead, hole.address], Duration::from_millis(400)).await;
    let failed = raced.unwrap_err();
    assert_eq!(failed.iter().map(|attempt| attempt.address).collect::<Vec<_>>(), [dead, hole.address]);
    assert_eq!(kind_of(&failed), DialKind::Timeout, "the silent one may be the server");
    assert!(took >= Duration::from_millis(400), "{took:?}");
}

#[tokio::test]
async fn a_name_of_many_addresses_is_tried_in_part() {
    let (_kept, address) = closed(V4);
    let many: Vec<SocketAddr> =
        (1..=20).map(|last| SocketAddr::new(Ipv4Addr::new(127, 0, 0, last).into(), address.port())).collect();
    let (raced, _) = race_for(&many, Duration::from_secs(10)).await;
    let failed = raced.unwrap_err();
    assert_eq!(failed.len(), MAX_ADDRESSES);
    let error = DialError {
        target: "many:1".into(),
        kind: kind_of(&failed),
        untried: many.len() - failed.len(),
        attempts: failed,
        resolver: None,
    };
    assert!(error.to_string().ends_with("; 4 more not tried)"), "{error}");
}

#[tokio::test]
async fn no_time_is_no_dial() {
    let server = listener(V4).await;
    let port = server.local_addr().unwrap().port();
    let error = dial("127.0.0.1", port, &within(Duration::ZERO)).await.unwrap_err();
    assert_eq!(error.kind, DialKind::Timeout);
}

#[tokio::test]
async fn a_socket_that_meets_itself_is_known() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let own = socket.local_addr().unwrap();
    let stream = socket.connect(own).await.unwrap();
    assert!(met_itself(&stream).unwrap());
    let server = listener(V4).await;
    let stream = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
    assert!(!met_itself(&stream).unwrap());
}

#[test]
fn families_take_turns() {
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let [a4, b4, c4] = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"].map(address);
    let [a6, b6] = ["[2001:db8::1]:1", "[2001:db8::2]:1"].map(address);
    let table = [
        (vec![], vec![]),
        (vec![a4], vec![a4]),
        (vec![a6, b6, a4, b4], vec![a6, a4, b6, b4]),
        (vec![a4, b4, c4, a6], vec![a4, a6, b4, c4]),
        (vec![a4, a4, a6, a4, a6], vec![a4, a6]),
        (vec![a6, b6], vec![a6, b6]),
    ];
    assert_eq!(table.len(), 6);
    for (resolved, wanted) in table {
        assert_eq!(in_turn(resolved.to_vec()), wanted, "{resolved:?}");
    }
}

#[test]
fn of_several_failures_the_most_telling_counts() {
    let attempts = |errors: &[Option<Errno>]| -> Vec<Attempt> {
        let address = SocketAddr::new(V4, 1);
        errors.iter().map(|error| Attempt { address, error: error.map(io::Error::from) }).collect()
    };
    let table = [
        (vec![Some(Errno::CONNREFUSED)], DialKind::Refused),
        (vec![Some(Errno::NETUNREACH), Some(Errno::CONNREFUSED)], DialKind::Refused),
        (vec![Some(Errno::CONNREFUSED), None], DialKind::Timeout),
        (vec![Some(Errno::TIMEDOUT), Some(Errno::NETUNREACH)], DialKind::Timeout),
        (vec![Some(Errno::HOSTUNREACH), Some(Errno::NETUNREACH)], DialKind::Unreachable),
        (vec![Some(Errno::MFILE), Some(Errno::NETUNREACH)], DialKind::Unreachable),
        (vec![Some(Errno::MFILE)], DialKind::Other),
        (vec![], DialKind::Timeout),
    ];
    assert_eq!(table.len(), 8);
    for (errors, wanted) in table {
        assert_eq!(kind_of(&attempts(&errors)), wanted, "{errors:?}");
    }
}

/// F119: a dial to a closed port of the ephemeral range may be given that very port, and then TCP connects it to
/// itself. That is a refusal, and the server can have its port at once.
#[tokio::test]
async fn f119_a_dial_that_meets_itself_is_refused_and_leaves_the_port() {
    for ip in [V4, V6] {
        let socket = if ip.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
        socket.bind(SocketAddr::new(ip, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let error = connect_by(socket, address, &DialOptions::default()).await.unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CONNREFUSED));
        TcpListener::bind(address).await.unwrap();
    }
}

/// A relay that is frozen: its kernel accepts, and nobody shakes hands.
#[tokio::test]
async fn an_address_that_accepts_and_says_nothing_is_passed_over() {
    let (frozen, good) = (listener(V6).await, listener(V4).await);
    let addresses = [frozen.local_addr().unwrap(), good.local_addr().unwrap()];
    let began = Instant::now();
    let shake = async |stream: TcpStream, address: SocketAddr| {
        if address == addresses[0] {
            std::future::pending::<()>().await;
        }
        Ok(stream)
    };
    let raced = race(&addresses, began + Duration::from_secs(10), &DialOptions::default(), shake).await;
    assert_eq!(raced.unwrap().peer_addr().unwrap(), addresses[1]);
    let took = began.elapsed();
    assert!(took >= HANDSHAKE_STAGGER - STAGGER && took < Duration::from_secs(5), "{took:?}");
}

/// Whatever fails at the name has its own reason.
#[tokio::test]
async fn a_name_server_that_is_silent_is_told_from_a_name_that_is_not_there() {
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = socket.local_addr().unwrap();
    let sources = hopline_dns::Sources { servers: vec![server], ..hopline_dns::Sources::default() };
    let resolver = Resolver::new(sources);
    let error =
        super::dial(&resolver, "db.internal", 1, &within(Duration::from_millis(300))).await.unwrap_err();
    assert_eq!(error.kind, DialKind::NameServer);
    let error = error.to_string();
    let wanted = format!(
        "dial db.internal:1: the name could not be resolved (no answer from the name server {server} within 0.3 s)"
    );
    assert_eq!(error, wanted);
}
