//! A relay on loopback that answers joins, and says on a link who it thinks the peer is.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hopline_identity::{
    ALPN_JOIN, ALPN_LINK, AuthError, JoinedMachine, Machine, MachineIdentity, RelayState, ServeJoinError,
    Token, TokenSpec, create_token, join, relay_server_name, serve_join,
};
use hopline_names::{Grants, MachineName};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How a connection at the relay ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Join(Result<JoinedMachine, ServeJoinError>),
    Link(Result<MachineIdentity, AuthError>),
    NoAlpn,
    Tls(io::Error),
}

/// A relay that runs until the test's runtime ends.
pub(crate) struct Relay {
    pub(crate) address: String,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
}

impl Relay {
    pub(crate) async fn start(dir: &Path) -> Self {
        let state = RelayState::open(dir, &name("relay-a")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, outcomes) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (state, sender) = (state.clone(), sender.clone());
                tokio::spawn(async move {
                    // The test may have ended.
                    drop(sender.send(serve(tcp, &state).await));
                });
            }
        });
        Self { address, outcomes }
    }

    pub(crate) async fn outcome(&mut self) -> Outcome {
        self.outcomes.recv().await.unwrap()
    }

    pub(crate) async fn joined(&mut self) -> Result<JoinedMachine, ServeJoinError> {
        match self.outcome().await {
            Outcome::Join(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn linked(&mut self) -> Result<MachineIdentity, AuthError> {
        match self.outcome().await {
            Outcome::Link(result) => result,
            other => panic!("{other:?}"),
        }
    }
}

async fn serve(tcp: TcpStream, state: &RelayState) -> Outcome {
    let mut stream = match TlsAcceptor::from(state.server_config()).accept(tcp).await {
        Ok(stream) => stream,
        Err(error) => return Outcome::Tls(error),
    };
    let alpn = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
    match alpn.as_deref() {
        Some(alpn) if alpn == ALPN_JOIN => Outcome::Join(serve_join(stream, state).await),
        Some(alpn) if alpn == ALPN_LINK => {
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
            let identity = state.authenticate(&chain);
            let verdict = if identity.is_ok() { b'y' } else { b'n' };
            drop(stream.write_all(&[verdict]).await);
            drop(stream.shutdown().await);
            Outcome::Link(identity)
        }
        Some(_) | None => Outcome::NoAlpn,
    }
}

/// One TLS connection: the server's chain and the byte that it sends.
pub(crate) async fn dial(
    config: Arc<ClientConfig>,
    address: &str,
) -> io::Result<(Vec<CertificateDer<'static>>, u8)> {
    let tcp = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(config).connect(relay_server_name(), tcp).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let chain = chain.into_iter().map(CertificateDer::into_owned).collect();
    Ok((chain, stream.read_u8().await?))
}

/// A server with any credentials at all that sends `y` to whoever completes the handshake; returns its address.
pub(crate) async fn impostor(config: ServerConfig) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = acceptor.accept(tcp).await {
                drop(stream.write_all(b"y").await);
            }
        }
    });
    address
}

pub(crate) fn name(text: &str) -> MachineName {
    text.parse().unwrap()
}

pub(crate) fn grants(publish: &[&str], dial: &[&str]) -> Grants {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Grants { publish: patterns(publish), dial: patterns(dial) }
}

pub(crate) fn spec(relay: &str) -> TokenSpec {
    TokenSpec {
        relay: relay.to_owned(),
        grants: grants(&["ledger"], &["batch-*"]),
        ttl: Duration::from_secs(3600),
        uses: 1,
    }
}

pub(crate) fn token(dir: &Path, relay: &str, uses: u32) -> Token {
    create_token(dir, &TokenSpec { uses, ..spec(relay) }, SystemTime::now()).unwrap()
}

/// A relay, its folder, and one machine that has joined it.
pub(crate) async fn relay_with_machine(name: &str) -> (Relay, TempDir, Machine, TempDir) {
    let (relay_dir, machine_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut relay = Relay::start(relay_dir.path()).await;
    let token = token(relay_dir.path(), &relay.address, 1);
    let machine = join(&token, &self::name(name), machine_dir.path()).await.unwrap();
    relay.joined().await.unwrap();
    (relay, relay_dir, machine, machine_dir)
}
