//! SIGHUP: a changed file is taken over, a bad one changes nothing.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use hopline_admin::status::{MappingState, Status};
use rustix::process::Signal;

use crate::ends::reason_at;
use crate::harness::{
    AT_ONCE, Conn, Kind, PATIENCE, Process, World, WorldOptions, hopline, shared, status, until,
};

/// Rewrites the file of an edge.
pub(crate) fn rewrite(world: &World, edge: &str, change: impl FnOnce(String) -> String) {
    let path = world.folder().join(edge).with_extension("yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, change(text)).unwrap();
}

fn exchange(app: &mut Conn, server: &mut Conn) {
    app.write_all(b"to").unwrap();
    assert_eq!(server.chunk(2), b"to");
    server.write_all(b"fro").unwrap();
    assert_eq!(app.chunk(3), b"fro");
}

/// F137: new sessions go by the new file; open ones keep the server that they have.
#[test]
fn f137_reload_of_services() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let [first, second] = world.slots.as_slice() else { panic!("two slots") };
    let (mut app, mut server) = first.pair(Kind::Tcp);
    let ports = [first, second].map(|slot| slot.server.local_addr().unwrap().port().to_string());
    // t0 moves to the second server, u0 is gone.
    rewrite(&world, "agent", |text| {
        let kept = text.lines().filter(|line| !line.starts_with("  u0:"));
        let moved = kept.map(|line| match line.starts_with("  t0:") {
            true => line.replace(&ports[0], &ports[1]),
            false => line.to_owned(),
        });
        moved.collect::<Vec<_>>().join("\n")
    });
    world.agent.process.signal(Signal::HUP);
    until("t0 has moved", PATIENCE, || world.service("t0").target.ends_with(&ports[1]).then_some(()));
    exchange(&mut app, &mut server);
    let mut moved = first.dial(Kind::Tcp);
    exchange(&mut moved, &mut second.accept());
    until("u0 is gone", PATIENCE, || {
        let mut app = first.dial(Kind::Unix);
        app.drain();
        (world.mapping("u0").last_error?.reason == "offline").then_some(())
    });
    reason_at(&world, "u0", "offline", 1);
    world.works(second);
}

/// A mapping that is gone from the file closes its socket, and only that; when it comes back it works.
#[test]
fn reload_of_mappings() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let slot = &world.slots[0];
    let mut open = slot.pair(Kind::Tcp);
    let mut line = String::new();
    rewrite(&world, "sidecar", |text| {
        let (gone, kept): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("  t0:"));
        line = gone.concat();
        kept.join("\n")
    });
    world.sidecar.process.signal(Signal::HUP);
    let mappings = || world.sidecar.status().mappings.iter().map(|m| m.name.clone()).collect::<Vec<_>>();
    until("t0 is gone", PATIENCE, || (mappings() == ["t1", "u0", "u1"]).then_some(()));
    TcpStream::connect(slot.address()).unwrap_err();
    exchange(&mut open.0, &mut open.1);
    world.works(&world.slots[1]);

    rewrite(&world, "sidecar", |text| format!("{text}\n{line}\n"));
    world.sidecar.process.signal(Signal::HUP);
    until("t0 is back", PATIENCE, || (mappings() == ["t0", "t1", "u0", "u1"]).then_some(()));
    // It is listed before its socket is open.
    let address = until("its socket is open", AT_ONCE, || {
        let listen = world.mapping("t0").listen;
        (!listen.ends_with(":0")).then_some(listen)
    });
    let mut again = Conn::connect(address);
    exchange(&mut again, &mut slot.accept());
    exchange(&mut open.0, &mut open.1);
}

