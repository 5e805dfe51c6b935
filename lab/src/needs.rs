//! What the lab needs of the machine. What is missing is an error with its remedy.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// A program and the Debian package that has it.
const PROGRAMS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("ss", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("setpriv", "util-linux"),
    ("prlimit", "util-linux"),
    ("conntrack", "conntrack"),
    ("tcpdump", "tcpdump"),
];

/// What a language's application is built with and runs on: language, program, remedy.
const LANGUAGES: [(&str, &str, &str); 6] = [
    ("go", "go", "Go 1.21 or later from https://go.dev/dl, in PATH"),
    ("java", "javac", "apt-get install default-jdk-headless (Java 17 or later)"),
    ("java", "mvn", "apt-get install maven"),
    ("python", "python3", "apt-get install python3-venv (Python 3.11 or later)"),
    ("node", "node", "Node.js 20 or later from https://nodejs.org, in PATH"),
    ("node", "npm", "comes with Node.js"),
];

/// Checks the machine.
///
/// # Errors
///
/// Lists everything that is missing, and how to get it.
pub(crate) fn check(languages: &[String]) -> anyhow::Result<()> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root: network namespaces need it; run as root, or with sudo -E".to_owned());
    }
    for (program, package) in PROGRAMS {
        if !found(program) {
            missing.push(format!("{program}: apt-get install {package}"));
        }
    }
    if libfaketime().is_none() {
        missing.push("libfaketime: apt-get install libfaketime".to_owned());
    }
    for (name, program, remedy) in LANGUAGES {
        let used = languages.iter().any(|language| language.split('-').any(|part| part == name));
        if used && !found(program) {
            missing.push(format!("{program}: {remedy}"));
        }
    }
    if !missing.is_empty() {
        bail!(
            "the lab cannot run here; lab/setup installs all on Debian. Missing:\n  {}",
            missing.join("\n  ")
        );
    }
    Ok(())
}

/// The library that moves a process's clock; Debian keeps it in a folder named after the architecture.
pub(crate) fn libfaketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|file| file.is_file())
}

fn found(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|folder| Path::new(folder).join(program).is_file())
}
