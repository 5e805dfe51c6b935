//! The machine's half of a join.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PublicKeyData as _};
use rustls::CertificateError;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroize as _;

use crate::authority::{AUTHORITY_CERTIFICATE, AUTHORITY_KEY, key_from_pem, key_to_pem, new_key};
use crate::certificate::{Facts, from_pem, sha256, to_pem};
use crate::error::StateError;
use crate::fault::connection_fault;
use crate::files::{self, FolderLock, Guard};
use crate::machine::{
    LoadMachineError, MACHINE_CERTIFICATE, MACHINE_FACTS, MACHINE_KEY, Machine, MachineFacts,
    is_not_valid_yet, read_facts,
};
use crate::name::{NameError, check_name};
use crate::records::write_record;
use crate::serve::JOIN_TIMEOUT;
use crate::tls::{NOT_PINNED, join_client_config, relay_server_name, verify_machine};
use crate::token::{Token, check_patterns};
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
    /// Whoever answers there is not a relay of the authority that the token pins; the secret was not sent.
    #[error(
        "{relay} is not the relay that this token was made for: its certificate authority is another one"
    )]
    OtherRelay {
        /// Its address.
        relay: String,
    },
    /// TLS failed in another way; the secret was not sent.
    #[error("TLS with {relay} failed: {}", connection_fault(source))]
    Tls {
        /// Its address.
        relay: String,
        /// What failed.
        source: io::Error,
    },
    /// The relay's certificate is not valid at this machine's time.
    #[error(
        "the certificate of {relay} is not valid at this machine's time; set the clock right, then try again"
    )]
    Clock {
        /// Its address.
        relay: String,
    },
    /// The relay's answer is not one.
    #[error("the relay at {relay} sent a reply that is no good: {fault}")]
    BadReply {
        /// Its address.
        relay: String,
        /// What is wrong with it.
        fault: String,
    },
    /// Nobody answers at the address.
    #[error("cannot reach {relay}: {source}")]
    Connect {
        /// Its address.
        relay: String,
        /// What failed.
        source: io::Error,
    },
    /// The connection broke; the token may have been used. Joining again with the same folder is safe.
    #[error(
        "the connection to {relay} broke before the join was over: {}; run it again",
        connection_fault(source)
    )]
    Io {
        /// Its address.
        relay: String,
        /// What failed.
        source: io::Error,
    },
    /// No end within [`JOIN_TIMEOUT`]; the token may have been used. Joining again with the same folder is safe.
    #[error("the join with {relay} was not over within {} s", JOIN_TIMEOUT.as_secs())]
    Timeout {
        /// Its address.
        relay: String,
    },
    /// The name that was asked for.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The folder is another machine's.
    #[error("{folder} holds machine {name}; choose another folder with --state, or delete this one")]
    OtherMachine {
        /// The folder.
        folder: PathBuf,
        /// Whose it is.
        name: String,
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
    #[error("another join is at work in {folder}; wait for it")]
    Busy {
        /// The folder.
        folder: PathBuf,
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
/// again, since the name belongs to it from the first. Joining again under the same name renews the certificate.
/// The exchange ends within [`JOIN_TIMEOUT`]. Small files are written on the calling thread.
///
/// # Errors
///
/// [`JoinError`]; the folder is then as before, except that it may hold a key.
pub async fn join(token: &Token, name: &str, state_dir: &Path) -> Result<Machine, JoinError> {
    check_name(name)?;
    let place = Place::prepare(state_dir, name)?;
    let relay = token.relay();
    let issued = tokio::time::timeout(JOIN_TIMEOUT, exchange(token, name, &place.key))
        .await
        .map_err(|_| JoinError::Timeout { relay: relay.to_owned() })??;
    check(&issued, token, name, &place.key)
        .map_err(|fault| JoinError::BadReply { relay: relay.to_owned(), fault: fault.to_owned() })?;
    place.store(relay, issued)?;
    Ok(Machine::load(state_dir)?)
}

/// A machine's folder while it joins, locked.
struct Place<'a> {
    folder: &'a Path,
    key: KeyPair,
    _lock: FolderLock,
}

impl<'a> Place<'a> {
    fn prepare(folder: &'a Path, name: &str) -> Result<Self, JoinError> {
        files::make_folder(folder)?;
        if folder.join(AUTHORITY_KEY).exists() {
            let folder = folder.to_owned();
            return Err(StateError::OtherKind { folder, found: "a relay's authority" }.into());
        }
        let lock =
            FolderLock::try_take(folder)?.ok_or_else(|| JoinError::Busy { folder: folder.to_owned() })?;
        if let Some(owner) = owner(folder)?.filter(|owner| owner != name) {
            return Err(JoinError::OtherMachine { folder: folder.to_owned(), name: owner });
        }
        files::remove_leftovers(folder, &lock)?;
        let key = stored_or_new_key(&folder.join(MACHINE_KEY)).map_err(|error| {
            if let StateError::Damaged { path, fault } = error {
                JoinError::KeyDamaged { path, fault }
            } else {
                JoinError::State(error)
            }
        })?;
        Ok(Self { folder, key, _lock: lock })
    }

    /// The certificate last: without it the folder counts as not joined.
    fn store(&self, relay: &str, issued: Issued) -> Result<(), StateError> {
        let write = |file: &str, text: &str| files::write_atomic(&self.folder.join(file), text.as_bytes());
        write(AUTHORITY_CERTIFICATE, &to_pem(&[CertificateDer::from(issued.ca_der)]))?;
        let facts = MachineFacts {
            name: issued.name,
            relays: vec![relay.to_owned()],
            publish: issued.publish,
            dial: issued.dial,
        };
        write_record(&self.folder.join(MACHINE_FACTS), &facts)?;
        let chain: Vec<_> = issued.chain_der.into_iter().map(CertificateDer::from).collect();
        write(MACHINE_CERTIFICATE, &to_pem(&chain))
    }
}

/// Whose folder it is. Joining again is the remedy for a damaged `machine.json`, so then the certificate says it.
fn owner(folder: &Path) -> Result<Option<String>, StateError> {
    let facts = read_facts(folder);
    if let Err(StateError::Damaged { .. }) = facts {
        let pem = files::read(&folder.join(MACHINE_CERTIFICATE), Guard::Integrity).ok().flatten();
        let leaf = pem.and_then(|pem| Facts::read(from_pem(&pem)?.first()?));
        return Ok(leaf.and_then(|leaf| leaf.machine_name().map(str::to_owned)));
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

async fn exchange(token: &Token, name: &str, key: &KeyPair) -> Result<Issued, JoinError> {
    let relay = token.relay().to_owned();
    let mut stream = connect(token).await?;
    let mut request = JoinRequest {
        token_id: token.id.clone(),
        secret: token.secret.to_vec(),
        name: name.to_owned(),
        csr_der: signing_request(key)?,
        version: JOIN_VERSION,
    };
    let sent = wire::write(&mut stream, &request).await;
    request.secret.zeroize();
    sent.map_err(|source| JoinError::Io { relay: relay.clone(), source })?;
    let reply: JoinReply = match wire::read(&mut stream).await {
        Ok(reply) => reply,
        Err(ReadError::Io(source)) => return Err(JoinError::Io { relay, source }),
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

async fn connect(token: &Token) -> Result<TlsStream<TcpStream>, JoinError> {
    let relay = token.relay();
    let failed = |source| JoinError::Connect { relay: relay.to_owned(), source };
    let tcp = TcpStream::connect(relay).await.map_err(failed)?;
    tcp.set_nodelay(true).map_err(failed)?;
    let config =
        join_client_config(token.authority).map_err(|error| StateError::crypto("configure TLS", &error))?;
    TlsConnector::from(Arc::new(config))
        .connect(relay_server_name(), tcp)
        .await
        .map_err(|source| tls_error(relay.to_owned(), source))
}

fn tls_error(relay: String, source: io::Error) -> JoinError {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(fault)) if *fault == NOT_PINNED => {
            JoinError::OtherRelay { relay }
        }
        Some(error) if is_not_valid_yet(error) || is_expired(error) => JoinError::Clock { relay },
        Some(_) | None => JoinError::Tls { relay, source },
    }
}

fn is_expired(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. }
        )
    )
}

