//! The status page in a real browser: finds what that needs, and hands over to `xtask/page/page.mjs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// Names under which distributions have the browser.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// What the script takes from npm. They are not in the repository, and nothing else of ours needs them.
const PACKAGES: [&str; 2] = ["playwright-core", "axe-core"];
const VERSIONS: [&str; 2] = ["1.65.1", "4.14.1"];

/// Runs the script with `bin`, or with a binary that is built for it.
///
/// # Errors
///
/// When something that it needs is missing, with how to get it; and when the page is not as it should be.
pub(crate) fn run(root: &Path, bin: Option<PathBuf>, out: &Path) -> anyhow::Result<()> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let modules = target.join("page");
    let found = |name: &str| on_path(name).map(|path| path.display().to_string());
    let mut missing = Vec::new();
    let node = found("node");
    if node.is_none() {
        missing.push("node is missing: on Debian, apt-get install nodejs npm".to_owned());
    }
    let browser = BROWSERS.iter().find_map(|name| found(name));
    if browser.is_none() {
        missing.push("Chromium is missing: on Debian, apt-get install chromium".to_owned());
    }
    let has = |package: &str| modules.join("node_modules").join(package).join("package.json").exists();
    if !PACKAGES.iter().all(|package| has(package)) {
        let wanted: Vec<_> =
            PACKAGES.iter().zip(VERSIONS).map(|(name, version)| format!("{name}@{version}")).collect();
        missing.push(format!(
            "packages of npm are missing: npm install --prefix {} {}",
            modules.display(),
            wanted.join(" ")
        ));
    }
    if found("promtool").is_none() {
        missing.push("promtool is missing: on Debian, apt-get install prometheus".to_owned());
    }
    ensure!(missing.is_empty(), "{}", missing.join("\n"));
    let (Some(node), Some(browser)) = (node, browser) else { bail!("neither node nor Chromium") };
    let bin = match bin {
        Some(bin) => bin,
        None => build(root, &target)?,
    };
    let status = Command::new(node)
        .current_dir(root)
        .arg(root.join("xtask/page/page.mjs"))
        .arg(bin.canonicalize().with_context(|| bin.display().to_string())?)
        .arg(browser)
        .arg(modules)
        .arg(root.join(out))
        .status()
        .context("cannot start node")?;
    ensure!(status.success(), "the page is not as it should be");
    Ok(())
}

fn build(root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
    let build = ["build", "--quiet", "--locked", "--release", "--package", "hopline-cli"];
    let status =
        Command::new("cargo").current_dir(root).args(build).status().context("cannot start cargo")?;
    ensure!(status.success(), "hopline does not build");
    Ok(target.join("release/hopline"))
}

/// A program that can be started by its name.
fn on_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}