/// P6: what a reload has taken away is drained as what is there: its open sessions keep their bytes until they end, or
/// the deadline comes.
#[test]
fn p6_a_drain_waits_for_sessions_of_what_a_reload_has_removed() {
    for (edge, kind) in [("sidecar", Kind::Tcp), ("sidecar", Kind::Unix), ("agent", Kind::Tcp)] {
        let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
        let slot = &world.slots[0];
        let (mut app, mut server) = slot.answered_pair(kind);
        let name = slot.name(kind);
        rewrite(&world, edge, |text| {
            let entry = format!("  {name}:");
            text.lines().filter(|line| !line.starts_with(&entry)).collect::<Vec<_>>().join("\n")
        });
        let process = if edge == "agent" { &world.agent.process } else { &world.sidecar.process };
        process.signal(Signal::HUP);
        process.logged("config file reloaded");
        process.signal(Signal::TERM);
        process.logged("draining");
        // Nobody else is there to wait for, so a drain that does not wait is over in this time.
        std::thread::sleep(std::time::Duration::from_millis(500));
        exchange(&mut app, &mut server);
        app.end();
        assert_eq!(server.read_to_eof(), b"");
        server.end();
        assert_eq!(app.read_to_eof(), b"", "{edge}, {kind:?}: an orderly end");
        drop((app, server));
        assert!(
            process.wait_exit(std::time::Duration::from_secs(5)).success(),
            "it waits no longer than that"
        );
    }
}

/// F136: a file that is broken, cut off or missing changes nothing, and the log says why.
#[test]
fn f136_bad_file_changes_nothing() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let (mut app, mut server) = slot.pair(Kind::Unix);
    let before = world.sidecar.status().mappings;
    let file = world.folder().join("sidecar.yaml");
    let whole = std::fs::read_to_string(&file).unwrap();
    let bad: [Option<&str>; 4] = [Some("connect: ["), Some(""), Some(&whole[..whole.len() - 20]), None];
    for (number, text) in (1..).zip(bad) {
        match text {
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        world.sidecar.process.signal(Signal::HUP);
        until("the log says why", PATIENCE, || {
            (world.sidecar.process.log().matches("nothing was reloaded").count() == number).then_some(())
        });
        exchange(&mut app, &mut server);
        let after = world.sidecar.status().mappings;
        assert_eq!(before.len(), after.len());
        assert!(before.iter().zip(&after).all(|(a, b)| (&a.name, &a.listen) == (&b.name, &b.listen)));
    }
    world.works(slot);
}

/// `log:` of an edge: what is logged changes at once, but for the format.
#[test]
fn reload_of_what_is_logged() {
    let world = shared();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("edge.yaml");
    let write = |log: &str| {
        let rest =
            "relay: [\"127.0.0.1:9\"]\nconnect: { a: { listen: \"127.0.0.1:0\", open_timeout: 100ms } }\n";
        std::fs::write(&file, format!("log: {{ {log} }}\n{rest}")).unwrap();
    };
    write("level: info");
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
    let edge = Process::spawn("edge", folder.path(), command);
    let address = edge.logged("mapping open mapping=a listens=");
    let lines = || edge.log().matches("hopline_access: session over").count();
    let session = || {
        Conn::connect(&address).drain();
    };
    session();
    let reloads = || edge.log().matches("config file reloaded").count();
    let reload = |count: usize| {
        edge.signal(Signal::HUP);
        until("a reload", PATIENCE, || (reloads() == count).then_some(()));
    };
    assert_eq!(lines(), 0);
    write("level: error, access: true");
    edge.signal(Signal::HUP);
    until("an access line", PATIENCE, || {
        session();
        (lines() > 0).then_some(())
    });
    // Errors only: not even this reload has a line.
    assert_eq!(reloads(), 0, "{}", edge.log());
    write("level: info, access: true, format: json");
    reload(1);
    edge.logged("these keys have changed and need a restart keys=[\"log\"]");
    write("level: info");
    reload(2);
    let before = lines();
    session();
    assert_eq!(lines(), before);
}

