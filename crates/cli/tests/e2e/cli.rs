//! The commands as a person meets them: what they print, and how they exit.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{
    Conn, Kind, PATIENCE, Process, World, WorldOptions, hopline, pattern, run, shared, until,
};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn file(folder: &TempDir, text: &str) -> String {
    let path = folder.path().join("app.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const BAD: &str =
    "status: 10.0.0.7:7801\nconect: {}\nconnect:\n  a: { listen: \"127.0.0.1:0\", open_timeout: 10 }\n";
const FAULTS: [&str; 3] = [":1:9: status:", ":2:1: conect:", ":4:45: connect.a.open_timeout:"];

/// `check` says all faults of a file at once, and `up` refuses it with the same words.
#[test]
fn check_and_up_say_all_faults() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, BAD);
    let checked = run(["check", "-c", &path]);
    assert_eq!(code(&checked), 1);
    let started = run(["up", "-c", &path]);
    assert_eq!(code(&started), 1);
    assert_eq!(text(&started.stdout), "");
    for said in [text(&checked.stdout), text(&started.stderr)] {
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), FAULTS.len(), "{said}");
        for (line, fault) in lines.iter().zip(FAULTS) {
            assert!(line.starts_with(&format!("{path}{fault}")), "{line:?} is not of {fault:?}");
        }
    }

    let path = file(&folder, "connect: { a: { listen: \"127.0.0.1:0\" } }\n");
    let checked = run(["check", "-c", &path]);
    assert_eq!(
        (code(&checked), text(&checked.stdout)),
        (0, format!("{path}: good: 0 services, 1 mappings\n").as_str())
    );
    let missing = run(["check", "-c", "/nonexistent/app.yaml"]);
    assert_eq!(code(&missing), 1);
    assert!(text(&missing.stderr).contains("/nonexistent/app.yaml"), "{missing:?}");
    // F182: a token has no flag, so that it cannot come to stand on a command line.
    for unknown in [["up", "--token", "x"], ["join", "--token", "x"], ["relay", "--drian", "1s"]] {
        let output = run(unknown);
        assert_eq!(code(&output), 2, "{unknown:?}");
        assert!(text(&output.stderr).contains(unknown[1]), "{output:?}");
    }
}

/// A token is one line on stdout; it joins one machine, and says so when it is asked to join another.
#[test]
fn tokens_join_once() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
    let token = run(["token", "create", "--state", state, "--relay", &relay, "--dial", "*"]);
    assert_eq!(code(&token), 0);
    assert_eq!(text(&token.stderr), "");
    let line = text(&token.stdout);
    assert!(
        line.starts_with("hopline-join-1.") && line.ends_with('\n') && line.lines().count() == 1,
        "{line:?}"
    );

    let first = join_from_stdin(line, "cli-1", folder.path());
    assert_eq!(code(&first), 0, "{first:?}");
    assert!(text(&first.stdout).contains("as cli-1: may publish nothing, may dial *"), "{first:?}");
    let second = join_from_stdin(line, "cli-2", folder.path());
    assert_eq!(code(&second), 1);
    let said = text(&second.stderr);
    assert!(said.starts_with("hopline: ") && said.lines().count() == 1 && said.contains("token"), "{said:?}");
    let damaged = join_from_stdin(&line[..60], "cli-3", folder.path());
    assert_eq!(code(&damaged), 1);
    assert!(text(&damaged.stderr).contains("damaged or cut off"), "{damaged:?}");

    let machines = run(["machine", "list", "--state", state]);
    assert!(text(&machines.stdout).contains("cli-1") && !text(&machines.stdout).contains("cli-2"));
    let grants_nothing = run(["token", "create", "--state", state, "--relay", &relay]);
    assert_eq!(code(&grants_nothing), 1);
    assert!(text(&grants_nothing.stderr).contains("--publish"), "{grants_nothing:?}");
}

fn join_from_stdin(token: &str, name: &str, folder: &Path) -> Output {
    let mut command = hopline();
    command.args(["join", "-", "--name", name, "--state"]).arg(folder.join(name));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// `dial -` is a pipe: stdin there, the answer on stdout, and the end of each.
#[test]
fn dial_pipes_stdin_and_stdout() {
    let world = shared();
    let slot = world.slot();
    let (request, reply) = (pattern(1, 300 << 10), pattern(2, 300 << 10));
    let mut command = hopline();
    command.args(["dial", &slot.name(Kind::Tcp), "--state"]).arg(&world.sidecar.state);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(&request).unwrap());
        scope.spawn(|| {
            let mut server = slot.accept();
            assert!(server.read_to_eof() == pattern(1, 300 << 10), "another request");
            server.write_all(&reply).unwrap();
        });
        let mut got = Vec::new();
        stdout.read_to_end(&mut got).unwrap();
        assert!(got == reply, "another reply");
    });
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let refused = hopline()
        .args(["dial", "no-such", "--open-timeout", "500ms", "--state"])
        .arg(&world.sidecar.state)
        .output()
        .unwrap();
    assert_eq!(code(&refused), 1);
    assert!(text(&refused.stderr).starts_with("hopline: no-such: "), "{refused:?}");
}

