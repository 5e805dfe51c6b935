//! Join tokens: one line of text that turns a machine into one of the relay's.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hopline_names::Grants;
use prost::Message as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::certificate::Fingerprint;
use crate::error::StateError;
use crate::files::hex;
use crate::tls::random;

/// The most patterns of one kind in a token.
pub const MAX_PATTERNS: usize = 64;

/// The longest text that is read as a token, in bytes; the longest that can be made is shorter.
pub const MAX_TOKEN_LEN: usize = 16 * 1024;

const PREFIX: &str = "hopline-join-";
const VERSION_1: &str = "1.";
const ID_LEN: usize = 16;

/// What a new token grants and to whom it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSpec {
    /// Where machines reach the relay, `HOST:PORT`; an IPv6 address stands in brackets.
    pub relay: String,
    /// What the machine may do.
    pub grants: Grants,
    /// For how long the token may be redeemed; whole seconds, rounded down.
    pub ttl: Duration,
    /// How often it may be redeemed.
    pub uses: u32,
}

/// Why [`TokenSpec`] cannot be a token, or the folder could not take it.
#[derive(Debug, thiserror::Error)]
pub enum CreateTokenError {
    /// The relay's address is not `HOST:PORT`.
    #[error("the relay's address {0:?} is not HOST:PORT, such as relay.example:7443 or [2001:db8::1]:7443")]
    Relay(String),
    /// More than [`MAX_PATTERNS`] of one kind.
    #[error("{0} patterns of one kind; a token holds at most {MAX_PATTERNS}")]
    TooManyPatterns(usize),
    /// Under a second, or past the end of time.
    #[error("a token must live for at least 1 s, and must expire at a date that can be written")]
    Ttl,
    /// A token made by this clock would have expired when it is set.
    #[error("this machine's clock seems wrong: it says {0}; set it, then try again")]
    Clock(String),
    /// No use at all.
    #[error("a token must have at least 1 use")]
    Uses,
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a text is not a token. No variant holds any of the text: it may be a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseTokenError {
    /// It does not begin as tokens do.
    #[error("not a join token: it does not begin with hopline-join-1.")]
    NotAToken,
    /// A token of another version.
    #[error("the join token is of another version; this program reads hopline-join-1")]
    Version,
    /// Cut off, mistyped or too long.
    #[error("the join token is damaged or cut off; copy the whole line")]
    Damaged,
}

/// A join token. Neither `Debug` nor `Display` shows its secret, which is wiped when the token is dropped; the one
/// way to the text is [`Token::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub(crate) relay: String,
    pub(crate) authority: Fingerprint,
    pub(crate) id: String,
    pub(crate) secret: Zeroizing<[u8; 32]>,
    pub(crate) grants: Grants,
    pub(crate) expires_s: u64,
}

impl Token {
    /// A token with a fresh id and secret. The spec was checked.
    pub(crate) fn new(spec: &TokenSpec, authority: Fingerprint, expires_s: u64) -> Result<Self, StateError> {
        Ok(Self {
            relay: spec.relay.clone(),
            authority,
            id: hex(&random::<{ ID_LEN / 2 }>()?),
            secret: Zeroizing::new(random()?),
            grants: spec.grants.clone(),
            expires_s,
        })
    }

    /// The whole text, **with the secret**: for stdout of `token create`, for a file of mode 0600, for nothing else.
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut body = Body {
            relay: self.relay.clone(),
            authority: self.authority.to_vec(),
            id: self.id.clone(),
            secret: self.secret.to_vec(),
            publish: self.grants.publish.iter().map(ToString::to_string).collect(),
            dial: self.grants.dial.iter().map(ToString::to_string).collect(),
            expires_s: self.expires_s,
        };
        let bytes = Zeroizing::new(body.encode_to_vec());
        body.secret.zeroize();
        let encoded = Zeroizing::new(BASE64_URL_SAFE_NO_PAD.encode(&*bytes));
        Zeroizing::new(format!("{PREFIX}{VERSION_1}{}", *encoded))
    }

    /// The id by which the relay lists and revokes it; not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the relay is, `HOST:PORT`.
    pub fn relay(&self) -> &str {
        &self.relay
    }

    /// What the machine will be allowed to do.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// After this moment the relay refuses it.
    pub fn expires(&self) -> SystemTime {
        from_unix_s(self.expires_s).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    /// Reads a token; white space around it is ignored, as files end with a line break.
    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let versioned = text.trim().strip_prefix(PREFIX).ok_or(ParseTokenError::NotAToken)?;
        let encoded = versioned.strip_prefix(VERSION_1).ok_or(ParseTokenError::Version)?;
        if encoded.len() > MAX_TOKEN_LEN {
            return Err(ParseTokenError::Damaged);
        }
        let bytes =
            Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(encoded).map_err(|_| ParseTokenError::Damaged)?);
        let mut body = Body::decode(bytes.as_slice()).map_err(|_| ParseTokenError::Damaged)?;
        let secret = Zeroizing::new(std::mem::take(&mut body.secret));
        Self::from_body(body, &secret).ok_or(ParseTokenError::Damaged)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("id", &self.id)
            .field("relay", &self.relay)
            .field("grants", &self.grants)
            .field("expires_s", &self.expires_s)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "join token {} for relay {}", self.id, self.relay)
    }
}

