//! State folders: locks that others hold, records that are broken, folders that are the wrong ones.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hopline_admin::status::Status;
use hopline_config::{Env, parse_edge};
use hopline_edge::Edge;
use hopline_identity::{Clock, Machine};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Kind, PATIENCE, Process, World, WorldOptions, hopline, run, status, until};

/// A relay says after a second what it waits for; that, and a busy machine.
const SAID: Duration = Duration::from_secs(5);

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The lock of a state folder, as another process takes it.
fn hold(state: &Path) -> File {
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(state.join("lock")).unwrap();
    file.lock().unwrap();
    file
}

fn token(world: &World, flags: &[&str]) -> String {
    let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
    let made =
        run(["token", "create", "--state", state, "--relay", &relay, "--dial", "*"].iter().chain(flags));
    assert!(made.status.success(), "{made:?}");
    text(&made.stdout).to_owned()
}

/// A token in a file of its own, and the command that joins with it as `name`, into a folder of that name.
fn joining(folder: &Path, token: &str, name: &str) -> std::process::Command {
    joining_into(folder, token, name, &folder.join(name))
}

fn joining_into(folder: &Path, token: &str, name: &str, state: &Path) -> std::process::Command {
    let file = folder.join(name).with_extension("token");
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&file).unwrap().write_all(token.as_bytes()).unwrap();
    let mut command = hopline();
    command.arg("join").arg(file).args(["--name", name, "--state"]).arg(state);
    command
}

/// P22: whoever waits for the lock says so after a second, naming the file and its holder, and ends by a signal.
#[test]
fn p22_a_wait_for_a_lock_is_said_and_ends_by_a_signal() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("relay");
    let start = || {
        let mut relay = hopline();
        relay.args(["relay", "--listen", "127.0.0.1:0", "--state"]).arg(&state);
        Process::spawn("relay", folder.path(), relay)
    };
    // A relay has made the folder.
    let relay = start();
    relay.logged("relay listens listen=");
    relay.signal(Signal::INT);
    relay.wait_exit(Duration::from_secs(5));

    let held = hold(&state);
    let waiting = |process: &Process| {
        until("the wait is said", SAID, || {
            let log = process.log();
            let line = log.lines().find(|line| line.contains("waiting for the lock"))?.to_owned();
            let lock = state.join("lock").display().to_string();
            assert!(line.contains(&lock) && line.contains("process"), "{line}");
            Some(())
        });
        assert!(process.is_running());
    };
    for signal in [Signal::TERM, Signal::INT] {
        let relay = start();
        waiting(&relay);
        relay.signal(signal);
        relay.wait_exit(Duration::from_secs(2));
    }
    for args in [
        &["token", "create", "--relay", "127.0.0.1:1", "--dial", "*"][..],
        &["token", "revoke", "0123456789abcdef"],
    ] {
        for signal in [Signal::TERM, Signal::INT] {
            let mut command = hopline();
            command.args(args).arg("--state").arg(&state).stdout(Stdio::null());
            let process = Process::spawn("token", folder.path(), command);
            waiting(&process);
            process.signal(signal);
            process.wait_exit(Duration::from_secs(2));
        }
    }
    // Nobody has done anything meanwhile, and who waits goes on when it is free.
    assert_eq!(std::fs::read_dir(state.join("tokens")).unwrap().count(), 0);
    let relay = start();
    waiting(&relay);
    drop(held);
    relay.logged("relay listens listen=");
}

