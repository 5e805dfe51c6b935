//! `hopline demo`.

use std::process::ExitCode;

use hopline_config::LogConfig;
use hopline_demo::DemoOptions;

use crate::args::Demo;
use crate::logging;
use crate::signals::Stop;

pub(crate) async fn run(args: Demo, mut stop: Stop) -> anyhow::Result<ExitCode> {
    // What the demo breaks on purpose is told in its table.
    logging::start(&LogConfig { level: hopline_config::LogLevel::Error, ..LogConfig::default() });
    let options = DemoOptions { stay: args.stay, json: args.json, break_row: args.break_row };
    let stopped = async {
        stop.wait().await;
    };
    let held = hopline_demo::run(options, stopped, &mut crate::streams::Stdout).await?;
    Ok(if held { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
