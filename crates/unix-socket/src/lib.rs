//! A unix socket at a path: made so that nobody ever finds it with the wrong mode, and removed so that nothing but
//! the own socket goes.
//!
//! The socket is bound at its own path, not bound elsewhere and renamed: `ss`, `lsof` and the peer's
//! `getpeername` then show the path that people know. Linux gives a new socket file the mode of the socket's own
//! inode less the umask, so `fchmod` before `bind` makes it 0600 from its first moment; group and wider bits are
//! added afterwards, and only then does it listen: whoever comes earlier is refused by the kernel.
//!
//! Hopline's processes lock the folder while they look at a path and take it, so two of them that start together
//! do not both take a dead socket for free. Other programs hold no such lock; against those, every removal moves
//! the file aside first, looks at what it got, and puts it back if it is not the inode that it meant.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest path of a unix socket, in bytes: Linux has 108 with the closing zero.
pub const MAX_PATH_BYTES: usize = 107;

/// Connections that the kernel keeps for us between two accepts (it caps this at `net.core.somaxconn`).
const BACKLOG: i32 = 1024;

/// How long another process may hold the folder's lock. It needs a millisecond; a stuck one must not stop us.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// How a unix socket is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixOptions {
    /// Permission bits, such as `0o600`; at most `0o777`.
    pub mode: u32,
    /// The group that the file is given; the process's own when `None`.
    pub gid: Option<u32>,
    /// Whether the folder is made (0700) when it is missing. For folders of our own only: anywhere else a missing
    /// folder is more likely a wrong path. A folder found there must then be ours and closed to others.
    pub make_folder: bool,
}

impl Default for UnixOptions {
    fn default() -> Self {
        Self { mode: 0o600, gid: None, make_folder: false }
    }
}

/// Why a unix socket could not be made. Each text is one line and names the path.
#[derive(Debug, thiserror::Error)]
pub enum UnixBindError {
    /// The path is longer than the system allows, or has no file name, or has a zero byte in it.
    #[error("{}: {problem}", path.display())]
    Path {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The mode has bits beyond 0777.
    #[error("{}: mode {mode:o} is not a file mode (at most 777)", path.display())]
    Mode {
        /// The socket's path.
        path: PathBuf,
        /// The mode as given.
        mode: u32,
    },
    /// The folder does not exist.
    #[error("{}: the folder {} does not exist", path.display(), folder.display())]
    NoFolder {
        /// The socket's path.
        path: PathBuf,
        /// The missing folder.
        folder: PathBuf,
    },
    /// The folder is there, but cannot be used.
    #[error("{}: the folder {} {problem}", path.display(), folder.display())]
    Folder {
        /// The socket's path.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Another process listens there.
    #[error("{}: another process listens on this socket", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something that is no socket is there. It is never removed.
    #[error("{}: is {what}, not a socket; it is left alone", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What is there, such as `a regular file`.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{}: cannot {action}: {error}", path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// The file of a bound socket: removes it when dropped, if it is still the same one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Keeps the inode alive, so that its number cannot belong to another file.
    handle: OwnedFd,
}

/// What is at the path of a bound socket now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The socket's own file, as far as can be told.
    There,
    /// Nothing: the file was deleted, or its folder.
    Gone,
    /// Another file.
    Replaced,
}

impl SocketFile {
    /// The absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether whoever connects to the path reaches this socket. Costs two system calls.
    #[must_use]
    pub fn presence(&self) -> Presence {
        let found = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        match (found, rustix::fs::fstat(&self.handle)) {
            (Err(Errno::NOENT | Errno::NOTDIR), _) => Presence::Gone,
            (Ok(found), Ok(own)) if !same_file(&found, &own) => Presence::Replaced,
            _ => Presence::There,
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let Ok((folder, name)) = split(&self.path) else { return };
        let Ok(folder_fd) = open_folder(folder) else { return };
        // A drop may run where waiting would hold up traffic.
        lock(&folder_fd, Duration::ZERO);
        if let Err(error) = remove_if_same(&folder_fd, name, &self.handle) {
            tracing::debug!(path = %self.path.display(), %error, "the socket file stays");
        }
    }
}

/// Makes a listening unix socket at `path`: non-blocking, close-on-exec, with exactly the mode and group asked for
/// before anybody can connect. A dead socket that is in the way is replaced; anything else is left alone.
///
/// Blocks for the time of a few file system calls (up to 2 s while another process holds the folder's lock).
///
/// # Errors
///
/// See [`UnixBindError`]. After an error nothing of ours is left at the path.
pub fn bind(path: &Path, options: &UnixOptions) -> Result<(UnixListener, SocketFile), UnixBindError> {
    if options.mode > 0o777 {
        return Err(UnixBindError::Mode { path: path.to_owned(), mode: options.mode });
    }
    let absolute = std::path::absolute(path)
        .map_err(|error| UnixBindError::Path { path: path.to_owned(), problem: error.to_string() })?;
    let path = absolute.as_path();
    let (folder, name) = split(path)?;
    let address = address(path)?;
    let folder_fd = folder_of(path, folder, options.make_folder)?;
    lock(&folder_fd, LOCK_PATIENCE);
    clear_the_way(path, &folder_fd, name, &address)?;

    let socket = bind_private(path, folder, &address, options.mode)?;
    let file = SocketFile {
        path: path.to_owned(),
        handle: open_handle(&folder_fd, name)
            .map_err(|errno| system(path, "open the new socket file", errno))?,
    };
    set_owner_and_mode(&file, &folder_fd, name, options)?;
    rustix::net::listen(&socket, BACKLOG).map_err(|errno| system(path, "listen", errno))?;
    Ok((UnixListener::from(socket), file))
}

/// A bound socket that does not listen yet, with no wider mode than asked for, and for the owner alone.
fn bind_private(
    path: &Path,
    folder: &Path,
    address: &SocketAddrUnix,
    mode: u32,
) -> Result<OwnedFd, UnixBindError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| system(path, "make a socket", errno))?;
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode & 0o600))
        .map_err(|errno| system(path, "set the socket's mode", errno))?;
    rustix::net::bind(&socket, address).map_err(|errno| bind_error(path, folder, errno))?;
    Ok(socket)
}

