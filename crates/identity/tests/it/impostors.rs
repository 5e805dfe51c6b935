//! Those who hold a certificate of the authority, or of another one, and claim to be what they are not.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use hopline_identity::{ALPN_JOIN, ALPN_LINK, AttemptFault, AuthError, JoinError, Why, join, list_machines};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};
use time::OffsetDateTime;

use crate::common::{Outcome, dial, impostor, name, relay_with_machine, token};

type Credentials = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn machine_credentials(dir: &Path) -> Credentials {
    let leaf = CertificateDer::from_pem_file(dir.join("machine.pem")).unwrap();
    let authority = CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap();
    (vec![leaf, authority], PrivateKeyDer::from_pem_file(dir.join("machine.key")).unwrap())
}

/// What the holder of an authority's key could make.
fn minted(relay_dir: &Path, names: Vec<SanType>, usage: ExtendedKeyUsagePurpose) -> Credentials {
    let read = |file: &str| std::fs::read_to_string(relay_dir.join(file)).unwrap();
    let issuer =
        Issuer::from_ca_cert_pem(&read("ca.pem"), KeyPair::from_pem(&read("ca.key")).unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = OffsetDateTime::from(SystemTime::now()) - time::Duration::hours(1);
    params.not_after = params.not_before + time::Duration::days(30);
    params.subject_alt_names = names;
    params.extended_key_usages = vec![usage];
    let leaf = CertificateDer::from(params.signed_by(&key, &issuer).unwrap());
    let authority = CertificateDer::from_pem_file(relay_dir.join("ca.pem")).unwrap();
    (vec![leaf, authority], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

fn server((chain, key): Credentials) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![ALPN_LINK.to_vec(), ALPN_JOIN.to_vec()];
    config
}

fn client(relay_dir: &Path, credentials: Option<Credentials>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(relay_dir.join("ca.pem")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match credentials {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

fn certificate_error(error: &std::io::Error) -> &CertificateError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(fault)) => fault,
        other => panic!("{other:?} in {error}"),
    }
}

/// How TLS failed at the one address that a join tried.
fn tls_fault(error: JoinError) -> std::io::Error {
    let JoinError::Reach(error) = error else { panic!("{error}") };
    let Why::Attempts(mut attempts) = error.why else { panic!("{error}") };
    match attempts.pop().unwrap().fault {
        AttemptFault::Tls(source) => source,
        other => panic!("{other}"),
    }
}

fn is_wrong_purpose(fault: &CertificateError) -> bool {
    matches!(fault, CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. })
}

#[tokio::test]
async fn a_machine_cannot_pose_as_the_relay() {
    let (relay, relay_dir, machine, machine_dir) = relay_with_machine("web-1").await;
    let address = impostor(server(machine_credentials(machine_dir.path()))).await;

    let error = dial(machine.client_config(), &address).await.unwrap_err();
    certificate_error(&error);
    let token = token(relay_dir.path(), &address, 1);
    let error = join(&token, &name("web-2"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    certificate_error(&tls_fault(error));
    drop(relay);
}

/// The name alone must not be enough: a certificate for dialing with the relay's name in it is refused for its
/// purpose, by links and by joins; with the right purpose the same set-up works, so the test can fail.
#[tokio::test]
async fn a_certificate_for_dialing_does_not_serve() {
    let (_relay, relay_dir, machine, _machine_dir) = relay_with_machine("web-1").await;
    let names = || vec![dns("relay.hopline"), uri("hopline://relay/relay-a")];

    let wrong = minted(relay_dir.path(), names(), ExtendedKeyUsagePurpose::ClientAuth);
    let address = impostor(server(wrong)).await;
    let error = dial(machine.client_config(), &address).await.unwrap_err();
    assert!(is_wrong_purpose(certificate_error(&error)), "{error}");
    let joining = token(relay_dir.path(), &address, 1);
    let error = join(&joining, &name("web-2"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    let source = tls_fault(error);
    assert!(is_wrong_purpose(certificate_error(&source)), "{source}");

    let right = minted(relay_dir.path(), names(), ExtendedKeyUsagePurpose::ServerAuth);
    let address = impostor(server(right)).await;
    assert_eq!(dial(machine.client_config(), &address).await.unwrap().1, b'y');
}

#[tokio::test]
async fn the_relays_own_kind_of_certificate_does_not_dial() {
    let (mut relay, relay_dir, _machine, _machine_dir) = relay_with_machine("web-1").await;
    let names = vec![uri("hopline://machine/web-1")];
    let wrong = minted(relay_dir.path(), names, ExtendedKeyUsagePurpose::ServerAuth);
    dial(client(relay_dir.path(), Some(wrong), &[ALPN_LINK]), &relay.address).await.unwrap_err();
    match relay.outcome().await {
        Outcome::Tls(error) => assert!(is_wrong_purpose(certificate_error(&error)), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn another_authoritys_relay_and_machine_are_strangers() {
    let (mut relay_a, relay_dir_a, machine_a, _dir_a) = relay_with_machine("web-1").await;
    let (relay_b, relay_dir_b, machine_b, machine_dir_b) = relay_with_machine("web-1").await;

    let error = dial(machine_a.client_config(), &relay_b.address).await.unwrap_err();
    let fault = certificate_error(&error);
    assert!(matches!(fault, CertificateError::UnknownIssuer | CertificateError::BadSignature), "{fault:?}");

    // The stranger trusts relay A, so that the relay is the one that refuses.
    let stranger = machine_credentials(machine_dir_b.path());
    dial(client(relay_dir_a.path(), Some(stranger), &[ALPN_LINK]), &relay_a.address).await.unwrap_err();
    assert!(matches!(relay_a.outcome().await, Outcome::Tls(_)));
    drop((machine_b, relay_dir_b));
}

/// The pinned authority's certificate is public: showing it beside a leaf that it never signed must not help.
#[tokio::test]
async fn the_pinned_certificate_beside_a_foreign_leaf_is_refused() {
    let (_relay_a, relay_dir_a, _machine_a, _dir_a) = relay_with_machine("web-1").await;
    let (_relay_b, relay_dir_b, _machine_b, _dir_b) = relay_with_machine("web-1").await;
    let names = vec![dns("relay.hopline"), uri("hopline://relay/relay-a")];
    let (mut chain, key) = minted(relay_dir_b.path(), names, ExtendedKeyUsagePurpose::ServerAuth);
    chain.push(CertificateDer::from_pem_file(relay_dir_a.path().join("ca.pem")).unwrap());
    let address = impostor(server((chain, key))).await;

    let pinned = token(relay_dir_a.path(), &address, 1);
    let error = join(&pinned, &name("web-2"), tempfile::tempdir().unwrap().path()).await.unwrap_err();
    certificate_error(&tls_fault(error));
    assert_eq!(list_machines(relay_dir_a.path()).unwrap().records.len(), 1);
}

#[tokio::test]
async fn a_link_needs_a_certificate_of_a_known_machine_with_its_key() {
    let (mut relay, relay_dir, machine, _machine_dir) = relay_with_machine("web-1").await;

    let nobody = client(relay_dir.path(), None, &[ALPN_LINK]);
    assert_eq!(dial(nobody, &relay.address).await.unwrap().1, b'n');
    assert!(matches!(relay.linked().await, Err(AuthError::NoCertificate)));

    let usage = ExtendedKeyUsagePurpose::ClientAuth;
    let other_key = minted(relay_dir.path(), vec![uri("hopline://machine/web-1")], usage.clone());
    dial(client(relay_dir.path(), Some(other_key), &[ALPN_LINK]), &relay.address).await.unwrap();
    assert!(matches!(relay.linked().await, Err(AuthError::OtherKey { name }) if name.as_str() == "web-1"));

    let outside = minted(relay_dir.path(), vec![uri("hopline://machine/../tokens/x")], usage);
    dial(client(relay_dir.path(), Some(outside), &[ALPN_LINK]), &relay.address).await.unwrap();
    assert!(matches!(relay.linked().await, Err(AuthError::NotAMachine)));

    // A record that is gone counts at once, for a certificate that is as good as before.
    std::fs::remove_file(relay_dir.path().join("machines/web-1.json")).unwrap();
    assert_eq!(dial(machine.client_config(), &relay.address).await.unwrap().1, b'n');
    assert!(
        matches!(relay.linked().await, Err(AuthError::UnknownMachine { name }) if name.as_str() == "web-1")
    );
}

#[tokio::test]
async fn a_peer_without_an_alpn_of_ours_gets_nothing() {
    let (mut relay, relay_dir, _machine, _machine_dir) = relay_with_machine("web-1").await;
    dial(client(relay_dir.path(), None, &[]), &relay.address).await.unwrap_err();
    assert!(matches!(relay.outcome().await, Outcome::NoAlpn));
    dial(client(relay_dir.path(), None, &[b"h2"]), &relay.address).await.unwrap_err();
    assert!(matches!(relay.outcome().await, Outcome::Tls(_)));
}