/// A relay's file: what can change does, a key that can't is named, one with faults changes nothing.
#[test]
fn reload_of_a_relay() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("relay.yaml");
    let state = folder.path().join("relay");
    let write = |text: &str| {
        let listen = "listen: \"127.0.0.1:0\"\n";
        std::fs::write(&file, format!("{listen}state: {}\n{text}", state.display())).unwrap();
    };
    write("log: { level: info }\n");
    let mut command = hopline();
    command.args(["relay", "-c"]).arg(&file);
    let relay = Process::spawn("relay", folder.path(), command);
    let address = relay.logged("relay listens listen=");
    let failed = || relay.log().matches("DEBUG TLS handshake failed").count();
    let stranger = || drop(TcpStream::connect(&address).unwrap());
    stranger();
    write("log: { level: debug }\n");
    relay.signal(Signal::HUP);
    relay.logged("config file reloaded");
    until("a debug line", PATIENCE, || {
        stranger();
        (failed() > 0).then_some(())
    });
    write("log: { level: info }\nholt: 3s\n");
    relay.signal(Signal::HUP);
    relay.logged("nothing was reloaded: ");
    let before = failed();
    until("it is as it was", PATIENCE, || {
        stranger();
        (failed() > before).then_some(())
    });
    write("log: { level: debug }\nhold: 3s\nanswer_timeout: 4s\nkeepalive: fast\ndrain: 1s\n");
    relay.signal(Signal::HUP);
    relay.logged("config file reloaded changed=[\"keepalive\", \"hold\", \"drain\", \"answer_timeout\"]");
    std::fs::remove_file(&file).unwrap();
    relay.signal(Signal::HUP);
    relay.logged("relay.yaml: No such file");
    let moved =
        format!("listen: \"127.0.0.1:9\"\nstate: {}\nlog: {{ level: debug }}\n", folder.path().display());
    std::fs::write(&file, moved).unwrap();
    relay.signal(Signal::HUP);
    relay.logged("these keys have changed and need a restart keys=[\"listen\", \"state\"]");
    stranger();
    write("log: { level: debug, format: json }\nadmin: 127.0.0.1:0\n");
    relay.signal(Signal::HUP);
    until("admin and the log are named", AT_ONCE, || {
        let log = relay.log();
        let line = log.lines().rfind(|line| line.contains("need a restart"))?.to_owned();
        ["\"admin\"", "\"log"].iter().all(|key| line.contains(key)).then_some(())
    });
    assert!(relay.is_running());
}

/// A mapping whose address is busy at the start, or whose folder is missing, is tried again until it can be opened; the
/// others work meanwhile.
#[test]
fn a_socket_that_could_not_be_opened_is_tried_again() {
    /// The longest time between two tries.
    const AGAIN: Duration = Duration::from_secs(5);
    let (world, folder) = (shared(), tempfile::TempDir::new().unwrap());
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    let (admin, missing) = (folder.path().join("admin.sock"), folder.path().join("later"));
    let file = folder.path().join("edge.yaml");
    let text = format!(
        "status: \"unix:{}\"\nconnect:\n  busy: {{ listen: \"{address}\" }}\n  \
         missing: {{ listen: \"unix:{}/a.sock\" }}\n  free: {{ listen: \"127.0.0.1:0\" }}\n",
        admin.display(),
        missing.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
    let edge = Process::spawn("busy", folder.path(), command);
    edge.logged("link up");
    let state = |name: &str| {
        let Status::Edge(edge) = status(&format!("unix:{}", admin.display())) else { panic!("an edge") };
        edge.mappings.iter().find(|mapping| mapping.name == name).unwrap().state
    };
    for name in ["busy", "missing"] {
        until("it has been tried", PATIENCE, || (state(name) == MappingState::Failed).then_some(()));
    }
    until("the free one is ready", PATIENCE, || (state("free") == MappingState::Ready).then_some(()));
    drop(busy);
    std::fs::create_dir(&missing).unwrap();
    for name in ["busy", "missing"] {
        until(&format!("{name} is opened"), AGAIN + AT_ONCE, || {
            (state(name) == MappingState::Ready).then_some(())
        });
    }
    TcpStream::connect(address).unwrap();
}
