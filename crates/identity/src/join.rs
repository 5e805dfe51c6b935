//! The machine's half of a join.

use std::path::{Path, PathBuf};

use hopline_names::{Grants, MachineName};
use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroize as _;

use crate::authority::{AUTHORITY_CERTIFICATE, AUTHORITY_KEY, key_from_pem, key_to_pem, new_key};
use crate::certificate::{Facts, from_pem, sha256, to_pem};
use crate::error::StateError;
use crate::fault::connection_fault;
use crate::files::{self, Guard, Reserve};
use crate::lock::{FolderLock, holder};
use crate::machine::{
    LoadMachineError, MACHINE_CERTIFICATE, MACHINE_FACTS, MACHINE_KEY, Machine, MachineFacts, read_facts,
};
use crate::reach::{ReachError, reach};
use crate::records::record_text;
use crate::serve::JOIN_TIMEOUT;
use crate::tls::verify_machine;
use crate::token::{Token, read_grants};
use crate::version::{check_version, write_version};
use crate::wire::{self, Issued, JOIN_VERSION, JoinReply, JoinRequest, Outcome, ReadError};

/// How much of a relay's refusal is repeated, in characters.
const SHOWN_CHARS: usize = 300;

/// Why a machine did not join. No text holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The relay said no.
    #[error("the relay at {relay} refused: {message}")]
    Refused {
        /// Its address.
        relay: String,
        /// Its reason, without control characters, at most 300 characters.
        message: String,
    },
    /// The relay's answer is not one.
    #[error("the relay at {relay} sent a reply that is no good: {fault}")]
    BadReply {
        /// Its address.
        relay: String,
        /// What is wrong with it.
        fault: String,
    },
    /// No address of the relay led to it; the secret was not sent.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// The connection broke before the answer.
    #[error(
        "the connection to {relay} broke before its answer ({fault}); run the same join again: into this folder the token may be used once more"
    )]
    Io {
        /// Its address.
        relay: String,
        /// What failed.
        fault: String,
    },
    /// No answer within [`JOIN_TIMEOUT`].
    #[error(
        "no answer from {relay} within {} s; run the same join again: into this folder the token may be used once more",
        JOIN_TIMEOUT.as_secs()
    )]
    Timeout {
        /// Its address.
        relay: String,
    },
    /// The folder is another machine's.
    #[error("{folder} holds machine {name}; choose another folder with --state, or delete this one")]
    OtherMachine {
        /// The folder.
        folder: PathBuf,
        /// Whose it is.
        name: MachineName,
    },
    /// The key that the machine's name belongs to cannot be read any more.
    #[error(
        "{path} is damaged ({fault}); restore it from a backup, or delete it and join under a name that is free"
    )]
    KeyDamaged {
        /// The key.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// Another process is joining into the same folder.
    #[error("another join is at work in {folder} ({holder} holds its lock); wait for it")]
    Busy {
        /// The folder.
        folder: PathBuf,
        /// Who holds the folder's lock, as far as the system tells.
        holder: String,
    },
    /// The folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// What was stored does not load.
    #[error(transparent)]
    Load(#[from] LoadMachineError),
}

/// Redeems `token` as machine `name` and keeps the result in `state_dir`, which is made when missing.
///
/// The key is made here, stored before the relay hears of it, and never leaves the folder; a second try uses it
/// again, since the name belongs to it from the first. Joining again under the same name renews the certificate; with the
/// token of a join that broke off it takes no further use. The exchange ends within [`JOIN_TIMEOUT`]. Room on the disk is
/// taken before the token is shown. Small files are written on the calling thread.
///
/// # Errors
///
/// [`JoinError`]; the folder is then as before, except that it may hold a key.
pub async fn join(token: &Token, name: &MachineName, state_dir: &Path) -> Result<Machine, JoinError> {
    let place = Place::prepare(state_dir, name)?;
    let relay = token.relay();
    let issued = exchange(token, name, &place.key).await?;
    let grants = check(&issued, token, name, &place.key)
        .map_err(|fault| JoinError::BadReply { relay: relay.to_owned(), fault: fault.to_owned() })?;
    place.store(name, relay, grants, issued)?;
    Ok(Machine::load(state_dir)?)
}

/// A machine's folder while it joins, locked.
struct Place<'a> {
    folder: &'a Path,
    key: KeyPair,
    reserve: Reserve,
    _lock: FolderLock,
}

impl<'a> Place<'a> {
    fn prepare(folder: &'a Path, name: &MachineName) -> Result<Self, JoinError> {
        files::make_folder(folder)?;
        check_version(folder)?;
        if files::exists(&folder.join(AUTHORITY_KEY))? {
            let folder = folder.to_owned();
            return Err(StateError::OtherKind { folder, found: "a relay's authority" }.into());
        }
        let lock = FolderLock::try_take(folder)?
            .ok_or_else(|| JoinError::Busy { folder: folder.to_owned(), holder: holder(folder) })?;
        if let Some(owner) = owner(folder)?.filter(|owner| owner != name) {
            return Err(JoinError::OtherMachine { folder: folder.to_owned(), name: owner });
        }
        files::remove_leftovers(folder, &lock)?;
        let key = stored_or_new_key(&folder.join(MACHINE_KEY)).map_err(|error| {
            if let StateError::Damaged { path, fault, .. } = error {
                JoinError::KeyDamaged { path, fault }
            } else {
                JoinError::State(error)
            }
        })?;
        write_version(folder)?;
        let reserve = Reserve::take(folder, 3)?;
        Ok(Self { folder, key, reserve, _lock: lock })
    }

