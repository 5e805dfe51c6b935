//! A wire that takes time: the kernel hands each packet that comes from a host to a process of the lab's own (iptables
//! NFQUEUE), which lets it go on when its time has come. It begins with `hopline-lab wire`.
//!
//! Packets are kept where they arrive, on the receiver's host, so that nothing pushes back on the sender's TCP. Only
//! their numbers come to the process; their bytes stay in the kernel.

use std::collections::BinaryHeap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nfq::{Message, Queue, Verdict};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::hosts::Net;
use crate::process::{Process, Start};
use crate::shell;

/// How many packets a wire holds: more than half a second of 200 MB/s.
const HELD: u32 = 100_000;
/// The buffer of the queue's socket, for about twenty thousand packets.
const ROOM: usize = 32 << 20;
/// How long the process sleeps when nothing is due. A packet is late by no more than this and the scheduler's delay.
const NAP: Duration = Duration::from_micros(250);
/// How often the jitter is drawn anew. Between two draws a path is as long as it is: packets that follow each other
/// closely stay together.
const DRAW: Duration = Duration::from_millis(100);

/// What a wire does to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How long each packet takes, in milliseconds.
    pub(crate) delay_ms: u32,
    /// By how much more or less it may be. Packets keep their order.
    pub(crate) jitter_ms: u32,
    /// How many of a hundred packets are overtaken by those behind them.
    pub(crate) overtaken: u8,
    /// For how long such a packet is held back, in milliseconds.
    pub(crate) by_ms: u32,
}

/// A wire in force. Dropping it lets go what it holds and removes it.
#[derive(Debug)]
pub(crate) struct Wire {
    process: Process,
    stdin: Option<ChildStdin>,
    /// The words that remove its rule.
    rule: Vec<String>,
}

impl Wire {
    /// Lays a wire for packets that `host` gets from the host `from`. `number` is of this wire alone on its host; two
    /// wires for the same packets need two tables, such as `mangle` and `raw`.
    ///
    /// # Errors
    ///
    /// When a command fails, or the kernel has no such queue.
    pub(crate) fn lay(
        net: &Net,
        folder: &Path,
        [from, host]: [&str; 2],
        (table, number): (&str, u16),
        shape: Shape,
    ) -> anyhow::Result<Self> {
        let Shape { delay_ms, jitter_ms, overtaken, by_ms } = shape;
        let mut words = vec![std::env::current_exe()?.display().to_string(), "wire".to_owned()];
        let numbers = [u32::from(number), delay_ms, jitter_ms, u32::from(overtaken), by_ms];
        words.extend(numbers.map(|number| number.to_string()));
        // Before whatever else the machine does: a wire that is late is a fault of another kind.
        let before = ["nice", "-n", "-15"].map(str::to_owned).to_vec();
        let how = Start { before, piped: true, ..Start::default() };
        let name = format!("wire-{host}-{number}");
        let mut process = Process::start_in(net.enter_outermost(host), &name, folder, &words, &how)?;
        let (stdin, stdout) = process.pipes()?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("{name}: {}", process.last_words());
        }
        let rule = |word: &str| -> Vec<String> {
            let (namespace, number, from) = (net.outermost(host), number.to_string(), net.address(from));
            let enter =
                ["ip", "netns", "exec", &namespace, "iptables", "-w", "-t", table, word, "PREROUTING"];
            let what = ["-s", &from, "-j", "NFQUEUE", "--queue-num", &number];
            enter.iter().chain(&what).map(|&word| word.to_owned()).collect()
        };
        run(&rule("-A"))?;
        Ok(Self { process, stdin: Some(stdin), rule: rule("-D") })
    }

    /// Removes it; what it holds goes on at once, in order.
    ///
    /// # Errors
    ///
    /// When the process was too slow and the kernel dropped packets, which is a fault that nobody asked for.
    pub(crate) fn lift(mut self) -> anyhow::Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> anyhow::Result<()> {
        let Some(stdin) = self.stdin.take() else { return Ok(()) };
        // First the rule: what comes later goes straight on.
        run(&self.rule)?;
        drop(stdin);
        if self.process.wait(Duration::from_secs(5))? != Some(0) {
            bail!("{}: {}", self.process.name(), self.process.last_words());
        }
        Ok(())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // The hosts may be gone already, and with them the wire.
        let _ = self.take_away();
    }
}

fn run(words: &[String]) -> anyhow::Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    shell::run(&words).map(drop)
}

/// The wire's own life: until its stdin ends.
///
/// # Errors
///
/// When there is no such queue, or the kernel has dropped packets because this process was too slow.
pub(crate) fn live(words: &[String]) -> anyhow::Result<()> {
    let numbers: Vec<u32> = words.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [number, delay_ms, jitter_ms, overtaken, by_ms] = numbers[..] else { bail!("five numbers") };
    let number = u16::try_from(number)?;
    let shape = Shape { delay_ms, jitter_ms, overtaken: u8::try_from(overtaken)?, by_ms };
    let mut queue = Queue::open().context("netfilter's queue")?;
    queue.bind(number).context("netfilter's queue")?;
    queue.set_copy_range(number, 0)?;
    queue.set_queue_max_len(number, HELD)?;
    queue.set_nonblocking(true);
    give_room().context("a larger buffer for the queue's socket")?;
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    std::thread::spawn(move || {
        let mut nothing = Vec::new();
        // An error is the end of the pipe too.
        let _ = std::io::stdin().read_to_end(&mut nothing);
        seen.store(true, Ordering::Relaxed);
    });
    writeln!(std::io::stdout(), "ready")?;
    carry(&mut queue, Line::new(shape, number), &over)?;
    match dropped(number)? {
        0 => Ok(()),
        dropped => bail!("the kernel dropped {dropped} packets: this machine is too busy for this wire"),
    }
}

