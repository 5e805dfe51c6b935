//! A world: hosts, the chain of relay, agent and sidecar on them (or no chain), and applications.
//!
//! | host | chain | direct |
//! |---|---|---|
//! | `web` | client, sidecar | client |
//! | `relay` | relay | |
//! | `db` | agent, and the server unless it is on `far` | the server |
//! | `far` | the server behind a `forward:` | |

mod targets;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;

use crate::app::{App, Event};
use crate::apps::Language;
use crate::fault::{self, Applied, Fault};
use crate::hosts::Net;
use crate::leftovers::SmallDisk;
use crate::process::{Process, Start};
use crate::{needs, shell, status};

/// For a process to be there, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The port of the gRPC server; the raw server has the next one.
const SERVER_PORT: u16 = 50_051;
const RAW_PORT: u16 = SERVER_PORT + 1;

/// How an application reaches its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Through nothing: the reference.
    Direct,
    /// Through sidecar, relay and agent, the application on a unix socket.
    Unix,
    /// The same with the application on a TCP mapping.
    Tcp,
}

impl Way {
    /// The word for results and pages.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// What a world is made of.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) way: Way,
    /// The server's host: `db`, or `far` for a forward.
    pub(crate) server: &'static str,
    /// `keepalive:` of sidecar and agent.
    pub(crate) sidecar_keepalive: &'static str,
    pub(crate) agent_keepalive: &'static str,
    /// Whether the server permits client keepalive.
    pub(crate) permit: bool,
    /// The server's further flags.
    pub(crate) server_flags: &'static [&'static str],
    /// The host that is behind a NAT.
    pub(crate) behind_nat: Option<&'static str>,
    /// Whether state folders are on small disks of their own.
    pub(crate) small_disks: bool,
    /// Whether the chain's processes have a clock that can be moved.
    pub(crate) faked_clock: bool,
    /// Further keys of the mapping `lab`, each behind a comma.
    pub(crate) mapping_keys: &'static str,
    /// Lines behind the agent's file: further services, indented, then further keys.
    pub(crate) agent_lines: &'static str,
    /// The same for the sidecar and its mappings. `FOLDER` becomes the world's folder.
    pub(crate) sidecar_lines: &'static str,
    /// The relay's config file; none when empty.
    pub(crate) relay_lines: &'static str,
    /// Whether hosts have the TCP of [`Net::plain_slow_start`].
    pub(crate) plain_slow_start: bool,
    /// What bash does before it becomes a process of the chain, or an application; `$LAB_FOLDER` is the world's.
    pub(crate) before: Option<&'static str>,
    /// A further host.
    pub(crate) more: Option<&'static str>,
}

impl Options {
    /// A plain world with the defaults of the product.
    pub(crate) fn plain(way: Way) -> Self {
        Self {
            way,
            server: "db",
            sidecar_keepalive: "default",
            agent_keepalive: "default",
            permit: false,
            server_flags: &[],
            behind_nat: None,
            small_disks: false,
            faked_clock: false,
            mapping_keys: "",
            agent_lines: "",
            sidecar_lines: "",
            relay_lines: "",
            plain_slow_start: false,
            before: None,
            more: None,
        }
    }
}

/// Where programs are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) hopline: PathBuf,
    pub(crate) apps: Vec<Language>,
}

/// Hosts with everything on them. Dropping it ends and removes all.
#[derive(Debug)]
pub(crate) struct World {
    // Before `net`: processes end before their hosts go.
    processes: Vec<Process>,
    apps: Vec<App>,
    disks: Vec<SmallDisk>,
    /// Edges that were added, and their hosts.
    edges: Vec<(String, String)>,
    pub(crate) net: Net,
    folder: PathBuf,
    hopline: PathBuf,
    options: Options,
}

impl World {
    /// Builds the hosts and starts the chain on them, ready for calls.
    ///
    /// # Errors
    ///
    /// When anything of it does not come up.
    pub(crate) fn build(
        number: usize,
        folder: &Path,
        programs: &Programs,
        options: Options,
    ) -> anyhow::Result<Self> {
        let mut world = Self::build_before_edges(number, folder, programs, options)?;
        world.start_edges()?;
        Ok(world)
    }

