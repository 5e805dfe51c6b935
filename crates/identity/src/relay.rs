//! The relay's side: its state folder, its tokens, and who may link to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hopline_names::{Grants, MachineName};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, Semaphore};

use crate::authority::{Authority, MAKING};
use crate::certificate::{Facts, Fingerprint, sha256};
use crate::clock::{Clock, date, is_impossible};
use crate::error::StateError;
use crate::files::{self, hex};
use crate::lock::{FolderLock, holder, lock_path};
use crate::machine::MACHINE_KEY;
use crate::own::OwnCertificate;
use crate::records::{
    MACHINES, TOKENS, TokenRecord, read_machine, relay_folder, remove_dead_tokens, token_path, write_machine,
    write_token,
};
use crate::tls::server_config;
use crate::token::{CreateTokenError, Token, TokenSpec, check_spec, is_token_id, unix_s};
use crate::version::{check_version, write_version};

/// Joins that may wait for the folder's lock at once: half of the handshakes that a relay does at a time, so that a
/// lock that is held for long never takes the place of links.
pub(crate) const MAX_WAITING: usize = 128;
/// How long a join waits for the folder's lock: less than its machine waits for the answer, so that it gets one.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

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
    name: MachineName,
    authority: Arc<Authority>,
    clock: Clock,
    server_config: Arc<ServerConfig>,
    waiting: Arc<Semaphore>,
    redeem_gate: Arc<Mutex<()>>,
}

/// The right to change the folder, of one join of this process.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: FolderLock,
    _gate: tokio::sync::OwnedMutexGuard<()>,
    _place: tokio::sync::OwnedSemaphorePermit,
}

