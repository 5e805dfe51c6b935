//! What the relay keeps of tokens and machines: one small JSON file each, in `tokens/` and `machines/`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hopline_names::{Grants, MachineName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::authority::{AUTHORITY_CERTIFICATE, AUTHORITY_KEY};
use crate::error::StateError;
use crate::files::{self, Guard};
use crate::lock::FolderLock;
use crate::machine::MACHINE_KEY;
use crate::token::{from_unix_s, is_token_id, unix_s};
use crate::version::check_version;

pub(crate) const TOKENS: &str = "tokens";
pub(crate) const MACHINES: &str = "machines";

/// How many of a token's uses are remembered with the key that took them, for those that have to join again.
pub(crate) const MAX_USES_KEPT: usize = 1024;
/// For how long a token whose last use was taken, but whose machine was not recorded, is kept for that machine.
const UNFINISHED_FOR: Duration = Duration::from_secs(3600);

/// A token as the relay keeps it: no secret, only its SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    pub(crate) secret_sha256: String,
    pub(crate) relay: String,
    #[serde(flatten)]
    pub(crate) grants: Grants,
    pub(crate) created_s: u64,
    pub(crate) expires_s: u64,
    pub(crate) uses: u32,
    pub(crate) uses_left: u32,
    /// Who has used it: a join that broke off may be made again with it, and takes no further use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) used_by: Vec<Use>,
    /// When its last use was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) used_s: Option<u64>,
}

/// One use of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    pub(crate) name: MachineName,
    pub(crate) key_sha256: String,
}

impl TokenRecord {
    pub(crate) fn is_expired(&self, now: SystemTime) -> bool {
        self.expires_s <= unix_s(now)
    }

    /// Takes one use for a machine, unless it has one; `false` when none is left.
    pub(crate) fn take_use(&mut self, by: Use, now: SystemTime) -> bool {
        if self.used_by.contains(&by) {
            return true;
        }
        let Some(left) = self.uses_left.checked_sub(1) else { return false };
        self.uses_left = left;
        self.used_s = Some(unix_s(now));
        self.used_by.push(by);
        let surplus = self.used_by.len().saturating_sub(MAX_USES_KEPT);
        self.used_by.drain(..surplus);
        true
    }

    /// Nobody can redeem it any more.
    fn is_over(&self, now: SystemTime) -> bool {
        let unfinished_until = self.used_s.unwrap_or(0).saturating_add(UNFINISHED_FOR.as_secs());
        self.is_expired(now) || (self.uses_left == 0 && unfinished_until <= unix_s(now))
    }
}

/// A machine as the relay knows it: the key that its name belongs to, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineRecord {
    pub(crate) name: MachineName,
    pub(crate) key_sha256: String,
    #[serde(flatten)]
    pub(crate) grants: Grants,
    /// The id of the token that it last joined with.
    pub(crate) token: String,
    pub(crate) joined_s: u64,
    pub(crate) expires_s: u64,
    /// By which the machine may join once more with the token that it used up, should the answer have been lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<Again>,
}

/// What is kept of a token in the record of the machine that used it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Again {
    pub(crate) secret_sha256: String,
    pub(crate) expires_s: u64,
}

/// The records of a folder. One that can't be read does not hide the others.
#[derive(Debug)]
pub struct Listing<T> {
    /// Those that can be read.
    pub records: Vec<T>,
    /// Why each of the others can't.
    pub unreadable: Vec<StateError>,
}

/// A token, as [`list_tokens`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its id, which [`revoke_token`](crate::revoke_token) takes.
    pub id: String,
    /// The address that it leads to.
    pub relay: String,
    /// What its machines may do.
    pub grants: Grants,
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
    pub name: MachineName,
    /// What it may do.
    pub grants: Grants,
    /// The id of the token that it last joined with.
    pub token: String,
    /// SHA-256 of its public key (SubjectPublicKeyInfo), in hexadecimal.
    pub key_sha256: String,
    /// When it last joined.
    pub joined: SystemTime,
    /// When its certificate expires.
    pub expires: SystemTime,
}

/// All tokens that can still be redeemed, by id.
///
/// Reads files only; a relay may be running.
///
/// # Errors
///
/// [`StateError`] when the folder is not a relay's or can't be read.
pub fn list_tokens(state_dir: &Path) -> Result<Listing<TokenInfo>, StateError> {
    let now = SystemTime::now();
    let listed = listed(state_dir, TOKENS, read_token)?;
    let records = listed.records.into_iter().filter(|token| token.uses_left > 0 && !token.is_expired(now));
    Ok(Listing { records: records.map(TokenInfo::from).collect(), unreadable: listed.unreadable })
}

/// All machines that have joined, by name.
///
/// Reads files only; a relay may be running.
///
/// # Errors
///
/// [`StateError`] when the folder is not a relay's or can't be read.
pub fn list_machines(state_dir: &Path) -> Result<Listing<MachineInfo>, StateError> {
    let Listing { records, unreadable } = listed(state_dir, MACHINES, read_machine)?;
    Ok(Listing { records: records.into_iter().map(MachineInfo::from).collect(), unreadable })
}

