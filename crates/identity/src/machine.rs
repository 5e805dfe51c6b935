//! A machine's state folder, as `join` leaves it and `up` loads it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hopline_names::{Grants, MachineName};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::authority::{AUTHORITY_CERTIFICATE, key_from_pem};
use crate::certificate::{Facts, from_pem};
use crate::clock::{Clock, date, unix_time};
use crate::error::StateError;
use crate::files::{self, Guard};
use crate::tls::{is_expired, is_not_valid_yet, link_client_config, verify_machine};
use crate::version::check_version;

pub(crate) const MACHINE_CERTIFICATE: &str = "machine.pem";
pub(crate) const MACHINE_KEY: &str = "machine.key";
pub(crate) const MACHINE_FACTS: &str = "machine.json";

/// A machine that has joined: its name, its relays, what it was granted, and its credentials.
#[derive(Clone)]
pub struct Machine {
    facts: MachineFacts,
    folder: PathBuf,
    not_before: SystemTime,
    expires: SystemTime,
    clock: Clock,
    certificate: CertificateDer<'static>,
    client_config: Arc<ClientConfig>,
}

/// Why a machine can't link now though its folder is in order: by this machine's clock. It may pass by itself, when the
/// clock is set, or by another join. The texts hold a day, and no time of the day: one cause is one text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DateFault {
    /// The clock stands before the certificate's first day.
    #[error(
        "this machine's clock seems wrong: it says {now}, and its certificate {path} is valid from {from}; set the clock"
    )]
    NotValidYet {
        /// The certificate.
        path: PathBuf,
        /// Its first day, UTC.
        from: String,
        /// Today, by the clock.
        now: String,
    },
    /// The certificate is past its end, or the clock is fast.
    #[error(
        "the certificate {path} expired on {on}, and this machine's clock says {now}; set the clock if it is wrong, else run: hopline join TOKENFILE --state {folder}"
    )]
    Expired {
        /// The certificate.
        path: PathBuf,
        /// Its last day, UTC.
        on: String,
        /// Today, by the clock.
        now: String,
        /// The folder.
        folder: PathBuf,
    },
}

/// The contents of `machine.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineFacts {
    pub(crate) name: MachineName,
    pub(crate) relays: Vec<String>,
    #[serde(flatten)]
    pub(crate) grants: Grants,
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
    /// A file could not be read, or others could read or change it.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Machine {
    /// Loads and checks a machine's folder: modes, that key, certificate and authority belong together. Not the dates,
    /// since the clock may be wrong and be set later: see [`Machine::check_dates`].
    ///
    /// # Errors
    ///
    /// [`LoadMachineError`], with the remedy.
    pub fn load(state_dir: &Path) -> Result<Self, LoadMachineError> {
        Self::load_by(state_dir, Clock::system())
    }

    /// [`Machine::load`] by another clock than the system's.
    ///
    /// # Errors
    ///
    /// As [`Machine::load`].
    pub fn load_by(state_dir: &Path, clock: Clock) -> Result<Self, LoadMachineError> {
        Loader { folder: state_dir }.load(clock)
    }

    /// Whether the machine's certificate is valid now.
    ///
    /// # Errors
    ///
    /// [`DateFault`], which says what the clock may have to do with it.
    pub fn check_dates(&self) -> Result<(), DateFault> {
        let now = self.clock.now();
        let path = || self.folder.join(MACHINE_CERTIFICATE);
        if now < self.not_before {
            return Err(DateFault::NotValidYet { path: path(), from: date(self.not_before), now: date(now) });
        }
        if now >= self.expires {
            let folder = self.folder.clone();
            return Err(DateFault::Expired { path: path(), on: date(self.expires), now: date(now), folder });
        }
        Ok(())
    }

    /// What a handshake with a relay that failed has to do with this machine's clock: the dates of the relay's certificate
    /// are judged by it. `None` when it failed for another reason.
    #[must_use]
    pub fn clock_fault(&self, error: &io::Error) -> Option<String> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        (is_not_valid_yet(error) || is_expired(error)).then(|| {
            let now = date(self.clock.now());
            format!("the relay's certificate is not valid by this machine's clock, which says {now}; one of the two clocks is wrong")
        })
    }

    /// Whether both are the same certificate, loaded twice or not.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.facts == other.facts && self.certificate == other.certificate
    }

    /// The files by which another [`join`](crate::join) into the folder shows.
    #[must_use]
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join(MACHINE_CERTIFICATE)
    }

    /// The machine's name.
    pub fn name(&self) -> &MachineName {
        &self.facts.name
    }

    /// Where its relays are, `HOST:PORT`.
    pub fn relays(&self) -> &[String] {
        &self.facts.relays
    }

    /// What it was granted when it joined; the relay's record decides.
    pub fn grants(&self) -> &Grants {
        &self.facts.grants
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
    let facts = serde_json::from_slice(&bytes)
        .map_err(|_| StateError::damaged(&path, "it is not the JSON expected"))?;
    Ok(Some(facts))
}

