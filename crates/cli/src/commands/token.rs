//! `hopline token ...`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::SystemTime;

use hopline_config::LogConfig;
use hopline_identity::{StateError, TokenSpec, create_token, list_tokens, revoke_token};
use hopline_names::{Grants, Pattern};
use zeroize::Zeroizing;

use crate::args::{RelayState, TokenCreate, TokenRevoke};
use crate::{files, logging, streams};

pub(crate) fn create(args: &TokenCreate) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        !(args.publish.is_empty() && args.dial.is_empty()),
        "say what the machine may do: --publish GLOB for services of its own, --dial GLOB for those of others"
    );
    let spec = TokenSpec {
        relay: args.relay.clone(),
        grants: Grants { publish: args.publish.clone(), dial: args.dial.clone() },
        ttl: args.ttl,
        uses: args.uses,
    };
    anyhow::ensure!(
        !streams::was_stdout_closed(),
        "stdout is closed, so no token was made: it would be lost"
    );
    let state = files::relay_state(args.state.state.clone())?;
    // A lock that is waited for is spoken of in the log.
    logging::start(&LogConfig::default());
    let token = create_token(&state, &spec, SystemTime::now())?;
    let line = Zeroizing::new(format!("{}\n", token.reveal().as_str()));
    if let Err(error) = streams::write_stdout(line.as_bytes()) {
        // Whoever was to have it has a part of it at most.
        let id = token.id();
        return Err(match revoke_token(&state, id) {
            Ok(()) => anyhow::anyhow!("the token could not be written to stdout ({error}); it was revoked"),
            Err(revoking) => anyhow::anyhow!(
                "the token could not be written to stdout ({error}), nor revoked ({revoking}): run hopline token revoke {id}"
            ),
        });
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list(args: &RelayState) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    let listing = list_tokens(&files::relay_state(args.state.clone())?)?;
    for token in listing.records {
        let left = token.expires.duration_since(SystemTime::now()).ok();
        let left = left.map_or("expired".to_owned(), |left| {
            format!("{} left", humantime::format_duration(std::time::Duration::from_secs(left.as_secs())))
        });
        writeln!(
            text,
            "{}  {} of {} uses left  {left}  publish {}  dial {}",
            token.id,
            token.uses_left,
            token.uses,
            list_of(&token.grants.publish),
            list_of(&token.grants.dial)
        )?;
    }
    files::say(&text)?;
    Ok(name_unreadable(&listing.unreadable))
}

/// Names the records that could not be listed; with one, a list is no success.
pub(crate) fn name_unreadable(unreadable: &[StateError]) -> ExitCode {
    for error in unreadable {
        logging::say(&format!("hopline: {error}"));
    }
    if unreadable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn revoke(args: &TokenRevoke) -> anyhow::Result<ExitCode> {
    logging::start(&LogConfig::default());
    revoke_token(&files::relay_state(args.state.state.clone())?, &args.id)?;
    Ok(ExitCode::SUCCESS)
}

/// Patterns as a person reads them.
pub(crate) fn list_of(patterns: &[Pattern]) -> String {
    let texts: Vec<&str> = patterns.iter().map(Pattern::as_str).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(",") }
}
