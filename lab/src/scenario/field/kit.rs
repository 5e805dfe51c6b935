//! What the scenarios of field reports share: a raw server and a raw client that do scripts (`crate::actor`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::super::{Case, Figure, Pace, Scenario};
use crate::app::Event;
use crate::measure::Held;
use crate::result::Bound;
use crate::shell;
use crate::world::{Options, Way, World};

/// For what should be there at once, on a busy machine.
pub(in crate::scenario) const SOON: Duration = Duration::from_secs(30);

/// What most of these scenarios are: raw, directly and by TCP, side by side with others, once.
pub(in crate::scenario) const BASE: Scenario = Scenario {
    name: "",
    promise: "",
    what: "",
    figures: &[],
    ways: &[Way::Direct, Way::Tcp],
    speaks_grpc: false,
    pace: Pace::Waits,
    runs: 1,
    seconds: 10,
    smoke: false,
    open: None,
    run: |_| Ok(()),
};

/// The other end of the first network hop from `web`.
pub(super) fn far_end(way: Way) -> &'static str {
    if way == Way::Direct { "db" } else { "relay" }
}

/// So many seconds.
pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A figure that no article has.
pub(in crate::scenario) const fn figure(
    id: &'static str,
    what: &'static str,
    unit: &'static str,
    bound: Bound,
) -> Figure {
    Figure { id, what, unit, article: "", bound }
}

/// Further services for scenarios that dial what is not there, and the mappings for them: `closed` has no server, `hole`
/// is an address that nobody has, and that swallows what it is sent.
pub(in crate::scenario) const NOBODY: (&str, &str) = (
    "  closed: { tcp: { tcp: 50099 } }\n  hole: { tcp: { forward: \"10.64.0.99:50099\" } }\n",
    "  closed: { listen: \"127.0.0.1:7903\" }\n  hole: { listen: \"127.0.0.1:7904\" }\n",
);

