//! The status address: opened at the start, or as soon as it is free.

use std::time::Duration;

use hopline_admin::{Address, ServeError, Server};
use hopline_config::{HostName, StatusAddress, StatusConfig};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::StatusSource;

/// How long until an address that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Serves the status until `stopped`. An address that is busy or missing is waited for; what is given says where the
/// status is, once it is.
///
/// # Errors
/// An address that can't be one.
pub(crate) async fn serve(
    config: &StatusConfig,
    source: StatusSource,
    mut stopped: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<watch::Receiver<Option<Address>>, ServeError> {
    let address = address(&config.listen);
    let first = Server::bind(&address).await;
    if let Err(error @ ServeError::NotLoopback(_)) = first {
        return Err(error);
    }
    let names: Vec<String> = config.hosts.iter().map(|host: &HostName| host.as_str().to_owned()).collect();
    let (known, shown) = watch::channel(first.as_ref().ok().map(|server| server.local_addr().clone()));
    tasks.spawn(async move {
        let server = match first {
            Ok(server) => server,
            Err(error) => {
                let server = wait_for(&address, &error).await;
                known.send_replace(Some(server.local_addr().clone()));
                tracing::info!(address = %server.local_addr(), "status address open");
                server
            }
        };
        // The sender lives as long as the edge: an error means that it is gone.
        let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
        server.allow_hosts(names).serve(source, stop).await;
    });
    Ok(shown)
}

/// Tries until the address can be opened; one line for each new cause.
async fn wait_for(address: &Address, error: &ServeError) -> Server {
    let mut said = String::new();
    let mut cause = error.to_string();
    loop {
        if said != cause {
            tracing::error!("{cause}; trying again every {} s", AGAIN.as_secs());
            said.clone_from(&cause);
        }
        tokio::time::sleep(AGAIN).await;
        match Server::bind(address).await {
            Ok(server) => return server,
            Err(error) => cause = error.to_string(),
        }
    }
}

fn address(listen: &StatusAddress) -> Address {
    match listen {
        StatusAddress::Unix(path) => Address::Unix(path.clone()),
        // It is an IP address or `localhost`: the file is read by this rule.
        StatusAddress::Tcp { host, port } => Address::tcp(host, *port)
            .unwrap_or_else(|| Address::Tcp((std::net::Ipv4Addr::LOCALHOST, *port).into())),
    }
}
