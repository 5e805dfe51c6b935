//! The command line, as `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use hopline_config::{BindAddress, HostName, StatusAddress};
use hopline_names::{MachineName, Pattern, ServiceName};

/// Reach services on machines behind NATs through a relay that every machine dials outbound.
#[derive(Debug, Parser)]
#[command(name = "hopline", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run relay, agent and sidecar in one process, make gRPC calls through them, and compare each promise with its measurement.
    Demo(Demo),
    /// Run a relay, the only process that listens on a network.
    Relay(Relay),
    /// Create, list and revoke join tokens.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List and remove machines that have joined.
    Machine {
        #[command(subcommand)]
        command: MachineCommand,
    },
    /// Redeem a join token for this machine's certificate.
    Join(Join),
    /// Run an edge: publish this machine's services and open local sockets for remote ones.
    Up(Up),
    /// Connect to one service without a config file.
    Dial(Dial),
    /// Show the status of a running edge or relay; exits with 0 only if it is healthy.
    Status(Status),
    /// Check an edge's config file and report every fault with its line and column.
    Check(Check),
    /// Print a shell completion script.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Keep everything running afterwards and print how to try it by hand.
    #[arg(long)]
    pub(crate) stay: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Inject a real fault that this row must catch; `list` prints the row names.
    #[arg(long = "break", value_name = "ROW")]
    pub(crate) break_row: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Config file; flags override it.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    // Not a comment for rustdoc, to which the brackets of the default are a link.
    #[arg(
        long,
        value_name = "HOST:PORT",
        help = "Address to listen on for edges; `[::]` is every IPv6 and IPv4 address [default: [::]:7443]"
    )]
    pub(crate) listen: Option<BindAddress>,
    /// State folder: certificate authority, tokens, machines; created if missing [default: a per-user folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Status address, loopback HOST:PORT or unix:PATH [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<StatusAddress>,
    /// Host name that requests to the status address may use, besides IP addresses and localhost; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_host: Vec<HostName>,
    /// Grace period for open sessions after SIGTERM [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = hopline_duration::parse_duration)]
    pub(crate) drain: Option<Duration>,
    /// The relay's name, as edges show it [default: this machine's host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a join token and print it on stdout, and nothing else.
    Create(TokenCreate),
    /// List tokens.
    List(RelayState),
    /// Revoke a token; machines that already joined keep their access.
    Revoke(TokenRevoke),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenCreate {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// Address at which machines reach the relay.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) relay: String,
    /// Service names that the machine may publish; repeatable.
    #[arg(long, value_name = "GLOB")]
    pub(crate) publish: Vec<Pattern>,
    /// Service names that the machine may dial; repeatable.
    #[arg(long, value_name = "GLOB")]
    pub(crate) dial: Vec<Pattern>,
    /// Lifetime of the token.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = hopline_duration::parse_duration)]
    pub(crate) ttl: Duration,
    /// Number of machines that may join with it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) uses: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenRevoke {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// The token's id, as `hopline token list` shows it.
    pub(crate) id: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayState {
    /// The relay's state folder [default: as for relay]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List machines that have joined and what they may do.
    List(RelayState),
    /// Remove a machine: a running relay closes its links within a second, and it can't link again.
    ///
    /// Its name becomes available. If the machine still holds a valid token it can join again: see `hopline token revoke`.
    Remove(MachineRemove),
}

#[derive(Debug, clap::Args)]
pub(crate) struct MachineRemove {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// The machine's name, as `hopline machine list` shows it.
    pub(crate) name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Join {
    /// File that holds the token, readable by its owner only; `-` reads stdin.
    #[arg(value_name = "FILE|-")]
    pub(crate) token: PathBuf,
    /// Folder for this machine's key and certificate; created if missing [default: a per-user folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// This machine's name [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    /// Config file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Folder with this machine's key and certificate, as created by `hopline join` [default: as for join]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Dial {
    /// The service's name.
    pub(crate) service: ServiceName,
    /// Local address for applications: unix:PATH, or HOST:PORT on loopback; `-` uses stdin and stdout as the connection.
    #[arg(long, value_name = "ADDR", default_value = "-")]
    pub(crate) listen: String,
    /// Timeout for opening a session.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = hopline_duration::parse_duration)]
    pub(crate) open_timeout: Duration,
    /// Folder with this machine's key and certificate, as created by `hopline join` [default: as for join]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// The status address: HOST:PORT, http://HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:7801")]
    pub(crate) address: String,
    /// Print the raw JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Refresh every second until Ctrl-C; the exit code reflects the last refresh.
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Config file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}