/// Loads one folder; a type so that each error can name it.
struct Loader<'a> {
    folder: &'a Path,
}

impl Loader<'_> {
    fn load(&self, clock: Clock) -> Result<Machine, LoadMachineError> {
        // Of a folder that is missing the file is what is spoken of: the remedy is the same.
        if files::folder_exists(self.folder)? {
            check_version(self.folder)?;
        }
        let facts = read_facts(self.folder)
            .map_err(|error| self.remedied(error))?
            .ok_or_else(|| self.missing(MACHINE_FACTS))?;
        let chain = self.certificates(MACHINE_CERTIFICATE)?;
        let key = self.read(MACHINE_KEY, Guard::Secret)?;
        let authority = self.certificates(AUTHORITY_CERTIFICATE)?;
        let [authority] = <[CertificateDer<'static>; 1]>::try_from(authority)
            .map_err(|_| self.damaged(AUTHORITY_CERTIFICATE, "it holds more than one certificate"))?;
        let leaf = self.check_certificate(&facts, &chain, &authority)?;

        let key = key_from_pem(&key, &self.folder.join(MACHINE_KEY)).map_err(|error| self.remedied(error))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialized_der().to_vec()));
        let certificate = chain[0].clone();
        // Also finds a key that is not the certificate's.
        let client_config = link_client_config(authority, chain, key, clock.clone())
            .map_err(|_| self.damaged(MACHINE_KEY, "it is not the key of machine.pem"))?;
        Ok(Machine {
            facts,
            folder: self.folder.to_owned(),
            not_before: leaf.not_before,
            expires: leaf.not_after,
            clock,
            certificate,
            client_config: Arc::new(client_config),
        })
    }

    /// Checks the machine's certificate as a relay will, so that what is wrong shows here and with a remedy. A relay
    /// looks at the dates too: here they are taken for good.
    fn check_certificate(
        &self,
        facts: &MachineFacts,
        chain: &[CertificateDer<'_>],
        authority: &CertificateDer<'static>,
    ) -> Result<Facts, LoadMachineError> {
        let leaf = chain
            .first()
            .and_then(|leaf| Facts::read(leaf))
            .ok_or_else(|| self.damaged(MACHINE_CERTIFICATE, "it is not a certificate"))?;
        if leaf.machine_name().as_ref() != Some(&facts.name) {
            return Err(self.damaged(MACHINE_CERTIFICATE, "it is not of the machine that machine.json names"));
        }
        let issuer = Facts::read(authority)
            .ok_or_else(|| self.damaged(AUTHORITY_CERTIFICATE, "it is not a certificate"))?;
        let at = leaf.not_before.max(issuer.not_before);
        match verify_machine(authority, chain, unix_time(at)) {
            Ok(()) => Ok(leaf),
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
        if let StateError::Damaged { path, fault, .. } = error {
            LoadMachineError::Damaged { path, fault, folder: self.folder.to_owned() }
        } else {
            LoadMachineError::State(error)
        }
    }
}
