//! `hopline join`.

use std::process::ExitCode;

use anyhow::Context as _;
use hopline_identity::{MAX_TOKEN_LEN, Token, join};

use crate::args::Join;
use crate::commands::token::list_of;
use crate::files;

pub(crate) async fn run(args: Join) -> anyhow::Result<ExitCode> {
    let stdin = args.token.as_os_str() == "-";
    let path = if stdin { std::path::Path::new("/dev/stdin") } else { args.token.as_path() };
    let text = files::read(path, MAX_TOKEN_LEN)?;
    let text = String::from_utf8(text).ok().context("the token is not text")?;
    let token: Token = text.trim().parse()?;
    let name = match args.name {
        Some(name) => name.to_string(),
        None => files::host_name()?,
    };
    let state = files::machine_state(args.state)?;
    let machine = join(&token, &name, &state).await?;
    files::say(&format!(
        "joined {} as {}: may publish {}, may dial {}; key and certificate are in {}\n",
        token.relay(),
        machine.name(),
        list_of(machine.publish()),
        list_of(machine.dial()),
        state.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}
