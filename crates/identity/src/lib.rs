//! Who is who: the relay's certificate authority, join tokens, machine certificates, and the TLS configurations
//! made from them.
//!
//! # The main decision: one private authority per relay, pinned by the token
//!
//! A machine and a relay must know each other before the first byte of a link. Hopline does it with mutual TLS 1.3
//! under a certificate authority that the relay makes for itself. It has no ties to the public ones: what it
//! vouches for is "a relay of this authority" and "the machine of this name", not addresses.
//!
//! The first step is the hard one, since a new machine has no certificate and knows no authority. A **join token**
//! carries both ways of trust in one line of text: the SHA-256 of the authority's certificate, so that the machine
//! knows the relay, and a secret of which the relay keeps only the hash, so that the relay knows the machine. The
//! machine makes its key, sends a signing request with the secret over TLS that it has verified against the pin, and
//! gets a certificate. From then on the token does not matter.
//!
//! Four rules follow from it:
//!
//! - **The roles are apart.** A relay's certificate may serve and not dial, a machine's may dial and not serve, and
//!   only the relay's holds the name `relay.hopline` that clients ask for. No machine can pose as a relay.
//! - **The certificate says who, the relay's record says what.** A certificate holds the name and the key. What a
//!   machine may publish and dial, and whether it is known at all, is read from `machines/NAME.json` at each new
//!   link ([`RelayState::authenticate`]). A name belongs to the key that it was first issued to.
//! - **State is files, and files are whole.** Each is written beside its name, synced and renamed, with mode 0600
//!   from its first byte. Changes are made under one lock per folder, so `token create` works beside a running
//!   relay and the last use of a token is taken once. An authority that is damaged, incomplete or exposed is an
//!   error: making another one would disown every machine.
//!
//! # The sides
//!
//! | relay | machine |
//! |---|---|
//! | [`RelayState::open`], [`RelayState::server_config`] | [`Machine::load`], [`Machine::client_config`] |
//! | [`serve_join`] on ALPN [`ALPN_JOIN`] | [`join`] |
//! | [`RelayState::authenticate`] on ALPN [`ALPN_LINK`] | [`relay_server_name`], [`relay_name`] |
//! | [`create_token`], [`list_tokens`], [`revoke_token`], [`list_machines`], [`remove_machine`] | [`Token`] |
//!
//! `docs/security.md` says who can do what, and what is not there yet. There is no cryptography of our own here:
//! rustls, rcgen and x509-parser do it, with aws-lc-rs as the provider named in each configuration.
//!
//! Foreign types in the public API: `rustls` (`ServerConfig`, `ClientConfig`, `ServerName`, `CertificateDer`) and
//! `zeroize::Zeroizing`.

mod authority;
mod certificate;
mod clock;
mod denied;
mod error;
mod fault;
mod files;
mod join;
mod limits;
mod lock;
mod machine;
mod own;
mod reach;
mod records;
mod relay;
mod serve;
mod standing;
mod tls;
mod token;
mod version;
mod wire;

pub use certificate::relay_name;
pub use clock::Clock;
pub use denied::Denied;
pub use error::StateError;
pub use fault::connection_fault;
pub use join::{JoinError, join};
pub use limits::LIMITS;
pub use machine::{DateFault, LoadMachineError, Machine};
pub use reach::{Attempt, AttemptFault, ReachError, Why};
pub use records::{Listing, MachineInfo, TokenInfo, list_machines, list_tokens};
pub use relay::{AuthError, MachineIdentity, RelayState, RevokeTokenError, create_token, revoke_token};
pub use serve::{JOIN_TIMEOUT, JoinedMachine, Refusal, ServeJoinError, serve_join};
pub use standing::{RemoveMachineError, remove_machine};
pub use tls::{ALPN_JOIN, ALPN_LINK, relay_server_name};
pub use token::{CreateTokenError, MAX_PATTERNS, MAX_TOKEN_LEN, ParseTokenError, Token, TokenSpec};
