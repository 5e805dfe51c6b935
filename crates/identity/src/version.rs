//! The version of a state folder, so that an older program does not misread what a newer one has written.

use std::path::Path;

use crate::error::StateError;
use crate::files::{self, Guard};

/// The newest version that this program reads, and the one that it writes.
const KNOWN: u32 = 1;
/// One line with the number. A folder without it is of version 1.
const FILE: &str = "version";

pub(crate) fn check_version(folder: &Path) -> Result<(), StateError> {
    let path = folder.join(FILE);
    let Some(bytes) = files::read(&path, Guard::Integrity)? else { return Ok(()) };
    let found: Option<u32> = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok());
    match found {
        Some(found) if found > KNOWN => {
            Err(StateError::Newer { folder: folder.to_owned(), found, known: KNOWN })
        }
        Some(_) => Ok(()),
        None => Err(StateError::damaged(&path, "it holds no number").or_else("write 1 into it")),
    }
}

/// Writes the version into a folder that has none. The caller holds its lock.
pub(crate) fn write_version(folder: &Path) -> Result<(), StateError> {
    let path = folder.join(FILE);
    if files::exists(&path)? {
        return Ok(());
    }
    files::write_atomic(&path, format!("{KNOWN}\n").as_bytes())
}
