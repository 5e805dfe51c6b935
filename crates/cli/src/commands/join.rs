//! `hopline join`.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use hopline_identity::{Token, join};
use zeroize::Zeroizing;

use crate::args::Join;
use crate::commands::token::list_of;
use crate::token_text::{self, MAX_TEXT};
use crate::{files, streams};

/// Bits of a mode that no file with a secret may have: others read or write it, or the group writes it.
const FORBIDDEN: u32 = 0o026;
/// Other names of descriptor 0. They can't always be opened: a socket can't, another user's file can't, and without
/// `/proc` there are none.
const STDIN: [&str; 5] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "/proc/thread-self/fd/0"];

pub(crate) async fn run(args: Join) -> anyhow::Result<ExitCode> {
    let is_stdin = args.token.to_str().is_some_and(|path| STDIN.contains(&path));
    let (bytes, place) = if is_stdin {
        let bytes = streams::read_all_stdin(MAX_TEXT).context("can't read a join token from stdin")?;
        (Zeroizing::new(bytes), "stdin".to_owned())
    } else {
        (read_file(&args.token)?, args.token.display().to_string())
    };
    let word = token_text::read(&bytes).with_context(|| format!("no join token in {place}"))?;
    let token: Token = word.parse().with_context(|| place)?;
    let name = match args.name {
        Some(name) => name,
        None => files::host_name()?,
    };
    let state = files::machine_state(args.state)?;
    let machine = join(&token, &name, &state).await?;
    files::say(&format!(
        "joined {} as {}: may publish {}, may dial {}; key and certificate are in {}\n",
        token.relay(),
        machine.name(),
        list_of(&machine.grants().publish),
        list_of(&machine.grants().dial),
        state.display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A file with a token, if only its owner can read it. What is no file (a pipe of the shell's) has no mode that counts.
fn read_file(path: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("can't open the join token's file {shown}"))?;
    let about = file.metadata().with_context(|| shown.to_string())?;
    let mode = about.permissions().mode() & 0o7777;
    if about.is_file() && mode & FORBIDDEN != 0 {
        anyhow::bail!(
            "{shown} has mode {mode:04o}, so others could read or change the join token in it; if nobody has, run: \
             chmod 600 {shown}; else revoke it and make a new one"
        );
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TEXT + 1));
    file.take(MAX_TEXT as u64 + 1).read_to_end(&mut bytes).with_context(|| format!("can't read {shown}"))?;
    Ok(bytes)
}
