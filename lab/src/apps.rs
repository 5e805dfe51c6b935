//! The gRPC applications: which there are, how each is built and started.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::shell;

/// One language's application, built and ready to start.
#[derive(Debug, Clone)]
pub(crate) struct Language {
    /// The word on the command line: `go`, or `rust-go` for a Rust client and a Go server.
    pub(crate) name: String,
    /// The words that start the client's program; `client` follows.
    pub(crate) client: Vec<String>,
    /// The words that start the server's program; `server` follows.
    pub(crate) server: Vec<String>,
    /// What the client's program says of itself: library and runtime.
    pub(crate) version: String,
}

/// A language that the lab can build.
struct Known {
    name: &'static str,
    /// The status that its client gives a broken connection.
    broken: &'static str,
    /// The status that its client gives a passed deadline.
    deadline: &'static str,
    /// Builds it and gives the words that start it.
    build: fn(root: &Path, target: &Path) -> anyhow::Result<Vec<String>>,
}

/// To add a language: its folder in `apps/`, which follows `apps/README.md`, and a row here.
const KNOWN: [Known; 5] = [
    Known { name: "go", broken: "UNAVAILABLE", deadline: "DEADLINE_EXCEEDED", build: build_go },
    Known { name: "rust", broken: "UNKNOWN", deadline: "CANCELLED", build: build_rust },
    Known { name: "java", broken: "UNAVAILABLE", deadline: "DEADLINE_EXCEEDED", build: build_java },
    Known { name: "python", broken: "UNAVAILABLE", deadline: "DEADLINE_EXCEEDED", build: build_python },
    Known { name: "node", broken: "UNAVAILABLE", deadline: "DEADLINE_EXCEEDED", build: build_node },
];

/// The names of all languages.
pub(crate) fn all() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.name).collect()
}

/// The statuses that the client of this language or pair gives a broken connection and a passed deadline.
pub(crate) fn statuses(name: &str) -> (&'static str, &'static str) {
    let client = name.split('-').next().unwrap_or(name);
    KNOWN.iter().find(|known| known.name == client).map_or(("", ""), |known| (known.broken, known.deadline))
}

/// Builds these languages' applications. `rust-go` is a Rust client with a Go server.
///
/// # Errors
///
/// When a name is not known, or one cannot be built.
pub(crate) fn build(names: &[String], root: &Path, target: &Path) -> anyhow::Result<Vec<Language>> {
    let mut built: Vec<(&str, Vec<String>)> = Vec::new();
    let mut program = |name: &str| -> anyhow::Result<Vec<String>> {
        let known = KNOWN.iter().find(|known| known.name == name);
        let known =
            known.with_context(|| format!("no application in {name:?}; there are {}", all().join(", ")))?;
        if let Some((_, words)) = built.iter().find(|(other, _)| *other == known.name) {
            return Ok(words.clone());
        }
        let words =
            (known.build)(root, target).with_context(|| format!("building the {name} application"))?;
        built.push((known.name, words.clone()));
        Ok(words)
    };
    names
        .iter()
        .map(|name| {
            let (first, second) = name.split_once('-').unwrap_or((name, name));
            let (client, server) = (program(first)?, program(second)?);
            let version = version(&client)?;
            Ok(Language { name: name.clone(), client, server, version })
        })
        .collect()
}

fn version(command: &[String]) -> anyhow::Result<String> {
    let words: Vec<&str> = command.iter().map(String::as_str).chain(["version"]).collect();
    let said: Value = serde_json::from_str(&shell::run(&words)?)?;
    let word = |key: &str| said[key].as_str().unwrap_or("?").to_owned();
    Ok(format!("{}, {}", word("library"), word("runtime")))
}

fn build_go(root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    let out = target.join("lab-apps/go-app");
    let mut command = Command::new("go");
    command.current_dir(root.join("lab/apps/go")).args(["build", "-o"]).arg(&out).arg(".");
    finish(command)?;
    Ok(vec![out.display().to_string()])
}

fn build_rust(root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    cargo_build(root, "hopline-lab-app")?;
    Ok(vec![target.join("release/hopline-lab-app").display().to_string()])
}

fn build_java(root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    build_by_script("java", root, target)
}

fn build_python(root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    build_by_script("python", root, target)
}

fn build_node(root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    build_by_script("node", root, target)
}

/// `build.sh FOLDER` builds into the folder and prints the words that start the program, one a line.
fn build_by_script(name: &str, root: &Path, target: &Path) -> anyhow::Result<Vec<String>> {
    let script = root.join("lab/apps").join(name).join("build.sh");
    let out = target.join("lab-apps").join(name);
    let words = shell::run(&[&script.display().to_string(), &out.display().to_string()])?;
    Ok(words.lines().map(str::to_owned).collect())
}

/// Scenarios that run side by side build the same things.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// h2spec, built with the versions that `lab/h2spec/go.mod` pins.
///
/// # Errors
///
/// When Go is missing or fails.
pub(crate) fn h2spec() -> anyhow::Result<PathBuf> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = crate::root();
    let out = target_folder(&root).join("lab-apps/h2spec");
    let mut command = Command::new("go");
    command.current_dir(root.join("lab/h2spec")).args(["build", "-o"]).arg(&out);
    command.arg("github.com/summerwind/h2spec/cmd/h2spec");
    finish(command).context("building h2spec")?;
    Ok(out)
}

/// The words that start the client of `examples/grpc` in this language, or with `server` its server.
///
/// # Errors
///
/// When it cannot be built.
pub(crate) fn example(name: &str) -> anyhow::Result<Vec<String>> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = crate::root();
    let script = root.join("lab/examples/build.sh").display().to_string();
    let out = target_folder(&root).join("lab-apps/examples").display().to_string();
    let words =
        shell::run(&[&script, name, &out]).with_context(|| format!("building examples/grpc: {name}"))?;
    Ok(words.lines().map(str::to_owned).collect())
}

/// Builds a package of the workspace in release mode.
///
/// # Errors
///
/// When cargo fails.
pub(crate) fn cargo_build(root: &Path, package: &str) -> anyhow::Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["build", "--quiet", "--locked", "--release", "--package", package]);
    finish(command)
}

/// The folder that cargo builds into.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

fn finish(mut command: Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
