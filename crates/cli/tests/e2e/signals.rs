//! What each signal does to each command that runs until it is told to stop. docs/operations.md has the table.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;

use crate::harness::{Conn, Kind, PATIENCE, Process, World, WorldOptions, hopline, shared, until};

/// Signals that a process may get and that are no reason to end.
const HARMLESS: [Signal; 9] = [
    Signal::PIPE,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::IO,
    Signal::POWER,
    Signal::XFSZ,
];
/// For an end that waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Whether the process has a handler for a signal; before `main` it can't.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

fn dial(world: &World, service: &str, listen: &str) -> Command {
    let mut command = hopline();
    command.args(["dial", service, "--listen", listen, "--state"]).arg(&world.sidecar.state);
    command
}

fn relay(folder: &Path) -> Command {
    let mut command = hopline();
    command.args(["relay", "--listen", "127.0.0.1:0", "--state"]).arg(folder.join("relay"));
    command
}

/// An edge that reaches no relay, with a mapping.
fn edge(world: &World, folder: &Path) -> Command {
    let file = folder.join("edge.yaml");
    std::fs::write(&file, "relay: [\"127.0.0.1:9\"]\nconnect: { a: { listen: \"127.0.0.1:0\" } }\n").unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(file).arg("--state").arg(&world.sidecar.state);
    command
}

/// SIGHUP again and again, from the first moment on at which there is a handler: while files are read, sockets opened,
/// tasks started.
#[test]
fn hangups_from_the_first_moment_on_end_nothing() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let service = world.slot().name(Kind::Tcp);
    let commands = [
        ("relay", relay(folder.path()), "relay listens"),
        ("edge", edge(&world, folder.path()), "mapping open"),
        ("dial", dial(&world, &service, "127.0.0.1:0"), "mapping open"),
    ];
    for (name, mut command, started) in commands {
        command.stdout(Stdio::null());
        let process = Process::spawn(name, folder.path(), command);
        until("a handler", PATIENCE, || catches(process.pid(), Signal::HUP).then_some(()));
        while !process.log().contains(started) {
            assert!(process.is_running(), "{name} was ended: {}", process.log());
            process.signal(Signal::HUP);
        }
        for _ in 0..100 {
            process.signal(Signal::HUP);
        }
        assert!(process.is_running(), "{name} was ended: {}", process.log());
        process.signal(Signal::INT);
        assert_eq!(process.wait_exit(AT_ONCE).code(), Some(0), "{name}: {}", process.log());
    }
}

/// Of each long-running command: harmless signals are, SIGTERM and SIGINT end it.
#[test]
fn every_signal_has_a_decided_meaning() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let slot = world.slot();
    let mut watch = hopline();
    watch.args(["status", "--watch", &world.sidecar.admin]);
    let mut demo = hopline();
    demo.args(["demo", "--stay"]);
    let commands = [
        ("relay", relay(folder.path()), 0),
        ("edge", edge(&world, folder.path()), 0),
        ("dial", dial(&world, &slot.name(Kind::Tcp), "127.0.0.1:0"), 0),
        ("pipe", dial(&world, &slot.name(Kind::Unix), "-"), 1),
        // A process that watches others says how they are.
        ("watch", watch, 0),
        ("demo", demo, 1),
    ];
    for (name, mut command, code) in commands {
        for last in [Signal::TERM, Signal::INT] {
            command.stdin(Stdio::piped()).stdout(File::create(folder.path().join("stdout")).unwrap());
            let mut again = hopline();
            again.args(command.get_args()).stdin(Stdio::piped());
            again.stdout(File::create(folder.path().join("stdout")).unwrap());
            let process = Process::spawn(name, folder.path(), again);
            until("a handler", PATIENCE, || catches(process.pid(), Signal::XFSZ).then_some(()));
            if name == "watch" {
                until("it has shown something", PATIENCE, || {
                    let shown = std::fs::read_to_string(folder.path().join("stdout")).unwrap();
                    shown.contains("edge, version").then_some(())
                });
            }
            for signal in HARMLESS.into_iter().chain([Signal::HUP]) {
                process.signal(signal);
            }
            // A process that is to end by one of them would have, when it has answered something behind them.
            let mut handled = || {
                let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
                let pending = |name: &str| {
                    let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
                    u64::from_str_radix(mask.trim(), 16).unwrap()
                };
                (pending("ShdPnd:") == 0 && pending("SigPnd:") == 0).then_some(())
            };
            until("the signals have arrived", PATIENCE, &mut handled);
            assert!(process.is_running(), "{name} was ended: {}", process.log());
            process.signal(last);
            // The pipe has a session that drains; the demo starts whole before it looks.
            let wait = if ["pipe", "demo"].contains(&name) { PATIENCE } else { AT_ONCE };
            let ended = process.wait_exit(wait).code();
            // What the watch has shown is the others' doing: they share the path.
            let code = if name == "watch" { ended.map(|code| code.min(1)) } else { Some(code) };
            assert!(ended.is_some() && ended == code, "{name}, {last:?}, {ended:?}: {}", process.log());
        }
    }
}

/// Commands that end by themselves can be ended by what ends every program.
#[test]
fn a_command_that_waits_can_be_interrupted() {
    use std::os::unix::process::ExitStatusExt as _;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut command = hopline();
        command.args(["join", "-"]).stdin(Stdio::piped());
        let folder = TempDir::new().unwrap();
        let process = Process::spawn("join", folder.path(), command);
        until("a handler", PATIENCE, || catches(process.pid(), Signal::INT).then_some(()));
        process.signal(signal);
        assert_eq!(process.wait_exit(AT_ONCE).signal(), Some(signal.as_raw()), "{}", process.log());
    }
}

