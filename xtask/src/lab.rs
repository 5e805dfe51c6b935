//! Builds the lab and hands over to it: `cargo xtask lab --help` is the lab's own help.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// Builds `hopline-lab` in release mode and replaces this process by it.
///
/// # Errors
///
/// When it cannot be built or started.
pub(crate) fn run(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let build = ["build", "--quiet", "--locked", "--release", "--package", "hopline-lab"];
    let status =
        Command::new("cargo").current_dir(root).args(build).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the lab does not build");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let lab = target.join("release/hopline-lab");
    // The lab looks for labs that have died by the name of the program, so it must be the program itself.
    Err(Command::new(&lab).args(arguments).exec()).with_context(|| format!("cannot start {}", lab.display()))
}
