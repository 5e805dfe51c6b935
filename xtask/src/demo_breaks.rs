//! Shows that each row of `hopline demo` can turn red.
//!
//! `hopline demo --break ROW` puts one real fault where that row looks. Here the demo runs once per row;
//! exactly that row must be red then, and the exit code must say so. A run without a fault must be all held.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// Runs the demo whole, and then once for each of `rows` (all when empty).
pub(crate) fn run(root: &Path, bin: Option<PathBuf>, rows: &[String]) -> anyhow::Result<()> {
    let bin = match bin {
        Some(bin) => bin,
        None => build(root)?,
    };
    let names = row_names(&bin)?;
    if let Some(unknown) = rows.iter().find(|row| !names.contains(row)) {
        bail!("no row is called {unknown:?}; the rows are {}", names.join(", "));
    }
    let chosen = if rows.is_empty() { &names[..] } else { rows };

    let mut wrong = Vec::new();
    if rows.is_empty() {
        note(&mut wrong, "no fault", judge(&demo(&bin, &["--json"])?, None));
    }
    for row in chosen {
        note(&mut wrong, row, judge(&demo(&bin, &["--json", "--break", row])?, Some(row)));
    }
    ensure!(wrong.is_empty(), "{} of the runs were not as they must be: {}", wrong.len(), wrong.join(", "));
    Ok(())
}

/// Builds the binary and returns its path, as cargo reports it.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["build", "--package", "hopline-cli", "--message-format", "json"]);
    let built = command.stderr(std::process::Stdio::inherit()).output().context("running cargo")?;
    ensure!(built.status.success(), "cargo build failed");
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo named no executable")
}

fn demo(bin: &Path, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(bin);
    command.arg("demo").args(arguments);
    command.output().with_context(|| format!("running {}", bin.display()))
}

fn row_names(bin: &Path) -> anyhow::Result<Vec<String>> {
    let output = demo(bin, &["--break", "list"])?;
    ensure!(output.status.success(), "`demo --break list` failed: {}", stderr(&output));
    let names: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(!names.is_empty(), "`demo --break list` printed no name");
    Ok(names)
}

/// `Ok` with one line when exactly the row `broken` is red and the exit code agrees.
fn judge(output: &Output, broken: Option<&str>) -> Result<String, String> {
    let table: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("no table on stdout ({error}); stderr: {}", stderr(output)))?;
    let rows = table["rows"].as_array().ok_or("the table has no rows")?;
    let red: Vec<&Value> = rows.iter().filter(|row| row["held"] != true).collect();
    let names: Vec<&str> = red.iter().filter_map(|row| row["name"].as_str()).collect();
    if names != Vec::from_iter(broken) {
        return Err(format!("red are {names:?}: {}", measured(&red)));
    }
    let code = output.status.code();
    if (code == Some(0)) != broken.is_none() || code.is_none() {
        return Err(format!("the exit was {}", output.status));
    }
    Ok(if broken.is_some() { measured(&red) } else { format!("all {} rows held", rows.len()) })
}

fn measured(rows: &[&Value]) -> String {
    let all: Vec<&str> = rows.iter().filter_map(|row| row["measured"].as_str()).collect();
    all.join(" | ")
}

#[expect(clippy::print_stdout, reason = "the chore's report goes to the terminal")]
fn note(wrong: &mut Vec<String>, what: &str, verdict: Result<String, String>) {
    match verdict {
        Ok(line) => println!("as it must be: {what}: {line}"),
        Err(line) => {
            println!("WRONG: {what}: {line}");
            wrong.push(what.to_owned());
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn output(code: i32, rows: &str) -> Output {
        let stdout = format!("{{\"rows\": [{rows}]}}").into_bytes();
        Output { status: ExitStatus::from_raw(code << 8), stdout, stderr: Vec::new() }
    }

    const GREEN: &str = r#"{"name": "a", "held": true, "measured": "1"}"#;
    const RED: &str = r#"{"name": "b", "held": false, "measured": "2"}"#;

    #[test]
    fn one_red_row_and_a_failed_exit_are_right_for_that_row_only() {
        let both = format!("{GREEN},{RED}");
        assert_eq!(judge(&output(1, &both), Some("b")), Ok("2".to_owned()));
        judge(&output(1, &both), Some("a")).unwrap_err();
        judge(&output(1, &both), None).unwrap_err();
        judge(&output(0, &both), Some("b")).unwrap_err();
    }

    #[test]
    fn a_run_without_a_fault_must_be_green_and_exit_0() {
        assert_eq!(judge(&output(0, GREEN), None), Ok("all 1 rows held".to_owned()));
        judge(&output(1, GREEN), None).unwrap_err();
        judge(&output(0, GREEN), Some("a")).unwrap_err();
    }

    #[test]
    fn a_death_by_signal_and_an_empty_stdout_are_wrong() {
        let mut dead = output(1, RED);
        dead.status = ExitStatus::from_raw(9);
        judge(&dead, Some("b")).unwrap_err();
        let mut silent = output(1, RED);
        silent.stdout.clear();
        judge(&silent, Some("b")).unwrap_err();
    }
}
