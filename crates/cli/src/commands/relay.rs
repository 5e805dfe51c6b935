//! `hopline relay`.

use std::process::ExitCode;

use anyhow::Context as _;
use hopline_admin::Address;
use hopline_config::{Faults, MAX_FILE_BYTES, RelayFileConfig, StatusAddress, parse_relay};
use hopline_relay::{Relay, RelayConfig};

use crate::args;
use crate::commands::up::env;
use crate::logging::Logging;
use crate::signals::{How, Next, Stop};
use crate::{files, limits, logging};

pub(crate) async fn run(args: args::Relay, mut stop: Stop) -> anyhow::Result<ExitCode> {
    let file = match read(&args)? {
        Ok(file) => file,
        Err(faults) => {
            logging::say(&faults.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    let mut logging = logging::start(&file.log);
    limits::log_open_files();
    let start = async { Relay::start(config_of(&args, file).await?).await.context("can't start") };
    let mut relay = tokio::select! {
        relay = start => relay?,
        _ = stop.wait() => return Ok(ExitCode::SUCCESS),
    };
    if let Some(address) = relay.admin_addr() {
        tracing::info!(%address, "status address open");
    }
    let how = loop {
        match stop.next().await {
            Next::Stop(how) => break how,
            Next::Reload => reload(&mut relay, &mut logging, &args).await,
        }
    };
    if how == How::Drain {
        tokio::select! {
            () = relay.drain(relay.drain_time()) => {}
            () = stop.again() => tracing::info!("a second signal: no more waiting"),
        }
    }
    tracing::info!("stopping");
    relay.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// The config file, if there is one.
fn read(args: &args::Relay) -> anyhow::Result<Result<RelayFileConfig, Faults>> {
    let Some(path) = &args.config else { return Ok(Ok(RelayFileConfig::default())) };
    let text = files::read(path, MAX_FILE_BYTES)?;
    Ok(parse_relay(&text, &env(&path.display().to_string())).map(|checked| checked.config))
}

/// The command line and the file behind it.
async fn config_of(args: &args::Relay, file: RelayFileConfig) -> anyhow::Result<RelayConfig> {
    let mut config = RelayConfig::new(files::relay_state(args.state.clone().or(file.state))?);
    if let Some(listen) = args.listen.clone().or(file.listen) {
        config.listen = listen.to_string();
    }
    config.name = match &args.name {
        Some(name) => name.clone(),
        None => files::host_name().unwrap_or(config.name),
    };
    let (listen, hosts) = file.admin.map(|admin| (admin.listen, admin.hosts)).unzip();
    let names = hosts.into_iter().flatten().chain(args.admin_host.iter().cloned());
    config.admin_hosts = names.map(|name| name.to_string()).collect();
    config.admin = match args.admin.clone().or(listen) {
        Some(address) => Some(resolve(address).await?),
        None => None,
    };
    if !args.admin_host.is_empty() && !matches!(config.admin, Some(Address::Tcp(_))) {
        anyhow::bail!("--admin-host is for a status address of TCP: give one with --admin HOST:PORT");
    }
    config.liveness = file.keepalive;
    config.answer_timeout = file.answer_timeout;
    config.hold = file.hold.unwrap_or(config.hold);
    config.drain = args.drain.or(file.drain).unwrap_or(hopline_config::DEFAULT_DRAIN);
    Ok(config)
}

/// Takes over a changed file; one with faults changes nothing.
async fn reload(relay: &mut Relay, logging: &mut Logging, args: &args::Relay) {
    if args.config.is_none() {
        return tracing::info!("nothing to reload: this relay has no config file");
    }
    let file = match read(args) {
        Ok(Ok(file)) => file,
        Ok(Err(faults)) => return tracing::error!("nothing was reloaded: {faults}"),
        Err(error) => return tracing::error!("nothing was reloaded: {}", files::causes(&error)),
    };
    let log = file.log;
    let config = match config_of(args, file).await {
        Ok(config) => config,
        Err(error) => return tracing::error!("nothing was reloaded: {}", files::causes(&error)),
    };
    let done = relay.reload(config);
    let mut not_applied = done.not_applied;
    if !logging.reload(&log) {
        not_applied.push("log");
    }
    tracing::info!(changed = ?done.changed, "config file reloaded");
    if !not_applied.is_empty() {
        tracing::warn!(keys = ?not_applied, "these keys have changed and need a restart");
    }
}

async fn resolve(address: StatusAddress) -> anyhow::Result<Address> {
    match address {
        StatusAddress::Unix(path) => Ok(Address::Unix(path)),
        StatusAddress::Tcp { host, port } => {
            let mut found = tokio::net::lookup_host((host.as_str(), port))
                .await
                .with_context(|| format!("--admin {host}:{port}"))?;
            let first = found.next().with_context(|| format!("--admin {host}:{port}: no address"))?;
            Ok(Address::Tcp(first))
        }
    }
}
