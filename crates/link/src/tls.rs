//! Mutual TLS: both ends show a certificate of a common authority.

use std::io;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, client::Resumption, version::TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::auth::{AuthError, Authenticate, Authenticated, Role};
use crate::carrier::{BoxCarrier, BoxFuture};

/// What both ends agree on to speak over TLS.
const ALPN: &[u8] = b"hopline-link/1";

/// Mutual TLS 1.3 by rustls, with the provider aws-lc-rs named: no process-wide default is asked for or set.
///
/// A peer's name is a DNS name of its certificate: the one that was dialled, or for one that connects the first.
/// There is no resumption, so that every connection proves its key anew.
#[derive(Clone, Debug)]
pub struct MutualTls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl MutualTls {
    /// Trusts `roots`, and shows `chain` (leaf first) with its key, when dialling as when accepting.
    ///
    /// # Errors
    /// rustls does not take them: no roots, or a key that is not the certificate's.
    pub fn new(
        roots: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self::with_configs(Arc::new(client), Arc::new(server)))
    }

    /// With configurations of your own. A server that lets clients come without a certificate refuses them here.
    #[must_use]
    pub fn with_configs(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Self {
        Self { client, server }
    }

    async fn dial(&self, raw: BoxCarrier, expects: Option<&str>) -> Result<Authenticated, AuthError> {
        let peer =
            expects.ok_or(AuthError::Unintelligible("TLS needs the name of the peer that is dialled"))?;
        let name = ServerName::try_from(peer.to_owned())
            .map_err(|_| AuthError::Unintelligible("the peer's name is no DNS name"))?;
        let connector = TlsConnector::from(Arc::clone(&self.client));
        // rustls has compared the name with the certificate.
        let tls = connector.connect(name, raw).await.map_err(AuthError::Handshake)?;
        Ok(Authenticated { carrier: Box::new(tls), peer: peer.to_owned() })
    }

    async fn accept(&self, raw: BoxCarrier) -> Result<Authenticated, AuthError> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.server));
        let tls = acceptor.accept(raw).await.map_err(AuthError::Handshake)?;
        let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = chain.first().and_then(first_name);
        let peer = peer.ok_or(AuthError::Unintelligible("its certificate has no DNS name"))?;
        Ok(Authenticated { carrier: Box::new(tls), peer })
    }
}

fn first_name(leaf: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(leaf).ok()?;
    certificate.valid_dns_names().next().map(str::to_owned)
}

impl Authenticate for MutualTls {
    fn authenticate<'a>(
        &'a self,
        raw: BoxCarrier,
        role: Role<'a>,
    ) -> BoxFuture<'a, Result<Authenticated, AuthError>> {
        Box::pin(async move {
            match role {
                Role::Dialer { expects } => self.dial(raw, expects).await,
                Role::Listener => self.accept(raw).await,
            }
        })
    }
}

impl From<rustls::Error> for AuthError {
    fn from(error: rustls::Error) -> Self {
        Self::Handshake(io::Error::other(error))
    }
}
