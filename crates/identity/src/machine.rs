//! A machine's state folder, as `join` leaves it and `up` loads it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::{CertificateError, ClientConfig};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::authority::{AUTHORITY_CERTIFICATE, key_from_pem};
use crate::certificate::{Facts, from_pem};
use crate::error::StateError;
use crate::files::{self, Guard};
use crate::name::check_name;
use crate::tls::{link_client_config, verify_machine};

pub(crate) const MACHINE_CERTIFICATE: &str = "machine.pem";
pub(crate) const MACHINE_KEY: &str = "machine.key";
pub(crate) const MACHINE_FACTS: &str = "machine.json";

/// A machine that has joined: its name, its relays, what it was granted, and its credentials.
#[derive(Clone)]
pub struct Machine {
    facts: MachineFacts,
    expires: SystemTime,
    client_config: Arc<ClientConfig>,
}

/// The contents of `machine.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    pub(crate) name: String,
    pub(crate) relays: Vec<String>,
    pub(crate) publish: Vec<String>,
    pub(crate) dial: Vec<String>,
}

/// Why a machine's folder cannot be used. Each text is one line, names the file and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadMachineError {
    /// The folder holds no machine, or not all of one.
    #[error("{missing} is missing; run: hopline join TOKENFILE --state {folder}")]
    NotJoined {
        /// The file.
        missing: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
    /// A file is empty, cut off or does not belong to the others.
    #[error("{path} is damaged ({fault}); run: hopline join TOKENFILE --state {folder}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The machine's certificate is past its end.
    #[error("the certificate {path} expired on {on}; run: hopline join TOKENFILE --state {folder}")]
    Expired {
        /// The certificate.
        path: PathBuf,
        /// The date, UTC.
        on: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The machine's clock stands before the certificate was issued.
    #[error("the certificate {path} is not valid yet; set this machine's clock right")]
    NotValidYet {
        /// The certificate.
        path: PathBuf,
    },
    /// A file could not be read, or others could read or change it.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Machine {
    /// Loads and checks a machine's folder: modes, that key, certificate and authority belong together, dates.
    ///
    /// # Errors
    ///
    /// [`LoadMachineError`], with the remedy.
    pub fn load(state_dir: &Path) -> Result<Self, LoadMachineError> {
        Loader { folder: state_dir }.load(SystemTime::now())
    }

    /// The machine's name.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// Where its relays are, `HOST:PORT`.
    pub fn relays(&self) -> &[String] {
        &self.facts.relays
    }

    /// Patterns that it was granted to publish when it joined; the relay's record decides.
    pub fn publish(&self) -> &[String] {
        &self.facts.publish
    }

    /// Patterns that it was granted to dial when it joined; the relay's record decides.
    pub fn dial(&self) -> &[String] {
        &self.facts.dial
    }

    /// When its certificate expires.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// For links to a relay: TLS 1.3, ALPN [`ALPN_LINK`](crate::ALPN_LINK), the machine's certificate, the relay's
    /// authority as the only root, no resumption. The server name is always
    /// [`relay_server_name`](crate::relay_server_name).
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client_config)
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("facts", &self.facts)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// What is known of a folder's machine without its credentials; `None` when nobody joined there.
pub(crate) fn read_facts(folder: &Path) -> Result<Option<MachineFacts>, StateError> {
    let path = folder.join(MACHINE_FACTS);
    let Some(bytes) = files::read(&path, Guard::Integrity)? else { return Ok(None) };
    let facts: MachineFacts = serde_json::from_slice(&bytes)
        .map_err(|_| StateError::damaged(&path, "it is not the JSON expected"))?;
    check_name(&facts.name).map_err(|_| StateError::damaged(&path, "it names no machine"))?;
    Ok(Some(facts))
}

/// Loads one folder; a type so that each error can name it.
struct Loader<'a> {
    folder: &'a Path,
}

