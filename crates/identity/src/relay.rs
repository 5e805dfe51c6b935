//! The relay's side: its state folder, its tokens, and who may link to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::Mutex;

use crate::authority::Authority;
use crate::certificate::{Facts, Fingerprint, sha256};
use crate::error::StateError;
use crate::files::{self, FolderLock, hex};
use crate::machine::MACHINE_KEY;
use crate::name::{NameError, check_name};
use crate::records::{MACHINES, TOKENS, TokenRecord, read_machine, token_path, write_token};
use crate::tls::server_config;
use crate::token::{CreateTokenError, Token, TokenSpec, check_spec, is_token_id, unix_s};

/// A running relay's identity: its authority, its certificate, and the folder with its tokens and machines.
///
/// Cloning is cheap; clones share everything. Records are read from the folder each time they matter, so a token
/// made or a machine removed by another process counts at once.
#[derive(Clone)]
pub struct RelayState {
    inner: Arc<Inner>,
}

struct Inner {
    folder: PathBuf,
    name: String,
    authority: Authority,
    server_config: Arc<ServerConfig>,
    redeem_gate: Arc<Mutex<()>>,
}

/// Who is at the other end of a link, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineIdentity {
    /// Its name, from its certificate.
    pub name: String,
    /// Patterns of the names that it may publish.
    pub publish: Vec<String>,
    /// Patterns of the names that it may dial.
    pub dial: Vec<String>,
}