/// Lets the kernel keep what this process is too late for: the default is some hundred packets. The queue does not give
/// its socket away, so we ask the kernel for a copy: it is the only one of this process.
fn give_room() -> anyhow::Result<()> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // One that is closed meanwhile is that of this folder.
        let Ok(what) = fs::read_link(entry.path()) else { continue };
        if what.to_string_lossy().starts_with("socket:") {
            let number = entry.file_name().to_string_lossy().parse()?;
            let socket = pidfd_getfd(&own, number, PidfdGetfdFlags::empty())?;
            set_socket_recv_buffer_size_force(&socket, ROOM)?;
        }
    }
    Ok(())
}

fn carry(queue: &mut Queue, mut line: Line, over: &AtomicBool) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut held = BinaryHeap::new();
    let mut count = 0;
    loop {
        let last = over.load(Ordering::Relaxed);
        let mut taken = 0;
        // Not all at once: those that are due would wait.
        while taken < 64 {
            let Some(message) = next(queue)? else { break };
            taken += 1;
            count += 1;
            held.push(Held { at: line.leaves(began.elapsed()), count, message });
        }
        let now = began.elapsed();
        while held.peek().is_some_and(|first: &Held| first.at <= now || last) {
            let Some(Held { mut message, .. }) = held.pop() else { break };
            message.set_verdict(Verdict::Accept);
            queue.verdict(message)?;
        }
        if taken == 0 {
            if last {
                return Ok(());
            }
            std::thread::sleep(NAP);
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the kinds of I/O errors are open-ended")]
fn next(queue: &mut Queue) -> anyhow::Result<Option<Message>> {
    match queue.recv() {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error).context("netfilter's queue"),
        },
    }
}

/// How many packets of a queue the kernel has dropped.
fn dropped(number: u16) -> anyhow::Result<u64> {
    let all = fs::read_to_string("/proc/self/net/netfilter/nfnetlink_queue")?;
    let number = number.to_string();
    for line in all.lines() {
        // queue_num portid queue_total copy_mode copy_range queue_dropped user_dropped ...
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&number.as_str()) {
            let [_, _, _, _, _, full, deaf, ..] = words[..] else { bail!("not understood: {line:?}") };
            return Ok(full.parse::<u64>()? + deaf.parse::<u64>()?);
        }
    }
    bail!("no queue {number}")
}

/// A packet that waits.
struct Held {
    at: Duration,
    /// The how-manieth it is: those that leave at the same time leave in order.
    count: u64,
    message: Message,
}

impl Held {
    /// A heap gives the greatest first.
    fn key(&self) -> std::cmp::Reverse<(Duration, u64)> {
        std::cmp::Reverse((self.at, self.count))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// When packets leave; pure.
#[derive(Debug)]
struct Line {
    shape: Shape,
    random: ChaCha8Rng,
    /// The delay of now, and until when it is that.
    delay: Duration,
    until: Duration,
    /// When the last packet leaves that was not held back.
    last: Duration,
}

impl Line {
    fn new(shape: Shape, seed: u16) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed.into());
        Self { shape, random, delay: Duration::ZERO, until: Duration::ZERO, last: Duration::ZERO }
    }

    /// When a packet leaves that arrives now; times do not go back.
    fn leaves(&mut self, now: Duration) -> Duration {
        let Shape { delay_ms, jitter_ms, overtaken, by_ms } = self.shape;
        if now >= self.until {
            let least = delay_ms.saturating_sub(jitter_ms);
            let most = delay_ms.saturating_add(jitter_ms);
            self.delay = Duration::from_micros(
                self.random.random_range(u64::from(least) * 1_000..=u64::from(most) * 1_000),
            );
            self.until = now + DRAW;
        }
        self.last = self.last.max(now + self.delay);
        if self.random.random_range(0..100) < overtaken {
            return self.last + Duration::from_millis(by_ms.into());
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    fn leave(shape: Shape) -> Vec<(Duration, Duration)> {
        let mut line = Line::new(shape, 1);
        (0..10_000).map(|n| STEP * n).map(|now| (now, line.leaves(now))).collect()
    }

    #[test]
    fn a_delay_is_within_its_jitter_and_keeps_the_order() {
        let all = leave(Shape { delay_ms: 40, jitter_ms: 10, overtaken: 0, by_ms: 0 });
        let took: Vec<Duration> = all.iter().map(|(now, at)| *at - *now).collect();
        let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(30) && *least < Duration::from_millis(33), "{least:?}");
        assert!(*most <= Duration::from_millis(50) && *most > Duration::from_millis(47), "{most:?}");
        assert!(all.is_sorted_by_key(|(_, at)| *at));
    }

    #[test]
    fn a_jitter_beyond_the_delay_ends_at_none() {
        let all = leave(Shape { delay_ms: 100, jitter_ms: 500, overtaken: 0, by_ms: 0 });
        assert!(all.iter().all(|(now, at)| at >= now && *at - *now <= Duration::from_millis(600)));
    }

    #[test]
    fn so_many_are_overtaken() {
        let all = leave(Shape { delay_ms: 0, jitter_ms: 0, overtaken: 5, by_ms: 3 });
        let late = all.iter().filter(|(now, at)| *at == *now + STEP * 3).count();
        let others = all.iter().filter(|(now, at)| now == at).count();
        assert_eq!(late + others, all.len());
        assert!((400..600).contains(&late), "{late}");
    }
}