/// Splits into folder and file name.
fn split(path: &Path) -> Result<(&Path, &OsStr), UnixBindError> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok((folder, name)),
        _ => Err(UnixBindError::Path { path: path.to_owned(), problem: "has no file name".to_owned() }),
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, UnixBindError> {
    let bytes = path.as_os_str().as_bytes();
    let problem = if bytes.contains(&0) {
        "has a zero byte in it".to_owned()
    } else if bytes.len() > MAX_PATH_BYTES {
        format!("is {} bytes long; a unix socket's path has at most {MAX_PATH_BYTES}", bytes.len())
    } else {
        return SocketAddrUnix::new(path).map_err(|errno| system(path, "use the path", errno));
    };
    Err(UnixBindError::Path { path: path.to_owned(), problem })
}

/// Opens the folder, having made it where that is wanted.
fn folder_of(path: &Path, folder: &Path, make: bool) -> Result<OwnedFd, UnixBindError> {
    if make {
        match rustix::fs::mkdirat(CWD, folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Err(no_folder(path, folder.parent().unwrap_or(folder))),
            Err(errno) => {
                let problem = format!("cannot be made: {}", plain(errno));
                return Err(UnixBindError::Folder {
                    path: path.to_owned(),
                    folder: folder.to_owned(),
                    problem,
                });
            }
        }
    }
    let fault = |problem| UnixBindError::Folder { path: path.to_owned(), folder: folder.to_owned(), problem };
    let fd = open_folder(folder).map_err(|errno| match errno {
        Errno::NOENT => no_folder(path, folder),
        Errno::NOTDIR => fault("is not a folder".to_owned()),
        other => fault(format!("cannot be opened: {}", plain(other))),
    })?;
    if make {
        let stat = rustix::fs::fstat(&fd).map_err(|errno| system(path, "look at the folder", errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(fault("belongs to another user".to_owned()));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(fault("can be written by others; make it 0700".to_owned()));
        }
    }
    Ok(fd)
}

fn no_folder(path: &Path, folder: &Path) -> UnixBindError {
    UnixBindError::NoFolder { path: path.to_owned(), folder: folder.to_owned() }
}

/// Opens a folder for use as a base; one that may be entered but not read can still be used, without a lock.
fn open_folder(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, folder, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => rustix::fs::openat(CWD, folder, flags | OFlags::PATH, Mode::empty()),
        other => other,
    }
}

/// Locks the folder until `folder` is closed, waiting for at most `patience`.
///
/// Without it only the protection against other programs is left, so a lock that cannot be had (file systems
/// without locks, a stuck process) is no error.
fn lock(folder: &OwnedFd, patience: Duration) {
    let deadline = Instant::now() + patience;
    while let Err(Errno::WOULDBLOCK | Errno::INTR) =
        rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive)
    {
        if Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Leaves the path free, or says what is there.
fn clear_the_way(
    path: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    address: &SocketAddrUnix,
) -> Result<(), UnixBindError> {
    let found = match open_handle(folder, name) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(system(path, "look at it", errno)),
    };
    let stat = rustix::fs::fstat(&found).map_err(|errno| system(path, "look at it", errno))?;
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => return replace_dead(path, folder, name, address, &found),
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something unknown",
    };
    Err(UnixBindError::NotASocket { path: path.to_owned(), what })
}

