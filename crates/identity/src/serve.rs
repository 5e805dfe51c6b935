//! The relay's half of a join.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SubjectPublicKeyInfo};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;
use zeroize::Zeroizing;

use crate::certificate::{Facts, sha256};
use crate::error::StateError;
use crate::fault::connection_fault;
use crate::files::{FolderLock, hex};
use crate::name::{NameError, check_name};
use crate::records::{MachineRecord, TokenRecord, read_machine, read_token, write_machine, write_token};
use crate::relay::{RelayState, secret_digest};
use crate::token::{is_token_id, unix_s};
use crate::wire::{self, Issued, JOIN_VERSION, JoinReply, JoinRequest, Outcome, ReadError, Refused};

/// The longest that a join may take, at each end, TLS excluded at the relay's.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A machine that has just joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMachine {
    /// Its name.
    pub name: String,
    /// Patterns that it may publish.
    pub publish: Vec<String>,
    /// Patterns that it may dial.
    pub dial: Vec<String>,
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
        name: String,
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
    /// No token has this id: never made, or revoked.
    #[error("unknown token")]
    TokenUnknown,
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
    NameTaken(String),
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
            Self::ReplyLost { .. } | Self::State(_) => {
                "the relay could not issue a certificate; its log says why".to_owned()
            }
        }
    }
}

impl Refusal {
    fn text_for_peer(&self) -> String {
        match self {
            Self::Version(_) => format!("this relay speaks join version {JOIN_VERSION} only"),
            Self::TokenUnknown | Self::SecretWrong(_) | Self::TokenExpired(_) | Self::TokenUsedUp(_) => {
                "token refused: unknown, expired or used up".to_owned()
            }
            Self::NameTaken(name) => format!(
                "machine name {name} belongs to another key; join under another name, or have the machine removed at the relay"
            ),
            Self::Name(_) | Self::SigningRequest => self.to_string(),
        }
    }
}

/// Answers one join on a connection whose ALPN is [`ALPN_JOIN`](crate::ALPN_JOIN), and closes it.
///
/// Holds at most 64 KiB for the peer and ends within [`JOIN_TIMEOUT`]. Files are written on blocking threads; the
/// returned future may be dropped, and a use that was being taken is then taken or not, never half.
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
        Ok(request) => redeem(relay, request).await,
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

/// A request whose token was good when it was looked at and whose signing request proves possession of `key`.
struct Candidate {
    token_id: String,
    secret_digest: String,
    name: String,
    key: SubjectPublicKeyInfo,
}

/// Only a peer with a good token gets as far as the folder's lock.
async fn redeem(relay: &RelayState, request: JoinRequest) -> Result<(JoinedMachine, Issued), ServeJoinError> {
    let candidate = blocking({
        let relay = relay.clone();
        move || examine(&relay, request)
    })
    .await?;
    let gate = relay.redeem_gate().lock_owned().await;
    let relay = relay.clone();
    blocking(move || {
        let _gate = gate;
        take_use(&relay, candidate, SystemTime::now())
    })
    .await
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
    usable_token(relay, &request.token_id, &secret_digest, SystemTime::now())?;
    check_name(&request.name).map_err(Refusal::Name)?;
    let key = proven_key(&request.csr_der).ok_or(Refusal::SigningRequest)?;
    Ok(Candidate { token_id: request.token_id, secret_digest, name: request.name, key })
}

fn usable_token(
    relay: &RelayState,
    id: &str,
    secret_digest: &str,
    now: SystemTime,
) -> Result<TokenRecord, ServeJoinError> {
    // The id comes from the peer and becomes a file's name.
    if !is_token_id(id) {
        return Err(Refusal::TokenUnknown.into());
    }
    let record = read_token(relay.folder(), id)?.ok_or(Refusal::TokenUnknown)?;
    if !bool::from(record.secret_sha256.as_bytes().ct_eq(secret_digest.as_bytes())) {
        return Err(Refusal::SecretWrong(record.id).into());
    }
    if record.expires_s <= unix_s(now) {
        return Err(Refusal::TokenExpired(record.id).into());
    }
    if record.uses_left == 0 {
        return Err(Refusal::TokenUsedUp(record.id).into());
    }
    Ok(record)
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

/// Under the folder's lock: looks again, takes one use, issues. The use is taken before the name is: a crash
/// between the two costs a use and gives nothing away.
fn take_use(
    relay: &RelayState,
    candidate: Candidate,
    now: SystemTime,
) -> Result<(JoinedMachine, Issued), ServeJoinError> {
    let _lock = FolderLock::wait(relay.folder())?;
    let mut token = usable_token(relay, &candidate.token_id, &candidate.secret_digest, now)?;
    let key_sha256 = hex(&sha256(&candidate.key.subject_public_key_info()));
    let name = candidate.name;
    let known = read_machine(relay.folder(), &name)?;
    if known.is_some_and(|machine| machine.key_sha256 != key_sha256) {
        return Err(Refusal::NameTaken(name).into());
    }
    let certificate = relay.authority().issue_machine(&name, &candidate.key, now)?;
    let expires_s = Facts::read(&certificate)
        .map(|facts| unix_s(facts.not_after))
        .ok_or_else(|| StateError::crypto("issue a certificate", &"it cannot be read back"))?;

    token.uses_left = token.uses_left.saturating_sub(1);
    write_token(relay.folder(), &token)?;
    let machine = MachineRecord {
        name,
        key_sha256,
        publish: token.publish,
        dial: token.dial,
        token: token.id,
        joined_s: unix_s(now),
        expires_s,
    };
    write_machine(relay.folder(), &machine)?;

    let issued = Issued {
        chain_der: vec![certificate.to_vec()],
        ca_der: relay.authority().certificate().to_vec(),
        name: machine.name.clone(),
        publish: machine.publish.clone(),
        dial: machine.dial.clone(),
    };
    let joined = JoinedMachine {
        name: machine.name,
        publish: machine.publish,
        dial: machine.dial,
        token: machine.token,
    };
    Ok((joined, issued))
}

#[cfg(test)]
mod tests;