    /// The same without starting the edges.
    ///
    /// # Errors
    ///
    /// When anything of it does not come up.
    pub(crate) fn build_before_edges(
        number: usize,
        folder: &Path,
        programs: &Programs,
        options: Options,
    ) -> anyhow::Result<Self> {
        let mut hosts = vec!["web", "relay", "db"];
        if options.server == "far" {
            hosts.push("far");
        }
        hosts.extend(options.more);
        fs::create_dir_all(folder)?;
        let net = Net::build(number, &hosts, options.behind_nat)?;
        if options.plain_slow_start {
            net.plain_slow_start()?;
        }
        let hopline = programs.hopline.clone();
        let mut world = Self {
            processes: Vec::new(),
            apps: Vec::new(),
            disks: Vec::new(),
            edges: Vec::new(),
            net,
            folder: folder.to_path_buf(),
            hopline,
            options,
        };
        if world.options.small_disks {
            for name in ["relay", "agent", "sidecar"] {
                world.disks.push(SmallDisk::mount(&world.folder.join(name))?);
            }
        }
        if world.options.way != Way::Direct {
            world.start_relay()?;
            world.join("agent", "db-1", "db", &["--publish", "*"])?;
            world.join("sidecar", "web-1", "web", &["--dial", "*"])?;
            world.write_files()?;
        }
        Ok(world)
    }

    /// Starts agent and sidecar, if there is a chain, and waits until they are ready.
    ///
    /// # Errors
    ///
    /// When one does not come up.
    pub(crate) fn start_edges(&mut self) -> anyhow::Result<()> {
        if self.options.way == Way::Direct {
            return Ok(());
        }
        self.start_edge("agent")?;
        self.start_edge("sidecar")?;
        for edge in ["agent", "sidecar"] {
            let socket = self.status_socket(edge);
            shell::until(&format!("{edge} ready"), PATIENCE, || status::ready(&socket).then_some(()))
                .with_context(|| self.last_words(edge))?;
        }
        Ok(())
    }

