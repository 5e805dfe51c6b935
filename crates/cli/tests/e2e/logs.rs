//! P22: nobody who reads the log, or does not, holds up what is carried.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Kind, PATIENCE, Process, Slot, World, WorldOptions, hopline, status_field, until};

/// For the end of a process whose stderr takes nothing.
const STUCK_END: Duration = Duration::from_secs(8);

fn session(slot: &Slot) {
    let (mut app, mut server) = slot.pair(Kind::Tcp);
    app.write_all(b"to").unwrap();
    assert_eq!(server.chunk(2), b"to");
    server.write_all(b"fro").unwrap();
    assert_eq!(app.chunk(3), b"fro");
    app.end();
    assert_eq!(server.read_to_eof(), b"");
    server.end();
    assert_eq!(app.read_to_eof(), b"");
}

/// A path whose processes say much, to pipes.
fn piped() -> World {
    World::start(WorldOptions {
        log: "debug,hopline_link=trace,hopline_edge=trace,hopline_relay=trace",
        sidecar_keys: "log: { access: true }\n",
        agent_keys: "log: { access: true }\n",
        relay_file: "log: { access: true }\n",
        piped: true,
        ..WorldOptions::default()
    })
}

fn dropped(admin: &str) -> u64 {
    status_field(admin, "log_lines_dropped").as_u64().unwrap()
}

fn admins(world: &World) -> [&str; 3] {
    [&world.relay.admin, &world.agent.admin, &world.sidecar.admin]
}

/// Stderr of all three is a pipe that nobody reads any more: sessions go on for as long as it takes to fill the pipe and
/// the queue, and further; links live; the status says what was dropped, and so does the log once it is read again.
#[test]
fn p22_a_log_that_nobody_reads_holds_up_nothing() {
    let world = piped();
    let slot = &world.slots[0];
    session(slot);
    for process in world.processes() {
        process.stop_reading();
    }
    let (mut count, began) = (0, Instant::now());
    while count < 1_000 || admins(&world).iter().any(|admin| dropped(admin) == 0) {
        for _ in 0..100 {
            session(slot);
        }
        count += 100;
        assert!(began.elapsed() < Duration::from_secs(150), "{count} sessions, and no line was dropped");
    }
    for edge in [&world.agent, &world.sidecar] {
        assert_eq!(edge.status().links[0].last_error, None, "after {count} sessions");
    }
    let said = |process: &Process| process.log().matches("log lines were dropped").count();
    assert!(world.processes().iter().all(|process| said(process) == 0));
    for process in world.processes() {
        process.read_on();
        until("the dropped lines are spoken of", PATIENCE, || {
            session(slot);
            (said(process) > 0).then_some(())
        });
    }
    // And once more, up to the end of each process.
    for process in world.processes() {
        process.stop_reading();
    }
    for _ in 0..400 {
        session(slot);
    }
    for (process, signal) in world.processes().into_iter().zip([Signal::INT, Signal::TERM, Signal::INT]) {
        process.signal(signal);
        assert_eq!(process.wait_exit(STUCK_END).code(), Some(0));
    }
}

/// How long sessions take beside a log that nobody reads, and beside one that is read, in turn.
#[test]
#[ignore = "a soak of a minute, whose figures want a quiet machine"]
fn p22_soak_of_a_log_that_nobody_reads() {
    let world = piped();
    let slot = &world.slots[0];
    let total = || admins(&world).map(dropped);
    let (mut read, mut unread) = (Vec::new(), Vec::new());
    for round in 0..6 {
        let (is_read, before) = (round % 2 == 0, total());
        for process in world.processes() {
            if is_read {
                process.read_on();
            } else {
                process.stop_reading();
            }
        }
        // Until every queue is full, or empty.
        let is_settled = || is_read || total().iter().zip(before).all(|(now, before)| *now > before);
        for _ in 0..if is_read { 2 } else { 50 } {
            (0..200).for_each(|_| session(slot));
            if is_settled() {
                break;
            }
        }
        let times = if is_read { &mut read } else { &mut unread };
        times.extend((0..1_000).map(|_| {
            let began = Instant::now();
            session(slot);
            began.elapsed()
        }));
    }
    let p99 = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        (times[times.len() / 2], times[times.len() * 99 / 100])
    };
    let (read, unread) = (p99(&mut read), p99(&mut unread));
    let dropped = total();
    println!("median and p99, read: {read:?}, unread: {unread:?}; dropped: {dropped:?}");
    assert!(dropped.iter().all(|lines| *lines > 0));
    assert!(unread.1 <= read.1 * 2, "p99 {unread:?}, beside a log that is read {read:?}");
}