const BECOME: &str = "HOPLINE_TEST_ON_A_TERMINAL";

/// No test: becomes, in a process of its own, the leader of a session on the terminal that is its stdin, and then the
/// command that the variable holds. See [`on_a_terminal`].
#[test]
fn becomes_the_leader_of_a_terminal() {
    let Some(args) = std::env::var_os(BECOME) else { return };
    rustix::process::setsid().unwrap();
    rustix::process::ioctl_tiocsctty(std::io::stdin()).unwrap();
    let args = args.into_string().unwrap();
    let mut args = args.split('\n');
    let error = Command::new(args.next().unwrap()).args(args).env_remove(BECOME).exec();
    panic!("{error}");
}

/// Starts a command on a terminal of its own; the terminal hangs up when what is returned is dropped. `ignoring` as
/// `nohup` does.
fn on_a_terminal(name: &str, folder: &Path, command: &Command, ignoring: bool) -> (OwnedFd, Process) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let path = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let other_end = File::options().read(true).write(true).open(path).unwrap();
    let trap = if ignoring { "trap '' HUP; " } else { "" };
    let script = format!("{trap}exec \"$0\" \"$@\"");
    let mut args = vec!["/bin/sh".to_owned(), "-c".to_owned(), script];
    args.push(command.get_program().to_str().unwrap().to_owned());
    args.extend(command.get_args().map(|arg| arg.to_str().unwrap().to_owned()));
    let mut leader = Command::new(std::env::current_exe().unwrap());
    leader.args(["--exact", "signals::becomes_the_leader_of_a_terminal", "--nocapture"]);
    leader.env(BECOME, args.join("\n")).stdin(other_end).stdout(Stdio::null());
    for variable in ["RUST_LOG", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"] {
        leader.env_remove(variable);
    }
    (terminal, Process::spawn(name, folder, leader))
}

/// A terminal that is closed drains what was started on it, which lets go of its ports; a SIGHUP by hand is none.
#[test]
fn a_terminal_that_hangs_up_is_a_sigterm() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let service = world.slot().name(Kind::Tcp);
    let commands = [
        ("relay", relay(folder.path()), "relay listens"),
        ("edge", edge(&world, folder.path()), "mapping open"),
        ("dial", dial(&world, &service, "127.0.0.1:0"), "mapping open"),
    ];
    for (name, command, started) in commands {
        let (terminal, process) = on_a_terminal(name, folder.path(), &command, false);
        process.logged(started);
        process.signal(Signal::HUP);
        if name == "edge" {
            process.logged("config file reloaded");
        }
        assert!(process.is_running(), "{name}: {}", process.log());
        drop(terminal);
        let code = process.wait_exit(AT_ONCE).code();
        assert_eq!(code, Some(0), "{name}: {}", process.log());
        assert!(process.log().contains("the terminal has hung up"), "{name}: {}", process.log());
        assert!(process.log().contains("draining"), "{name}: {}", process.log());
    }
}

/// `nohup`: the terminal goes, and the process does not.
#[test]
fn what_ignores_hangups_lives_on_without_its_terminal() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let (terminal, process) = on_a_terminal("edge", folder.path(), &edge(&world, folder.path()), true);
    process.logged("mapping open");
    drop(terminal);
    // It still reads its file again when it is asked to.
    until("a reload", PATIENCE, || {
        process.signal(Signal::HUP);
        process.log().contains("config file reloaded").then_some(())
    });
    assert!(process.is_running(), "{}", process.log());
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit(AT_ONCE).code(), Some(0));
}

/// SIGTERM lets a session of `dial --listen` run on; a second one ends it at once.
#[test]
fn dial_drains() {
    let world = World::start(WorldOptions::default());
    let slot = &world.slots[0];
    let start = || {
        let process =
            Process::spawn("dial", world.folder(), dial(&world, &slot.name(Kind::Tcp), "127.0.0.1:0"));
        let address = process.logged("mapping open mapping=t0 listens=");
        let mut app = Conn::connect(address);
        app.write_all(b"by dial").unwrap();
        let mut server = slot.accept();
        assert_eq!(server.chunk(7), b"by dial");
        process.signal(Signal::TERM);
        process.logged("draining");
        (process, app, server)
    };
    let (process, mut app, mut server) = start();
    server.write_all(b"still here").unwrap();
    assert_eq!(app.chunk(10), b"still here");
    app.end();
    assert_eq!(server.read_to_eof(), b"");
    server.end();
    assert_eq!(app.read_to_eof(), b"");
    assert_eq!(process.wait_exit(AT_ONCE).code(), Some(0));

    let (process, mut app, _server) = start();
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit(AT_ONCE).code(), Some(0));
    let mut rest = Vec::new();
    assert!(app.read_to_end(&mut rest).is_err(), "a cut is no end");
}

/// The soft limit on open files is raised to the hard one, and a debug line says so.
#[test]
fn the_soft_limit_on_open_files_is_raised() {
    let folder = TempDir::new().unwrap();
    let command = relay(folder.path());
    let mut limited = Command::new("/bin/sh");
    limited
        .arg("-c")
        .arg("ulimit -Sn 64; exec \"$0\" \"$@\"")
        .arg(command.get_program())
        .args(command.get_args());
    limited.env("RUST_LOG", "debug").env_remove("XDG_STATE_HOME");
    let process = Process::spawn("relay", folder.path(), limited);
    process.logged("relay listens");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[3], fields[4], "{line}");
    assert!(
        process.log().contains(&format!("limit on open files limit=\"{}\" before=\"64\"", fields[4])),
        "{}",
        process.log()
    );
}
