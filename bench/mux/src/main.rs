//! hopline-link beside yamux, tokio-yamux, h2, quinn and plain TCP sockets: the same harness, the same rows, by turns
//! in one run. See docs/multiplexers.md for what the rows mean.
//!
//! ```text
//! cargo run --release --manifest-path bench/mux/Cargo.toml -- [--rounds N] [--only ROWS] [--peers WORDS] [--json FILE] \
//!     [--stalled-write BYTES]
//! ```

mod heap;
mod pattern;
mod peer;
mod peers;
mod report;
mod rows;
mod tls;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::peer::Peer;
use crate::report::{Cell, Report, Row};
use crate::rows::stalled::Found;
use crate::rows::{idle, quiet, speed, stalled};

const fn row(key: &'static str, title: &'static str, digits: usize) -> Row {
    Row { key, title, digits }
}

const BULK_1: Row = row("bulk_1", "1 session MB/s", 0);
const BULK_8: Row = row("bulk_8", "8 sessions MB/s", 0);
const P50: Row = row("ping_p50", "ping-pong p50 µs", 0);
const P99: Row = row("ping_p99", "p99 µs", 0);
const OPENS: Row = row("opens", "open + echo + close /s", 0);
const IDLE: Row = row("idle_bytes", "bytes per idle session", 0);
const KB_20: Row = row("stalled_20_kb", "20 unread: KB each", 1);
const QUIET_20: Row = row("stalled_20_ratio", "20 unread: p99 against quiet", 2);
const LOAD_20: Row = row("stalled_20_loaded_ratio", "and 4 streaming: p99 against its own connection", 2);
const KB_1000: Row = row("stalled_1000_kb", "1,000 unread: KB each", 1);
const QUIET_1000: Row = row("stalled_1000_ratio", "1,000 unread: p99 against quiet", 2);
const LOAD_1000: Row = row("stalled_1000_loaded_ratio", "and 4 streaming: p99 against its own connection", 2);
const LOAD_1000_US: Row = row("stalled_1000_loaded_p99", "that p99 in µs", 0);
const TLS_ROUND: Row = row("tls_round", "bytes per ping round (at most 52)", 0);
const TLS_AFTER: Row = row("tls_after_last", "in the 20 s after the last byte (156)", 0);
const TLS_ANY: Row = row("tls_any", "in any 20 s (208)", 0);
const LINK_HEAP: Row = row("tls_link_bytes", "heap bytes of the link, both ends", 0);

const SPEED: [Row; 6] = [BULK_1, BULK_8, P50, P99, OPENS, IDLE];
const STALLED: [Row; 7] = [KB_20, QUIET_20, LOAD_20, KB_1000, QUIET_1000, LOAD_1000, LOAD_1000_US];
const TLS: [Row; 4] = [TLS_ROUND, TLS_AFTER, TLS_ANY, LINK_HEAP];

/// How long each speed is measured.
const BULK_TIME: Duration = Duration::from_millis(500);
const PING_TIME: Duration = Duration::from_millis(300);
/// A measurement that is not over by then has stalled.
const BOUND: Duration = Duration::from_secs(3);
/// One with stalled sessions has waits of its own.
const STALLED_BOUND: Duration = Duration::from_secs(20);

struct Args {
    rounds: usize,
    only: Option<String>,
    peers: Option<String>,
    json: PathBuf,
    /// What a writer whose reader never reads writes at once.
    stalled_write: usize,
}

fn args() -> Result<Args> {
    let mut args = Args {
        rounds: 5,
        only: None,
        peers: None,
        json: concat!(env!("CARGO_MANIFEST_DIR"), "/target/mux.json").into(),
        stalled_write: 4 << 10,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match &word[..] {
            "--rounds" => args.rounds = value()?.parse()?,
            "--only" => args.only = Some(value()?),
            "--peers" => args.peers = Some(value()?),
            "--json" => args.json = value()?.into(),
            "--stalled-write" => args.stalled_write = value()?.parse()?,
            _ => {
                bail!("unknown argument {word}; there are --rounds, --only, --peers, --json, --stalled-write")
            }
        }
    }
    Ok(args)
}

struct Run {
    args: Args,
    report: Report,
    peers: Vec<&'static str>,
}

impl Run {
    /// Whether `--only` and `--peers` want any of these rows of this peer.
    fn wants(&self, rows: &[Row], peer: &str) -> bool {
        let among = |words: &Option<String>, text: &str| {
            words.as_ref().is_none_or(|words| words.split(',').any(|word| text.contains(word)))
        };
        among(&self.args.peers, peer) && rows.iter().any(|row| among(&self.args.only, row.key))
    }

