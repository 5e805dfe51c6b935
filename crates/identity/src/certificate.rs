//! Reading certificates: the names, key and dates that we act on, and PEM.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hopline_names::MachineName;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

/// A SHA-256, of a certificate or of a public key.
pub(crate) type Fingerprint = [u8; 32];

const RELAY_URI: &str = "hopline://relay/";
const MACHINE_URI: &str = "hopline://machine/";

/// What we act on in a certificate. Reading it checks no signature and no date: that is rustls's work.
#[derive(Debug)]
pub(crate) struct Facts {
    /// SHA-256 of the SubjectPublicKeyInfo.
    pub(crate) key: Fingerprint,
    pub(crate) is_authority: bool,
    /// 1970 when it is before that.
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    uris: Vec<String>,
}

impl Facts {
    /// `None` when the bytes are not one whole certificate.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let uris = match certificate.subject_alternative_name().ok()? {
            None => Vec::new(),
            Some(extension) => extension.value.general_names.iter().filter_map(uri).collect(),
        };
        let is_authority = certificate.basic_constraints().ok()?.is_some_and(|basic| basic.value.ca);
        let not_after_s = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        let not_before_s = u64::try_from(certificate.validity().not_before.timestamp()).unwrap_or(0);
        Some(Self {
            key: sha256(certificate.public_key().raw),
            is_authority,
            not_before: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_before_s))?,
            not_after: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after_s))?,
            uris,
        })
    }

    pub(crate) fn machine_name(&self) -> Option<MachineName> {
        self.name(MACHINE_URI)
    }

    pub(crate) fn relay_name(&self) -> Option<MachineName> {
        self.name(RELAY_URI)
    }

    /// The one valid name under `prefix`; with two, nobody could say whose certificate it is.
    fn name(&self, prefix: &str) -> Option<MachineName> {
        let mut names = self.uris.iter().filter_map(|uri| uri.strip_prefix(prefix));
        let name = MachineName::new(names.next()?).ok()?;
        names.next().is_none().then_some(name)
    }
}

/// The relay's name, from the chain that it presented on a verified connection; for logs and `/status`.
///
/// `None` when the first certificate holds no (or no valid) `hopline://relay/NAME`. It verifies nothing: ask only
/// after rustls has.
pub fn relay_name(chain: &[CertificateDer<'_>]) -> Option<MachineName> {
    Facts::read(chain.first()?)?.relay_name()
}

pub(crate) fn relay_uri(name: &MachineName) -> String {
    format!("{RELAY_URI}{name}")
}

pub(crate) fn machine_uri(name: &MachineName) -> String {
    format!("{MACHINE_URI}{name}")
}

pub(crate) fn sha256(bytes: &[u8]) -> Fingerprint {
    Sha256::digest(bytes).into()
}

/// All certificates of a PEM file; `None` when a section is broken or there is none.
pub(crate) fn from_pem(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!chain.is_empty()).then_some(chain)
}

pub(crate) fn to_pem(chain: &[CertificateDer<'_>]) -> String {
    const LINE_LEN: usize = 64;
    let mut text = String::new();
    for certificate in chain {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut body = BASE64_STANDARD.encode(certificate);
        while !body.is_empty() {
            let rest = body.split_off(body.len().min(LINE_LEN));
            text.push_str(&body);
            text.push('\n');
            body = rest;
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn uri(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::URI(text) = name { Some((*text).to_owned()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(uris: &[&str]) -> Facts {
        Facts {
            key: [0; 32],
            is_authority: false,
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        }
    }

    #[test]
    fn a_name_is_taken_only_when_there_is_one_valid_one() {
        assert_eq!(facts(&["hopline://machine/web-1"]).machine_name(), MachineName::new("web-1").ok());
        assert_eq!(
            facts(&["https://x", "hopline://machine/web-1"]).machine_name(),
            MachineName::new("web-1").ok()
        );
        assert_eq!(facts(&["hopline://relay/web-1"]).machine_name(), None);
        assert_eq!(facts(&["hopline://machine/a", "hopline://machine/b"]).machine_name(), None);
        assert_eq!(facts(&["hopline://machine/../ca"]).machine_name(), None);
        assert_eq!(facts(&["hopline://machine/"]).machine_name(), None);
        assert_eq!(facts(&[]).machine_name(), None);
    }

    #[test]
    fn pem_round_trip() {
        let chain = [CertificateDer::from(vec![7u8; 100]), CertificateDer::from(vec![8u8; 48])];
        let text = to_pem(&chain);
        assert!(text.lines().all(|line| line.len() <= 64));
        assert_eq!(from_pem(text.as_bytes()).unwrap(), chain);
        assert_eq!(from_pem(b"nothing here"), None);
        assert_eq!(from_pem(&text.as_bytes()[..text.len() - 30]), None);
    }

    #[test]
    fn bytes_that_are_no_certificate_are_none() {
        assert!(Facts::read(b"").is_none());
        assert!(Facts::read(&[0x30; 4096]).is_none());
    }
}