/// What the base64 text holds. It has no `Debug`; whoever makes or reads one wipes `secret`.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct Body {
    #[prost(string, tag = "1")]
    relay: String,
    #[prost(bytes = "vec", tag = "2")]
    authority: Vec<u8>,
    #[prost(string, tag = "3")]
    id: String,
    #[prost(bytes = "vec", tag = "4")]
    secret: Vec<u8>,
    #[prost(string, repeated, tag = "5")]
    publish: Vec<String>,
    #[prost(string, repeated, tag = "6")]
    dial: Vec<String>,
    /// Last and never 0, so that a text cut at the end of a field is not taken for whole.
    #[prost(uint64, tag = "7")]
    expires_s: u64,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Token {
    fn from_body(body: Body, secret: &[u8]) -> Option<Self> {
        let token = Self {
            authority: Fingerprint::try_from(body.authority).ok()?,
            secret: Zeroizing::new(<[u8; 32]>::try_from(secret).ok()?),
            relay: body.relay,
            id: body.id,
            grants: read_grants(&body.publish, &body.dial)?,
            expires_s: body.expires_s,
        };
        let whole = is_relay_address(&token.relay)
            && is_token_id(&token.id)
            && token.expires_s != 0
            && from_unix_s(token.expires_s).is_some();
        whole.then_some(token)
    }
}

/// Checks a spec and says when its token expires, in seconds since 1970.
pub(crate) fn check_spec(spec: &TokenSpec, now: SystemTime) -> Result<u64, CreateTokenError> {
    if !is_relay_address(&spec.relay) {
        return Err(CreateTokenError::Relay(spec.relay.clone()));
    }
    if let Some(count) = too_many(&spec.grants) {
        return Err(CreateTokenError::TooManyPatterns(count));
    }
    if spec.uses == 0 {
        return Err(CreateTokenError::Uses);
    }
    let ttl_s = spec.ttl.as_secs();
    let expires_s = unix_s(now).checked_add(ttl_s).filter(|_| ttl_s > 0).ok_or(CreateTokenError::Ttl)?;
    from_unix_s(expires_s).map(|_| expires_s).ok_or(CreateTokenError::Ttl)
}

/// What texts of a token or a relay grant; `None` when one is no pattern, or there are too many.
pub(crate) fn read_grants(publish: &[String], dial: &[String]) -> Option<Grants> {
    let patterns = |texts: &[String]| texts.iter().map(|text| text.parse().ok()).collect::<Option<Vec<_>>>();
    let grants = Grants { publish: patterns(publish)?, dial: patterns(dial)? };
    too_many(&grants).is_none().then_some(grants)
}

/// How many patterns of one kind there are, if that is more than [`MAX_PATTERNS`].
fn too_many(grants: &Grants) -> Option<usize> {
    [grants.publish.len(), grants.dial.len()].into_iter().find(|count| *count > MAX_PATTERNS)
}

/// Whether `text` can be a token's id, and so a file's name.
pub(crate) fn is_token_id(text: &str) -> bool {
    text.len() == ID_LEN && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether `text` is `HOST:PORT` with a port from 1 and, for IPv6, brackets.
fn is_relay_address(text: &str) -> bool {
    const MAX_LEN: usize = 300;
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let port_is_good =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|n| n > 0);
    let host_is_good = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
        }
    };
    text.len() <= MAX_LEN && port_is_good && host_is_good
}

/// Seconds since 1970; 0 before it.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `None` past what the system can express, or past the year 9999, where dates stop being writable.
pub(crate) fn from_unix_s(seconds: u64) -> Option<SystemTime> {
    const YEAR_9999_S: u64 = 253_370_764_800;
    (seconds < YEAR_9999_S).then(|| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))?
}

#[cfg(test)]
pub(crate) mod tests {
    use hopline_names::{MachineName, Pattern};

    use super::*;

    /// 32 bytes that no text may show.
    pub(crate) const CANARY: &[u8; 32] = b"CANARY-canary-CANARY-canary-0123";

