//! P22: each thing that may block, with traffic beside it. What it takes from a session is measured against the same
//! session while nothing blocks, in turn. `cargo xtask soak` runs them; they take half a minute each, and one needs root.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Conn, Kind, Slot, World, WorldOptions, hopline, run, write_secret};

/// How long each phase is measured.
const PHASE: Duration = Duration::from_secs(2);
/// Between two new sessions beside the one that is measured.
const OPEN_EVERY: Duration = Duration::from_millis(50);
/// A new session, or an answer of the status, that takes longer was held up.
const OPEN_WITHIN: Duration = Duration::from_secs(1);
/// A ping that has no answer by then has none.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one phase measured.
struct Phase {
    p99: Duration,
    slowest_open: Duration,
    slowest_status: Duration,
}

/// One session that says something and hears it, for as long as a phase; beside it new sessions, and questions to the
/// status of the agent.
fn phase(app: &mut Conn, server: &mut Conn, opens: &Slot, world: &World) -> Phase {
    let (p99, (slowest_open, slowest_status)) = thread::scope(|scope| {
        let opening = scope.spawn(|| slowest(opens, world));
        let (began, mut took) = (Instant::now(), Vec::new());
        while began.elapsed() < PHASE {
            let asked = Instant::now();
            app.write_all(&[7; 64]).unwrap();
            server.read_exact(&mut [0; 64]).expect("a ping arrives");
            server.write_all(&[8; 64]).unwrap();
            app.read_exact(&mut [0; 64]).expect("its answer arrives");
            took.push(asked.elapsed());
        }
        took.sort();
        (took[(took.len() - 1) * 99 / 100], opening.join().unwrap())
    });
    Phase { p99, slowest_open, slowest_status }
}

fn slowest(slot: &Slot, world: &World) -> (Duration, Duration) {
    let (began, mut open, mut status) = (Instant::now(), Duration::ZERO, Duration::ZERO);
    while began.elapsed() < PHASE {
        let asked = Instant::now();
        let (mut app, mut server) = slot.pair(Kind::Tcp);
        server.write_all(b"!").unwrap();
        app.read_exact(&mut [0]).unwrap();
        open = open.max(asked.elapsed());
        let asked = Instant::now();
        world.agent.status();
        status = status.max(asked.elapsed());
        thread::sleep(OPEN_EVERY);
    }
    (open, status)
}

