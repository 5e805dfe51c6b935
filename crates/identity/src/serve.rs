//! The relay's half of a join.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hopline_names::{MachineName, NameError};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SubjectPublicKeyInfo};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use zeroize::Zeroizing;

use crate::certificate::{Facts, sha256};
use crate::clock::{date, is_impossible};
use crate::error::StateError;
use crate::fault::connection_fault;
use crate::files::{self, hex};
use crate::records::{
    Again, MachineRecord, TokenRecord, Use, read_machine, read_token, token_path, write_machine, write_token,
};
use crate::relay::{RelayState, Turn, secret_digest};
use crate::token::{is_token_id, unix_s};
use crate::wire::{self, Issued, JOIN_VERSION, JoinReply, JoinRequest, Outcome, ReadError, Refused};

/// The longest that a join may take, at each end, TLS excluded at the relay's.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A machine that has just joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMachine {
    /// Its name.
    pub name: MachineName,
    /// The id of the token that it used.
    pub token: String,
}

/// Why a join came to nothing. These texts are for the relay's log and say more than the peer is told; none holds
/// a secret.
#[derive(Debug, thiserror::Error)]
pub enum ServeJoinError {
    /// The peer took too long.
    #[error("the join was not over within {} s", JOIN_TIMEOUT.as_secs())]
    Timeout,
    /// The machine went away while its join waited; nothing was changed.
    #[error("the machine did not wait for its answer; nothing was changed")]
    Gone,
    /// By this clock no token can be judged.
    #[error("this relay's clock seems wrong: it says {0}")]
    Clock(String),
    /// The connection failed, or ended before a whole request.
    #[error("the connection failed: {}", connection_fault(.0))]
    Io(#[source] io::Error),
    /// What came is not a join request.
    #[error("not a join request: {0}")]
    Malformed(String),
    /// The relay said no.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The machine's certificate was issued, and its reply did not arrive: it has to join again, with the same key.
    #[error("machine {name} was issued its certificate but did not get it: {}", connection_fault(source))]
    ReplyLost {
        /// Its name.
        name: MachineName,
        /// What failed.
        source: io::Error,
    },
    /// The state folder: ours to mend.
    #[error(transparent)]
    State(#[from] StateError),
}

/// The exact cause of a refusal; the peer hears less of those about its token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A version of the exchange that this relay does not speak.
    #[error("the peer speaks join version {0}")]
    Version(u32),
    /// Not an id of a token.
    #[error("unknown token")]
    TokenUnknown,
    /// No token has this id any more.
    #[error("token {0} is not known here: used up, expired, revoked, or of another relay")]
    TokenGone(String),
    /// The id is right and the secret is not.
    #[error("wrong secret for token {0}")]
    SecretWrong(String),
    /// Past its time.
    #[error("token {0} has expired")]
    TokenExpired(String),
    /// No use left.
    #[error("token {0} is used up")]
    TokenUsedUp(String),
    /// The machine's name breaks the rule.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name was issued to another key.
    #[error("machine name {0} belongs to another key")]
    NameTaken(MachineName),
    /// The signing request is broken, of another kind of key, or signed by another key.
    #[error("the signing request is not one by a P-256 key")]
    SigningRequest,
}

impl ServeJoinError {
    /// What the peer is told.
    fn text_for_peer(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.text_for_peer(),
            Self::Timeout | Self::Io(_) | Self::Malformed(_) => "not a join request".to_owned(),
            Self::Clock(_) => {
                "the relay's clock is wrong, so it can't judge tokens; have it set, then try again".to_owned()
            }
            Self::State(StateError::Locked { .. }) => {
                "the relay's state folder is in use by another process there; nothing was changed, try again"
                    .to_owned()
            }
            Self::ReplyLost { .. } | Self::Gone | Self::State(_) => {
                "the relay could not issue a certificate; its log says why".to_owned()
            }
        }
    }
}

impl Refusal {
    fn text_for_peer(&self) -> String {
        match self {
            Self::Version(_) => format!("this relay speaks join version {JOIN_VERSION} only"),
            Self::TokenUnknown
            | Self::TokenGone(_)
            | Self::SecretWrong(_)
            | Self::TokenExpired(_)
            | Self::TokenUsedUp(_) => "token refused: unknown, expired or used up".to_owned(),
            Self::NameTaken(name) => format!(
                "machine name {name} belongs to another key; join under another name, or have the machine removed at the relay"
            ),
            Self::Name(_) | Self::SigningRequest => self.to_string(),
        }
    }
}

