//! Every carrier carries: TCP, mutual TLS, a unix socket, memory, and any pair of a reader and a writer.

use std::sync::Arc;
use std::time::Duration;

use hopline_link::{
    AuthError, Authenticate, BoxCarrier, Carrier, DialFailed, MutualTls, Mux, Role, Side, tune_tcp,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::{config, open};

/// A link over these two ends carries a megabyte each way, with its ends.
async fn carries(a: impl Carrier, b: impl Carrier) {
    let dialer = Mux::spawn(a, config(Side::Dialer, "a")).unwrap();
    let listener = Mux::spawn(b, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    listener.up().await.unwrap();
    let (near, far) = open(&dialer, &listener).await;
    let side = |session: hopline_link::Session, byte: u8| async move {
        let (mut read, mut write) = session.split();
        let writer = async {
            write.write_all(&vec![byte; 1 << 20]).await.unwrap();
            write.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let ((), read) = tokio::join!(writer, read.read_to_end(&mut got));
        assert_eq!(read.unwrap(), 1 << 20);
        assert!(got.iter().all(|b| *b == 3 - byte));
    };
    tokio::join!(side(near, 1), side(far, 2));
    dialer.close(hopline_link::Code::SHUTDOWN, "done");
    listener.closed().await;
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (a, b) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (a, b) = (a.unwrap(), b.unwrap().0);
    tune_tcp(&a).unwrap();
    tune_tcp(&b).unwrap();
    (a, b)
}

#[tokio::test]
async fn over_tcp() {
    let (a, b) = tcp_pair().await;
    carries(a, b).await;
}

#[tokio::test]
async fn over_a_unix_socket() {
    let (a, b) = UnixStream::pair().unwrap();
    carries(a, b).await;
}

#[tokio::test]
async fn over_memory() {
    let (a, b) = duplex(1 << 16);
    carries(a, b).await;
}

#[tokio::test]
async fn over_a_reader_and_a_writer_that_give_a_byte_at_a_time() {
    let (a, b) = duplex(1);
    let (a_read, a_write) = tokio::io::split(a);
    let (dialer, listener) = (tokio::io::join(a_read, a_write), b);
    let dialer = Mux::spawn(dialer, config(Side::Dialer, "a")).unwrap();
    let listener = Mux::spawn(listener, config(Side::Listener, "b")).unwrap();
    dialer.up().await.unwrap();
    let (near, mut far) = open(&dialer, &listener).await;
    near.write_bytes(vec![5; 5_000].into()).await.unwrap();
    near.end();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [5; 5_000]);
}

/// An authority, and what it issues.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> MutualTls {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        MutualTls::new(roots, vec![certificate.der().clone()], key).unwrap()
    }
}

async fn handshake(
    dialer: &MutualTls,
    listener: &MutualTls,
    expects: &str,
) -> (Result<(BoxCarrier, String), AuthError>, Result<(BoxCarrier, String), AuthError>) {
    let (a, b) = tcp_pair().await;
    let dialed = dialer.authenticate(Box::new(a), Role::Dialer { expects: Some(expects) });
    let accepted = listener.authenticate(Box::new(b), Role::Listener);
    let (dialed, accepted) = tokio::join!(dialed, accepted);
    (dialed.map(|a| (a.carrier, a.peer)), accepted.map(|a| (a.carrier, a.peer)))
}

#[tokio::test]
async fn over_mutual_tls_with_the_names_of_the_certificates() {
    let authority = Authority::new();
    let (alpha, beta) = (authority.issue("alpha.example"), authority.issue("beta.example"));
    let (dialed, accepted) = handshake(&alpha, &beta, "beta.example").await;
    let ((a, of_beta), (b, of_alpha)) = (dialed.unwrap(), accepted.unwrap());
    assert_eq!((of_alpha.as_str(), of_beta.as_str()), ("alpha.example", "beta.example"));
    carries(a, b).await;
}

#[tokio::test]
async fn mutual_tls_refuses_other_names_and_other_authorities() {
    let authority = Authority::new();
    let (alpha, beta) = (authority.issue("alpha.example"), authority.issue("beta.example"));
    let (dialed, _) = handshake(&alpha, &beta, "gamma.example").await;
    assert!(matches!(dialed, Err(AuthError::Handshake(_))), "{dialed:?}");
    let stranger = Authority::new().issue("alpha.example");
    let (_, accepted) = handshake(&stranger, &beta, "beta.example").await;
    assert!(matches!(accepted, Err(AuthError::Handshake(_))), "{accepted:?}");
    // A listener with another authority does not get this dialer's trust.
    let (dialed, _) = handshake(&alpha, &Authority::new().issue("beta.example"), "beta.example").await;
    assert!(matches!(dialed, Err(AuthError::Handshake(_))), "{dialed:?}");
}

#[tokio::test]
async fn nodes_over_mutual_tls() {
    use hopline_link::{Node, NodeConfig, tcp};
    let authority = Authority::new();
    let node = |name: &str| {
        let config = NodeConfig::new(config(Side::Dialer, name));
        Node::builder(Arc::new(authority.issue(name)), config).build()
    };
    let (alpha, beta) = (node("alpha.example"), node("beta.example"));
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let serve = beta.clone();
    tokio::spawn(async move { serve.serve(socket).await });
    alpha.connect("beta.example", tcp(address.clone()));
    let within = Duration::from_secs(10);
    let (opened, arrived) = tokio::join!(alpha.open("beta.example", "h", within), async {
        let arrived = beta.accept().await.unwrap();
        arrived.session.answer(&b""[..]);
        arrived
    });
    opened.unwrap();
    assert_eq!(arrived.peer, "alpha.example");
    // Plain bytes are no handshake.
    let (mut near, far) = duplex(4096);
    near.write_all(b"hopline-name/1\x05alpha").await.unwrap();
    near.shutdown().await.unwrap();
    let failed = beta.take(far).await.unwrap_err();
    assert!(matches!(failed, DialFailed::Auth(AuthError::Handshake(_))), "{failed}");
}
