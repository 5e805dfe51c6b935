//! TLS 1.3 for those who need it, with a certificate made on the spot.

use std::sync::{Arc, LazyLock};

use anyhow::Result;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};

/// The name in the certificate.
pub const NAME: &str = "localhost";

static KEY: LazyLock<Option<CertifiedKey<KeyPair>>> =
    LazyLock::new(|| generate_simple_self_signed([NAME.to_owned()]).ok());

/// Both sides' settings.
pub fn configs() -> Result<(Arc<ClientConfig>, Arc<ServerConfig>)> {
    let key = KEY.as_ref().ok_or_else(|| anyhow::anyhow!("no certificate could be made"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let certificate: CertificateDer<'static> = key.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()));
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], private)?;
    Ok((Arc::new(client), Arc::new(server)))
}
