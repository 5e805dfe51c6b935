//! The command line, as `--help` shows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use hopline_config::{BindAddress, HostName, StatusAddress};
use hopline_names::{MachineName, Pattern, ServiceName};

/// Machines behind NATs reach each other's services through a relay that everyone dials.
#[derive(Debug, Parser)]
#[command(name = "hopline", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole path in this process, make calls through it, and print what was promised and measured.
    Demo(Demo),
    /// Run a relay: the one process that listens on a network.
    Relay(Relay),
    /// Make, list and revoke join tokens.
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// List the machines that have joined, and remove them.
    Machine {
        #[command(subcommand)]
        command: MachineCommand,
    },
    /// Turn a join token into this machine's certificate.
    Join(Join),
    /// Run an edge: publish this machine's services, open local sockets for remote ones.
    Up(Up),
    /// Reach one service, without a config file.
    Dial(Dial),
    /// Show what a running edge or relay knows of itself; exit 0 only if it is healthy.
    Status(Status),
    /// Check an edge's config file: all its faults at once, each with line and column.
    Check(Check),
    /// Print completions for a shell on stdout.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Keep everything running afterwards, and print how to try it by hand.
    #[arg(long)]
    pub(crate) stay: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Put one real fault under this row, to see it turn red; `list` names the rows.
    #[arg(long = "break", value_name = "ROW")]
    pub(crate) break_row: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Config file; what the flags say goes before what it says.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    // Not a comment for rustdoc, to which the brackets of the default are a link.
    #[arg(
        long,
        value_name = "HOST:PORT",
        help = "Where edges connect; `[::]` is every address of IPv6 and IPv4 [default: [::]:7443]"
    )]
    pub(crate) listen: Option<BindAddress>,
    /// Folder of the authority, the tokens and the machines; made if it is missing [default: a folder of this user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Status address, loopback HOST:PORT or unix:PATH [default: none]
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<StatusAddress>,
    /// A host name under which the status may be asked for, beside IP addresses and localhost; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) admin_host: Vec<HostName>,
    /// How long open sessions may run on after SIGTERM [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = hopline_config::parse_duration)]
    pub(crate) drain: Option<Duration>,
    /// The relay's name, shown to its edges [default: this machine's host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<MachineName>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print one new join token on stdout, nothing else.
    Create(TokenCreate),
    /// List the tokens.
    List(RelayState),
    /// Make a token useless. Machines that joined with it stay.
    Revoke(TokenRevoke),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenCreate {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// Where the machine will reach the relay.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) relay: String,
    /// Names that the machine may publish; may be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) publish: Vec<Pattern>,
    /// Names that the machine may dial; may be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) dial: Vec<Pattern>,
    /// How long the token can be used.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = hopline_config::parse_duration)]
    pub(crate) ttl: Duration,
    /// How many machines may join with it.
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
    /// The relay's state folder [default: the folder that `hopline relay` takes by default]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List the machines that have joined, and what they may do.
    List(RelayState),
    /// Forget a machine: a running relay ends its links within a second, and it can't link again.
    ///
    /// Its name is free then. A token that it still has could be redeemed again: see `hopline token revoke`.
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
    /// File with the token, which only its owner may read; `-` is stdin.
    #[arg(value_name = "FILE|-")]
    pub(crate) token: PathBuf,
    /// Folder for this machine's key and certificate; made if it is missing [default: a folder of this user]
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
    /// Folder of this machine's key and certificate, as `hopline join` made it [default: as for join]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Dial {
    /// The service's name.
    pub(crate) service: ServiceName,
    /// Where applications connect: unix:PATH, HOST:PORT on loopback, or `-`: nowhere, stdin and stdout are the connection.
    #[arg(long, value_name = "ADDR", default_value = "-")]
    pub(crate) listen: String,
    /// How long an open may take.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = hopline_config::parse_duration)]
    pub(crate) open_timeout: Duration,
    /// Folder of this machine's key and certificate, as `hopline join` made it [default: as for join]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// The status address: HOST:PORT, http://HOST:PORT or unix:PATH.
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:7801")]
    pub(crate) address: String,
    /// Print the JSON as it is.
    #[arg(long)]
    pub(crate) json: bool,
    /// Show it anew every second, until Ctrl-C; the exit code is then that of what was shown last.
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Config file.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}
