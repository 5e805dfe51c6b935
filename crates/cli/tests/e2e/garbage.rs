//! Peers that speak anything but what they should, at every port. Afterwards all is as before.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use hopline_identity::{ALPN_JOIN, ALPN_LINK, Machine, relay_server_name};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use crate::harness::{Kind, World, WorldOptions, pattern, until};

/// How long a stranger waits for an answer that need not come.
const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn garbage_at_every_port() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    world.works(slot);
    // A session that must live through all of it.
    let (mut app, mut server) = slot.pair(Kind::Tcp);
    // One that is slow at every step: it stays until the end.
    let _slow: Vec<TcpStream> = (0..10).map(|_| slow_handshake(&world)).collect();

    for seed in 0..3 {
        at_the_relay(&world, seed);
        at_the_status_sockets(&world, seed);
    }
    // To a mapping, garbage is just bytes.
    for kind in Kind::BOTH {
        let (mut app, mut server) = slot.pair(kind);
        let bytes = pattern(9, 64 << 10);
        app.write_all(&bytes).unwrap();
        assert!(server.chunk(bytes.len()) == bytes);
    }

    app.write_all(b"still here").unwrap();
    assert_eq!(server.chunk(10), b"still here");
    world.works(slot);
    for process in world.processes() {
        assert!(process.is_running());
        assert!(!process.log().contains("panicked"), "a panic in the log");
    }
    // The links are those from before.
    assert_eq!(world.sidecar.status().links[0].last_error, None);
    assert_eq!(world.agent.status().links[0].last_error, None);
    until("the relay has dropped the strangers", Duration::from_secs(5), || {
        (world.relay.status().links.len() == 2).then_some(())
    });
}

fn at_the_relay(world: &World, seed: u64) {
    let garbage = pattern(seed, 20_000);
    // Bytes that are no TLS, and TLS records that are none.
    speak(connect(world), &garbage);
    speak(connect(world), &[b"\x16\x03\x01\x40\x00".as_slice(), &garbage].concat());
    speak(connect(world), b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n");
    // TLS without a protocol, with an unknown one, and the two that are known, without a certificate.
    for alpn in [None, Some(b"h2".as_slice()), Some(ALPN_JOIN), Some(ALPN_LINK)] {
        speak(tls(world, anyone(alpn)), &garbage);
    }
    // A join request that announces more than it sends.
    speak(tls(world, anyone(Some(ALPN_JOIN))), &[0xFF; 8]);
    // A machine of this relay, whose link is garbage from the first byte, or after a good beginning.
    let machine = Machine::load(&world.sidecar.state).unwrap();
    speak(tls(world, machine.client_config()), &garbage);
    speak(tls(world, machine.client_config()), &[0; 100]);
    speak(tls(world, machine.client_config()), b"");
}

fn at_the_status_sockets(world: &World, seed: u64) {
    for admin in [&world.relay.admin, &world.agent.admin, &world.sidecar.admin] {
        let connect = || {
            let stream = UnixStream::connect(admin.strip_prefix("unix:").unwrap()).unwrap();
            stream.set_read_timeout(Some(MOMENT)).unwrap();
            stream
        };
        speak(connect(), &pattern(seed, 20_000));
        speak(connect(), b"GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n");
        speak(connect(), b"GET /");
    }
}

/// Says it, reads what comes back for a moment, and leaves. The other side may hang up at any time.
fn speak(mut stream: impl std::io::Read + std::io::Write, words: &[u8]) {
    let _ = stream.write_all(words);
    let _ = stream.flush();
    let _ = stream.read(&mut [0; 1_000]);
}

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.relay.address).unwrap();
    stream.set_read_timeout(Some(MOMENT)).unwrap();
    stream
}

fn slow_handshake(world: &World) -> TcpStream {
    let mut stream = connect(world);
    stream.write_all(b"\x16\x03\x01").unwrap();
    stream
}

fn tls(world: &World, config: Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let connection = ClientConnection::new(config, relay_server_name()).unwrap();
    StreamOwned::new(connection, connect(world))
}

/// A client without a certificate that takes any server.
fn anyone(alpn: Option<&[u8]>) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    config.alpn_protocols = alpn.into_iter().map(<[u8]>::to_vec).collect();
    Arc::new(config)
}

#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
