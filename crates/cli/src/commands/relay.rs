//! `hopline relay`.

use std::process::ExitCode;

use anyhow::Context as _;
use hopline_admin::Address;
use hopline_config::{MAX_FILE_BYTES, RelayFileConfig, StatusAddress, parse_relay};
use hopline_relay::{Relay, RelayConfig};

use crate::args;
use crate::commands::up::env;
use crate::signals::{How, Stop};
use crate::{files, limits, logging};

pub(crate) async fn run(args: args::Relay, mut stop: Stop) -> anyhow::Result<ExitCode> {
    let file = match &args.config {
        None => RelayFileConfig::default(),
        Some(path) => {
            let text = files::read(path, MAX_FILE_BYTES)?;
            match parse_relay(&text, &env(&path.display().to_string())) {
                Ok(checked) => checked.config,
                Err(faults) => {
                    logging::say(&faults.to_string());
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
    };
    logging::start(&file.log);
    limits::log_open_files();
    let mut config = RelayConfig::new(files::relay_state(args.state.or(file.state))?);
    if let Some(listen) = args.listen.or(file.listen) {
        config.listen = listen.to_string();
    }
    config.name = match args.name {
        Some(name) => name.to_string(),
        None => files::host_name().unwrap_or(config.name),
    };
    let (listen, hosts) = file.admin.map(|admin| (admin.listen, admin.hosts)).unzip();
    let names = hosts.into_iter().flatten().chain(args.admin_host.iter().cloned());
    config.admin_hosts = names.map(|name| name.to_string()).collect();
    config.admin = match args.admin.or(listen) {
        Some(address) => Some(resolve(address).await?),
        None => None,
    };
    if !args.admin_host.is_empty() && !matches!(config.admin, Some(Address::Tcp(_))) {
        anyhow::bail!("--admin-host is for a status address of TCP: give one with --admin HOST:PORT");
    }
    config.liveness = file.keepalive;
    config.answer_timeout = file.answer_timeout;
    config.hold = file.hold.unwrap_or(config.hold);
    let drain = args.drain.or(file.drain).unwrap_or(hopline_config::DEFAULT_DRAIN);
    let relay = tokio::select! {
        relay = Relay::start(config) => relay.context("can't start")?,
        _ = stop.wait() => return Ok(ExitCode::SUCCESS),
    };
    if let Some(address) = relay.admin_addr() {
        tracing::info!(%address, "status address open");
    }
    if stop.wait().await == How::Drain {
        tokio::select! {
            () = relay.drain(drain) => {}
            () = stop.again() => tracing::info!("a second signal: no more waiting"),
        }
    }
    tracing::info!("stopping");
    relay.shutdown().await;
    Ok(ExitCode::SUCCESS)
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