/// Measures in turn while nothing blocks and while `block` runs, which returns soon after the flag is set; so many rounds.
/// The second phase of each begins when `block` has had time to be in force.
#[expect(clippy::print_stdout, reason = "the chore prints what it measured")]
fn soak(what: &str, world: &World, in_force_after: Duration, block: impl Fn(&AtomicBool) + Sync) {
    let rounds = std::env::var("HOPLINE_SOAK_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    let [slot, opens] = [world.slot(), world.slot()];
    let (mut app, mut server) = slot.answered_pair(Kind::Tcp);
    for end in [&app, &server] {
        end.set_patience(PATIENCE);
    }
    phase(&mut app, &mut server, opens, world);
    let (mut ratios, mut slowest) = (Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        let quiet = phase(&mut app, &mut server, opens, world);
        let stop = AtomicBool::new(false);
        let blocked = thread::scope(|scope| {
            scope.spawn(|| block(&stop));
            // Not a wait for something: what blocks goes on meanwhile.
            thread::sleep(in_force_after);
            let stops = Stops(&stop);
            let blocked = phase(&mut app, &mut server, opens, world);
            drop(stops);
            blocked
        });
        ratios.push(blocked.p99.as_secs_f64() / quiet.p99.as_secs_f64());
        slowest = slowest.max(blocked.slowest_open).max(blocked.slowest_status);
        println!(
            "{what}, round {round}: p99 {:.0?} quiet, {:.0?} beside, ratio {:.2}; slowest open {:.0?} and {:.0?}, slowest \
             status {:.0?} and {:.0?}",
            quiet.p99,
            blocked.p99,
            ratios[round],
            quiet.slowest_open,
            blocked.slowest_open,
            quiet.slowest_status,
            blocked.slowest_status,
        );
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("{what}: median ratio {median:.2}, slowest open or status {slowest:.0?}");
    assert!(median <= 2.0, "{what}: p99 is {median:.2} times its own baseline");
    assert!(slowest <= OPEN_WITHIN, "{what}: an open or a status took {slowest:.0?}");
}

/// Sets the flag also when a phase panics, so that the panic is seen.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn until_stopped(stop: &AtomicBool, every: Duration, mut act: impl FnMut()) {
    while !stop.load(Ordering::Acquire) {
        act();
        thread::sleep(every);
    }
}

/// All three log into pipes that nobody reads, a line for each of 200 sessions a second.
#[test]
#[ignore = "cargo xtask soak"]
fn soak_logs_that_nobody_reads() {
    let world = World::start(WorldOptions {
        slots: 3,
        piped: true,
        relay_file: "log: { access: true }\n",
        sidecar_keys: "log: { access: true }\n",
        agent_keys: "log: { access: true }\n",
        ..WorldOptions::default()
    });
    let logged = world.slot();
    soak("logs that nobody reads", &world, Duration::from_secs(4), |stop| {
        for process in world.processes() {
            process.stop_reading();
        }
        until_stopped(stop, Duration::from_millis(5), || {
            drop(logged.dial(Kind::Tcp));
            logged.server.set_nonblocking(true).unwrap();
            while logged.server.accept().is_ok() {}
        });
        for process in world.processes() {
            process.read_on();
        }
    });
}

/// A mapping whose service needs a name server, which is silent, is dialled 100 times a second.
#[test]
#[ignore = "cargo xtask soak; as root, for a name server of the agent's own"]
fn soak_a_silent_name_server() {
    const RESOLVER: &str = "127.77.0.22:53";
    // Bound, and never read.
    let _silent = (UdpSocket::bind(RESOLVER).unwrap(), TcpListener::bind(RESOLVER).unwrap());
    let world = World::start(WorldOptions {
        slots: 2,
        services: "  named: { tcp: { tcp: 9, forward: \"server.silent.test:9\" } }\n",
        mappings: "  named: { listen: \"127.0.0.1:0\" }\n",
        agent_by: &[
            "unshare",
            "--mount",
            "sh",
            "-c",
            "echo nameserver 127.77.0.22 > /dev/shm/hopline-soak-resolv.conf && \
             mount --bind /dev/shm/hopline-soak-resolv.conf /etc/resolv.conf && exec \"$@\"",
            "sh",
        ],
        ..WorldOptions::default()
    });
    let named = world.mapping("named").listen.parse().unwrap();
    soak("a silent name server", &world, Duration::from_secs(10), |stop| {
        let mut waiting = std::collections::VecDeque::new();
        until_stopped(stop, Duration::from_millis(10), || {
            waiting.push_back(std::net::TcpStream::connect_timeout(&named, PATIENCE));
            // As clients do: they give up after a second.
            if waiting.len() > 100 {
                waiting.pop_front();
            }
        });
    });
    std::fs::remove_file("/dev/shm/hopline-soak-resolv.conf").unwrap();
}

/// Another process holds the lock of the relay's folder, and machines want to join.
#[test]
#[ignore = "cargo xtask soak"]
fn soak_a_lock_that_another_holds() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let state = world.relay.state.to_str().unwrap();
    let address = world.relay.address.to_string();
    let token =
        run(["token", "create", "--state", state, "--relay", &address, "--dial", "*", "--uses", "1000"]);
    assert!(token.status.success(), "{token:?}");
    let file = world.folder().join("soak.token");
    write_secret(&file, &token.stdout);
    let lock = world.relay.state.join("lock");
    let numbers = std::sync::atomic::AtomicUsize::new(0);
    soak("a lock that another holds", &world, Duration::from_secs(2), |stop| {
        let held = File::options().write(true).open(&lock).unwrap();
        held.lock().unwrap();
        let mut joins: Vec<Child> = Vec::new();
        until_stopped(stop, Duration::from_millis(100), || {
            let name = format!("soak-{}", numbers.fetch_add(1, Ordering::Relaxed));
            let mut join = hopline();
            join.arg("join").arg(&file).args(["--name", &name, "--state"]).arg(world.folder().join(&name));
            joins.push(join.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        });
        drop(held);
        for mut join in joins {
            let _ = join.kill();
            join.wait().unwrap();
        }
    });
}

/// Readers of the status of all three, who take a byte now and then.
#[test]
#[ignore = "cargo xtask soak"]
fn soak_slow_readers_of_the_status() {
    const READERS: usize = 60;
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let admins = [&world.relay.admin, &world.agent.admin, &world.sidecar.admin];
    soak("slow readers of the status", &world, Duration::from_secs(1), |stop| {
        let mut readers: Vec<Option<UnixStream>> = (0..READERS * admins.len()).map(|_| None).collect();
        until_stopped(stop, Duration::from_millis(100), || {
            for (number, reader) in readers.iter_mut().enumerate() {
                let path = admins[number % admins.len()].trim_start_matches("unix:");
                let of = ["/status", "/metrics", "/"][number / admins.len() % 3];
                let again = match reader {
                    Some(stream) => matches!(stream.read(&mut [0]), Ok(0)),
                    None => true,
                };
                if again && let Ok(mut stream) = UnixStream::connect(path) {
                    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                    let _ = write!(stream, "GET {of} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    *reader = Some(stream);
                }
            }
        });
    });
}