    /// Measures on a runtime of its own, so that nothing of one peer is left for the next.
    fn measure<T: Send + 'static>(
        &mut self,
        peer: &'static str,
        rows: &[Row],
        bound: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
        figures: impl FnOnce(T) -> Vec<Option<f64>>,
    ) -> Result<()> {
        if !self.wants(rows, peer) {
            return Ok(());
        }
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        // Spawned: what is polled by `block_on` itself would be woken across threads each time.
        let task = runtime.spawn(work);
        let outcome = runtime.block_on(async { tokio::time::timeout(bound, task).await });
        runtime.shutdown_timeout(Duration::from_secs(1));
        let cells: Vec<Cell> = match outcome {
            Err(_) => vec![Cell::Stalled; rows.len()],
            Ok(Err(panic)) => vec![Cell::Failed(panic.to_string()); rows.len()],
            Ok(Ok(Err(error))) => vec![Cell::Failed(format!("{error:#}")); rows.len()],
            Ok(Ok(Ok(found))) => {
                figures(found).into_iter().map(|value| value.map_or(Cell::Stalled, Cell::Value)).collect()
            }
        };
        for (row, cell) in rows.iter().zip(cells) {
            eprintln!("{peer}: {}: {cell:?}", row.key);
            self.report.add(*row, peer, cell);
        }
        Ok(())
    }

    fn bulk<P: Peer>(&mut self) -> Result<()> {
        for (row, sessions) in [(BULK_1, 1), (BULK_8, 8)] {
            self.measure(P::NAME, &[row], BOUND, speed::bulk::<P>(sessions, BULK_TIME), |mb| vec![Some(mb)])?;
        }
        Ok(())
    }

    fn all<P: Peer>(&mut self) -> Result<()> {
        self.bulk::<P>()?;
        self.measure(P::NAME, &[P50, P99], BOUND, speed::ping_pong::<P>(PING_TIME), |(p50, p99)| {
            vec![Some(p50), Some(p99)]
        })?;
        self.measure(P::NAME, &[OPENS], BOUND, speed::opens::<P>(PING_TIME), |rate| vec![Some(rate)])?;
        self.measure(P::NAME, &[IDLE], STALLED_BOUND, idle::bytes::<P>(), |bytes| vec![Some(bytes)])
    }

    fn stalled<P: Peer>(&mut self) -> Result<()> {
        let piece = self.args.stalled_write;
        for (rows, sessions) in [(&STALLED[..3], 20), (&STALLED[3..], 1_000)] {
            self.measure(P::NAME, rows, STALLED_BOUND, stalled::found::<P>(sessions, piece), |found| {
                let ratios = [Found::ratio(found.quiet), Found::ratio(found.loaded)];
                let loaded = found.loaded.map(|(here, _)| here);
                vec![Some(found.bytes / 1e3), ratios[0], ratios[1], loaded]
            })?;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        use peers::*;
        self.all::<Hopline>()?;
        self.all::<HoplineByReference>()?;
        self.all::<Yamux>()?;
        self.all::<TokioYamux>()?;
        self.bulk::<TokioYamuxWriteOnly>()?;
        self.all::<H2>()?;
        self.all::<H2Large>()?;
        self.all::<Quinn>()?;
        self.all::<Tcp>()?;
        self.stalled::<Hopline>()?;
        self.stalled::<Yamux>()?;
        self.stalled::<TokioYamux>()?;
        self.stalled::<H2>()?;
        self.stalled::<H2Large>()?;
        self.stalled::<Quinn>()?;
        self.stalled::<Tcp>()
    }

    /// In virtual time, so once is enough.
    fn quiet(&mut self) -> Result<()> {
        for (name, sessions) in [("hopline-link, 1 session", 1), ("hopline-link, 500 sessions", 500)] {
            if !self.wants(&TLS, name) {
                continue;
            }
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
            let found = runtime.block_on(quiet::quiet(sessions))?;
            self.peers.push(name);
            let said = [found.round, found.after_last, found.any].map(|bytes| bytes as f64);
            for (row, bytes) in TLS.into_iter().zip(said.into_iter().chain([found.held as f64])) {
                self.report.add(row, name, Cell::Value(bytes));
            }
        }
        Ok(())
    }
}

/// `name version` of the libraries, as locked.
fn versions() -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = include_str!("../Cargo.lock").lines();
    while let Some(line) = lines.next() {
        let name = line.strip_prefix("name = ").map(|name| name.trim_matches('"'));
        if let Some(name @ ("yamux" | "tokio-yamux" | "h2" | "quinn" | "tokio" | "hopline-link")) = name
            && let Some(version) = lines.next().and_then(|line| line.strip_prefix("version = "))
        {
            found.push(format!("{name} {}", version.trim_matches('"')));
        }
    }
    found
}

#[expect(clippy::print_stdout, reason = "the report is what this program is for")]
fn main() -> Result<()> {
    let mut run = Run { args: args()?, report: Report::default(), peers: Vec::new() };
    let begun = std::time::Instant::now();
    for round in 1..=run.args.rounds {
        eprintln!("round {round} of {}", run.args.rounds);
        run.round()?;
    }
    run.quiet()?;
    let cores = std::thread::available_parallelism()?.get();
    let versions = versions();
    println!(
        "{}; {} rounds by turns, min / median / max; {cores} cores, both ends in one process; {:.0} s.\n",
        versions.join(", "),
        run.args.rounds,
        begun.elapsed().as_secs_f64()
    );
    for rows in [&SPEED[..], &STALLED[..], &TLS[..]] {
        if rows.iter().any(|row| run.report.has(*row)) {
            println!("{}", run.report.table(rows, &run.peers));
        }
    }
    let json = json!({ "cores": cores, "rounds": run.args.rounds, "versions": versions, "results": run.report.json() });
    if let Some(folder) = run.args.json.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&run.args.json, serde_json::to_string_pretty(&json)?)?;
    eprintln!("JSON: {}", run.args.json.display());
    Ok(())
}