    /// Starts the relay, as at first.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub(crate) fn start_relay(&mut self) -> anyhow::Result<()> {
        self.spawn_relay()?;
        let socket = self.status_socket("relay");
        shell::until("the relay", PATIENCE, || status::ready(&socket).then_some(()))
            .with_context(|| self.last_words("relay"))
    }

    /// Starts the relay and does not wait for it.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn spawn_relay(&mut self) -> anyhow::Result<()> {
        let state = self.path("relay");
        let admin = format!("unix:{}", self.status_socket("relay").display());
        let listen = format!("{}:7443", self.net.address("relay"));
        let mut words =
            vec!["relay", "--name", "relay", "--listen", &listen, "--state", &state, "--admin", &admin];
        let file = self.path("relay.yaml");
        if !self.options.relay_lines.is_empty() {
            fs::write(&file, self.options.relay_lines)?;
            words.extend(["-c", &file]);
        }
        self.start("relay", "relay", &words)
    }

    /// Joins one more edge on a host under this name, with a right such as `--dial` to any name, and starts it with this
    /// config, behind a `status:` of its own.
    ///
    /// # Errors
    ///
    /// When it cannot join or be started. It may not be ready yet.
    pub(crate) fn add_edge(
        &mut self,
        name: &str,
        host: &str,
        right: &str,
        config: &str,
    ) -> anyhow::Result<()> {
        self.add_edge_of(name, host, &[right, "*"], config)
    }

    /// The same with these rights, as `hopline token create` takes them.
    ///
    /// # Errors
    ///
    /// As [`Self::add_edge`].
    pub(crate) fn add_edge_of(
        &mut self,
        name: &str,
        host: &str,
        rights: &[&str],
        config: &str,
    ) -> anyhow::Result<()> {
        self.join(name, name, host, rights)?;
        self.edges.push((name.to_owned(), host.to_owned()));
        let status = format!("status: \"unix:{}\"\n", self.status_socket(name).display());
        fs::write(self.path(&format!("{name}.yaml")), status + config)?;
        self.start_edge(name)
    }

    /// Starts an edge, `agent`, `sidecar` or one that was added, as at first.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start_edge(&mut self, name: &str) -> anyhow::Result<()> {
        let (file, state) = (self.path(&format!("{name}.yaml")), self.path(name));
        let added = self.edges.iter().find(|(edge, _)| edge == name).map(|(_, host)| host.clone());
        let host = added.unwrap_or_else(|| if name == "agent" { "db" } else { "web" }.to_owned());
        self.start(&host, name, &["up", "-c", &file, "--state", &state])
    }

    /// Starts a process of `hopline` on a host, in place of one of the same name.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start(&mut self, host: &str, name: &str, words: &[&str]) -> anyhow::Result<()> {
        self.processes.retain(|process| process.name() != name);
        let mut all = vec![self.hopline.display().to_string()];
        all.extend(words.iter().map(|&word| word.to_owned()));
        let mut environment =
            vec![("RUST_LOG".to_owned(), std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned()))];
        if self.options.faked_clock {
            environment.extend(self.faked_clock()?);
        }
        let how = Start { environment, before: self.before(), ..Start::default() };
        self.processes.push(Process::start(&self.net, host, name, &self.folder, &all, &how)?);
        Ok(())
    }

    /// The words that do what [`Options::before`] says, and then become the program that follows them.
    fn before(&self) -> Vec<String> {
        let Some(script) = self.options.before else { return Vec::new() };
        let script = format!("LAB_FOLDER={}; {script}; exec \"$@\"", self.folder.display());
        ["bash", "-c", &script, "bash"].map(str::to_owned).to_vec()
    }

    /// What libfaketime reads. Only the wall clock is moved: the monotonic one never jumps on a real machine.
    fn faked_clock(&self) -> anyhow::Result<Vec<(String, String)>> {
        let file = fault::clock(&self.folder);
        if !file.exists() {
            fault::set_clock(&file, 0)?;
        }
        let library = needs::libfaketime().context("libfaketime is missing")?;
        let words = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok(words.map(|(key, value)| (key.to_owned(), value)).to_vec())
    }

    fn join(&self, name: &str, machine: &str, host: &str, rights: &[&str]) -> anyhow::Result<()> {
        let hopline = self.hopline.display().to_string();
        let relay = format!("{}:7443", self.net.address("relay"));
        let state = self.path("relay");
        let token = shell::run(
            &[&[&hopline[..], "token", "create", "--state", &state, "--relay", &relay], rights].concat(),
        )?;
        let namespace = self.net.namespace(host);
        let own = self.path(name);
        let join =
            ["ip", "netns", "exec", &namespace, &hopline, "join", "-", "--state", &own, "--name", machine];
        shell::run_with(&join, &token).map(drop)
    }

    /// Starts a server on its host and waits until it listens; gives its index.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub(crate) fn start_server(&mut self, language: &Language) -> anyhow::Result<usize> {
        let mut words = vec!["server".to_owned(), "--listen".to_owned(), self.served()];
        if self.options.permit {
            words.push("--permit-keepalive".to_owned());
        }
        words.extend(self.options.server_flags.iter().map(|&flag| flag.to_owned()));
        let host = self.options.server;
        let index = self.start_app(host, "server", &language.server, &words)?;
        self.apps[index].expect("listening", "", PATIENCE)?;
        Ok(index)
    }

    /// Starts a client on `web` that dials `target`; gives its index.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub(crate) fn start_client(
        &mut self,
        name: &str,
        language: &Language,
        target: &str,
        flags: &[&str],
    ) -> anyhow::Result<usize> {
        let app = self.spawn_client(name, language, target, flags)?;
        self.apps.push(app);
        Ok(self.apps.len() - 1)
    }

    /// The same, as the caller's own, who drops it before the world.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub(crate) fn spawn_client(
        &self,
        name: &str,
        language: &Language,
        target: &str,
        flags: &[&str],
    ) -> anyhow::Result<App> {
        let mut words = vec!["client".to_owned(), "--target".to_owned(), target.to_owned()];
        words.extend(flags.iter().map(|&flag| flag.to_owned()));
        let app = self.spawn_app("web", name, &language.client, &words)?;
        app.expect("ready", "", PATIENCE)?;
        Ok(app)
    }

    /// Starts a raw TCP actor on a host; gives its index.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub(crate) fn start_actor(&mut self, host: &str, name: &str) -> anyhow::Result<usize> {
        let own = std::env::current_exe()?.display().to_string();
        let index = self.start_app(host, name, &[own, "actor".to_owned()], &[])?;
        self.apps[index].expect("ready", "", PATIENCE)?;
        Ok(index)
    }

    /// Starts a raw server behind the service `raw`; gives its index.
    ///
    /// # Errors
    ///
    /// When it does not come up.
    pub(crate) fn start_raw_server(&mut self) -> anyhow::Result<usize> {
        let index = self.start_actor("db", "server")?;
        let address = match self.options.way {
            Way::Direct => self.raw_target(),
            Way::Unix | Way::Tcp => format!("127.0.0.1:{RAW_PORT}"),
        };
        self.apps[index].say(&serde_json::json!({"op": "listen", "address": address}))?;
        self.apps[index].expect("listening", "", PATIENCE)?;
        Ok(index)
    }

    fn start_app(
        &mut self,
        host: &str,
        name: &str,
        program: &[String],
        words: &[String],
    ) -> anyhow::Result<usize> {
        let app = self.spawn_app(host, name, program, words)?;
        self.apps.push(app);
        Ok(self.apps.len() - 1)
    }

    /// Starts a program on a host that is told nothing and prints into `NAME.log` of the world's folder.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(crate) fn start_program(&mut self, host: &str, name: &str, words: &[String]) -> anyhow::Result<()> {
        let process = Process::start(&self.net, host, name, &self.folder, words, &Start::default())?;
        self.processes.push(process);
        Ok(())
    }

    fn spawn_app(&self, host: &str, name: &str, program: &[String], words: &[String]) -> anyhow::Result<App> {
        let mut all = program.to_vec();
        all.extend(words.iter().cloned());
        let how = Start { piped: true, before: self.before(), ..Start::default() };
        App::take(Process::start(&self.net, host, name, &self.folder, &all, &how)?)
    }

    /// An application by its index.
    pub(crate) fn app(&mut self, index: usize) -> &mut App {
        &mut self.apps[index]
    }

    /// What an application has said so far.
    pub(crate) fn events(&self, index: usize) -> Vec<Event> {
        self.apps[index].events()
    }

    /// A process of the world by its name: `relay`, `agent`, `sidecar`, `server`, or a client's.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn process(&self, name: &str) -> anyhow::Result<&Process> {
        let apps = self.apps.iter().map(App::process);
        let found = self.processes.iter().chain(apps).find(|process| process.name() == name);
        found.with_context(|| format!("no process {name}"))
    }

    /// Puts a fault in force, at a moment that is known.
    ///
    /// # Errors
    ///
    /// As [`fault::apply`]; [`fault::Late`] when packets were to be dropped and the kernel took its time: what is
    /// counted from that moment would be wrong.
    pub(crate) fn apply(&self, fault: &Fault) -> anyhow::Result<Applied> {
        let applied = self.apply_some_time(fault)?;
        applied.check_moment(fault)?;
        Ok(applied)
    }

    /// The same, whenever the kernel comes to it.
    ///
    /// # Errors
    ///
    /// As [`fault::apply`].
    pub(crate) fn apply_some_time(&self, fault: &Fault) -> anyhow::Result<Applied> {
        fault::apply(fault, &self.net, &self.folder, |name| self.process(name))
    }

    /// Drops every packet between two hosts, both ways.
    ///
    /// # Errors
    ///
    /// As [`fault::apply`].
    pub(crate) fn cut_path(&self, from: &str, to: &str) -> anyhow::Result<Applied> {
        self.apply(&Fault::Drop { from: from.to_owned(), to: to.to_owned(), both: true })
    }

    /// Ends a process of the chain by a signal and waits for its end; gives when the signal was sent.
    ///
    /// # Errors
    ///
    /// When there is none, or it does not end within 60 s.
    pub(crate) fn end(&mut self, name: &str, signal: Signal) -> anyhow::Result<f64> {
        let at_ms = self.signal(name, signal)?;
        self.wait_end(name)?;
        Ok(at_ms)
    }

    /// Whether a process of the chain has ended, or was never started.
    pub(crate) fn has_ended(&mut self, name: &str) -> bool {
        let found = self.processes.iter_mut().find(|process| process.name() == name);
        found.is_none_or(|process| !process.runs())
    }

    /// Waits until a process of the chain has ended.
    ///
    /// # Errors
    ///
    /// When there is none, or it does not end within 60 s.
    pub(crate) fn wait_end(&mut self, name: &str) -> anyhow::Result<Option<i32>> {
        let found = self.processes.iter_mut().find(|process| process.name() == name);
        found.with_context(|| format!("no process {name}"))?.wait(Duration::from_secs(60))
    }

    /// Sends a signal to a process.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn signal(&self, name: &str, signal: Signal) -> anyhow::Result<f64> {
        let at_ms = shell::now_ms();
        self.process(name)?.signal(signal)?;
        Ok(at_ms)
    }

    /// `/status` of `relay`, `agent` or `sidecar`.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(crate) fn status(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        status::read(&self.status_socket(name))
    }

    /// `reason@hop` of the sidecar's mapping; empty without a chain.
    ///
    /// # Errors
    ///
    /// When the sidecar does not answer.
    pub(crate) fn reason(&self) -> anyhow::Result<String> {
        if self.options.way == Way::Direct {
            return Ok(String::new());
        }
        let status = self.status("sidecar")?;
        Ok(status::reason(status::entry(&status, "mappings", "lab")))
    }

    /// What a process of the chain, or an application, has said in its log.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// The socket on which a process of the chain serves its status.
    pub(crate) fn status_socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.status"))
    }

    /// A file in the world's folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn last_words(&self, name: &str) -> String {
        self.process(name).map(Process::last_words).unwrap_or_default()
    }
}
