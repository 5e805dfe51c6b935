//! The binary `hopline`: wiring only. What it wires is in the other crates.

mod args;
mod commands;
mod files;
mod limits;
mod logging;
mod signals;
mod streams;
mod token_text;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::args::{Args, Command, MachineCommand, TokenCommand};
use crate::signals::Signals;
use crate::token_text::Exposed;

/// The system's own keeps what sessions have used: of 330 MiB in buffers it gave back none while anything small lay
/// between them. This one gives back all but a few within a second.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code of a command line that is no good; the parser has the same.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything else: a signal may come in the first millisecond.
    let signals = Signals::decide();
    logging::catch_panics();
    let result = match signals {
        Ok(signals) => start(signals),
        Err(error) => Err(anyhow::Error::new(error).context("can't start: catching signals")),
    };
    let code = result.unwrap_or_else(|error| {
        logging::say(&format!("hopline: {}", files::causes(&error)));
        ExitCode::FAILURE
    });
    logging::flush();
    code
}

fn start(signals: Signals) -> anyhow::Result<ExitCode> {
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    // The parser repeats what it does not understand.
    if let Some(exposed) = Exposed::find(&given) {
        logging::say(&format!("hopline: {}", exposed.advice()));
        return Ok(ExitCode::from(USAGE));
    }
    let args = Args::parse();
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("can't start")?;
    let result = runtime.block_on(run(args.command, signals));
    // Reading stdin may hold a thread for ever: the process does not wait for it.
    runtime.shutdown_background();
    result
}

async fn run(command: Command, signals: Signals) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => commands::demo::run(args, signals.listen()?).await,
        Command::Relay(args) => commands::relay::run(args, signals.listen()?).await,
        Command::Up(args) => commands::up::run(args, signals.listen()?).await,
        Command::Dial(args) => commands::dial::run(args, signals.listen()?).await,
        Command::Status(args) if args.watch => commands::status::watch(args, signals.listen()?).await,
        // What follows ends by itself, and any signal may end it.
        Command::Status(args) => commands::status::run(signals.leave(args)?).await,
        Command::Join(args) => commands::join::run(signals.leave(args)?).await,
        Command::Token { command } => match signals.leave(command)? {
            TokenCommand::Create(args) => commands::token::create(&args),
            TokenCommand::List(args) => commands::token::list(&args),
            TokenCommand::Revoke(args) => commands::token::revoke(&args),
        },
        Command::Machine { command } => match signals.leave(command)? {
            MachineCommand::List(args) => commands::machine::list(&args),
            MachineCommand::Remove(args) => commands::machine::remove(&args),
        },
        Command::Check(args) => commands::check::run(&signals.leave(args)?),
        Command::Completions { shell } => commands::completions::run(signals.leave(shell)?),
    }
}
