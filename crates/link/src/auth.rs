//! Who is at the other end: raw connections become authenticated ones before a link runs over them.

use std::fmt;
use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::carrier::{BoxCarrier, BoxFuture};

/// Which side of a raw connection authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role<'a> {
    /// This side dialled, and expects this peer.
    Dialer {
        /// The peer's name; `None` takes whoever answers.
        expects: Option<&'a str>,
    },
    /// This side accepted.
    Listener,
}

/// A connection whose peer is known.
#[derive(Debug)]
pub struct Authenticated {
    /// Carries the link: the raw connection itself, or what wraps it.
    pub carrier: BoxCarrier,
    /// The peer's name, as far as the method proves it.
    pub peer: String,
}

/// Why a connection was not authenticated.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The peer proved another name than the one that was dialled.
    #[error("the peer is {found:?}, not {expected:?}")]
    OtherPeer {
        /// Who was dialled.
        expected: String,
        /// Who answered.
        found: String,
    },
    /// The peer said nothing that this method understands.
    #[error("the peer did not say who it is: {0}")]
    Unintelligible(&'static str),
    /// The peer broke off, its certificate is not trusted, or this side's is not.
    #[error("handshake: {0}")]
    Handshake(#[source] io::Error),
}

/// A way to know who is at the other end of a raw connection: [`TrustedNames`], mutual TLS (feature `tls`), or your
/// own. Both ends of a connection use the same.
pub trait Authenticate: Send + Sync + 'static {
    /// Speaks with the peer over `raw`. It may hang: who calls it bounds it. Not cancel safe: dropped, the
    /// connection is dropped too.
    fn authenticate<'a>(
        &'a self,
        raw: BoxCarrier,
        role: Role<'a>,
    ) -> BoxFuture<'a, Result<Authenticated, AuthError>>;
}

impl fmt::Debug for dyn Authenticate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authenticate")
    }
}

/// Each side says its name and is believed: for networks where everyone who can connect may.
///
/// Costs one round trip. On the connection it is `hopline-name/1`, one byte of length, the name.
#[derive(Clone, Debug)]
pub struct TrustedNames(String);

const MAGIC: &[u8; 14] = b"hopline-name/1";

impl TrustedNames {
    /// Says that this side is `name`. `None` if it is empty or longer than 255 bytes.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Option<Self> {
        let name = name.into();
        (1..=255).contains(&name.len()).then_some(Self(name))
    }

    async fn exchange(&self, mut raw: BoxCarrier) -> Result<(BoxCarrier, String), AuthError> {
        let mut hello = MAGIC.to_vec();
        hello.push(u8::try_from(self.0.len()).unwrap_or(u8::MAX));
        hello.extend_from_slice(self.0.as_bytes());
        raw.write_all(&hello).await.map_err(AuthError::Handshake)?;
        raw.flush().await.map_err(AuthError::Handshake)?;
        let mut head = [0; MAGIC.len() + 1];
        raw.read_exact(&mut head).await.map_err(AuthError::Handshake)?;
        let [magic @ .., len] = head;
        if &magic != MAGIC {
            return Err(AuthError::Unintelligible("not hopline-name/1"));
        }
        let mut name = vec![0; usize::from(len)];
        raw.read_exact(&mut name).await.map_err(AuthError::Handshake)?;
        match String::from_utf8(name) {
            Ok(name) if !name.is_empty() => Ok((raw, name)),
            _ => Err(AuthError::Unintelligible("a name is UTF-8 of at least one byte")),
        }
    }
}

impl Authenticate for TrustedNames {
    fn authenticate<'a>(
        &'a self,
        raw: BoxCarrier,
        role: Role<'a>,
    ) -> BoxFuture<'a, Result<Authenticated, AuthError>> {
        Box::pin(async move {
            let (carrier, peer) = self.exchange(raw).await?;
            role.check(&peer)?;
            Ok(Authenticated { carrier, peer })
        })
    }
}

impl Role<'_> {
    /// Whether this is whom the dialer wanted; for your own [`Authenticate`].
    ///
    /// # Errors
    /// [`AuthError::OtherPeer`].
    pub fn check(&self, found: &str) -> Result<(), AuthError> {
        match self {
            Self::Dialer { expects: Some(expected) } if *expected != found => {
                Err(AuthError::OtherPeer { expected: (*expected).to_owned(), found: found.to_owned() })
            }
            Self::Dialer { .. } | Self::Listener => Ok(()),
        }
    }
}
