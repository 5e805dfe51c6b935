//! The binary `hopline`: wiring only. What it wires is in the other crates.

mod args;
mod commands;
mod files;
mod logging;
mod signals;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Command, MachineCommand, TokenCommand};

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error).context("can't start")),
    };
    let result = runtime.block_on(run(args.command));
    // Reading stdin may hold a thread for ever: the process does not wait for it.
    runtime.shutdown_background();
    match result {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => commands::demo::run(args).await,
        Command::Relay(args) => commands::relay::run(args).await,
        Command::Token { command: TokenCommand::Create(args) } => commands::token::create(&args),
        Command::Token { command: TokenCommand::List(args) } => commands::token::list(&args),
        Command::Token { command: TokenCommand::Revoke(args) } => commands::token::revoke(&args),
        Command::Machine { command: MachineCommand::List(args) } => commands::machine::list(&args),
        Command::Join(args) => commands::join::run(args).await,
        Command::Up(args) => commands::up::run(args).await,
        Command::Dial(args) => commands::dial::run(args).await,
        Command::Status(args) => commands::status::run(args).await,
        Command::Check(args) => commands::check::run(&args),
        Command::Completions { shell } => commands::completions::run(shell),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    files::say_error(&format!("hopline: {error:#}"));
    ExitCode::FAILURE
}
