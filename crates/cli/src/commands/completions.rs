//! `hopline completions`.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;
use crate::files;

pub(crate) fn run(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "hopline", &mut script);
    files::say(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
