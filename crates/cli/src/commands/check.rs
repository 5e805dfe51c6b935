//! `hopline check`.

use std::process::ExitCode;

use crate::args::Check;
use crate::commands::up;
use crate::files;

pub(crate) fn run(args: &Check) -> anyhow::Result<ExitCode> {
    let checked = match up::parse(&args.config)? {
        Ok(checked) => checked,
        Err(faults) => {
            files::say(&format!("{faults}\n"))?;
            return Ok(ExitCode::FAILURE);
        }
    };
    for notice in &checked.notices {
        files::say(&format!("{notice}\n"))?;
    }
    let (services, mappings) = (checked.config.services.len(), checked.config.connect.len());
    files::say(&format!("{}: good: {services} services, {mappings} mappings\n", args.config.display()))?;
    Ok(ExitCode::SUCCESS)
}
