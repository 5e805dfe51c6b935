//! Paths as they are written in a file or behind `unix:`.

use std::path::PathBuf;

/// The longest path of a unix socket, in bytes: `sun_path` has 108 with its closing zero.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Why a text is no path that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing there.
    #[error("the path is empty")]
    Empty,
    /// It has a zero byte or another control character.
    #[error("a path has no control characters")]
    Control,
    /// It begins with `~/` or holds a variable: only a shell replaces these.
    #[error("~ and $ are not replaced here: write the whole path")]
    Shell,
    /// It ends in a slash.
    #[error("this names a folder: write the socket's own path")]
    Folder,
    /// Over 107 bytes.
    #[error("a unix socket's path has at most 107 bytes, this one has {0}")]
    Long(usize),
}

/// Any path.
pub(crate) fn parse_path(text: &str) -> Result<PathBuf, PathError> {
    if text.is_empty() {
        return Err(PathError::Empty);
    }
    if text.chars().any(char::is_control) {
        return Err(PathError::Control);
    }
    // Taken literally, these would make a folder called `~` or `$HOME` where nobody looks for it.
    if text == "~" || text.starts_with("~/") || text.starts_with('$') || text.contains("${") {
        return Err(PathError::Shell);
    }
    Ok(PathBuf::from(text))
}

/// The path of a unix socket.
pub(crate) fn parse_socket_path(text: &str) -> Result<PathBuf, PathError> {
    let path = parse_path(text)?;
    if text.ends_with('/') {
        return Err(PathError::Folder);
    }
    if text.len() > MAX_SOCKET_PATH_BYTES {
        return Err(PathError::Long(text.len()));
    }
    Ok(path)
}