/// A pipe that is full from the start: what would be read first never is.
pub(crate) fn full_pipe(blocking: bool) -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    let piece = [b'.'; 4 << 10];
    while writer.write(&piece).is_ok() {}
    if blocking {
        fcntl_setfl(&writer, flags).unwrap();
    }
    (reader, writer)
}

fn relay(folder: &TempDir) -> std::process::Command {
    let mut command = hopline();
    let admin = format!("unix:{}", folder.path().join("admin.sock").display());
    command.args(["relay", "--listen", "127.0.0.1:0", "--admin", &admin, "--state"]);
    command.arg(folder.path().join("relay")).env("RUST_LOG", "trace");
    command
}

/// What stderr may be: none of it costs the process more than the lines.
#[test]
fn stderr_that_takes_nothing_costs_lines_and_no_processor_time() {
    let (_blocking, to_blocking) = full_pipe(true);
    let (nonblocking, to_nonblocking) = full_pipe(false);
    let (closed, to_closed) = std::io::pipe().unwrap();
    drop(closed);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let flags = fcntl_getfl(&nonblocking).unwrap();
    let cases: [(&str, Stdio, bool); 4] = [
        ("a full pipe", to_blocking.into(), false),
        ("a full pipe that does not block", to_nonblocking.into(), false),
        ("a pipe without a reader", to_closed.into(), true),
        ("a full disk", full.into(), true),
    ];
    for (what, stderr, is_dropped) in cases {
        let folder = TempDir::new().unwrap();
        let mut command = relay(&folder);
        let mut child = command.stderr(stderr).spawn().unwrap();
        drop(command);
        let admin = format!("unix:{}", folder.path().join("admin.sock").display());
        until("its status", PATIENCE, || {
            assert_eq!(child.try_wait().unwrap(), None, "{what}");
            folder.path().join("admin.sock").exists().then_some(())
        });
        if is_dropped {
            until("lines are counted", PATIENCE, || (dropped(&admin) > 0).then_some(()));
        }
        let pid = child.id();
        let used = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let (_, fields) = stat.rsplit_once(") ").unwrap();
            fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
        };
        let before = used();
        std::thread::sleep(Duration::from_secs(1));
        assert!(used() - before < 20, "{what}: {} of 100 ticks", used() - before);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
        let code = until("its end", STUCK_END, || child.try_wait().unwrap());
        assert_eq!(code.code(), Some(0), "{what}");
    }
    assert_eq!(fcntl_getfl(&nonblocking).unwrap(), flags, "flags are everybody's");
}

/// What ends a process is seen where it can be, and does not wait where it can't.
#[test]
fn the_last_words_are_written_if_anybody_takes_them() {
    let (_reader, stuck) = full_pipe(true);
    let mut child = hopline().args(["up", "-c", "/nonexistent.yaml"]).stderr(stuck).spawn().unwrap();
    assert_eq!(until("its end", STUCK_END, || child.try_wait().unwrap()).code(), Some(1));

    // One that takes them slowly has them all.
    let (mut reader, slow) = full_pipe(false);
    let mut command = hopline();
    let mut child = command.args(["up", "-c", "/nonexistent.yaml"]).stderr(slow).spawn().unwrap();
    drop(command);
    let mut text = Vec::new();
    reader.read_to_end(&mut text).unwrap();
    assert!(String::from_utf8_lossy(&text).contains("hopline: /nonexistent.yaml"), "the error is lost");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// `RUST_LOG=` is as if it were not set; one that can't be obeyed is spoken of, and silences nothing.
#[test]
fn an_odd_rust_log_silences_nothing() {
    for (value, said) in
        [("", false), (" ", false), ("inf", true), ("hopline_relay=verbose", true), ("info", false)]
    {
        let folder = TempDir::new().unwrap();
        let mut command = relay(&folder);
        command.env("RUST_LOG", value);
        let process = Process::spawn("relay", folder.path(), command);
        process.logged("relay listens");
        assert_eq!(process.log().contains("RUST_LOG is not obeyed"), said, "{value:?}: {}", process.log());
    }
    // Whoever wants silence has it.
    let folder = TempDir::new().unwrap();
    let mut command = relay(&folder);
    command.env("RUST_LOG", "off");
    let process = Process::spawn("relay", folder.path(), command);
    until("its status", PATIENCE, || folder.path().join("admin.sock").exists().then_some(()));
    process.signal(Signal::INT);
    assert_eq!(process.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(process.log(), "");
}
