//! State folders: files that are written whole or not at all, and that others cannot read.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::error::StateError;
use crate::tls::random;

/// No file of ours comes near this; a larger one is not ours.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// What the bits of a file's mode may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Others may neither read nor write it, the group may not write it (0440 by group is how Kubernetes mounts).
    Secret,
    /// Whoever can change it can redirect trust, but there is no secret in it.
    Integrity,
}

impl Guard {
    const fn forbidden_bits(self) -> u32 {
        match self {
            Self::Secret => 0o026,
            Self::Integrity => 0o022,
        }
    }
}

/// Reads a file; `None` when there is none. An empty one is an error: a crash may not look like a first start.
pub(crate) fn read(path: &Path, guard: Guard) -> Result<Option<Zeroizing<Vec<u8>>>, StateError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(source) => return Err(StateError::io("open", path, source)),
    };
    // The mode of the file that is open, not of whatever has the name a moment later.
    let metadata = file.metadata().map_err(|source| StateError::io("examine", path, source))?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & guard.forbidden_bits() != 0 {
        return Err(StateError::Permissions { path: path.to_owned(), mode });
    }
    if metadata.len() > MAX_FILE_LEN {
        return Err(StateError::damaged(path, "it is over 1 MiB"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1));
    file.take(MAX_FILE_LEN).read_to_end(&mut bytes).map_err(|source| StateError::io("read", path, source))?;
    if bytes.is_empty() {
        return Err(StateError::damaged(path, "it is empty"));
    }
    Ok(Some(bytes))
}

/// Replaces `path` by `bytes`, mode 0600: after a crash the file is the old one or the new one, never a part.
///
/// The caller holds the folder's lock, so leftovers of others are not in work.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let temporary = folder.join(format!("{TEMPORARY_PREFIX}{}", hex(&random::<8>()?)));
    let written = write_new(&temporary, bytes).and_then(|()| {
        std::fs::rename(&temporary, path).map_err(|source| StateError::io("replace", path, source))
    });
    if written.is_err() {
        // Best effort: the error that matters is the one above.
        drop(std::fs::remove_file(&temporary));
    }
    written?;
    sync_folder(folder)
}

/// Removes a file and makes the removal durable; `false` when there was none.
pub(crate) fn remove(path: &Path) -> Result<bool, StateError> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if is_not_found(&error) => return Ok(false),
        Err(source) => return Err(StateError::io("remove", path, source)),
    }
    sync_folder(path.parent().unwrap_or_else(|| Path::new(".")))?;
    Ok(true)
}

/// Makes a folder (and missing parents) with mode 0700; one that exists is left as it is.
pub(crate) fn make_folder(path: &Path) -> Result<(), StateError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| StateError::io("create", path, source))
}

/// The names, without `.json`, of the records in a folder, sorted; none when the folder is missing.
pub(crate) fn record_names(folder: &Path) -> Result<Vec<String>, StateError> {
    let mut names: Vec<String> = entries(folder)?
        .iter()
        .filter(|path| path.extension() == Some(OsStr::new("json")))
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Removes what a crash in [`write_atomic`] left; only under the folder's lock, or it removes work in progress.
pub(crate) fn remove_leftovers(folder: &Path, _held: &FolderLock) -> Result<(), StateError> {
    for path in entries(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
        if name.starts_with(TEMPORARY_PREFIX) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// The right to change a state folder: one holder at a time, over all processes and threads.
///
/// The kernel drops it with its holder, so a crash leaves no stale lock. The file itself stays.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Blocks until nobody else holds it.
    pub(crate) fn wait(folder: &Path) -> Result<Self, StateError> {
        let (path, file) = Self::open(folder)?;
        file.lock().map_err(|source| StateError::io("lock", &path, source))?;
        Ok(Self { _file: file })
    }

    /// `None` when somebody else holds it.
    pub(crate) fn try_take(folder: &Path) -> Result<Option<Self>, StateError> {
        let (path, file) = Self::open(folder)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(StateError::io("lock", &path, source)),
        }
    }

    fn open(folder: &Path) -> Result<(PathBuf, File), StateError> {
        let path = folder.join("lock");
        let opened =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        match opened {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(StateError::io("open", &path, source)),
        }
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    // 0600 from the first moment: a umask can only take bits away, and a chmod later would leave a gap.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| StateError::io("create", path, source))?;
    file.write_all(bytes).map_err(|source| StateError::io("write", path, source))?;
    file.sync_all().map_err(|source| StateError::io("sync", path, source))
}

fn sync_folder(folder: &Path) -> Result<(), StateError> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)
        .and_then(|handle| handle.sync_all())
        .map_err(|source| StateError::io("sync", folder, source))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StateError> {
    let listing = match std::fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if is_not_found(&error) => return Ok(Vec::new()),
        Err(source) => return Err(StateError::io("list", folder, source)),
    };
    listing
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()
        .map_err(|source| StateError::io("list", folder, source))
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

const TEMPORARY_PREFIX: &str = ".tmp-";

#[cfg(test)]
mod tests;
