//! State folders: files that are written whole or not at all, and that others cannot read.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::error::StateError;
use crate::lock::FolderLock;
use crate::tls::random;

#[cfg(test)]
pub(crate) mod faults;

/// No file of ours comes near this; a larger one is not ours.
pub(crate) const MAX_FILE_LEN: u64 = 1024 * 1024;

/// Opening never waits, whatever stands in a file's place: a pipe would wait for its writer.
pub(crate) const NO_WAIT: i32 = OFlags::NONBLOCK.bits().cast_signed();

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
    let file = match OpenOptions::new().read(true).custom_flags(NO_WAIT).open(path) {
        Ok(file) => file,
        Err(error) if is_not_found(&error) => return nothing_there(path).map(|()| None),
        Err(source) => return Err(StateError::io("open", path, source)),
    };
    // The mode of the file that is open, not of whatever has the name a moment later.
    let metadata = file.metadata().map_err(|source| StateError::io("examine", path, source))?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "it is a folder" } else { "it is no regular file" };
        return Err(StateError::damaged(path, kind));
    }
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

/// Whether something has the name, a link that leads nowhere included.
pub(crate) fn exists(path: &Path) -> Result<bool, StateError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(source) => Err(StateError::io("examine", path, source)),
    }
}

/// Replaces `path` by `bytes`, mode 0600: after a crash the file is the old one or the new one, never a part.
///
/// The caller holds the folder's lock, so leftovers of others are not in work.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    write_together(&[(path.to_owned(), bytes)])
}

/// Replaces several files of one folder. All are on the disk before the first gets its name, so a disk that is full
/// leaves the old ones; should a later one not get its name, those before it are put back.
pub(crate) fn write_together(files: &[(PathBuf, &[u8])]) -> Result<(), StateError> {
    let staged: Vec<Staged> =
        files.iter().map(|(path, bytes)| Staged::write(path, bytes)).collect::<Result<_, _>>()?;
    let Some(folder) = files.first().map(|(path, _)| folder_of(path)) else { return Ok(()) };
    let mut put: Vec<Put> = Vec::new();
    let many = staged.len() > 1;
    for file in staged {
        match file.put(many) {
            Ok(done) => put.push(done),
            Err(error) => {
                put.into_iter().rev().for_each(Put::back);
                return Err(error);
            }
        }
    }
    put.into_iter().for_each(Put::keep);
    sync_folder(folder)
}

/// Removes a file and makes the removal durable; `false` when there was none.
pub(crate) fn remove(path: &Path) -> Result<bool, StateError> {
    match fault("remove", path).and_then(|()| std::fs::remove_file(path)) {
        Ok(()) => {}
        Err(error) if is_not_found(&error) => return Ok(false),
        Err(source) => return Err(StateError::io("remove", path, source)),
    }
    sync_folder(folder_of(path))?;
    Ok(true)
}

/// Makes a state folder (and missing parents) with mode 0700; one that exists is left as it is.
pub(crate) fn make_folder(path: &Path) -> Result<(), StateError> {
    if folder_exists(path)? {
        return Ok(());
    }
    fault("create", path)
        .and_then(|()| DirBuilder::new().recursive(true).mode(0o700).create(path))
        .map_err(|source| StateError::io("create", path, source))
}

/// Makes a folder inside a state folder; it belongs to the same owner.
pub(crate) fn make_inner_folder(path: &Path) -> Result<(), StateError> {
    if folder_exists(path)? {
        return Ok(());
    }
    make_folder(path)?;
    File::open(path)
        .and_then(|made| give_to_owner(folder_of(path), &made))
        .map_err(|source| StateError::io("change the owner of", path, source))
}

/// Whether there is a folder of this name; anything else of this name is an error.
pub(crate) fn folder_exists(path: &Path) -> Result<bool, StateError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(_) => Err(StateError::NotAFolder { path: path.to_owned() }),
        Err(error) if is_not_found(&error) => nothing_there(path).map(|()| false),
        Err(source) => Err(StateError::io("examine", path, source)),
    }
}