/// Why a relay's state could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenRelayError {
    /// The relay's own name.
    #[error("the relay's name: {0}")]
    Name(#[from] NameError),
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a link is refused. The peer hears `unauthorized`; these texts are for the relay's log.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// It showed no certificate; only a join may do that.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// Its certificate names no machine.
    #[error("the peer's certificate names no machine")]
    NotAMachine,
    /// Its record is gone: it was removed, or the folder is another one.
    #[error("machine {name} is not known here")]
    UnknownMachine {
        /// The name in its certificate.
        name: String,
    },
    /// The name belongs to another key by now.
    #[error("machine {name} showed another key than the one that its name belongs to")]
    OtherKey {
        /// The name in its certificate.
        name: String,
    },
    /// Its record could not be read: ours to mend.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a token was not revoked.
#[derive(Debug, thiserror::Error)]
pub enum RevokeTokenError {
    /// There is no such token.
    #[error("there is no token {0:?} here; see: hopline token list")]
    Unknown(String),
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

impl RelayState {
    /// Opens a relay's state folder; a new one gets its certificate authority, once. The relay's own certificate and
    /// key are made anew each time and stay in memory. Blocks on files, and on others who change the folder.
    ///
    /// # Errors
    ///
    /// [`OpenRelayError`] when the name is not one or the folder cannot be used; an authority that is damaged,
    /// incomplete or exposed is never replaced.
    pub fn open(state_dir: &Path, relay_name: &str) -> Result<Self, OpenRelayError> {
        check_name(relay_name)?;
        let now = SystemTime::now();
        let authority = open_folder(state_dir, now)?.0;
        let (certificate, key) = authority.issue_relay(relay_name, now)?;
        // The authority goes along: a joining machine knows only its fingerprint.
        let chain = vec![certificate, authority.certificate().clone()];
        let server_config = server_config(authority.certificate().clone(), chain, key)
            .map_err(|error| StateError::crypto("configure TLS", &error))?;
        let inner = Inner {
            folder: state_dir.to_owned(),
            name: relay_name.to_owned(),
            authority,
            server_config: Arc::new(server_config),
            redeem_gate: Arc::new(Mutex::new(())),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The relay's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// SHA-256 of the authority's certificate (DER): what every token pins.
    pub fn authority_fingerprint(&self) -> [u8; 32] {
        self.inner.authority.fingerprint()
    }

    /// For the relay's port: TLS 1.3, ALPN [`ALPN_LINK`](crate::ALPN_LINK) and [`ALPN_JOIN`](crate::ALPN_JOIN), a
    /// client certificate asked for and verified but not demanded, no resumption and no early data.
    ///
    /// After the handshake the caller looks at the ALPN: a link goes to [`RelayState::authenticate`] first, a join
    /// to [`serve_join`](crate::serve_join); no ALPN means neither, and the connection ends.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.inner.server_config)
    }

    /// Says which machine a verified chain belongs to, and what it may do by its record as it stands now.
    ///
    /// `chain` is what rustls verified on this connection (`peer_certificates`); signature and dates are not looked
    /// at again. Reads one small file, so that a machine that was removed is refused without a restart.
    ///
    /// # Errors
    ///
    /// [`AuthError`]: no link for this peer.
    pub fn authenticate(&self, chain: &[CertificateDer<'_>]) -> Result<MachineIdentity, AuthError> {
        let leaf = chain.first().ok_or(AuthError::NoCertificate)?;
        let facts = Facts::read(leaf).ok_or(AuthError::NotAMachine)?;
        let name = facts.machine_name().ok_or(AuthError::NotAMachine)?.to_owned();
        let Some(record) = read_machine(&self.inner.folder, &name)? else {
            return Err(AuthError::UnknownMachine { name });
        };
        if record.key_sha256 != hex(&facts.key) {
            return Err(AuthError::OtherKey { name });
        }
        Ok(MachineIdentity { name, publish: record.publish, dial: record.dial })
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.inner.authority
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Held by the one join that waits for the folder's lock, so that others do not each block a thread on it.
    pub(crate) fn redeem_gate(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.inner.redeem_gate)
    }
}

impl fmt::Debug for RelayState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayState")
            .field("name", &self.inner.name)
            .field("folder", &self.inner.folder)
            .finish_non_exhaustive()
    }
}

/// Makes a join token in a relay's state folder, whether or not a relay runs on it; a new folder gets its authority.
///
/// The folder keeps only the SHA-256 of the secret: the token returned is the only copy.
///
/// # Errors
///
/// [`CreateTokenError`] when the spec cannot be a token or the folder cannot be used.
pub fn create_token(state_dir: &Path, spec: &TokenSpec, now: SystemTime) -> Result<Token, CreateTokenError> {
    let expires_s = check_spec(spec, now)?;
    // The authority is judged by today's date, also when the token is dated otherwise.
    let (authority, _lock) = open_folder(state_dir, SystemTime::now())?;
    let token = Token::new(spec, authority.fingerprint(), expires_s)?;
    let record = TokenRecord {
        id: token.id.clone(),
        secret_sha256: secret_digest(&*token.secret),
        relay: token.relay.clone(),
        publish: token.publish.clone(),
        dial: token.dial.clone(),
        created_s: unix_s(now),
        expires_s,
        uses: spec.uses,
        uses_left: spec.uses,
    };
    write_token(state_dir, &record)?;
    Ok(token)
}

/// Forgets a token: from now on the relay refuses it. Machines that joined with it stay.
///
/// # Errors
///
/// [`RevokeTokenError`] when there is no such token or the folder cannot be written.
pub fn revoke_token(state_dir: &Path, id: &str) -> Result<(), RevokeTokenError> {
    let unknown = || RevokeTokenError::Unknown(id.chars().take(64).collect());
    let path = token_path(state_dir, id);
    if !is_token_id(id) || !path.is_file() {
        return Err(unknown());
    }
    // Under the lock, or a join at this moment could write the record back.
    let _lock = FolderLock::wait(state_dir)?;
    if files::remove(&path)? { Ok(()) } else { Err(unknown()) }
}

/// The form in which the relay keeps a secret. It is 32 random bytes, so a plain hash is enough.
pub(crate) fn secret_digest(secret: &[u8]) -> String {
    let digest: Fingerprint = sha256(secret);
    hex(&digest)
}

/// Makes the folder when it is missing, takes its lock, and loads or makes its authority.
fn open_folder(folder: &Path, now: SystemTime) -> Result<(Authority, FolderLock), StateError> {
    files::make_folder(folder)?;
    if folder.join(MACHINE_KEY).exists() {
        return Err(StateError::OtherKind { folder: folder.to_owned(), found: "a machine's key" });
    }
    let lock = FolderLock::wait(folder)?;
    files::remove_leftovers(folder, &lock)?;
    for records in [TOKENS, MACHINES] {
        let records = folder.join(records);
        files::make_folder(&records)?;
        files::remove_leftovers(&records, &lock)?;
    }
    let authority = Authority::load_or_create(folder, now, &lock)?;
    Ok((authority, lock))
}
