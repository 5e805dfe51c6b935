//! The certificate authority of a relay: made on first start, never made a second time.

use std::path::Path;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::certificate::{Facts, Fingerprint, from_pem, machine_uri, relay_uri, sha256, to_pem};
use crate::error::StateError;
use crate::files::{self, FolderLock, Guard, hex};
use crate::tls::{RELAY_DNS_NAME, random};

pub(crate) const AUTHORITY_CERTIFICATE: &str = "ca.pem";
pub(crate) const AUTHORITY_KEY: &str = "ca.key";

const AUTHORITY_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);

/// How far back a certificate is valid, for machines whose clock is slow.
const CLOCK_SKEW: Duration = Duration::hours(1);

/// A private certificate authority: P-256, its certificate and key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    not_after: OffsetDateTime,
}

impl Authority {
    /// Loads the folder's authority, or makes it when the folder is new. `lock` keeps a second maker out.
    pub(crate) fn load_or_create(
        folder: &Path,
        now: SystemTime,
        lock: &FolderLock,
    ) -> Result<Self, StateError> {
        if let Some(authority) = Self::load(folder, now)? {
            return Ok(authority);
        }
        for records in ["tokens", "machines"] {
            if !files::record_names(&folder.join(records))?.is_empty() {
                return Err(StateError::AuthorityLost { folder: folder.to_owned() });
            }
        }
        Self::create(folder, now, lock)
    }

    /// `None` when neither file is there; one alone is an error, as is one that is empty, cut off or exposed.
    pub(crate) fn load(folder: &Path, now: SystemTime) -> Result<Option<Self>, StateError> {
        let certificate_path = folder.join(AUTHORITY_CERTIFICATE);
        let key_path = folder.join(AUTHORITY_KEY);
        let certificate = files::read(&certificate_path, Guard::Integrity)?;
        let key = files::read(&key_path, Guard::Secret)?;
        let (certificate, key) = match (certificate, key) {
            (None, None) => return Ok(None),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => {
                return Err(StateError::AuthorityIncomplete { present: certificate_path, missing: key_path });
            }
            (None, Some(_)) => {
                return Err(StateError::AuthorityIncomplete { present: key_path, missing: certificate_path });
            }
        };
        let chain = from_pem(&certificate)
            .ok_or_else(|| StateError::damaged(&certificate_path, "it is not a certificate in PEM"))?;
        let [certificate] = <[CertificateDer<'static>; 1]>::try_from(chain)
            .map_err(|_| StateError::damaged(&certificate_path, "it holds more than one certificate"))?;
        let facts = Facts::read(&certificate)
            .filter(|facts| facts.is_authority)
            .ok_or_else(|| StateError::damaged(&certificate_path, "it is not an authority's certificate"))?;
        if facts.not_after <= now {
            return Err(StateError::AuthorityExpired { path: certificate_path });
        }
        let key = key_from_pem(&key, &key_path)?;
        if sha256(&key.subject_public_key_info()) != facts.key {
            return Err(StateError::damaged(&key_path, "it is not the key of ca.pem"));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|_| StateError::damaged(&certificate_path, "it cannot issue certificates"))?;
        Ok(Some(Self { issuer, certificate, not_after: facts.not_after.into() }))
    }

    /// The key first: a crash between the two leaves a key that has signed nothing, and an error that says so.
    fn create(folder: &Path, now: SystemTime, _lock: &FolderLock) -> Result<Self, StateError> {
        let key = new_key()?;
        let mut params = params(now, AUTHORITY_LIFE)?;
        let label = format!("Hopline CA {}", hex(&random::<4>()?));
        params.distinguished_name.push(DnType::CommonName, label);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate =
            params.self_signed(&key).map_err(|error| StateError::crypto("make the authority", &error))?;
        let certificate = CertificateDer::from(certificate);
        files::write_atomic(&folder.join(AUTHORITY_KEY), key_to_pem(&key).as_bytes())?;
        let pem = to_pem(std::slice::from_ref(&certificate));
        files::write_atomic(&folder.join(AUTHORITY_CERTIFICATE), pem.as_bytes())?;
        let not_after = params.not_after;
        Ok(Self { issuer: Issuer::new(params, key), certificate, not_after })
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What a token pins: SHA-256 of the authority's certificate (DER).
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        sha256(&self.certificate)
    }

    /// A fresh key and certificate for the relay: it may serve, and may not pose as a machine.
    pub(crate) fn issue_relay(
        &self,
        name: &str,
        now: SystemTime,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), StateError> {
        let key = new_key()?;
        let dns = RELAY_DNS_NAME.try_into().map_err(|error| StateError::crypto("name the relay", &error))?;
        let names = vec![SanType::DnsName(dns), uri(relay_uri(name))?];
        let certificate = self.issue(name, names, ExtendedKeyUsagePurpose::ServerAuth, &key, now)?;
        Ok((certificate, PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialized_der().to_vec()))))
    }

    /// A certificate for a machine's key: it may dial, and may not pose as a relay.
    pub(crate) fn issue_machine(
        &self,
        name: &str,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, StateError> {
        let names = vec![uri(machine_uri(name))?];
        self.issue(name, names, ExtendedKeyUsagePurpose::ClientAuth, key, now)
    }

    fn issue(
        &self,
        name: &str,
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, StateError> {
        let mut params = params(now, LEAF_LIFE)?;
        params.not_after = params.not_after.min(self.not_after);
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params
            .signed_by(key, &self.issuer)
            .map(CertificateDer::from)
            .map_err(|error| StateError::crypto("issue a certificate", &error))
    }
}

/// A new P-256 key.
pub(crate) fn new_key() -> Result<KeyPair, StateError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| StateError::crypto("make a key", &error))
}

/// A P-256 key from a file that has passed its mode check.
pub(crate) fn key_from_pem(pem: &[u8], path: &Path) -> Result<KeyPair, StateError> {
    let damaged = || StateError::damaged(path, "it is not a P-256 private key in PEM");
    let text = std::str::from_utf8(pem).map_err(|_| damaged())?;
    KeyPair::from_pkcs8_pem_and_sign_algo(text, &PKCS_ECDSA_P256_SHA256).map_err(|_| damaged())
}

pub(crate) fn key_to_pem(key: &KeyPair) -> Zeroizing<String> {
    Zeroizing::new(key.serialize_pem())
}

fn params(now: SystemTime, life: Duration) -> Result<CertificateParams, StateError> {
    let out_of_range = || StateError::crypto("date a certificate", &"the clock is out of range");
    let now = OffsetDateTime::from(now);
    let mut serial = random::<16>()?;
    // Positive and of full length, as RFC 5280 wants serial numbers.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = now.checked_sub(CLOCK_SKEW).ok_or_else(out_of_range)?;
    params.not_after = now.checked_add(life).ok_or_else(out_of_range)?;
    Ok(params)
}

fn uri(text: String) -> Result<SanType, StateError> {
    text.try_into().map(SanType::URI).map_err(|error| StateError::crypto("name a certificate", &error))
}
