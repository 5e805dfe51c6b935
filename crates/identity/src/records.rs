//! What the relay keeps of tokens and machines: one small JSON file each, in `tokens/` and `machines/`.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::StateError;
use crate::files::{self, Guard};
use crate::token::{from_unix_s, is_token_id};

pub(crate) const TOKENS: &str = "tokens";
pub(crate) const MACHINES: &str = "machines";

/// A token as the relay keeps it: no secret, only its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    pub(crate) secret_sha256: String,
    pub(crate) relay: String,
    pub(crate) publish: Vec<String>,
    pub(crate) dial: Vec<String>,
    pub(crate) created_s: u64,
    pub(crate) expires_s: u64,
    pub(crate) uses: u32,
    pub(crate) uses_left: u32,
}

/// A machine as the relay knows it: the key that its name belongs to, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineRecord {
    pub(crate) name: String,
    pub(crate) key_sha256: String,
    pub(crate) publish: Vec<String>,
    pub(crate) dial: Vec<String>,
    /// The id of the token that it last joined with.
    pub(crate) token: String,
    pub(crate) joined_s: u64,
    pub(crate) expires_s: u64,
}

/// A token, as [`list_tokens`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its id, which [`revoke_token`](crate::revoke_token) takes.
    pub id: String,
    /// The address that it leads to.
    pub relay: String,
    /// Patterns that its machines may publish.
    pub publish: Vec<String>,
    /// Patterns that its machines may dial.
    pub dial: Vec<String>,
    /// When it was made.
    pub created: SystemTime,
    /// When it stops being redeemable.
    pub expires: SystemTime,
    /// How often it could be redeemed when it was made.
    pub uses: u32,
    /// How often it can still be.
    pub uses_left: u32,
}

/// A machine, as [`list_machines`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineInfo {
    /// Its name.
    pub name: String,
    /// Patterns that it may publish.
    pub publish: Vec<String>,
    /// Patterns that it may dial.
    pub dial: Vec<String>,
    /// The id of the token that it last joined with.
    pub token: String,
    /// SHA-256 of its public key (SubjectPublicKeyInfo), in hexadecimal.
    pub key_sha256: String,
    /// When it last joined.
    pub joined: SystemTime,
    /// When its certificate expires.
    pub expires: SystemTime,
}

/// All tokens that were made and not revoked, by id; used up and expired ones too.
///
/// Reads files only; a relay may be running.
///
/// # Errors
///
/// [`StateError`] when the folder is not a relay's, or the first record that cannot be read.
pub fn list_tokens(state_dir: &Path) -> Result<Vec<TokenInfo>, StateError> {
    let names = listed(state_dir, TOKENS)?;
    let read = |id: &String| read_token(state_dir, id).transpose();
    names.iter().filter_map(read).map(|record| record.map(TokenInfo::from)).collect()
}

/// All machines that have joined, by name.
///
/// Reads files only; a relay may be running.
///
/// # Errors
///
/// [`StateError`] when the folder is not a relay's, or the first record that cannot be read.
pub fn list_machines(state_dir: &Path) -> Result<Vec<MachineInfo>, StateError> {
    let names = listed(state_dir, MACHINES)?;
    let read = |name: &String| read_machine(state_dir, name).transpose();
    names.iter().filter_map(read).map(|record| record.map(MachineInfo::from)).collect()
}

/// `None` when there is no such token. `id` was checked to be one.
pub(crate) fn read_token(state_dir: &Path, id: &str) -> Result<Option<TokenRecord>, StateError> {
    let path = token_path(state_dir, id);
    read_record(&path, |record: &TokenRecord| record.id == id && is_token_id(id))
}

/// `None` when there is no such machine. `name` was checked to be a name.
pub(crate) fn read_machine(state_dir: &Path, name: &str) -> Result<Option<MachineRecord>, StateError> {
    read_record(&machine_path(state_dir, name), |record: &MachineRecord| record.name == name)
}

pub(crate) fn write_token(state_dir: &Path, record: &TokenRecord) -> Result<(), StateError> {
    write_record(&token_path(state_dir, &record.id), record)
}

pub(crate) fn write_machine(state_dir: &Path, record: &MachineRecord) -> Result<(), StateError> {
    write_record(&machine_path(state_dir, &record.name), record)
}

pub(crate) fn token_path(state_dir: &Path, id: &str) -> PathBuf {
    state_dir.join(TOKENS).join(format!("{id}.json"))
}

/// Reads a record; one whose contents are not those of its file's name is as damaged as one that is cut off.
pub(crate) fn read_record<R: DeserializeOwned>(
    path: &Path,
    is_this: impl FnOnce(&R) -> bool,
) -> Result<Option<R>, StateError> {
    let Some(bytes) = files::read(path, Guard::Secret)? else { return Ok(None) };
    let record: R = serde_json::from_slice(&bytes).map_err(|error| {
        // The library's own text may repeat what it read.
        let (line, column) = (error.line(), error.column());
        StateError::damaged(path, format!("not the JSON expected, at line {line} column {column}"))
    })?;
    if is_this(&record) {
        Ok(Some(record))
    } else {
        Err(StateError::damaged(path, "it holds another record than its name says"))
    }
}

pub(crate) fn write_record(path: &Path, record: &impl Serialize) -> Result<(), StateError> {
    let mut text = serde_json::to_vec_pretty(record)
        .map_err(|error| StateError::crypto("write a record as JSON", &error))?;
    text.push(b'\n');
    files::write_atomic(path, &text)
}

impl From<TokenRecord> for TokenInfo {
    fn from(record: TokenRecord) -> Self {
        Self {
            id: record.id,
            relay: record.relay,
            publish: record.publish,
            dial: record.dial,
            created: time(record.created_s),
            expires: time(record.expires_s),
            uses: record.uses,
            uses_left: record.uses_left,
        }
    }
}

impl From<MachineRecord> for MachineInfo {
    fn from(record: MachineRecord) -> Self {
        Self {
            name: record.name,
            publish: record.publish,
            dial: record.dial,
            token: record.token,
            key_sha256: record.key_sha256,
            joined: time(record.joined_s),
            expires: time(record.expires_s),
        }
    }
}

fn machine_path(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(MACHINES).join(format!("{name}.json"))
}

fn listed(state_dir: &Path, kind: &str) -> Result<Vec<String>, StateError> {
    if !state_dir.join(crate::authority::AUTHORITY_CERTIFICATE).is_file() {
        return Err(StateError::NotRelayState { folder: state_dir.to_owned() });
    }
    files::record_names(&state_dir.join(kind))
}

fn time(seconds: u64) -> SystemTime {
    from_unix_s(seconds).unwrap_or(SystemTime::UNIX_EPOCH)
}