/// Who is at the other end of a link, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineIdentity {
    /// Its name, from its certificate.
    pub name: MachineName,
    /// SHA-256 of its public key, in hexadecimal: what its name belongs to.
    pub key_sha256: String,
    /// What it may do.
    pub grants: Grants,
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
        name: MachineName,
    },
    /// The name belongs to another key by now.
    #[error("machine {name} showed another key than the one that its name belongs to")]
    OtherKey {
        /// The name in its certificate.
        name: MachineName,
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
    /// key stay in memory, and are made anew while it runs when they come near their end or the clock has jumped.
    /// Blocks on files, and on others who change the folder: after a second of that the log says so.
    ///
    /// # Errors
    ///
    /// [`StateError`] when the folder cannot be used; an authority that is damaged,
    /// incomplete or exposed is never replaced.
    pub fn open(state_dir: &Path, relay_name: &MachineName) -> Result<Self, StateError> {
        Self::open_by(state_dir, relay_name, Clock::system())
    }

    /// [`RelayState::open`] by another clock than the system's.
    ///
    /// # Errors
    ///
    /// As [`RelayState::open`].
    pub fn open_by(state_dir: &Path, relay_name: &MachineName, clock: Clock) -> Result<Self, StateError> {
        prepare(state_dir)?;
        let lock = FolderLock::wait(state_dir)?;
        Self::open_locked(state_dir, relay_name, clock, &lock)
    }

    /// [`RelayState::open`] that holds up no thread while others change the folder. Cancel safe: dropped while it waits
    /// it has made nothing but the folder.
    ///
    /// # Errors
    ///
    /// As [`RelayState::open`].
    pub async fn open_when_free(state_dir: &Path, relay_name: &MachineName) -> Result<Self, StateError> {
        prepare(state_dir)?;
        let lock = FolderLock::free(state_dir).await?;
        Self::open_locked(state_dir, relay_name, Clock::system(), &lock)
    }

    fn open_locked(
        folder: &Path,
        name: &MachineName,
        clock: Clock,
        lock: &FolderLock,
    ) -> Result<Self, StateError> {
        let now = clock.now();
        if is_impossible(now) {
            tracing::warn!(
                "this machine's clock seems wrong: it says {}; no machine can join or link until it is set",
                date(now)
            );
        }
        let authority = Arc::new(load_authority(folder, now, lock)?);
        // The authority goes along: a joining machine knows only its fingerprint.
        let own = OwnCertificate::make(Arc::clone(&authority), name, clock.clone())?;
        let server_config = server_config(authority.certificate().clone(), Arc::new(own), clock.clone())
            .map_err(|error| StateError::crypto("configure TLS", &error))?;
        let inner = Inner {
            folder: folder.to_owned(),
            name: name.clone(),
            authority,
            clock,
            server_config: Arc::new(server_config),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            redeem_gate: Arc::new(Mutex::new(())),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Removes what nobody can use any more: tokens that have expired. Does nothing while another process changes the
    /// folder. Blocks on files.
    ///
    /// # Errors
    ///
    /// [`StateError`] when the folder can't be read or written.
    pub fn tidy(&self) -> Result<(), StateError> {
        match FolderLock::try_take(self.folder())? {
            Some(lock) => tidy(self.folder(), &self.inner.authority, self.now(), &lock),
            None => Ok(()),
        }
    }

    /// The relay's name.
    pub fn name(&self) -> &MachineName {
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
        let name = facts.machine_name().ok_or(AuthError::NotAMachine)?;
        self.look_up(name, &hex(&facts.key))
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.inner.authority
    }

    /// The state folder.
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Whether no join waits for its turn.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.waiting.available_permits() == MAX_WAITING
    }

    pub(crate) fn now(&self) -> SystemTime {
        self.inner.clock.now()
    }

    /// Waits for the right to change the folder, one join behind the other, and none of them in a thread. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`StateError::Locked`] when it takes too long, or too many wait already.
    pub(crate) async fn turn(&self) -> Result<Turn, StateError> {
        let locked = |waited| StateError::Locked {
            path: lock_path(self.folder()),
            holder: holder(self.folder()),
            waited,
        };
        let place =
            Arc::clone(&self.inner.waiting).try_acquire_owned().map_err(|_| locked(Duration::ZERO))?;
        let turn = async {
            let gate = Arc::clone(&self.inner.redeem_gate).lock_owned().await;
            let lock = FolderLock::free(self.folder()).await?;
            Ok(Turn { _lock: lock, _gate: gate, _place: place })
        };
        tokio::time::timeout(LOCK_PATIENCE, turn).await.unwrap_or_else(|_| Err(locked(LOCK_PATIENCE)))
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

/// Makes a join token in a relay's state folder, whether or not a relay runs on it now. The folder must be one that a
/// relay has made: a token of another authority would lead nowhere.
///
/// The folder keeps only the SHA-256 of the secret: the token returned is the only copy.
///
/// # Errors
///
/// [`CreateTokenError`] when the spec cannot be a token or the folder cannot be used; nothing is made then.
pub fn create_token(state_dir: &Path, spec: &TokenSpec, now: SystemTime) -> Result<Token, CreateTokenError> {
    let expires_s = check_spec(spec, now)?;
    if is_impossible(now) {
        return Err(CreateTokenError::Clock(date(now)));
    }
    relay_folder(state_dir)?;
    let lock = FolderLock::wait(state_dir)?;
    // The authority is judged by today's date, also when the token is dated otherwise.
    let today = SystemTime::now();
    let being_made = files::exists(&state_dir.join(MAKING))?;
    let authority = if being_made { None } else { Authority::load(state_dir)? };
    let authority = authority.ok_or_else(|| StateError::NotRelayState { folder: state_dir.to_owned() })?;
    authority.check_dates(state_dir, today)?;
    remove_dead_tokens(state_dir, today, &lock)?;
    let token = Token::new(spec, authority.fingerprint(), expires_s)?;
    let record = TokenRecord {
        id: token.id.clone(),
        secret_sha256: secret_digest(&*token.secret),
        relay: token.relay.clone(),
        grants: token.grants.clone(),
        created_s: unix_s(now),
        expires_s,
        uses: spec.uses,
        uses_left: spec.uses,
        used_by: Vec::new(),
        used_s: None,
    };
    files::make_inner_folder(&state_dir.join(TOKENS))?;
    if let Err(error) = write_token(state_dir, &record) {
        // Nobody will have its secret.
        drop(files::remove(&token_path(state_dir, &token.id)));
        return Err(error.into());
    }
    Ok(token)
}

/// Forgets a token: from now on the relay refuses it. Machines that joined with it stay, and can't come again with it.
///
/// # Errors
///
/// [`RevokeTokenError`] when there is no such token or the folder cannot be written.
pub fn revoke_token(state_dir: &Path, id: &str) -> Result<(), RevokeTokenError> {
    let unknown = || RevokeTokenError::Unknown(id.chars().take(64).collect());
    if !is_token_id(id) {
        return Err(unknown());
    }
    relay_folder(state_dir)?;
    // Under the lock, or a join at this moment could write the record back.
    let _lock = FolderLock::wait(state_dir)?;
    let removed = files::remove(&token_path(state_dir, id))?;
    let mut used = false;
    for name in files::record_names(&state_dir.join(MACHINES))? {
        if let Ok(Some(mut machine)) = read_machine(state_dir, &name)
            && machine.token == id
            && machine.again.take().is_some()
        {
            write_machine(state_dir, &machine)?;
            used = true;
        }
    }
    if removed || used { Ok(()) } else { Err(unknown()) }
}

/// The form in which the relay keeps a secret. It is 32 random bytes, so a plain hash is enough.
pub(crate) fn secret_digest(secret: &[u8]) -> String {
    let digest: Fingerprint = sha256(secret);
    hex(&digest)
}

/// Makes the folder when it is missing.
fn prepare(folder: &Path) -> Result<(), StateError> {
    files::make_folder(folder)?;
    check_version(folder)?;
    if files::exists(&folder.join(MACHINE_KEY))? {
        return Err(StateError::OtherKind { folder: folder.to_owned(), found: "a machine's key" });
    }
    Ok(())
}

/// Clears what a crash has left, and loads or makes the folder's authority.
fn load_authority(folder: &Path, now: SystemTime, lock: &FolderLock) -> Result<Authority, StateError> {
    files::remove_leftovers(folder, lock)?;
    for records in [TOKENS, MACHINES] {
        let records = folder.join(records);
        files::make_inner_folder(&records)?;
        files::remove_leftovers(&records, lock)?;
    }
    let authority = Authority::load_or_create(folder, now, lock)?;
    write_version(folder)?;
    tidy(folder, &authority, now, lock)?;
    Ok(authority)
}

/// By a clock that stands past the authority's end no token is judged: it may be wrong, and they would all go.
fn tidy(folder: &Path, authority: &Authority, now: SystemTime, lock: &FolderLock) -> Result<(), StateError> {
    if authority.check_dates(folder, now).is_err() {
        return Ok(());
    }
    remove_dead_tokens(folder, now, lock)
}

#[cfg(test)]
mod tests;