    /// The canary in each form in which it could leak, the text of `token` included.
    pub(crate) fn leaks(text: &str, token: &Token) -> bool {
        let encoded = token.reveal();
        let body = encoded.rsplit('.').next().unwrap_or("");
        let bytes = format!("{:?}", &CANARY[..8]);
        [
            "CANARY",
            "canary",
            &hex(CANARY)[..16],
            &BASE64_URL_SAFE_NO_PAD.encode(CANARY)[..12],
            body,
            bytes.trim_matches(['[', ']']),
        ]
        .iter()
        .any(|needle| text.contains(needle))
    }

    pub(crate) fn name(text: &str) -> MachineName {
        text.parse().unwrap()
    }

    pub(crate) fn grants(publish: &[&str], dial: &[&str]) -> Grants {
        let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Grants { publish: patterns(publish), dial: patterns(dial) }
    }

    pub(crate) fn canary_token(relay: &str, authority: Fingerprint) -> Token {
        Token {
            relay: relay.to_owned(),
            authority,
            id: "0123456789abcdef".to_owned(),
            secret: Zeroizing::new(*CANARY),
            grants: grants(&["ledger"], &["batch-*"]),
            expires_s: 4_000_000_000,
        }
    }

    #[test]
    fn a_token_survives_its_text() {
        let token = canary_token("[2001:db8::1]:7443", [7; 32]);
        let text = token.reveal();
        assert!(text.starts_with("hopline-join-1.") && !text.contains(char::is_whitespace));
        let read: Token = format!("\n {}\r\n", *text).parse().unwrap();
        assert_eq!(read, token);
        assert_eq!(*read.secret, *CANARY);
    }

    #[test]
    fn no_part_of_a_token_is_taken_for_a_token() {
        let text = canary_token("relay.example:7443", [7; 32]).reveal();
        let mut tried = 0;
        for end in 0..text.len() {
            assert!(text[..end].parse::<Token>().is_err(), "cut at {end}");
            tried += 1;
        }
        assert!(tried > 100);
        let error = |text: &str| text.parse::<Token>().unwrap_err();
        assert_eq!(error("hello"), ParseTokenError::NotAToken);
        assert_eq!(error("hopline-join-2.AAAA"), ParseTokenError::Version);
        assert_eq!(error("hopline-join-1.????"), ParseTokenError::Damaged);
        assert_eq!(error(&format!("hopline-join-1.{}", "A".repeat(1 << 20))), ParseTokenError::Damaged);
    }

    #[test]
    fn the_longest_token_can_be_read() {
        let mut token = canary_token("relay.example:7443", [7; 32]);
        let longest = vec![Pattern::new(&"p".repeat(63)).unwrap(); MAX_PATTERNS];
        token.grants = Grants { publish: longest.clone(), dial: longest };
        assert_eq!(token.reveal().parse::<Token>().unwrap(), token);
    }

    #[test]
    fn neither_debug_nor_display_shows_the_secret() {
        let token = canary_token("relay.example:7443", [7; 32]);
        assert!(leaks(&token.reveal(), &token), "the check itself must see it");
        for text in [format!("{token:?}"), format!("{token:#?}"), token.to_string()] {
            assert!(!leaks(&text, &token), "{text}");
            assert!(text.contains("0123456789abcdef"));
        }
    }

    #[test]
    fn relay_addresses() {
        for good in ["relay.example:7443", "10.0.0.1:1", "[::1]:65535", "relay_a:80"] {
            assert!(is_relay_address(good), "{good}");
        }
        for bad in [
            "",
            "relay",
            "relay:",
            ":80",
            "relay:0",
            "relay:65536",
            "relay:+80",
            "::1:80",
            "a b:80",
            "[x]:80",
        ] {
            assert!(!is_relay_address(bad), "{bad}");
        }
    }

    #[test]
    fn specs_that_are_refused() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let good = TokenSpec {
            relay: "relay:1".to_owned(),
            grants: Grants::default(),
            ttl: Duration::from_secs(60),
            uses: 1,
        };
        assert_eq!(check_spec(&good, now).unwrap(), 1_060);
        let refused = |change: fn(&mut TokenSpec)| {
            let mut spec = good.clone();
            change(&mut spec);
            check_spec(&spec, now).unwrap_err()
        };
        assert!(matches!(refused(|s| s.relay = "relay".to_owned()), CreateTokenError::Relay(_)));
        let many = refused(|s| s.grants = grants(&[], &["a"; 65]));
        assert!(matches!(many, CreateTokenError::TooManyPatterns(65)));
        assert!(matches!(refused(|s| s.uses = 0), CreateTokenError::Uses));
        assert!(matches!(refused(|s| s.ttl = Duration::from_millis(999)), CreateTokenError::Ttl));
        assert!(matches!(refused(|s| s.ttl = Duration::MAX), CreateTokenError::Ttl));
    }
}