/// P22: while another process holds the running relay's lock, the path carries, joins get an answer, and no token is
/// spent.
#[test]
fn p22_a_held_lock_holds_up_nobody_at_the_relay() {
    const JOINS: usize = 12;
    let world = World::start(WorldOptions::default());
    let folder = TempDir::new().unwrap();
    let token = token(&world, &["--uses", "12"]);
    let held = hold(&world.relay.state);
    let name = |n: usize| format!("web-{n}");
    let joins: Vec<_> = (0..JOINS)
        .map(|n| {
            let mut command = joining(folder.path(), &token, &name(n));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    until("the wait is said", SAID, || {
        world.relay.process.log().contains("waiting for the lock").then_some(())
    });
    let slot = world.slot();
    let began = Instant::now();
    world.works(slot);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    for join in joins {
        let output = join.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("nothing was changed, try again"), "{output:?}");
    }
    drop(held);
    let listed = run(["token", "list", "--state", world.relay.state.to_str().unwrap()]);
    assert!(text(&listed.stdout).contains("12 of 12 uses left"), "{listed:?}");
    for n in 0..JOINS {
        assert!(joining(folder.path(), &token, &name(n)).output().unwrap().status.success(), "{n}");
    }
    assert!(world.mapping(&slot.name(Kind::Unix)).sessions.total > 0);
}

/// P22: a machine that was stopped while its join waited has spent nothing, whenever the lock is free.
#[test]
fn p22_a_join_that_was_given_up_spends_no_token() {
    let world = World::start(WorldOptions::default());
    let folder = TempDir::new().unwrap();
    let token = token(&world, &[]);
    let held = hold(&world.relay.state);
    let mut command = joining(folder.path(), &token, "web-1");
    command.stdout(Stdio::null());
    let join = Process::spawn("join", folder.path(), command);
    until("the join waits", SAID, || {
        world.relay.process.log().contains("waiting for the lock").then_some(())
    });
    join.kill();
    let refused = until("the relay has noticed", SAID, || {
        let log = world.relay.process.log();
        log.lines().find(|line| line.contains("join refused")).map(str::to_owned)
    });
    assert!(refused.contains("did not wait for its answer; nothing was changed"), "{refused}");
    drop(held);
    let state = world.relay.state.to_str().unwrap();
    let listed = run(["token", "list", "--state", state]);
    assert!(text(&listed.stdout).contains("1 of 1 uses left"), "{listed:?}");
    assert!(!text(&run(["machine", "list", "--state", state]).stdout).contains("web-1"));
    assert!(joining(folder.path(), &token, "web-1").output().unwrap().status.success());
}

/// One broken record: the good ones are listed, the bad one is named, the exit code is 1; and the relay goes on.
#[test]
fn a_list_names_what_is_broken_and_shows_the_rest() {
    let world = World::start(WorldOptions::default());
    let (state, id) = (world.relay.state.to_str().unwrap(), "0123456789abcdef");
    token(&world, &[]);
    std::fs::write(world.relay.state.join(format!("tokens/{id}.json")), "").unwrap();
    std::fs::create_dir(world.relay.state.join("machines/broken.json")).unwrap();
    std::fs::write(world.relay.state.join("machines/.tmp-left"), "half").unwrap();
    let cases = [("token", "1 of 1 uses left", id), ("machine", "sidecar", "broken.json")];
    for (what, good, bad) in cases {
        let listed = run([what, "list", "--state", state]);
        assert_eq!(listed.status.code(), Some(1));
        assert!(text(&listed.stdout).contains(good) && !text(&listed.stdout).contains(bad), "{listed:?}");
        assert!(
            text(&listed.stderr).contains(bad) && text(&listed.stderr).lines().count() == 1,
            "{listed:?}"
        );
    }
    let folder = TempDir::new().unwrap();
    assert!(joining(folder.path(), &token(&world, &[]), "web-1").output().unwrap().status.success());
    let log = world.relay.process.log();
    let broken = joining(folder.path(), &token(&world, &[]), "broken").output().unwrap();
    assert!(text(&broken.stderr).contains("its log says why"), "{broken:?} {log}");
    assert!(world.relay.process.log().contains("broken.json is damaged (it is a folder)"));
}

/// `token create` makes no authority: not in a folder that is missing, empty, or another one.
#[test]
fn a_token_is_never_made_beside_a_relay() {
    let folder = TempDir::new().unwrap();
    let create = |state: &Path| -> Output {
        let mut command = hopline();
        command
            .args(["token", "create", "--relay", "relay.example:7443", "--dial", "*", "--state"])
            .arg(state);
        command.output().unwrap()
    };
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (missing, mistyped): (PathBuf, PathBuf) =
        (folder.path().join("missing"), folder.path().join("empty/rela"));
    for (state, said) in
        [(&missing, "does not exist"), (&mistyped, "does not exist"), (&empty, "holds no relay state")]
    {
        let output = create(state);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
        let said_too = text(&output.stderr);
        assert!(said_too.contains(said) && said_too.contains("hopline relay --state"), "{said_too}");
    }
    assert!(!missing.exists() && !mistyped.exists());
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
}

/// A name with two addresses of which one is dead: `join` takes the other, as `up` does.
#[test]
fn a_join_tries_each_address_of_the_relay() {
    let world = World::start(WorldOptions::default());
    let folder = TempDir::new().unwrap();
    let state = world.relay.state.to_str().unwrap();
    let create = |relay: &str| run(["token", "create", "--state", state, "--relay", relay, "--dial", "*"]);
    // The relay listens on 127.0.0.1 only.
    let made = create(&format!("localhost:{}", world.relay.address.port()));
    let joined = joining(folder.path(), text(&made.stdout), "web-1").output().unwrap();
    assert!(joined.status.success(), "{joined:?}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let made = create(&format!("localhost:{nobody}"));
    let failed = joining(folder.path(), text(&made.stdout), "web-2").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    let said = text(&failed.stderr);
    assert!(said.contains(&format!("127.0.0.1:{nobody}: connection refused")), "{said}");
    assert!(said.contains(&format!("[::1]:{nobody}: ")), "{said}");
}

/// A certificate that another `join` has renewed is shown by links from then on, the sessions of the old link go on, and
/// the old link goes when they are over: on SIGHUP at once, by itself within some seconds.
#[test]
fn a_renewed_certificate_is_taken_up_by_a_running_edge() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let links = |machine: &str| -> Vec<String> {
        world
            .relay
            .status()
            .links
            .iter()
            .filter(|link| link.machine == machine)
            .map(|link| link.address.clone())
            .collect()
    };
    let cases = [(&world.sidecar, "sidecar", "--dial", true), (&world.agent, "agent", "--publish", false)];
    for (edge, name, grant, by_signal) in cases {
        let (mut app, mut server) = slot.answered_pair(Kind::Tcp);
        let before = links(name);
        let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
        let made = run(["token", "create", "--state", state, "--relay", &relay, grant, "*"]);
        let folder = TempDir::new().unwrap();
        assert!(
            joining_into(folder.path(), text(&made.stdout), name, &edge.state)
                .output()
                .unwrap()
                .status
                .success()
        );
        if by_signal {
            edge.process.signal(Signal::HUP);
        }
        edge.process.logged("certificate was renewed and is taken up");
        until("a new link takes over", PATIENCE, || {
            edge.process.log().contains("a link with the new one takes over").then_some(())
        });
        // The session that was open crosses the old link still.
        app.write_all(b"still").unwrap();
        assert_eq!(server.chunk(5), b"still");
        assert!(links(name).iter().any(|link| before.contains(link)), "{before:?}");
        world.works(slot);
        drop((app, server));
        until("the old link goes", PATIENCE, || {
            let now = links(name);
            (now.len() == 1 && !before.contains(&now[0])).then_some(())
        });
        world.works(slot);
    }
}

/// No open fails while a link with a renewed certificate takes over from the one before it (P7): the relay learns that the
/// old link takes no more only when it has the services of the new one.
#[test]
fn p7_no_open_fails_while_a_renewed_certificate_is_taken_up() {
    const RENEWALS: usize = 8;
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let over = AtomicBool::new(false);
    let opens = std::thread::scope(|scope| {
        let openers: Vec<_> = world
            .slots
            .iter()
            .map(|slot| {
                let over = &over;
                scope.spawn(move || {
                    let mut opens = 0_usize;
                    while !over.load(Ordering::Relaxed) {
                        let (mut app, mut server) = slot.pair(Kind::Tcp);
                        server.write_all(b"!").unwrap();
                        assert_eq!(app.chunk(1), b"!");
                        opens += 1;
                    }
                    opens
                })
            })
            .collect();
        for round in 0..RENEWALS {
            let (edge, name, grant) = match round % 2 {
                0 => (&world.agent, "agent", "--publish"),
                _ => (&world.sidecar, "sidecar", "--dial"),
            };
            let taken_up = || edge.process.log().matches("a link with the new one takes over").count();
            let before = taken_up();
            let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
            let made = run(["token", "create", "--state", state, "--relay", &relay, grant, "*"]);
            let joined =
                joining_into(world.folder(), text(&made.stdout), name, &edge.state).output().unwrap();
            assert!(joined.status.success(), "{joined:?}");
            edge.process.signal(Signal::HUP);
            until("a new link takes over", PATIENCE, || (taken_up() > before).then_some(()));
        }
        over.store(true, Ordering::Relaxed);
        openers.into_iter().map(|opener| opener.join().unwrap()).sum::<usize>()
    });
    assert!(opens > RENEWALS, "{opens} opens");
    assert!(world.relay.status().opens.refused.is_empty(), "{:?}", world.relay.status().opens);
}

/// An edge starts with a clock of 1970: it waits, its status says that the clock seems wrong, and it links when it is set.
#[test]
fn an_edge_with_a_wrong_clock_links_when_it_is_set() {
    let world = World::start(WorldOptions::default());
    let seconds = Arc::new(AtomicU64::new(5));
    let hands = Arc::clone(&seconds);
    let clock =
        Clock::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(hands.load(Ordering::Relaxed)));
    let machine = Machine::load_by(&world.sidecar.state, clock).unwrap();
    let folder = TempDir::new().unwrap();
    let admin = format!("unix:{}", folder.path().join("admin.sock").display());
    let file = format!("status: \"{admin}\"\nconnect: {{ u0: {{ listen: \"127.0.0.1:0\" }} }}\n");
    let config = parse_edge(file.as_bytes(), &Env::new("the test's own file")).unwrap().config;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let edge = runtime.block_on(Edge::start(config, machine)).unwrap();
    until("the status says why", PATIENCE, || {
        let Status::Edge(status) = status(&admin) else { panic!("not an edge") };
        let said = status.links[0].last_error.clone()?.message;
        assert!(said.contains("clock seems wrong: it says 1970-01-01"), "{said}");
        Some(())
    });
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    seconds.store(now, Ordering::Relaxed);
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), edge.ready()).await }).unwrap();
    runtime.block_on(edge.shutdown());
}