/// The names, without `.json`, of the records in a folder, sorted; none when the folder is missing.
pub(crate) fn record_names(folder: &Path) -> Result<Vec<String>, StateError> {
    let mut names: Vec<String> = entries(folder)?
        .iter()
        .filter(|path| path.extension() == Some(OsStr::new("json")))
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Removes what a crash in [`write_together`] left; only under the folder's lock, or it removes work in progress.
pub(crate) fn remove_leftovers(folder: &Path, _held: &FolderLock) -> Result<(), StateError> {
    for path in entries(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
        if name.starts_with(TEMPORARY_PREFIX) && !path.is_dir() {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Room on the disk for small files to come, taken before it is promised to anybody; dropped, it is free for them.
#[derive(Debug)]
pub(crate) struct Reserve {
    _files: Vec<Staged>,
}

impl Reserve {
    const FILE_LEN: usize = 4 * 1024;

    /// Room for so many files in `folder`.
    pub(crate) fn take(folder: &Path, files: usize) -> Result<Self, StateError> {
        let room = [0x20; Self::FILE_LEN];
        let file = |n: usize| Staged::write(&folder.join(format!("reserve-{n}")), &room);
        let files = (0..files).map(file).collect::<Result<_, _>>()?;
        sync_folder(folder)?;
        Ok(Self { _files: files })
    }
}

/// What root writes into somebody's state folder is that one's, or the process that the folder belongs to could not
/// read it.
pub(crate) fn give_to_owner(folder: &Path, file: &File) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let folder = std::fs::metadata(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
    let owners = |metadata: &Metadata| (metadata.uid(), metadata.gid());
    if owners(&folder) == owners(&file.metadata()?) {
        return Ok(());
    }
    std::os::unix::fs::fchown(file, Some(folder.uid()), Some(folder.gid()))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// New contents of a file, beside its name and synced. Dropped without [`Staged::put`], it is gone.
#[derive(Debug)]
struct Staged {
    temporary: PathBuf,
    path: PathBuf,
}

impl Staged {
    fn write(path: &Path, bytes: &[u8]) -> Result<Self, StateError> {
        let staged = Self { temporary: temporary_beside(path)?, path: path.to_owned() };
        write_new(&staged.temporary, bytes)?;
        Ok(staged)
    }

    /// Gives it its name. `undoable` keeps the old file until it is decided.
    fn put(self, undoable: bool) -> Result<Put, StateError> {
        let backup = if undoable && exists(&self.path)? {
            let backup = temporary_beside(&self.path)?;
            // A file system without hard links loses the way back, not the way forward.
            std::fs::hard_link(&self.path, &backup).ok().map(|()| backup)
        } else {
            None
        };
        let renamed =
            fault("replace", &self.path).and_then(|()| std::fs::rename(&self.temporary, &self.path));
        let put = Put { path: self.path.clone(), backup };
        match renamed {
            Ok(()) => Ok(put),
            Err(source) => {
                put.keep();
                Err(StateError::io("replace", &self.path, source))
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Best effort, and nothing after `put`: the error that matters is another one.
        drop(std::fs::remove_file(&self.temporary));
    }
}

/// A file that has just got its name, and the one that had it before.
struct Put {
    path: PathBuf,
    backup: Option<PathBuf>,
}

impl Put {
    fn keep(self) {
        if let Some(backup) = self.backup {
            drop(std::fs::remove_file(backup));
        }
    }

    fn back(self) {
        drop(match self.backup {
            Some(backup) => std::fs::rename(backup, &self.path),
            None => std::fs::remove_file(&self.path),
        });
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    // 0600 from the first moment: a umask can only take bits away, and a chmod later would leave a gap.
    let mut file = fault("create", path)
        .and_then(|()| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path))
        .map_err(|source| StateError::io("create", path, source))?;
    give_to_owner(folder_of(path), &file)
        .map_err(|source| StateError::io("change the owner of", path, source))?;
    fault("write", path)
        .and_then(|()| file.write_all(bytes))
        .map_err(|source| StateError::io("write", path, source))?;
    fault("sync", path).and_then(|()| file.sync_all()).map_err(|source| StateError::io("sync", path, source))
}

fn sync_folder(folder: &Path) -> Result<(), StateError> {
    let synced = fault("sync", folder).and_then(|()| File::open(folder)?.sync_all());
    match synced {
        // A file system that can't sync folders says so by this.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(()),
        synced => synced.map_err(|source| StateError::io("sync", folder, source)),
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StateError> {
    let listing = match std::fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(error) if is_not_found(&error) => return nothing_there(folder).map(|()| Vec::new()),
        Err(source) if Errno::from_io_error(&source) == Some(Errno::NOTDIR) => {
            return Err(StateError::NotAFolder { path: folder.to_owned() });
        }
        Err(source) => return Err(StateError::io("list", folder, source)),
    };
    listing
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()
        .map_err(|source| StateError::io("list", folder, source))
}

/// Tells a name that nothing has from a symbolic link that leads nowhere.
fn nothing_there(path: &Path) -> Result<(), StateError> {
    match std::fs::read_link(path) {
        Ok(target) => {
            let fault = format!("it is a symbolic link to {}, which does not exist", target.display());
            Err(StateError::damaged(path, fault))
        }
        Err(_) => Ok(()),
    }
}

fn temporary_beside(path: &Path) -> Result<PathBuf, StateError> {
    Ok(folder_of(path).join(format!("{TEMPORARY_PREFIX}{}", hex(&random::<8>()?))))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Where a test lets the disk fail.
#[cfg(test)]
use faults::fault;

#[cfg(not(test))]
#[inline]
fn fault(_action: &'static str, _path: &Path) -> io::Result<()> {
    Ok(())
}

const TEMPORARY_PREFIX: &str = ".tmp-";

#[cfg(test)]
mod tests;
