//! A share of the CPU for one process, by a control group of its own: version 2 where it has the `cpu` controller, else
//! version 1.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The period in which a share is counted, in microseconds. Long ones stall a process for longer at once.
const PERIOD_US: u32 = 100_000;

/// A quota in force.
#[derive(Debug)]
pub(crate) struct Quota {
    group: PathBuf,
    parent: PathBuf,
    pid: u32,
}

impl Quota {
    /// Puts a process into a group that gets `percent` of one CPU.
    ///
    /// # Errors
    ///
    /// When there is no controller, or no right to use it.
    pub(crate) fn put(pid: u32, percent: u32) -> anyhow::Result<Self> {
        let quota = PERIOD_US / 100 * percent;
        let name = format!("hopline-lab-{}-{pid}", std::process::id());
        let (parent, group) = if controllers("/sys/fs/cgroup").contains("cpu") {
            (PathBuf::from("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup").join(name))
        } else if Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists()
            || Path::new("/sys/fs/cgroup/cpu/cgroup.procs").exists()
        {
            (PathBuf::from("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/cpu").join(name))
        } else {
            bail!("no control group has the cpu controller: mount one, or boot with it")
        };
        fs::create_dir(&group).with_context(|| format!("{}", group.display()))?;
        let made = Self { group, parent, pid };
        let v1 = made.group.join("cpu.cfs_quota_us");
        if v1.exists() {
            fs::write(made.group.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(v1, quota.to_string())?;
        } else {
            let max = made.group.join("cpu.max");
            fs::write(&max, format!("{quota} {PERIOD_US}")).with_context(|| {
                format!("{}: is cpu in the parent's cgroup.subtree_control?", max.display())
            })?;
        }
        fs::write(made.group.join("cgroup.procs"), pid.to_string())?;
        Ok(made)
    }

    /// Moves the process back and removes the group.
    ///
    /// # Errors
    ///
    /// When the group cannot be removed.
    pub(crate) fn lift(self) -> anyhow::Result<()> {
        // A process that has ended is in no group any more.
        let _ = fs::write(self.parent.join("cgroup.procs"), self.pid.to_string());
        fs::remove_dir(&self.group).with_context(|| format!("{}", self.group.display()))
    }
}

/// Removes the groups of the lab with this process id; those that still have processes stay.
pub(crate) fn remove_all_of(lab: u32) {
    let start = format!("hopline-lab-{lab}-");
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"] {
        let Ok(entries) = fs::read_dir(root) else { continue };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&start) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

fn controllers(root: &str) -> String {
    fs::read_to_string(Path::new(root).join("cgroup.controllers")).unwrap_or_default()
}