/// Answers one join on a connection whose ALPN is [`ALPN_JOIN`](crate::ALPN_JOIN), and closes it.
///
/// Holds at most 64 KiB for the peer and ends within [`JOIN_TIMEOUT`]. Files are written on blocking threads, the
/// folder's lock is waited for on none. A join whose peer has gone, or whose future was dropped, changes nothing from then
/// on: a use that was being taken is then taken or not, never half.
///
/// # Errors
///
/// [`ServeJoinError`], for the log: nobody joined, or ([`ServeJoinError::ReplyLost`]) a machine did and does not know.
pub async fn serve_join(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    authority: &RelayState,
) -> Result<JoinedMachine, ServeJoinError> {
    let exchange = exchange(&mut stream, authority);
    tokio::time::timeout(JOIN_TIMEOUT, exchange).await.unwrap_or(Err(ServeJoinError::Timeout))
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    relay: &RelayState,
) -> Result<JoinedMachine, ServeJoinError> {
    let answer = match wire::read::<JoinRequest>(stream).await {
        Ok(request) => {
            // First whoever waits, then what it waits for: nobody pays for an answer that no one will read.
            let due = tokio::select! {
                biased;
                fault = left(stream) => Err(fault),
                due = due(relay, request) => due,
            };
            match due {
                Ok((candidate, turn)) => redeem(relay, candidate, turn).await,
                Err(error) => Err(error),
            }
        }
        Err(ReadError::Io(error)) => return Err(ServeJoinError::Io(error)),
        Err(error @ (ReadError::TooLong(_) | ReadError::Malformed)) => {
            Err(ServeJoinError::Malformed(error.to_string()))
        }
    };
    match answer {
        Ok((joined, issued)) => match reply(stream, Outcome::Issued(issued)).await {
            Ok(()) => Ok(joined),
            Err(source) => Err(ServeJoinError::ReplyLost { name: joined.name, source }),
        },
        Err(error) => {
            let refused = Refused { message: error.text_for_peer() };
            // The cause of the refusal matters more than a peer that did not wait for it.
            drop(reply(stream, Outcome::Refused(refused)).await);
            Err(error)
        }
    }
}

async fn reply(stream: &mut (impl AsyncWrite + Unpin), outcome: Outcome) -> io::Result<()> {
    wire::write(stream, &JoinReply { outcome: Some(outcome) }).await?;
    stream.shutdown().await
}

/// Resolves when the peer does anything but wait: it has no more to say, so it has gone, or talks nonsense.
async fn left(stream: &mut (impl AsyncRead + Unpin)) -> ServeJoinError {
    match stream.read(&mut [0]).await {
        Ok(0) | Err(_) => ServeJoinError::Gone,
        Ok(_) => ServeJoinError::Malformed("more than one request".to_owned()),
    }
}

/// A request whose token was good when it was looked at and whose signing request proves possession of `key`.
struct Candidate {
    token_id: String,
    secret_digest: String,
    name: MachineName,
    key: SubjectPublicKeyInfo,
}

/// Changes nothing. Only a peer with a good token gets as far as the folder's lock.
async fn due(relay: &RelayState, request: JoinRequest) -> Result<(Candidate, Turn), ServeJoinError> {
    let now = relay.now();
    if is_impossible(now) {
        return Err(ServeJoinError::Clock(date(now)));
    }
    let examined = relay.clone();
    let candidate = blocking(move || examine(&examined, request)).await?;
    Ok((candidate, relay.turn().await?))
}

async fn redeem(
    relay: &RelayState,
    candidate: Candidate,
    turn: Turn,
) -> Result<(JoinedMachine, Issued), ServeJoinError> {
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let still = Arc::clone(&wanted.0);
    let relay = relay.clone();
    blocking(move || {
        // The thread may have been waited for.
        let _turn = turn;
        if still.load(Ordering::Acquire) { take_use(&relay, candidate) } else { Err(ServeJoinError::Gone) }
    })
    .await
}

/// Dropped, nobody waits for the work any more.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServeJoinError> + Send + 'static,
) -> Result<T, ServeJoinError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StateError::crypto("redeem a token", &error).into()))
}

/// The token first: without a good one a peer learns nothing about names and costs no signature check.
fn examine(relay: &RelayState, mut request: JoinRequest) -> Result<Candidate, ServeJoinError> {
    let secret = Zeroizing::new(std::mem::take(&mut request.secret));
    if request.version != JOIN_VERSION {
        return Err(Refusal::Version(request.version).into());
    }
    let secret_digest = secret_digest(&secret);
    let token = good_token(relay, &request.token_id, &secret_digest, &request.name)?;
    if let Good::Token(token) = &token
        && token.uses_left == 0
        && !token.used_by.iter().any(|by| by.name.as_str() == request.name)
    {
        return Err(Refusal::TokenUsedUp(request.token_id).into());
    }
    let name = MachineName::new(&request.name).map_err(Refusal::Name)?;
    let key = proven_key(&request.csr_der).ok_or(Refusal::SigningRequest)?;
    token.grant(use_of(&name, &key), relay)?;
    Ok(Candidate { token_id: request.token_id, secret_digest, name, key })
}

fn use_of(name: &MachineName, key: &SubjectPublicKeyInfo) -> Use {
    Use { name: name.clone(), key_sha256: hex(&sha256(&key.subject_public_key_info())) }
}

/// What a good token and secret give: the token, or, once it is used up and gone, the way back for the machine that used
/// it.
enum Good {
    Token(TokenRecord),
    Again(MachineRecord),
}