/// `dial --listen` says where it listens, which matters with port 0.
#[test]
fn dial_listens() {
    let world = shared();
    let slot = world.slot();
    let mut command = hopline();
    command
        .args(["dial", &slot.name(Kind::Tcp), "--listen", "127.0.0.1:0", "--state"])
        .arg(&world.sidecar.state);
    let printed = world.folder().join("dial.out");
    command.stdout(std::fs::File::create(&printed).unwrap());
    let dial = Process::spawn("dial", world.folder(), command);
    let address = crate::harness::until("an address on stdout", crate::harness::PATIENCE, || {
        let printed = std::fs::read_to_string(&printed).unwrap();
        printed.strip_suffix('\n').map(str::to_owned)
    });
    let mut app = Conn::connect(address);
    app.write_all(b"by dial").unwrap();
    assert_eq!(slot.accept().chunk(7), b"by dial");
    assert_eq!(app.read_to_eof(), b"");
    // SIGTERM would wait for what is open.
    drop(app);
    dial.signal(Signal::TERM);
    assert_eq!(dial.wait_exit(Duration::from_secs(2)).code(), Some(0));
}

/// `status`: text for people, JSON as it is, and an exit code for scripts.
#[test]
fn status_exit_codes() {
    let world = shared();
    let healthy = run(["status", &world.sidecar.admin]);
    assert_eq!(code(&healthy), 0, "{healthy:?}");
    assert!(text(&healthy.stdout).contains("sidecar") && text(&healthy.stdout).contains("relay-a"));
    let json = run(["status", "--json", &world.agent.admin]);
    assert_eq!(code(&json), 0);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["machine"], "agent");
    assert_eq!(json["links"][0]["peer"], "relay-a");
    let relay = run(["status", &world.relay.admin]);
    assert_eq!(code(&relay), 0);
    assert!(text(&relay.stdout).contains("agent"));

    let folder = TempDir::new().unwrap();
    let nothing = run(["status", &format!("unix:{}", folder.path().join("none.sock").display())]);
    assert_eq!(code(&nothing), 1);
    assert!(text(&nothing.stderr).starts_with("hopline: nothing listens at"), "{nothing:?}");
}

/// What strangers bring about fills no disk: of many refused joins the relay's log has ten lines a minute.
#[test]
fn of_one_cause_ten_lines_a_minute_are_logged() {
    let world = World::start(WorldOptions::default());
    let folder = TempDir::new().unwrap();
    let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
    let token = run(["token", "create", "--state", state, "--relay", &relay, "--dial", "*"]);
    assert_eq!(code(&join_from_stdin(text(&token.stdout), "log-0", folder.path())), 0);
    for n in 1..=25 {
        assert_eq!(code(&join_from_stdin(text(&token.stdout), &format!("log-{n}"), folder.path())), 1);
    }
    assert_eq!(world.relay.process.log().matches("join refused").count(), 10);
}

/// `status --watch`: again and again, without colours where nobody sees them, and an exit code in the end.
#[test]
fn status_watches_until_it_is_told_to_stop() {
    let world = shared();
    let mut command = hopline();
    command.args(["status", "--watch", &world.sidecar.admin]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut stdout = watch.stdout.take().unwrap();
    let mut shown = String::new();
    until("it is shown a second time", PATIENCE, || {
        let mut piece = [0; 4096];
        let n = stdout.read(&mut piece).unwrap();
        shown += text(&piece[..n]);
        (shown.matches("sidecar: edge, version").count() == 2).then_some(())
    });
    assert!(!shown.contains('\x1b'), "{shown}");
    kill_process(Pid::from_raw(watch.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert!(watch.wait().unwrap().code().is_some(), "it ends by itself");
}

/// `status --watch | head`: it ends with its reader, and a reader that stops does not hold up a signal.
#[test]
fn status_watches_no_longer_than_its_reader() {
    let world = shared();
    let mut command = hopline();
    command.args(["status", "--watch", &world.sidecar.admin]).stdout(Stdio::piped());
    let mut watch = command.spawn().unwrap();
    let mut stdout = watch.stdout.take().unwrap();
    assert!(stdout.read(&mut [0; 64]).unwrap() > 0);
    drop(stdout);
    assert_eq!(until("it ends", PATIENCE, || watch.try_wait().unwrap()).code(), Some(0));

    let (_reader, full) = crate::logs::full_pipe(true);
    let mut watch = command.stdout(full).spawn().unwrap();
    until("it waits for its reader", PATIENCE, || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", watch.id())).unwrap();
        let calls =
            threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("syscall")).ok());
        // `write` on this kind of processor or that, to descriptor 1.
        calls.into_iter().any(|call| call.starts_with("1 0x1 ") || call.starts_with("64 0x1 ")).then_some(())
    });
    kill_process(Pid::from_raw(watch.id().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(until("it ends", PATIENCE, || watch.try_wait().unwrap()).code(), Some(1), "nothing was shown");
}

/// Completions are what the parser says, for every shell that it knows.
#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completions", shell]);
        assert_eq!(code(&script), 0, "{shell}");
        assert!(text(&script.stdout).contains("open-timeout"), "{shell}");
    }
    assert_eq!(code(&run(["completions", "abacus"])), 2);
}
