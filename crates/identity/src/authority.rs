//! The certificate authority of a relay: made on first start, never made a second time.

use std::path::Path;
use std::time::SystemTime;

use hopline_names::MachineName;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use crate::certificate::{Facts, Fingerprint, from_pem, machine_uri, relay_uri, sha256, to_pem};
use crate::clock::{date, earliest};
use crate::error::StateError;
use crate::files::{self, Guard, hex};
use crate::lock::FolderLock;
use crate::tls::{RELAY_DNS_NAME, random};

pub(crate) const AUTHORITY_CERTIFICATE: &str = "ca.pem";
pub(crate) const AUTHORITY_KEY: &str = "ca.key";

const AUTHORITY_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);

/// There while the authority is made. With it in the folder, what is there of an authority has never been used.
pub(crate) const MAKING: &str = ".making-authority";

/// A private certificate authority: P-256, its certificate and key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

/// A relay's own certificate with its key, and from when to when it is valid.
pub(crate) struct RelayCertificate {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
}

impl Authority {
    /// Loads the folder's authority, or makes it when the folder is new. `lock` keeps a second maker out.
    pub(crate) fn load_or_create(
        folder: &Path,
        now: SystemTime,
        lock: &FolderLock,
    ) -> Result<Self, StateError> {
        let has_records = || -> Result<bool, StateError> {
            let names = |records| files::record_names(&folder.join(records));
            Ok(!names("tokens")?.is_empty() || !names("machines")?.is_empty())
        };
        if files::exists(&folder.join(MAKING))? {
            // Whoever made it did not come to the end, so it has issued nothing. A record would prove the contrary.
            if !has_records()? {
                files::remove(&folder.join(AUTHORITY_CERTIFICATE))?;
                files::remove(&folder.join(AUTHORITY_KEY))?;
            }
            files::remove(&folder.join(MAKING))?;
        }
        if let Some(authority) = Self::load(folder)? {
            // A clock that is wrong may be set: no reason to stay down.
            if let Err(error) = authority.check_dates(folder, now) {
                tracing::error!("{error}");
            }
            return Ok(authority);
        }
        if has_records()? {
            return Err(StateError::AuthorityLost { folder: folder.to_owned() });
        }
        Self::create(folder, now, lock)
    }

    /// `None` when neither file is there; one alone is an error, as is one that is empty, cut off or exposed.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, StateError> {
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
        let key = key_from_pem(&key, &key_path)?;
        if sha256(&key.subject_public_key_info()) != facts.key {
            return Err(StateError::damaged(&key_path, "it is not the key of ca.pem"));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|_| StateError::damaged(&certificate_path, "it cannot issue certificates"))?;
        let (not_before, not_after) = (facts.not_before.into(), facts.not_after.into());
        Ok(Some(Self { issuer, certificate, not_before, not_after }))
    }

    /// That the authority has not expired.
    pub(crate) fn check_dates(&self, folder: &Path, now: SystemTime) -> Result<(), StateError> {
        let not_after = self.not_after.into();
        if now < not_after {
            return Ok(());
        }
        let path = folder.join(AUTHORITY_CERTIFICATE);
        Err(StateError::AuthorityExpired { path, on: date(not_after), now: date(now) })
    }

    /// Valid from before this program was written: the clock may be wrong now, and set right later.
    fn create(folder: &Path, now: SystemTime, _lock: &FolderLock) -> Result<Self, StateError> {
        let key = new_key()?;
        let mut params = params(earliest(), now.max(earliest()), AUTHORITY_LIFE)?;
        let label = format!("Hopline CA {}", hex(&random::<4>()?));
        params.distinguished_name.push(DnType::CommonName, label);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate =
            params.self_signed(&key).map_err(|error| StateError::crypto("make the authority", &error))?;
        let certificate = CertificateDer::from(certificate);
        files::write_atomic(&folder.join(MAKING), b"an authority is being made\n")?;
        let pem = to_pem(std::slice::from_ref(&certificate));
        files::write_together(&[
            (folder.join(AUTHORITY_KEY), key_to_pem(&key).as_bytes()),
            (folder.join(AUTHORITY_CERTIFICATE), pem.as_bytes()),
        ])?;
        files::remove(&folder.join(MAKING))?;
        let (not_before, not_after) = (params.not_before, params.not_after);
        Ok(Self { issuer: Issuer::new(params, key), certificate, not_before, not_after })
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
        name: &MachineName,
        now: SystemTime,
    ) -> Result<RelayCertificate, StateError> {
        let key = new_key()?;
        let dns = RELAY_DNS_NAME.try_into().map_err(|error| StateError::crypto("name the relay", &error))?;
        let names = vec![SanType::DnsName(dns), uri(relay_uri(name))?];
        let certificate = self.issue(name, names, ExtendedKeyUsagePurpose::ServerAuth, &key, now)?;
        let facts = Facts::read(&certificate)
            .ok_or_else(|| StateError::crypto("issue a certificate", &"it cannot be read back"))?;
        Ok(RelayCertificate {
            certificate,
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialized_der().to_vec())),
            not_before: facts.not_before,
            not_after: facts.not_after,
        })
    }

    /// A certificate for a machine's key: it may dial, and may not pose as a relay.
    pub(crate) fn issue_machine(
        &self,
        name: &MachineName,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, StateError> {
        let names = vec![uri(machine_uri(name))?];
        self.issue(name, names, ExtendedKeyUsagePurpose::ClientAuth, key, now)
    }

    fn issue(
        &self,
        name: &MachineName,
        names: Vec<SanType>,
        usage: ExtendedKeyUsagePurpose,
        key: &impl PublicKeyData,
        now: SystemTime,
    ) -> Result<CertificateDer<'static>, StateError> {
        // As far back as the authority goes, for machines whose clock is slow; and no earlier end than a right clock
        // would give, if this one is certainly slow.
        let now = now.max(earliest()).max(self.not_before.into());
        let mut params = params(self.not_before.into(), now, LEAF_LIFE)?;
        params.not_after = params.not_after.min(self.not_after);
        params.distinguished_name.push(DnType::CommonName, name.as_str());
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

fn params(from: SystemTime, now: SystemTime, life: Duration) -> Result<CertificateParams, StateError> {
    let out_of_range = || StateError::crypto("date a certificate", &"the clock is out of range");
    let mut serial = random::<16>()?;
    // Positive and of full length, as RFC 5280 wants serial numbers.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = from.into();
    params.not_after = OffsetDateTime::from(now).checked_add(life).ok_or_else(out_of_range)?;
    Ok(params)
}

fn uri(text: String) -> Result<SanType, StateError> {
    text.try_into().map(SanType::URI).map_err(|error| StateError::crypto("name a certificate", &error))
}