/// Proves possession of the key; it asks for nothing, since the relay decides what a certificate says.
fn signing_request(key: &KeyPair) -> Result<Vec<u8>, StateError> {
    let request = CertificateParams::default()
        .serialize_request(key)
        .map_err(|error| StateError::crypto("make a signing request", &error))?;
    Ok(request.der().to_vec())
}

/// What is stored must be what was asked for: this authority, this name, this key.
fn check(issued: &Issued, token: &Token, name: &str, key: &KeyPair) -> Result<(), &'static str> {
    if sha256(&issued.ca_der) != token.authority {
        return Err("it names another certificate authority than the token");
    }
    let chain: Vec<_> = issued.chain_der.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let leaf = chain.first().and_then(|leaf| Facts::read(leaf)).ok_or("it holds no certificate")?;
    if issued.name != name || leaf.machine_name() != Some(name) {
        return Err("its certificate is for another name");
    }
    if leaf.key != sha256(&key.subject_public_key_info()) {
        return Err("its certificate is for another key");
    }
    check_patterns(&issued.publish).map_err(|_| "what it grants cannot be read")?;
    check_patterns(&issued.dial).map_err(|_| "what it grants cannot be read")?;
    let authority = CertificateDer::from(issued.ca_der.clone());
    verify_machine(&authority, &chain, UnixTime::now()).map_err(|_| "its certificate cannot be verified")
}

/// For a terminal: no control characters, bounded.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests;
