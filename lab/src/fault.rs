//! Faults as typed values. [`apply`] puts one into a world and gives back how to undo it; an [`Applied`] that is dropped
//! undoes itself, so nothing outlives a scenario that fails. What a crash leaves goes with its namespaces.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use anyhow::{Context as _, bail};
use rustix::process::Signal;

use crate::cgroup::Quota;
use crate::hosts::Net;
use crate::process::Process;
use crate::shell;
use crate::wire::{Shape, Wire};

/// What can be done to a world. The text form is that of plans: see `Display`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// Every IP packet between two hosts is dropped in the switch. ARP still works, as with a router on the way.
    Drop { from: String, to: String, both: bool },
    /// Each packet between two hosts is dropped with this chance, both ways.
    Loss { from: String, to: String, percent: u8 },
    /// Each packet between two hosts takes this long, more or less by the jitter, and keeps its order; each way.
    Delay { from: String, to: String, delay_ms: u32, jitter_ms: u32 },
    /// Of the packets between two hosts so many are held back so long, so that those behind overtake them; each way.
    Reorder { from: String, to: String, percent: u8, by_ms: u32 },
    /// Both directions of a host are limited, with a queue in the network that holds `queue_kib`.
    Limit { host: String, kib_per_s: u32, queue_kib: u32 },
    /// Connections between two hosts are reset at both ends (`ss -K`).
    Cut { from: String, to: String },
    /// A process is stopped (SIGSTOP) until the fault is undone.
    Freeze { process: String },
    /// A process gets a share of one CPU, by its control group.
    Starve { process: String, percent: u32 },
    /// The disk of a process's state folder is full; only where the world gave it a small one.
    FullDisk { process: String },
    /// The NAT before a host forgets all flows (`conntrack -F`).
    Forget { host: String },
    /// A host gets another address, and loses the one it had.
    Readdress { host: String },
    /// The wall clock of the chain's processes jumps by so many seconds, forward or back (libfaketime).
    Clock { seconds: i64 },
    /// A process may open no more descriptors than this (`prlimit`).
    Descriptors { process: String, count: u32 },
}

impl Fault {
    /// The same between two other hosts, if it is one between two.
    pub(crate) fn between(mut self, one: &str, other: &str) -> Self {
        if let Self::Drop { from, to, .. }
        | Self::Loss { from, to, .. }
        | Self::Delay { from, to, .. }
        | Self::Reorder { from, to, .. }
        | Self::Cut { from, to } = &mut self
        {
            one.clone_into(from);
            other.clone_into(to);
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop { from, to, both: true } => write!(f, "drop {from} <-> {to}"),
            Self::Drop { from, to, both: false } => write!(f, "drop {from} -> {to}"),
            Self::Loss { from, to, percent } => write!(f, "loss {percent}% {from} <-> {to}"),
            Self::Delay { from, to, delay_ms, jitter_ms } => {
                write!(f, "delay {delay_ms}ms jitter {jitter_ms}ms {from} <-> {to}")
            }
            Self::Reorder { from, to, percent, by_ms } => {
                write!(f, "reorder {percent}% by {by_ms}ms {from} <-> {to}")
            }
            Self::Limit { host, kib_per_s, queue_kib } => {
                write!(f, "limit {kib_per_s} KiB/s queue {queue_kib} KiB {host}")
            }
            Self::Cut { from, to } => write!(f, "cut {from} <-> {to}"),
            Self::Freeze { process } => write!(f, "freeze {process}"),
            Self::Starve { process, percent } => write!(f, "starve {percent}% {process}"),
            Self::FullDisk { process } => write!(f, "full disk {process}"),
            Self::Forget { host } => write!(f, "forget {host}"),
            Self::Readdress { host } => write!(f, "readdress {host}"),
            Self::Clock { seconds } => write!(f, "clock {seconds}s"),
            Self::Descriptors { process, count } => write!(f, "descriptors {count} {process}"),
        }
    }
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let own = |word: &str| word.to_owned();
        let percent = |word: &str| -> anyhow::Result<u8> {
            let number =
                word.strip_suffix('%').with_context(|| format!("{word:?}: a percentage ends with %"))?;
            number.parse::<u8>().ok().filter(|&number| number <= 100).context("0% to 100%")
        };
        let millis = |word: &str| -> anyhow::Result<u32> {
            let number =
                word.strip_suffix("ms").with_context(|| format!("{word:?}: milliseconds end with ms"))?;
            number.parse::<u32>().ok().filter(|&number| number <= 10_000).context("0ms to 10000ms")
        };
        Ok(match words[..] {
            ["drop", from, "<->", to] => Self::Drop { from: own(from), to: own(to), both: true },
            ["drop", from, "->", to] => Self::Drop { from: own(from), to: own(to), both: false },
            ["loss", share, from, "<->", to] => {
                Self::Loss { from: own(from), to: own(to), percent: percent(share)? }
            }
            ["delay", delay, "jitter", jitter, from, "<->", to] => {
                let (delay_ms, jitter_ms) = (millis(delay)?, millis(jitter)?);
                Self::Delay { from: own(from), to: own(to), delay_ms, jitter_ms }
            }
            ["reorder", share, "by", by, from, "<->", to] => {
                let (percent, by_ms) = (percent(share)?, millis(by)?);
                Self::Reorder { from: own(from), to: own(to), percent, by_ms }
            }
            ["limit", rate, "KiB/s", "queue", queue, "KiB", host] => {
                Self::Limit { host: own(host), kib_per_s: rate.parse()?, queue_kib: queue.parse()? }
            }
            ["cut", from, "<->", to] => Self::Cut { from: own(from), to: own(to) },
            ["freeze", process] => Self::Freeze { process: own(process) },
            ["starve", share, process] => {
                Self::Starve { process: own(process), percent: percent(share)?.into() }
            }
            ["full", "disk", process] => Self::FullDisk { process: own(process) },
            ["forget", host] => Self::Forget { host: own(host) },
            ["readdress", host] => Self::Readdress { host: own(host) },
            ["clock", step] => {
                let seconds =
                    step.strip_suffix('s').with_context(|| format!("{step:?}: seconds end with s"))?;
                Self::Clock { seconds: seconds.parse()? }
            }
            ["descriptors", count, process] => {
                Self::Descriptors { process: own(process), count: count.parse()? }
            }
            _ => bail!("no such fault: {text:?}"),
        })
    }
}