    /// All at once, the certificate last: without it the folder counts as not joined.
    fn store(
        self,
        name: &MachineName,
        relay: &str,
        grants: Grants,
        issued: Issued,
    ) -> Result<(), StateError> {
        let authority = to_pem(&[CertificateDer::from(issued.ca_der)]);
        let facts = MachineFacts { name: name.clone(), relays: vec![relay.to_owned()], grants };
        let facts = record_text(&facts)?;
        let chain: Vec<_> = issued.chain_der.into_iter().map(CertificateDer::from).collect();
        let chain = to_pem(&chain);
        drop(self.reserve);
        files::write_together(&[
            (self.folder.join(AUTHORITY_CERTIFICATE), authority.as_bytes()),
            (self.folder.join(MACHINE_FACTS), &facts),
            (self.folder.join(MACHINE_CERTIFICATE), chain.as_bytes()),
        ])
    }
}

/// Whose folder it is. Joining again is the remedy for a damaged `machine.json`, so then the certificate says it.
fn owner(folder: &Path) -> Result<Option<MachineName>, StateError> {
    let facts = read_facts(folder);
    if let Err(StateError::Damaged { .. }) = facts {
        let pem = files::read(&folder.join(MACHINE_CERTIFICATE), Guard::Integrity).ok().flatten();
        let leaf = pem.and_then(|pem| Facts::read(from_pem(&pem)?.first()?));
        return Ok(leaf.and_then(|leaf| leaf.machine_name()));
    }
    Ok(facts?.map(|facts| facts.name))
}

fn stored_or_new_key(path: &Path) -> Result<KeyPair, StateError> {
    if let Some(pem) = files::read(path, Guard::Secret)? {
        return key_from_pem(&pem, path);
    }
    let key = new_key()?;
    files::write_atomic(path, key_to_pem(&key).as_bytes())?;
    Ok(key)
}

/// Reaches the relay, and has the token redeemed; both within one [`JOIN_TIMEOUT`].
async fn exchange(token: &Token, name: &MachineName, key: &KeyPair) -> Result<Issued, JoinError> {
    let deadline = Instant::now() + JOIN_TIMEOUT;
    let stream = reach(token.relay(), token.authority, deadline).await?;
    let timeout = |_| JoinError::Timeout { relay: token.relay().to_owned() };
    tokio::time::timeout_at(deadline, redeem(stream, token, name, key)).await.map_err(timeout)?
}

async fn redeem(
    mut stream: TlsStream<TcpStream>,
    token: &Token,
    name: &MachineName,
    key: &KeyPair,
) -> Result<Issued, JoinError> {
    let relay = token.relay().to_owned();
    let mut request = JoinRequest {
        token_id: token.id.clone(),
        secret: token.secret.to_vec(),
        name: name.to_string(),
        csr_der: signing_request(key)?,
        version: JOIN_VERSION,
    };
    let sent = wire::write(&mut stream, &request).await;
    request.secret.zeroize();
    sent.map_err(|error| JoinError::Io { relay: relay.clone(), fault: connection_fault(&error) })?;
    let reply: JoinReply = match wire::read(&mut stream).await {
        Ok(reply) => reply,
        Err(ReadError::Io(error)) => return Err(JoinError::Io { relay, fault: connection_fault(&error) }),
        Err(error @ (ReadError::TooLong(_) | ReadError::Malformed)) => {
            return Err(JoinError::BadReply { relay, fault: error.to_string() });
        }
    };
    match reply.outcome {
        Some(Outcome::Issued(issued)) => Ok(issued),
        Some(Outcome::Refused(refused)) => {
            Err(JoinError::Refused { relay, message: printable(&refused.message) })
        }
        None => Err(JoinError::BadReply { relay, fault: "it is neither an answer nor a refusal".to_owned() }),
    }
}

/// Proves possession of the key; it asks for nothing, since the relay decides what a certificate says.
fn signing_request(key: &KeyPair) -> Result<Vec<u8>, StateError> {
    let request = CertificateParams::default()
        .serialize_request(key)
        .map_err(|error| StateError::crypto("make a signing request", &error))?;
    Ok(request.der().to_vec())
}

/// What is stored must be what was asked for: this authority, this name, this key. Returns what is granted.
fn check(issued: &Issued, token: &Token, name: &MachineName, key: &KeyPair) -> Result<Grants, &'static str> {
    if sha256(&issued.ca_der) != token.authority {
        return Err("it names another certificate authority than the token");
    }
    let chain: Vec<_> = issued.chain_der.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let leaf = chain.first().and_then(|leaf| Facts::read(leaf)).ok_or("it holds no certificate")?;
    if issued.name != name.as_str() || leaf.machine_name().as_ref() != Some(name) {
        return Err("its certificate is for another name");
    }
    if leaf.key != sha256(&key.subject_public_key_info()) {
        return Err("its certificate is for another key");
    }
    let grants = read_grants(&issued.publish, &issued.dial).ok_or("what it grants cannot be read")?;
    let authority = CertificateDer::from(issued.ca_der.clone());
    verify_machine(&authority, &chain, UnixTime::now()).map_err(|_| "its certificate cannot be verified")?;
    Ok(grants)
}

/// For a terminal: no control characters, bounded.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests;
