//! What a lab leaves when it dies: namespaces with their processes, folders with their mounts, control groups. All carry
//! its process id in their names.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{cgroup, hosts, shell};

const FOLDER: &str = "hopline-lab-";

/// Where folders of labs are: in memory, so that a disk that is busy with something else stops no process in the middle
/// of a log line.
fn base() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// The folder for the worlds of this lab; a dead lab's is removed.
pub(crate) fn folder() -> PathBuf {
    base().join(format!("{FOLDER}{}", std::process::id()))
}

/// Moves a world's folder to where it stays, for a person to look at, and gives the new place.
pub(crate) fn keep(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let kept = base().join(format!("{FOLDER}kept-{}-{name}", std::process::id()));
    if fs::rename(folder, &kept).is_err() { folder.to_path_buf() } else { kept }
}

/// Removes what labs have left whose process is gone.
pub(crate) fn sweep() {
    let mut labs: Vec<u32> = hosts::owners();
    if let Ok(entries) = fs::read_dir(base()) {
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        labs.extend(names.filter_map(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok()));
    }
    labs.sort_unstable();
    labs.dedup();
    for lab in labs.into_iter().filter(|&lab| !lives(lab)) {
        remove_all_of(lab);
    }
}

/// Removes all that the lab with this process id has made.
pub(crate) fn remove_all_of(lab: u32) {
    hosts::remove_all_of(lab);
    let folder = base().join(format!("{FOLDER}{lab}"));
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        if Path::new(place).starts_with(&folder) {
            // Busy or not, it leaves the tree.
            let _ = shell::run(&["umount", "--lazy", place]);
        }
    }
    let _ = fs::remove_dir_all(folder);
    cgroup::remove_all_of(lab);
}

/// Whether this process is a running lab.
fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "hopline-lab")
}

/// A file system of its own, that can be filled. Dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts 4 MiB at a folder, which is made.
    ///
    /// # Errors
    ///
    /// When it cannot be mounted.
    pub(crate) fn mount(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder)?;
        let place = folder.display().to_string();
        shell::run(&["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "hopline-lab", &place])?;
        Ok(Self(folder.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = shell::run(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}