/// A fault in force. Dropping it undoes it.
#[derive(Debug)]
pub(crate) struct Applied {
    undo: Option<Undo>,
    /// Just before it was put in force.
    pub(crate) at_ms: f64,
    took_ms: f64,
}

/// Longest time in which a fault whose moment counts is put in force.
const AT_ONCE_MS: f64 = 100.0;

/// A fault came late: where namespaces come and go, the kernel may hold a change of the filter up for seconds.
#[derive(Debug, thiserror::Error)]
#[error("{what} took {took_ms:.0} ms to be put in force: its moment is not known")]
pub(crate) struct Late {
    what: String,
    took_ms: f64,
}

impl Applied {
    /// Whether the moment at which packets began to be dropped is known.
    ///
    /// # Errors
    ///
    /// [`Late`] if not.
    pub(crate) fn check_moment(&self, fault: &Fault) -> Result<(), Late> {
        let counts = matches!(fault, Fault::Drop { .. } | Fault::Cut { .. });
        if counts && self.took_ms > AT_ONCE_MS {
            return Err(Late { what: fault.to_string(), took_ms: self.took_ms });
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Undo {
    Nothing,
    Commands(Vec<Vec<String>>),
    Resume(i32),
    Clock(PathBuf),
    Remove(PathBuf),
    Quota(Quota),
    Wires(Vec<Wire>),
}

impl Applied {
    /// Undoes it and gives the time at which that was done.
    ///
    /// # Errors
    ///
    /// When it could not be undone.
    pub(crate) fn heal(mut self) -> anyhow::Result<f64> {
        self.undo.take().map_or(Ok(()), undo)?;
        Ok(shell::now_ms())
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        // The hosts may be gone already, and with them the fault.
        let _ = self.undo.take().map_or(Ok(()), undo);
    }
}

fn undo(undo: Undo) -> anyhow::Result<()> {
    match undo {
        Undo::Nothing => Ok(()),
        Undo::Commands(commands) => commands.iter().try_for_each(|words| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            shell::run(&words).map(drop)
        }),
        Undo::Resume(pid) => {
            let pid = rustix::process::Pid::from_raw(pid).context("a process id")?;
            Ok(rustix::process::kill_process(pid, Signal::CONT)?)
        }
        Undo::Clock(file) => set_clock(&file, 0),
        Undo::Remove(file) => Ok(std::fs::remove_file(file)?),
        Undo::Quota(quota) => quota.lift(),
        Undo::Wires(wires) => wires.into_iter().try_for_each(Wire::lift),
    }
}

/// Puts a fault in force. `process` finds a process of the world by its name, `folder` is
/// the world's.
///
/// # Errors
///
/// When a command fails, or there is no such process.
pub(crate) fn apply<'a>(
    fault: &Fault,
    net: &Net,
    folder: &Path,
    process: impl Fn(&str) -> anyhow::Result<&'a Process>,
) -> anyhow::Result<Applied> {
    let at_ms = shell::now_ms();
    let undo = match fault {
        Fault::Drop { from, to, both } => filter(net, from, to, *both, "drop")?,
        Fault::Loss { from, to, percent } => {
            filter(net, from, to, true, &format!("numgen random mod 100 < {percent} drop"))?
        }
        Fault::Delay { from, to, delay_ms, jitter_ms } => {
            let shape = Shape { delay_ms: *delay_ms, jitter_ms: *jitter_ms, overtaken: 0, by_ms: 0 };
            wires(net, folder, [from, to], "mangle", shape)?
        }
        Fault::Reorder { from, to, percent, by_ms } => {
            let shape = Shape { delay_ms: 0, jitter_ms: 0, overtaken: *percent, by_ms: *by_ms };
            wires(net, folder, [from, to], "raw", shape)?
        }
        Fault::Limit { host, kib_per_s, queue_kib } => limit(net, host, *kib_per_s, *queue_kib)?,
        Fault::Cut { from, to } => {
            let far = net.address(to);
            shell::run(&["ip", "netns", "exec", &net.namespace(from), "ss", "-K", "dst", &far])?;
            Undo::Nothing
        }
        Fault::Freeze { process: name } => {
            let process = process(name)?;
            process.signal(Signal::STOP)?;
            Undo::Resume(i32::try_from(process.id())?)
        }
        Fault::FullDisk { process } => fill(&folder.join(process))?,
        Fault::Forget { host } => {
            shell::run(&["ip", "netns", "exec", &net.outermost(host), "conntrack", "-F"])?;
            Undo::Nothing
        }
        Fault::Readdress { host } => readdress(net, host)?,
        Fault::Clock { seconds } => {
            let clock = clock(folder);
            set_clock(&clock, *seconds)?;
            Undo::Clock(clock)
        }
        Fault::Starve { process: name, percent } => Undo::Quota(Quota::put(process(name)?.id(), *percent)?),
        Fault::Descriptors { process: name, count } => {
            let pid = process(name)?.id().to_string();
            let before = limit_of(&pid)?;
            // The soft limit: root in a container may not raise a hard one again.
            shell::run(&["prlimit", "--pid", &pid, &format!("--nofile={count}:")])?;
            Undo::Commands(vec![vec!["prlimit".into(), "--pid".into(), pid, format!("--nofile={before}:")]])
        }
    };
    Ok(Applied { undo: Some(undo), at_ms, took_ms: shell::now_ms() - at_ms })
}

/// Fills the disk that a folder is on; only one that the lab has made for it.
fn fill(folder: &Path) -> anyhow::Result<Undo> {
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    let place = folder.display().to_string();
    if !mounts.lines().any(|line| line.split(' ').nth(1) == Some(&place)) {
        bail!("{place} has no disk of its own to fill");
    }
    let path = folder.join("filling");
    let mut file = std::fs::File::create(&path)?;
    // Large pieces first, then to the last byte.
    for piece in [vec![0; 65_536], vec![0; 1]] {
        while file.write_all(&piece).is_ok() {}
    }
    Ok(Undo::Remove(path))
}

/// The file of a world's faked clock.
pub(crate) fn clock(folder: &Path) -> PathBuf {
    folder.join("clock")
}

/// Moves a faked clock to so many seconds beside the true one.
///
/// # Errors
///
/// When the file cannot be written.
pub(crate) fn set_clock(file: &Path, seconds: i64) -> anyhow::Result<()> {
    // Renamed into place: a reader never meets half a line.
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{seconds:+}\n"))?;
    std::fs::rename(&next, file).with_context(|| format!("{}", file.display()))
}

fn readdress(net: &Net, host: &str) -> anyhow::Result<Undo> {
    let namespace = net.namespace(host);
    let (old, new) = (format!("{}/24", net.address(host)), format!("{}/24", net.other_address(host)));
    let change = |word: &str, address: &str| -> Vec<String> {
        ["ip", "-n", &namespace, "addr", word, address, "dev", "eth0"].map(str::to_owned).to_vec()
    };
    // The new one first would only be a second one; without any the route goes, and comes back with the new one.
    for words in [change("del", &old), change("add", &new)] {
        shell::run(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(Undo::Commands(vec![change("del", &new), change("add", &old)]))
}

fn limit_of(pid: &str) -> anyhow::Result<String> {
    let text = shell::run(&["prlimit", "--pid", pid, "--nofile", "--raw", "--noheadings", "-o", "SOFT"])?;
    Ok(text.trim().to_owned())
}

/// A wire at each of two hosts.
fn wires(net: &Net, folder: &Path, [from, to]: [&str; 2], table: &str, shape: Shape) -> anyhow::Result<Undo> {
    static NUMBER: AtomicU16 = AtomicU16::new(1);
    let lay = |way: [&str; 2]| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Wire::lay(net, folder, way, (table, number), shape)
    };
    Ok(Undo::Wires(vec![lay([from, to])?, lay([to, from])?]))
}

/// A table of its own for each fault, so that undoing one leaves the others.
fn filter(net: &Net, from: &str, to: &str, both: bool, verdict: &str) -> anyhow::Result<Undo> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let table = format!("fault{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let way = |from: &str, to: &str| {
        format!("iifname \"s-{from}\" oifname \"s-{to}\" ether type {{ ip, ip6 }} {verdict}\n")
    };
    let mut rules = way(from, to);
    if both {
        rules += &way(to, from);
    }
    let script = format!(
        "table bridge {table} {{ chain forward {{ type filter hook forward priority 0; policy accept;\n{rules}}}\n}}\n"
    );
    let switch = net.switch();
    shell::run_with(&["ip", "netns", "exec", &switch, "nft", "-f", "-"], &script)?;
    let words = ["ip", "netns", "exec", &switch, "nft", "delete", "table", "bridge", &table];
    Ok(Undo::Commands(vec![words.iter().map(|&word| word.to_owned()).collect()]))
}

fn limit(net: &Net, host: &str, kib_per_s: u32, queue_kib: u32) -> anyhow::Result<Undo> {
    let switch = net.switch();
    let bits = format!("{}bit", u64::from(kib_per_s) * 1024 * 8);
    let bytes = (u64::from(queue_kib) * 1024).to_string();
    let mut back = Vec::new();
    for port in [format!("p-{host}"), format!("u-{host}")] {
        let add = ["tc", "-n", &switch, "qdisc", "add", "dev", &port, "root", "tbf", "rate", &bits];
        shell::run(&[&add[..], &["burst", "4096", "limit", &bytes]].concat())?;
        let del = ["tc", "-n", &switch, "qdisc", "del", "dev", &port, "root"];
        back.push(del.iter().map(|&word| word.to_owned()).collect());
    }
    Ok(Undo::Commands(back))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_fault_reads_back() {
        let texts = [
            "drop web <-> relay",
            "drop relay -> db",
            "loss 30% web <-> relay",
            "delay 40ms jitter 10ms web <-> relay",
            "reorder 5% by 3ms relay <-> db",
            "limit 32 KiB/s queue 256 KiB web",
            "cut web <-> relay",
            "freeze relay",
            "starve 5% agent",
            "descriptors 64 sidecar",
            "readdress web",
            "forget web",
            "full disk relay",
            "clock -3600s",
        ];
        for text in texts {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        let texts = [
            "",
            "drop",
            "drop web relay",
            "loss 30 web <-> relay",
            "loss 101% a <-> b",
            "delay 40 jitter 10ms a <-> b",
            "delay 40ms a <-> b",
            "reorder 5 by 3ms a <-> b",
            "freeze",
            "melt relay",
        ];
        for text in texts {
            assert!(text.parse::<Fault>().is_err(), "{text:?}");
        }
    }
}