/// Removes the tokens that nobody can redeem any more, so that their folder does not grow for ever. Records that can't be
/// read are left for a person to look at.
pub(crate) fn remove_dead_tokens(
    state_dir: &Path,
    now: SystemTime,
    _held: &FolderLock,
) -> Result<(), StateError> {
    for id in files::record_names(&state_dir.join(TOKENS))? {
        if let Ok(Some(token)) = read_token(state_dir, &id)
            && token.is_over(now)
        {
            files::remove(&token_path(state_dir, &id))?;
        }
    }
    Ok(())
}

/// Forgets which uses of tokens a machine has taken: once it is removed it needs another one to come again.
pub(crate) fn forget_uses(state_dir: &Path, name: &str, _held: &FolderLock) -> Result<(), StateError> {
    for id in files::record_names(&state_dir.join(TOKENS))? {
        if let Ok(Some(mut token)) = read_token(state_dir, &id)
            && token.used_by.iter().any(|by| by.name.as_str() == name)
        {
            token.used_by.retain(|by| by.name.as_str() != name);
            write_token(state_dir, &token)?;
        }
    }
    Ok(())
}

/// `None` when there is no such token. `id` was checked to be one.
pub(crate) fn read_token(state_dir: &Path, id: &str) -> Result<Option<TokenRecord>, StateError> {
    let path = token_path(state_dir, id);
    read_record(&path, |record: &TokenRecord| record.id == id && is_token_id(id))
        .map_err(|error| error.or_else("delete it and make another token"))
}

/// `None` when there is no such machine. `name` is a machine's, or that of a file of the folder.
pub(crate) fn read_machine(state_dir: &Path, name: &str) -> Result<Option<MachineRecord>, StateError> {
    read_record(&machine_path(state_dir, name), |record: &MachineRecord| record.name.as_str() == name)
        .map_err(|error| {
            error.or_else("restore it from a backup, or delete it and let the machine join again")
        })
}

pub(crate) fn write_token(state_dir: &Path, record: &TokenRecord) -> Result<(), StateError> {
    write_record(&token_path(state_dir, &record.id), record)
}

pub(crate) fn write_machine(state_dir: &Path, record: &MachineRecord) -> Result<(), StateError> {
    write_record(&machine_path(state_dir, record.name.as_str()), record)
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

fn write_record(path: &Path, record: &impl Serialize) -> Result<(), StateError> {
    files::write_atomic(path, &record_text(record)?)
}

/// A record as its file holds it.
pub(crate) fn record_text(record: &impl Serialize) -> Result<Vec<u8>, StateError> {
    let mut text = serde_json::to_vec_pretty(record)
        .map_err(|error| StateError::crypto("write a record as JSON", &error))?;
    text.push(b'\n');
    Ok(text)
}

impl From<TokenRecord> for TokenInfo {
    fn from(record: TokenRecord) -> Self {
        Self {
            id: record.id,
            relay: record.relay,
            grants: record.grants,
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
            grants: record.grants,
            token: record.token,
            key_sha256: record.key_sha256,
            joined: time(record.joined_s),
            expires: time(record.expires_s),
        }
    }
}

pub(crate) fn machine_path(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(MACHINES).join(format!("{name}.json"))
}

fn listed<R>(
    state_dir: &Path,
    kind: &str,
    read: fn(&Path, &str) -> Result<Option<R>, StateError>,
) -> Result<Listing<R>, StateError> {
    relay_folder(state_dir)?;
    let mut listing = Listing { records: Vec::new(), unreadable: Vec::new() };
    for name in files::record_names(&state_dir.join(kind))? {
        match read(state_dir, &name) {
            Ok(record) => listing.records.extend(record),
            Err(error) => listing.unreadable.push(error),
        }
    }
    Ok(listing)
}

/// That a relay has made this folder; looks, and changes nothing.
pub(crate) fn relay_folder(folder: &Path) -> Result<(), StateError> {
    if !files::folder_exists(folder)? {
        return Err(StateError::NoFolder { folder: folder.to_owned() });
    }
    check_version(folder)?;
    if files::exists(&folder.join(MACHINE_KEY))? {
        return Err(StateError::OtherKind { folder: folder.to_owned(), found: "a machine's key" });
    }
    let has = |file: &str| files::exists(&folder.join(file));
    if has(AUTHORITY_CERTIFICATE)? || has(AUTHORITY_KEY)? {
        return Ok(());
    }
    for records in [TOKENS, MACHINES] {
        if !files::record_names(&folder.join(records))?.is_empty() {
            return Err(StateError::AuthorityLost { folder: folder.to_owned() });
        }
    }
    Err(StateError::NotRelayState { folder: folder.to_owned() })
}

fn time(seconds: u64) -> SystemTime {
    from_unix_s(seconds).unwrap_or(SystemTime::UNIX_EPOCH)
}
