//! `hopline machine ...`.

use std::fmt::Write as _;
use std::process::ExitCode;

use hopline_config::LogConfig;
use hopline_identity::{list_machines, remove_machine};

use crate::args::{MachineRemove, RelayState};
use crate::commands::token::{list_of, name_unreadable};
use crate::{files, logging};

pub(crate) fn list(args: &RelayState) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    let listing = list_machines(&files::relay_state(args.state.clone())?)?;
    for machine in listing.records {
        let expires = humantime::format_rfc3339_seconds(machine.expires);
        let (publish, dial) = (list_of(&machine.grants.publish), list_of(&machine.grants.dial));
        writeln!(text, "{}  publish {publish}  dial {dial}  certificate until {expires}", machine.name)?;
    }
    files::say(&text)?;
    Ok(name_unreadable(&listing.unreadable))
}

pub(crate) fn remove(args: &MachineRemove) -> anyhow::Result<ExitCode> {
    // A lock that is waited for is spoken of in the log.
    logging::start(&LogConfig::default());
    remove_machine(&files::relay_state(args.state.state.clone())?, &args.name)?;
    Ok(ExitCode::SUCCESS)
}