/// Removes a socket on which nobody listens; found out by connecting to it.
fn replace_dead(
    path: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    address: &SocketAddrUnix,
    found: &OwnedFd,
) -> Result<(), UnixBindError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| system(path, "make a socket", errno))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // A full queue (AGAIN) and a socket of another type (PROTOTYPE) are somebody's too.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            return Err(UnixBindError::InUse { path: path.to_owned() });
        }
        Err(errno) => return Err(system(path, "find out whether the socket there is in use", errno)),
    }
    match remove_if_same(folder, name, found) {
        Ok(true) => Ok(()),
        Ok(false) => Err(UnixBindError::InUse { path: path.to_owned() }),
        Err(errno) => Err(system(path, "remove the dead socket", errno)),
    }
}

/// Removes `name` if it is the file of `handle`; says whether the name is free of that file now.
fn remove_if_same(folder: &OwnedFd, name: &OsStr, handle: &OwnedFd) -> Result<bool, Errno> {
    let wanted = rustix::fs::fstat(handle)?;
    match is_file(folder, name, &wanted) {
        Ok(true) => remove_by_way_of_aside(folder, name, &wanted),
        Ok(false) => Ok(false),
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Removes `name`, which was `wanted` a moment ago. By now it may have passed to another file, which a plain unlink
/// would remove: so it is moved aside first, looked at, and put back if it is another.
fn remove_by_way_of_aside(folder: &OwnedFd, name: &OsStr, wanted: &Stat) -> Result<bool, Errno> {
    let aside = format!(".hopline-{:x}-{:x}", rustix::process::getpid().as_raw_nonzero(), wanted.st_ino);
    let aside = OsStr::new(&aside);
    match rustix::fs::renameat_with(folder, name, folder, aside, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(true),
        // Some file systems cannot rename without replacing; there the look before must do.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            return Ok(true);
        }
        Err(errno) => return Err(errno),
    }
    if is_file(folder, aside, wanted)? {
        rustix::fs::unlinkat(folder, aside, AtFlags::empty())?;
        return Ok(true);
    }
    rustix::fs::renameat_with(folder, aside, folder, name, RenameFlags::NOREPLACE)?;
    Ok(false)
}

fn is_file(folder: &OwnedFd, name: &OsStr, wanted: &Stat) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(same_file(&stat, wanted))
}

fn same_file(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// A handle to the file itself: follows no link, opens nothing.
fn open_handle(folder: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Gives the new file its group and mode, narrower first.
fn set_owner_and_mode(
    file: &SocketFile,
    folder: &OwnedFd,
    name: &OsStr,
    options: &UnixOptions,
) -> Result<(), UnixBindError> {
    let fault = |action| move |errno: Errno| system(&file.path, action, errno);
    let stat = rustix::fs::fstat(&file.handle).map_err(fault("look at the new socket file"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(UnixBindError::InUse { path: file.path.clone() });
    }
    if let Some(gid) = options.gid
        && gid != stat.st_gid
    {
        let group = rustix::process::Gid::from_raw(gid);
        rustix::fs::chownat(file.handle.as_fd(), c"", None, Some(group), AtFlags::EMPTY_PATH)
            .map_err(fault("give the socket its group"))?;
    }
    if stat.st_mode & 0o7777 == options.mode {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(options.mode);
    // By the handle, so that nothing put in the file's place meanwhile is changed; /proc may be missing in a
    // bare container, where the name must do.
    let by_handle = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.handle));
    match rustix::fs::chmodat(CWD, by_handle, mode, AtFlags::empty()) {
        Err(Errno::NOENT) => rustix::fs::chmodat(folder, name, mode, AtFlags::empty()),
        other => other,
    }
    .map_err(fault("set the socket's mode"))
}

fn bind_error(path: &Path, folder: &Path, errno: Errno) -> UnixBindError {
    let problem = match errno {
        Errno::ADDRINUSE => return UnixBindError::InUse { path: path.to_owned() },
        Errno::ACCESS | Errno::PERM => "cannot be written by this user",
        Errno::ROFS => "is on a read-only file system",
        _ => return system(path, "make the socket", errno),
    };
    UnixBindError::Folder { path: path.to_owned(), folder: folder.to_owned(), problem: problem.to_owned() }
}

fn system(path: &Path, action: &'static str, errno: Errno) -> UnixBindError {
    UnixBindError::System { path: path.to_owned(), action, error: errno.into() }
}

fn plain(errno: Errno) -> String {
    io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests;
