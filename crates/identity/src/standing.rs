//! Machines after they have joined: what they may do now, and how they are removed.

use std::path::Path;
use std::time::SystemTime;

use hopline_names::MachineName;

use crate::error::StateError;
use crate::files;
use crate::lock::FolderLock;
use crate::records::{MACHINES, forget_uses, machine_path, read_machine};
use crate::relay::{AuthError, MachineIdentity, RelayState};

/// Why a machine was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveMachineError {
    /// There is no such machine.
    #[error("there is no machine {0:?} here; see: hopline machine list")]
    Unknown(String),
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
}

impl RelayState {
    /// What a machine that was let in may do by its record as it stands now. Reads one small file.
    ///
    /// # Errors
    ///
    /// [`AuthError`]: it would not be let in any more, or its record can't be read.
    pub fn look_again(&self, known: &MachineIdentity) -> Result<MachineIdentity, AuthError> {
        self.look_up(known.name.clone(), &known.key_sha256)
    }

    /// What a machine that holds this key may do by its record as it stands now.
    pub(crate) fn look_up(&self, name: MachineName, key_sha256: &str) -> Result<MachineIdentity, AuthError> {
        let Some(record) = read_machine(self.folder(), name.as_str())? else {
            return Err(AuthError::UnknownMachine { name });
        };
        if record.key_sha256 != key_sha256 {
            return Err(AuthError::OtherKey { name });
        }
        Ok(MachineIdentity { name, key_sha256: record.key_sha256, grants: record.grants })
    }

    /// When a machine's record was last added, replaced or removed; `None` while the folder can't be seen.
    pub fn machines_changed(&self) -> Option<SystemTime> {
        std::fs::metadata(self.folder().join(MACHINES)).and_then(|folder| folder.modified()).ok()
    }
}

/// Forgets a machine, whether or not a relay runs on the folder: its certificate is worth nothing from now on, a relay that
/// runs ends its links within a second, and its name is free. A token that it has can still be redeemed: see
/// [`revoke_token`](crate::revoke_token). A record that can't be read goes as well.
///
/// # Errors
///
/// [`RemoveMachineError`] when there is no such machine or the folder can't be written.
pub fn remove_machine(state_dir: &Path, name: &str) -> Result<(), RemoveMachineError> {
    let unknown = || RemoveMachineError::Unknown(name.chars().take(64).collect());
    // The name becomes a file's.
    MachineName::new(name).map_err(|_| unknown())?;
    let path = machine_path(state_dir, name);
    // Looked at before the lock, which would make a file in a folder that is no relay's.
    if !files::folder_exists(state_dir)? {
        return Err(StateError::NoFolder { folder: state_dir.to_owned() }.into());
    }
    if !files::exists(&path)? {
        return Err(unknown());
    }
    // Under the lock, or a join at this moment could write the record back.
    let lock = FolderLock::wait(state_dir)?;
    forget_uses(state_dir, name, &lock)?;
    if files::remove(&path)? { Ok(()) } else { Err(unknown()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_machine_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["web-1", "../authority", "", "a/b"] {
            let error = remove_machine(folder.path(), name).unwrap_err();
            assert!(matches!(error, RemoveMachineError::Unknown(_)), "{name:?}: {error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made");
    }

    #[test]
    fn a_damaged_record_goes_too() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(MACHINES)).unwrap();
        let path = machine_path(folder.path(), "web-1");
        std::fs::write(&path, "").unwrap();
        remove_machine(folder.path(), "web-1").unwrap();
        assert!(!path.exists());
        assert!(matches!(remove_machine(folder.path(), "web-1"), Err(RemoveMachineError::Unknown(_))));
    }
}