/// Makes packets to 10.64.0.99 leave this host and arrive nowhere.
///
/// # Errors
///
/// When `ip` fails.
pub(in crate::scenario) fn dig_hole(world: &World, host: &str) -> anyhow::Result<()> {
    let namespace = world.net.namespace(host);
    let address = ["10.64.0.99", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"];
    shell::run(&[&["ip", "-n", &namespace, "neigh", "replace"][..], &address].concat()).map(drop)
}

/// A world with these services.
pub(in crate::scenario) fn with_nobody(case: &Case<'_>) -> Options {
    Options { agent_lines: NOBODY.0, sidecar_lines: NOBODY.1, ..Options::plain(case.way) }
}

/// A world with a raw server and a raw client.
#[derive(Debug)]
pub(in crate::scenario) struct Raw {
    pub(in crate::scenario) world: World,
    pub(in crate::scenario) server: usize,
    pub(in crate::scenario) client: usize,
    /// The proxy on the way, if there is one.
    pub(in crate::scenario) proxy: Option<usize>,
}

impl Raw {
    /// With a server that does `script` on each connection; it is called `server`.
    ///
    /// # Errors
    ///
    /// When something does not come up.
    pub(in crate::scenario) fn start(case: &Case<'_>, script: Json) -> anyhow::Result<Self> {
        Self::start_with(case, Options::plain(case.way), script)
    }

    /// The same in a world with these options.
    ///
    /// # Errors
    ///
    /// When something does not come up.
    pub(in crate::scenario) fn start_with(
        case: &Case<'_>,
        options: Options,
        script: Json,
    ) -> anyhow::Result<Self> {
        let mut world = case.world_with(options)?;
        let server = world.start_actor(world.server_host(), "server")?;
        let client = world.start_actor("web", "client")?;
        let mut raw = Self { world, server, client, proxy: None };
        let address = raw.world.raw_listen();
        raw.serve("server", &address, script)?;
        Ok(raw)
    }

    /// The same with a proxy on its way: before the relay, whose edges find it at port 7444 of the relay's host, or
    /// directly before the server. `limits` are those of the actor's `proxy`.
    ///
    /// # Errors
    ///
    /// When something does not come up.
    pub(super) fn start_behind(
        case: &Case<'_>,
        options: Options,
        script: Json,
        limits: &Json,
    ) -> anyhow::Result<Self> {
        let mut world = case.world_before_edges(options)?;
        let proxy = world.start_actor("relay", "proxy")?;
        let to = if case.way == Way::Direct {
            world.raw_listen()
        } else {
            format!("{}:7443", world.net.address("relay"))
        };
        let script_of_proxy = json!([{"proxy": {"to": to, "limits": limits}}]);
        let line =
            json!({"op": "serve", "name": "proxy", "address": "10.64.0.2:7444", "script": script_of_proxy});
        world.app(proxy).say(&line)?;
        world.app(proxy).expect("listening", "proxy", SOON)?;
        world.start_edges()?;
        let server = world.start_actor(world.server_host(), "server")?;
        let client = world.start_actor("web", "client")?;
        let mut raw = Self { world, server, client, proxy: Some(proxy) };
        let address = raw.world.raw_listen();
        raw.serve("server", &address, script)?;
        Ok(raw)
    }

    /// Has the server listen on one more address; what it does there has this name.
    ///
    /// # Errors
    ///
    /// When it cannot listen there.
    pub(in crate::scenario) fn serve(
        &mut self,
        name: &str,
        address: &str,
        script: Json,
    ) -> anyhow::Result<()> {
        let line = json!({"op": "serve", "name": name, "address": address, "script": script});
        self.world.app(self.server).say(&line)?;
        self.world.app(self.server).expect("listening", name, SOON).map(drop)
    }

    /// Starts `script` on a connection of the client.
    ///
    /// # Errors
    ///
    /// When the client is gone.
    pub(in crate::scenario) fn go(&mut self, name: &str, script: Json) -> anyhow::Result<()> {
        self.go_many(name, json!({"script": script}))
    }

    /// Starts a `run`: `script`, and `count`, `parallel`, `per_s` where wanted. It goes to the raw server unless it says
    /// an `address`.
    ///
    /// # Errors
    ///
    /// When the client is gone.
    pub(in crate::scenario) fn go_many(&mut self, name: &str, mut wanted: Json) -> anyhow::Result<()> {
        if wanted["address"].is_null() {
            let behind = self.proxy.is_some() && self.world.way() == Way::Direct;
            let target = if behind { "10.64.0.2:7444".to_owned() } else { self.world.raw_target() };
            wanted["address"] = json!(target);
        }
        wanted["op"] = json!("run");
        wanted["name"] = json!(name);
        self.world.app(self.client).say(&wanted)
    }

    /// What became of a `run`, when all of it has ended.
    ///
    /// # Errors
    ///
    /// When it has not by then.
    pub(in crate::scenario) fn ran(&mut self, name: &str, patience: Duration) -> anyhow::Result<Ran> {
        Ok(Ran(self.world.app(self.client).expect("ran", name, patience)?))
    }

    /// Starts one and waits for it.
    ///
    /// # Errors
    ///
    /// When it has not ended by then.
    pub(in crate::scenario) fn run(
        &mut self,
        name: &str,
        script: Json,
        patience: Duration,
    ) -> anyhow::Result<Ran> {
        self.go(name, script)?;
        self.ran(name, patience)
    }

    /// What became so far of what has this name, at the client or at the server.
    ///
    /// # Errors
    ///
    /// When nothing has this name.
    pub(in crate::scenario) fn counts(&mut self, app: usize, name: &str) -> anyhow::Result<Ran> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let call = format!("{name} {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.world.app(app).say(&json!({"op": "counts", "name": name, "call": call}))?;
        Ok(Ran(self.world.app(app).expect("counts", &call, SOON)?))
    }

    /// The same of the server's first listener, asked until `wanted` says yes or the patience is over.
    ///
    /// # Errors
    ///
    /// When the server is gone.
    pub(in crate::scenario) fn served(
        &mut self,
        patience: Duration,
        wanted: impl Fn(&Ran) -> bool,
    ) -> anyhow::Result<Ran> {
        let began = std::time::Instant::now();
        loop {
            let ran = self.counts(self.server, "server")?;
            if wanted(&ran) || began.elapsed() > patience {
                return Ok(ran);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sets a flag that scripts of client or server wait for.
    ///
    /// # Errors
    ///
    /// When the application is gone.
    pub(in crate::scenario) fn flag(&mut self, app: usize, flag: &str) -> anyhow::Result<()> {
        self.world.app(app).say(&json!({"op": "flag", "name": flag}))
    }

    /// When a script said this word first.
    ///
    /// # Errors
    ///
    /// When none has within 30 s.
    pub(in crate::scenario) fn said(&mut self, app: usize, word: &str) -> anyhow::Result<f64> {
        Ok(self.world.app(app).expect("said", word, SOON)?.mono_ms)
    }

    /// What a process of the chain holds; none directly.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub(in crate::scenario) fn held(&self, process: &str) -> anyhow::Result<Option<Held>> {
        if self.world.way() == Way::Direct {
            return Ok(None);
        }
        Held::by(self.world.process(process)?).map(Some)
    }

    /// `reason@hop` of the sidecar's raw mapping; empty directly.
    ///
    /// # Errors
    ///
    /// When the sidecar does not answer.
    pub(in crate::scenario) fn reason(&self) -> anyhow::Result<String> {
        self.entry("sidecar", "mappings", |entry| crate::status::reason(Some(entry)))
    }

    /// The own ports of a process's connections from `web` to this port: those that it holds a descriptor of. What the
    /// kernel still sends for a socket that was closed is not among them.
    ///
    /// # Errors
    ///
    /// When `ss` fails.
    pub(super) fn ports_to(&self, process: &str, port: u16) -> anyhow::Result<Vec<String>> {
        let owner = format!("pid={},", self.world.process(process)?.id());
        let namespace = self.world.net.namespace("web");
        let port = format!(":{port}");
        let lines = shell::run(&["ip", "netns", "exec", &namespace, "ss", "-Htnpa", "dport", "=", &port])?;
        let mine = lines.lines().filter(|line| line.contains(&owner));
        Ok(mine.filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned).collect())
    }

    /// Lines that a process of the chain has logged.
    ///
    /// # Errors
    ///
    /// When its log cannot be read.
    pub(super) fn log_lines(&self, process: &str) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(self.world.path(&format!("{process}.log")))?;
        #[expect(clippy::cast_precision_loss, reason = "some hundred lines")]
        let lines = text.lines().count() as f64;
        Ok(lines)
    }

    /// Open sessions of the sidecar's raw mapping; none directly.
    ///
    /// # Errors
    ///
    /// When the sidecar does not answer.
    pub(in crate::scenario) fn open_sessions(&self) -> anyhow::Result<f64> {
        self.entry("sidecar", "mappings", |entry| entry["sessions"]["open"].as_f64().unwrap_or(f64::NAN))
    }

    /// The same, when there are none any more or 5 s have passed.
    ///
    /// # Errors
    ///
    /// When the sidecar does not answer.
    pub(super) fn open_after_5_s(&self) -> anyhow::Result<f64> {
        let began = std::time::Instant::now();
        loop {
            let open = self.open_sessions()?;
            if open <= 0.0 || began.elapsed() > seconds(5) {
                return Ok(open);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Links that an edge has had so far; none directly.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(in crate::scenario) fn links_made(&self, edge: &str) -> anyhow::Result<f64> {
        self.metric(edge, "hopline_link_dials_total", "result=\"up\"")
    }

    /// The sum of a family's samples on a process's `/metrics` whose labels hold this text; 0 directly.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(in crate::scenario) fn metric(
        &self,
        process: &str,
        family: &str,
        labels: &str,
    ) -> anyhow::Result<f64> {
        if self.world.way() == Way::Direct {
            return Ok(0.0);
        }
        let (_, text) = crate::status::get(&self.world.status_socket(process), "/metrics")?;
        let samples = text.lines().filter_map(|line| line.strip_prefix(family)?.rsplit_once(' '));
        let mine =
            samples.filter(|(own, _)| (own.is_empty() || own.starts_with('{')) && own.contains(labels));
        Ok(mine.filter_map(|(_, number)| number.parse::<f64>().ok()).sum())
    }

    /// Something of the raw service's entry in `/status`: a mapping of the `sidecar`, a service of the `agent`. Empty
    /// directly.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(in crate::scenario) fn entry<T: Default>(
        &self,
        process: &str,
        list: &str,
        what: impl FnOnce(&Json) -> T,
    ) -> anyhow::Result<T> {
        if self.world.way() == Way::Direct {
            return Ok(T::default());
        }
        let status = self.world.status(process)?;
        crate::status::entry(&status, list, "raw").map(what).with_context(|| format!("{process} has no raw"))
    }
}

/// What became of connections.
#[derive(Debug, Clone)]
pub(in crate::scenario) struct Ran(pub(super) Event);

impl Ran {
    /// A count: `begun`, `open`, `ok`, `sent`, `received`.
    pub(in crate::scenario) fn count(&self, key: &str) -> f64 {
        self.0.body[key].as_f64().unwrap_or_default()
    }

    /// A time: of `ms`, `first_ms` or `rounds_ms` the `p50`, `p99` or `max`; not a number when there is none.
    pub(in crate::scenario) fn time(&self, of: &str, rank: &str) -> f64 {
        self.0.body[of][rank].as_f64().unwrap_or(f64::NAN)
    }

    /// When the last connection's step of this name was done.
    ///
    /// # Errors
    ///
    /// When it was not.
    pub(in crate::scenario) fn mark(&self, step: &str) -> anyhow::Result<f64> {
        let marks = self.0.body["marks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let found = marks.iter().rev().find(|mark| mark[0] == step).and_then(|mark| mark[1].as_f64());
        found.with_context(|| format!("no {step} in {}", self.0.body))
    }

    /// `ok` when all connections did their whole script; else their faults, each with its count.
    pub(in crate::scenario) fn word(&self) -> String {
        Self::words(&self.0.body["faults"], "ok")
    }

    /// How reading ended, each end with its count where there are several.
    pub(in crate::scenario) fn ends(&self) -> String {
        Self::words(&self.0.body["ends"], "none")
    }

    fn words(counted: &Json, none: &str) -> String {
        let counted: Vec<(&String, u64)> = counted
            .as_object()
            .map(|map| map.iter().map(|(word, count)| (word, count.as_u64().unwrap_or_default())).collect())
            .unwrap_or_default();
        match &counted[..] {
            [] => none.to_owned(),
            [(word, 1)] => (*word).clone(),
            many => {
                many.iter().map(|(word, count)| format!("{word} ×{count}")).collect::<Vec<_>>().join(", ")
            }
        }
    }
}