impl Loader<'_> {
    fn load(&self, now: SystemTime) -> Result<Machine, LoadMachineError> {
        let facts = read_facts(self.folder)
            .map_err(|error| self.remedied(error))?
            .ok_or_else(|| self.missing(MACHINE_FACTS))?;
        let chain = self.certificates(MACHINE_CERTIFICATE)?;
        let key = self.read(MACHINE_KEY, Guard::Secret)?;
        let authority = self.certificates(AUTHORITY_CERTIFICATE)?;
        let [authority] = <[CertificateDer<'static>; 1]>::try_from(authority)
            .map_err(|_| self.damaged(AUTHORITY_CERTIFICATE, "it holds more than one certificate"))?;
        let expires = self.check_certificate(&facts, &chain, &authority, now)?;

        let key = key_from_pem(&key, &self.folder.join(MACHINE_KEY)).map_err(|error| self.remedied(error))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialized_der().to_vec()));
        // Also finds a key that is not the certificate's.
        let client_config = link_client_config(authority, chain, key)
            .map_err(|_| self.damaged(MACHINE_KEY, "it is not the key of machine.pem"))?;
        Ok(Machine { facts, expires, client_config: Arc::new(client_config) })
    }

    /// Checks the machine's certificate as a relay will, so that what is wrong shows here and with a remedy.
    fn check_certificate(
        &self,
        facts: &MachineFacts,
        chain: &[CertificateDer<'_>],
        authority: &CertificateDer<'static>,
        now: SystemTime,
    ) -> Result<SystemTime, LoadMachineError> {
        let leaf = chain
            .first()
            .and_then(|leaf| Facts::read(leaf))
            .ok_or_else(|| self.damaged(MACHINE_CERTIFICATE, "it is not a certificate"))?;
        if leaf.machine_name() != Some(&facts.name) {
            return Err(self.damaged(MACHINE_CERTIFICATE, "it is not of the machine that machine.json names"));
        }
        if leaf.not_after <= now {
            return Err(LoadMachineError::Expired {
                path: self.folder.join(MACHINE_CERTIFICATE),
                on: OffsetDateTime::from(leaf.not_after).date().to_string(),
                folder: self.folder.to_owned(),
            });
        }
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        match verify_machine(authority, chain, UnixTime::since_unix_epoch(since_1970)) {
            Ok(()) => Ok(leaf.not_after),
            Err(error) if is_not_valid_yet(&error) => {
                Err(LoadMachineError::NotValidYet { path: self.folder.join(MACHINE_CERTIFICATE) })
            }
            Err(_) => Err(self.damaged(MACHINE_CERTIFICATE, "it was not issued by the authority in ca.pem")),
        }
    }

    fn certificates(&self, file: &str) -> Result<Vec<CertificateDer<'static>>, LoadMachineError> {
        let bytes = self.read(file, Guard::Integrity)?;
        from_pem(&bytes).ok_or_else(|| self.damaged(file, "it is not a certificate in PEM"))
    }

    fn read(&self, file: &str, guard: Guard) -> Result<Zeroizing<Vec<u8>>, LoadMachineError> {
        files::read(&self.folder.join(file), guard)
            .map_err(|error| self.remedied(error))?
            .ok_or_else(|| self.missing(file))
    }

    fn missing(&self, file: &str) -> LoadMachineError {
        LoadMachineError::NotJoined { missing: self.folder.join(file), folder: self.folder.to_owned() }
    }

    fn damaged(&self, file: &str, fault: &str) -> LoadMachineError {
        LoadMachineError::Damaged {
            path: self.folder.join(file),
            fault: fault.to_owned(),
            folder: self.folder.to_owned(),
        }
    }

    /// A machine does not need a backup: it can join again.
    fn remedied(&self, error: StateError) -> LoadMachineError {
        if let StateError::Damaged { path, fault } = error {
            LoadMachineError::Damaged { path, fault, folder: self.folder.to_owned() }
        } else {
            LoadMachineError::State(error)
        }
    }
}

pub(crate) fn is_not_valid_yet(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }
        )
    )
}
