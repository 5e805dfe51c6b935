use std::future::Future as _;
use std::os::unix::fs::PermissionsExt;
use std::pin::pin;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::*;

fn tcp(host: &str, port: u16) -> ListenSpec {
    ListenSpec::Tcp { host: host.into(), port }
}

fn unix(path: PathBuf) -> ListenSpec {
    ListenSpec::Unix { path, mode: 0o600, gid: None, make_folder: false }
}

async fn assert_passes(listener: &mut LocalListener, mut app: impl tokio::io::AsyncWrite + Unpin) {
    let mut stream = listener.accept().await;
    app.write_all(b"x").await.unwrap();
    let mut byte = [0; 1];
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(byte, *b"x");
}

#[tokio::test]
async fn a_unix_mapping_listens_and_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.sock");
    let mut listener = LocalListener::bind("ledger", &unix(path.clone())).await.unwrap();
    assert_eq!(listener.unix_path(), Some(path.as_path()));
    assert!(listener.tcp_addresses().is_empty());
    assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let app = UnixStream::connect(&path).await.unwrap();
    assert_passes(&mut listener, app).await;
    let error = LocalListener::bind("other", &unix(path.clone())).await.unwrap_err();
    let wanted = format!("mapping other: {}: another process listens on this socket", path.display());
    assert_eq!(error.to_string(), wanted);
    drop(listener);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_default_path_makes_its_folder() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("hopline/ledger.sock");
    let error = LocalListener::bind("ledger", &unix(path.clone())).await.unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("the folder {}/hopline does not exist", base.path().display())),
        "{error}"
    );
    let spec = ListenSpec::Unix { path: path.clone(), mode: 0o660, gid: None, make_folder: true };
    let _listener = LocalListener::bind("ledger", &spec).await.unwrap();
    assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o660);
}

#[tokio::test]
async fn f142_localhost_is_both_families_on_one_port() {
    let mut listener = LocalListener::bind("ledger", &tcp("localhost", 0)).await.unwrap();
    let addresses = listener.tcp_addresses();
    let port = addresses[0].port();
    let both = [
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
    ];
    assert_eq!(addresses, both);
    assert_eq!(listener.unix_path(), None);
    for _ in 0..3 {
        for address in both {
            let app = TcpStream::connect(address).await.unwrap();
            assert_passes(&mut listener, app).await;
        }
    }
    let app = TcpStream::connect(both[0]).await.unwrap();
    let stream = listener.accept().await;
    assert!(SockRef::from(&stream).tcp_nodelay().unwrap());
    assert!(!SockRef::from(&app).tcp_nodelay().unwrap(), "which is not the default");
}

/// An application whose host has vanished is found as a server's is, and urgent data stays among the rest.
#[tokio::test]
async fn an_accepted_tcp_connection_has_its_options() {
    for host in ["127.0.0.1", "localhost"] {
        let mut listener = LocalListener::bind("ledger", &tcp(host, 0)).await.unwrap();
        for address in listener.tcp_addresses() {
            let _app = TcpStream::connect(address).await.unwrap();
            let stream = listener.accept().await;
            let socket = SockRef::from(&stream);
            assert!(socket.tcp_nodelay().unwrap());
            assert!(socket.out_of_band_inline().unwrap());
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(10));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(5));
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        }
    }
}

#[tokio::test]
async fn addresses_in_figures_are_listened_on_alone() {
    for host in ["127.0.0.1", "::1"] {
        let mut listener = LocalListener::bind("ledger", &tcp(host, 0)).await.unwrap();
        let addresses = listener.tcp_addresses();
        assert_eq!(addresses.len(), 1);
        assert_eq!(addresses[0].ip().to_string(), host);
        let app = TcpStream::connect(addresses[0]).await.unwrap();
        assert_passes(&mut listener, app).await;
    }
}

#[tokio::test]
async fn f133_a_busy_address_is_named_with_its_mapping() {
    let taken = LocalListener::bind("first", &tcp("127.0.0.1", 0)).await.unwrap();
    let address = taken.tcp_addresses()[0];
    let error = LocalListener::bind("ledger", &tcp("127.0.0.1", address.port())).await.unwrap_err();
    let wanted = format!("mapping ledger: {address}: another program listens on this address");
    assert_eq!(error.to_string(), wanted);
    let error = LocalListener::bind("ledger", &tcp("localhost", address.port())).await.unwrap_err();
    assert!(matches!(error.fault, BindFault::InUse(busy) if busy == address), "{error}");
}

#[tokio::test]
async fn a_localhost_that_is_half_taken_is_not_half_opened() {
    // A port that is free on one family may just be taken on the other by somebody else: then another port tells.
    for _ in 0..10 {
        let taken = LocalListener::bind("first", &tcp("::1", 0)).await.unwrap();
        let address = taken.tcp_addresses()[0];
        let error = LocalListener::bind("ledger", &tcp("localhost", address.port())).await.unwrap_err();
        let BindFault::InUse(busy) = error.fault else { panic!("{error}") };
        let other = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
        if busy == address && TcpStream::connect(other).await.is_err() {
            return;
        }
    }
    panic!("the other family stays open");
}

#[tokio::test]
async fn addresses_that_are_not_here() {
    let error = LocalListener::bind("ledger", &tcp("198.51.100.1", 0)).await.unwrap_err().to_string();
    assert!(error.starts_with("mapping ledger: 198.51.100.1:0: cannot listen: "), "{error}");
    // A label of 64 letters is refused by the resolver itself, so no query leaves the machine.
    let host = format!("{}.invalid", "x".repeat(64));
    let error = LocalListener::bind("ledger", &tcp(&host, 0)).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("mapping ledger: {host}: cannot be resolved: ")), "{error}");
}

#[tokio::test]
async fn a_cancelled_accept_loses_no_connection() {
    let mut listener = LocalListener::bind("ledger", &tcp("localhost", 0)).await.unwrap();
    let address = listener.tcp_addresses()[1];
    {
        let mut accept = pin!(listener.accept());
        assert!(accept.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending());
    }
    let app = TcpStream::connect(address).await.unwrap();
    assert_passes(&mut listener, app).await;
}

#[tokio::test]
async fn what_was_not_accepted_is_refused_in_the_end() {
    let listener = LocalListener::bind("ledger", &tcp("127.0.0.1", 0)).await.unwrap();
    let address = listener.tcp_addresses()[0];
    let mut app = TcpStream::connect(address).await.unwrap();
    drop(listener);
    assert!(app.read(&mut [0; 1]).await.is_err());
    assert!(TcpStream::connect(address).await.is_err());
}

#[test]
fn a_spec_reads_as_it_is_written() {
    assert_eq!(tcp("::1", 7901).to_string(), "[::1]:7901");
    assert_eq!(tcp("localhost", 7901).to_string(), "localhost:7901");
    assert_eq!(unix("/run/x.sock".into()).to_string(), "unix:/run/x.sock");
}