impl Good {
    /// Takes the use that this machine needs; one that it has is not taken twice.
    fn grant(self, by: Use, relay: &RelayState) -> Result<Self, ServeJoinError> {
        match self {
            Self::Token(mut token) => {
                if !token.take_use(by, relay.now()) {
                    return Err(Refusal::TokenUsedUp(token.id).into());
                }
                Ok(Self::Token(token))
            }
            Self::Again(machine) if machine.key_sha256 == by.key_sha256 => Ok(Self::Again(machine)),
            Self::Again(machine) => Err(Refusal::TokenUsedUp(machine.token).into()),
        }
    }
}

/// A token that has not expired and whose secret the peer knows; whether a use is left is not looked at.
fn good_token(relay: &RelayState, id: &str, secret_digest: &str, name: &str) -> Result<Good, ServeJoinError> {
    // Id and name come from the peer and become names of files.
    if !is_token_id(id) {
        return Err(Refusal::TokenUnknown.into());
    }
    let found = match read_token(relay.folder(), id)? {
        Some(token) => Some((token.secret_sha256.clone(), token.expires_s, Good::Token(token))),
        None if MachineName::new(name).is_ok() => read_machine(relay.folder(), name)?
            .filter(|machine| machine.token == id)
            .and_then(|machine| Some((machine.again.clone()?, machine)))
            .map(|(again, machine)| (again.secret_sha256, again.expires_s, Good::Again(machine))),
        None => None,
    };
    let (secret_sha256, expires_s, good) = found.ok_or_else(|| Refusal::TokenGone(id.to_owned()))?;
    if !bool::from(secret_sha256.as_bytes().ct_eq(secret_digest.as_bytes())) {
        return Err(Refusal::SecretWrong(id.to_owned()).into());
    }
    if expires_s <= unix_s(relay.now()) {
        return Err(Refusal::TokenExpired(id.to_owned()).into());
    }
    Ok(good)
}

/// The request's public key, if it is P-256 and has signed the request; everything else in it is ignored.
fn proven_key(csr_der: &[u8]) -> Option<SubjectPublicKeyInfo> {
    let (rest, request) = X509CertificationRequest::from_der(csr_der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let key = SubjectPublicKeyInfo::from_der(request.certification_request_info.subject_pki.raw).ok()?;
    if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
        return None;
    }
    request.verify_signature().ok()?;
    Some(key)
}

/// Under the folder's lock: looks again, takes one use, issues.
///
/// The use is written down first, with the machine that took it: a crash, a full disk or a lost answer after that gives
/// nothing away and costs nothing, since the same key may come again for the rest. A token whose last use is taken goes
/// when the machine is on record, which then holds what is needed to come again.
fn take_use(relay: &RelayState, candidate: Candidate) -> Result<(JoinedMachine, Issued), ServeJoinError> {
    let now = relay.now();
    let folder = relay.folder();
    let good = good_token(relay, &candidate.token_id, &candidate.secret_digest, candidate.name.as_str())?;
    let by = use_of(&candidate.name, &candidate.key);
    let known = read_machine(folder, by.name.as_str())?;
    if known.is_some_and(|machine| machine.key_sha256 != by.key_sha256) {
        return Err(Refusal::NameTaken(by.name).into());
    }
    let certificate = relay.authority().issue_machine(&by.name, &candidate.key, now)?;
    let expires_s = Facts::read(&certificate)
        .map(|facts| unix_s(facts.not_after))
        .ok_or_else(|| StateError::crypto("issue a certificate", &"it cannot be read back"))?;

    let mut used_up = None;
    let machine = match good.grant(by.clone(), relay)? {
        Good::Again(machine) => MachineRecord { joined_s: unix_s(now), expires_s, ..machine },
        Good::Token(token) => {
            write_token(folder, &token)?;
            let machine = MachineRecord {
                name: by.name,
                key_sha256: by.key_sha256,
                grants: token.grants.clone(),
                token: token.id.clone(),
                joined_s: unix_s(now),
                expires_s,
                again: Some(Again { secret_sha256: token.secret_sha256.clone(), expires_s: token.expires_s }),
            };
            used_up = Some(token).filter(|token| token.uses_left == 0);
            machine
        }
    };
    write_machine(folder, &machine)?;
    if let Some(token) = used_up.filter(|token| all_recorded(folder, token)) {
        // It is of no more use to anybody. If it can't go now, it goes with the others of its kind.
        drop(files::remove(&token_path(folder, &token.id)));
    }

    let issued = Issued {
        chain_der: vec![certificate.to_vec()],
        ca_der: relay.authority().certificate().to_vec(),
        name: machine.name.to_string(),
        publish: machine.grants.publish.iter().map(ToString::to_string).collect(),
        dial: machine.grants.dial.iter().map(ToString::to_string).collect(),
    };
    Ok((JoinedMachine { name: machine.name, token: machine.token }, issued))
}

/// Whether each machine that has taken a use of the token is on record, and can come again without it.
fn all_recorded(folder: &Path, token: &TokenRecord) -> bool {
    let recorded = |by: &Use| {
        let machine = read_machine(folder, by.name.as_str());
        machine.is_ok_and(|machine| machine.is_some_and(|machine| machine.key_sha256 == by.key_sha256))
    };
    token.used_by.iter().all(recorded)
}

#[cfg(test)]
mod tests;
