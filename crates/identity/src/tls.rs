//! The rustls configurations: TLS 1.3 only, provider aws-lc-rs named in each, no resumption.
//!
//! Resumption is off at both ends. A resumed connection takes the peer's certificate from the first one without
//! looking at its dates again; links live for hours, so the round trip that a ticket could save is worth nothing,
//! and without it every connection proves the machine's key anew.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, PeerMisbehaved, RootCertStore, ServerConfig,
    SignatureScheme, client::WebPkiServerVerifier, version::TLS13,
};

use crate::certificate::{Facts, Fingerprint, sha256};
use crate::clock::Clock;
use crate::error::StateError;

/// ALPN of a link between a machine and a relay.
pub const ALPN_LINK: &[u8] = b"hopline-link/1";

/// ALPN of a join: the one conversation at a relay that needs no machine certificate.
pub const ALPN_JOIN: &[u8] = b"hopline-join/1";

/// The name in every relay's certificate. It is fixed: the authority is private, and what it vouches for is "a
/// relay of this authority", whatever address that was reached at.
pub(crate) const RELAY_DNS_NAME: &str = "relay.hopline";

/// The server name that a client gives to rustls for every relay: `relay.hopline`.
pub fn relay_server_name() -> ServerName<'static> {
    let name = DnsName::try_from_str(RELAY_DNS_NAME).expect("the constant is a DNS name");
    ServerName::DnsName(name.to_owned())
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Random bytes from the operating system, by the same provider as everything else.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    let source = aws_lc_rs::default_provider().secure_random;
    source.fill(&mut bytes).map_err(|_| StateError::crypto("get random bytes", &"the source failed"))?;
    Ok(bytes)
}

/// Takes links and joins on one port; the ALPN that was agreed tells which it is.
///
/// A client certificate is asked for and, when given, verified; it may be left out, or nobody could join.
pub(crate) fn server_config(
    authority: CertificateDer<'static>,
    own: Arc<dyn ResolvesServerCert>,
    clock: Clock,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(clock))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(own);
    config.alpn_protocols = vec![ALPN_LINK.to_vec(), ALPN_JOIN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Dials links: trusts the one authority and shows the machine's certificate.
pub(crate) fn link_client_config(
    authority: CertificateDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clock: Clock,
) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_details(provider(), Arc::new(clock))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(authority)?)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN_LINK.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Dials a join: trusts the authority that has this fingerprint, whose certificate the relay presents.
pub(crate) fn join_client_config(authority: Fingerprint) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinnedAuthority { fingerprint: authority }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_JOIN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Whether `certificate` is one that `authority` issued to a machine and that is valid at `now`.
pub(crate) fn verify_machine(
    authority: &CertificateDer<'static>,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), rustls::Error> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority.clone())?, provider())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let (leaf, intermediates) =
        chain.split_first().ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
    verifier.verify_client_cert(leaf, intermediates, now).map(|_| ())
}

/// The certificate fault in an error of a TLS handshake, if it is one.
pub(crate) fn certificate_fault(error: &rustls::Error) -> Option<&CertificateError> {
    if let rustls::Error::InvalidCertificate(fault) = error { Some(fault) } else { None }
}

pub(crate) fn is_not_valid_yet(error: &rustls::Error) -> bool {
    matches!(
        certificate_fault(error),
        Some(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. })
    )
}

pub(crate) fn is_expired(error: &rustls::Error) -> bool {
    matches!(
        certificate_fault(error),
        Some(CertificateError::Expired | CertificateError::ExpiredContext { .. })
    )
}

/// What [`PinnedAuthority`] answers when the fingerprint is not in the chain; it answers so to nothing else.
pub(crate) const NOT_PINNED: CertificateError = CertificateError::ApplicationVerificationFailure;

fn roots(authority: CertificateDer<'static>) -> Result<Arc<RootCertStore>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    Ok(Arc::new(roots))
}

/// Finds the pinned authority in the presented chain, then lets rustls verify the relay under it alone.
#[derive(Debug)]
struct PinnedAuthority {
    fingerprint: Fingerprint,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The fingerprint alone would do; that it is an authority is asked so that a pinned leaf stays an error.
        let pinned = intermediates.iter().find(|certificate| {
            sha256(certificate) == self.fingerprint
                && Facts::read(certificate).is_some_and(|facts| facts.is_authority)
        });
        let authority = pinned.ok_or(rustls::Error::InvalidCertificate(NOT_PINNED))?.clone().into_owned();
        WebPkiServerVerifier::builder_with_provider(roots(authority)?, provider())
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, &relay_server_name(), ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Not reached: the configuration offers TLS 1.3 only.
        Err(PeerMisbehaved::SelectedUnofferedCipherSuite.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
