//! No key and no flag is accepted and ignored: for each there is a test that it is obeyed at the start, and one of what a
//! reload does with it. [`OBEYED`] names them; a key that is missing there fails a test of its own.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hopline_admin::status::{Inspect, Status};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::ends::reason_at;
use crate::harness::{
    AT_ONCE, Conn, Ended, Kind, PATIENCE, Pairs, Process, SIDECARS, World, WorldOptions, begin_drain,
    exchange, hopline, run, status, until,
};

/// Each key of `docs/config.md`, as heading and name, with the test of the start and that of a reload. `""`: it is no
/// value of its own.
const OBEYED: &[(&str, &str, &str)] = &[
    ("The file of an edge.relay", "the_files_relays_are_dialled", "what_needs_a_restart_is_said"),
    (
        "The file of an edge.status",
        "an_edge_answers_to_the_names_of_its_file",
        "what_needs_a_restart_is_said",
    ),
    ("The file of an edge.keepalive", "links_watch_themselves_as_asked", "what_needs_a_restart_is_said"),
    ("The file of an edge.open_timeout", "opens_take_as_long_as_asked", "a_reload_is_obeyed_by_mappings"),
    ("The file of an edge.hold", "opens_are_held_as_long_as_asked", "what_needs_a_restart_is_said"),
    ("The file of an edge.drain", "an_edge_drains_as_long_as_asked", "an_edge_drains_as_long_as_asked"),
    ("The file of an edge.services", "f137_reload_of_services", "f137_reload_of_services"),
    ("The file of an edge.connect", "reload_of_mappings", "reload_of_mappings"),
    (
        "The file of an edge.dns",
        "p22_a_silent_name_server_holds_up_nothing_but_what_needs_it",
        "a_reloads_name_servers_are_asked",
    ),
    ("The file of an edge.log", "", ""),
    ("status.listen", "an_edge_answers_to_the_names_of_its_file", "what_needs_a_restart_is_said"),
    ("status.hosts", "an_edge_answers_to_the_names_of_its_file", "what_needs_a_restart_is_said"),
    ("services.NAME.grpc", "each_form_of_a_service_is_dialled", "a_reload_is_obeyed_by_services"),
    ("services.NAME.tcp", "each_form_of_a_service_is_dialled", "a_reload_is_obeyed_by_services"),
    ("services.NAME.allow", "who_may_dial_is_as_written", "a_reload_is_obeyed_by_services"),
    ("services.NAME.grpc.tcp", "each_form_of_a_service_is_dialled", "a_reload_is_obeyed_by_services"),
    ("services.NAME.grpc.forward", "each_form_of_a_service_is_dialled", "a_reload_is_obeyed_by_services"),
    ("connect.NAME.listen", "sockets_are_as_written", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.open_timeout", "opens_take_as_long_as_asked", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.mode", "sockets_are_as_written", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.group", "sockets_are_as_written", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.expose", "sockets_are_as_written", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.inspect", "sockets_are_as_written", "a_reload_is_obeyed_by_mappings"),
    ("connect.NAME.explain", "p19_a_cut_says_which_hop_died", "a_reload_is_obeyed_by_mappings"),
    ("log.format", "the_log_is_as_asked", "reload_of_what_is_logged"),
    ("log.level", "the_log_is_as_asked", "reload_of_what_is_logged"),
    ("log.access", "each_session_has_a_line_at_each_process", "reload_of_what_is_logged"),
    ("The file of a relay.listen", "a_relay_obeys_its_file_and_its_flags", "reload_of_a_relay"),
    ("The file of a relay.state", "a_relay_obeys_its_file_and_its_flags", "reload_of_a_relay"),
    ("The file of a relay.admin", "a_relay_obeys_its_file_and_its_flags", "reload_of_a_relay"),
    ("The file of a relay.keepalive", "links_watch_themselves_as_asked", "a_reload_is_obeyed_by_a_relay"),
    ("The file of a relay.hold", "a_relay_holds_as_long_as_asked", "a_reload_is_obeyed_by_a_relay"),
    (
        "The file of a relay.drain",
        "a_relay_obeys_its_file_and_its_flags",
        "a_relay_obeys_its_file_and_its_flags",
    ),
    (
        "The file of a relay.answer_timeout",
        "p14_no_answer_within_the_relays_answer_timeout",
        "a_reload_is_obeyed_by_a_relay",
    ),
    ("The file of a relay.log", "the_log_is_as_asked", "reload_of_a_relay"),
];

/// Each flag of the commands that run, with its test.
const FLAGS: &[(&str, &str, &str)] = &[
    ("relay", "--config", "a_relay_obeys_its_file_and_its_flags"),
    ("relay", "--listen", "a_relay_obeys_its_file_and_its_flags"),
    ("relay", "--state", "a_relay_obeys_its_file_and_its_flags"),
    ("relay", "--admin", "a_relay_obeys_its_file_and_its_flags"),
    ("relay", "--admin-host", "a_relay_answers_to_the_names_of_its_flags_and_its_file"),
    ("relay", "--drain", "a_relay_obeys_its_file_and_its_flags"),
    ("relay", "--name", "a_relay_obeys_its_file_and_its_flags"),
    ("up", "--config", "the_files_relays_are_dialled"),
    ("up", "--state", "the_files_relays_are_dialled"),
    ("dial", "--listen", "dial_listens"),
    ("dial", "--open-timeout", "a_dial_takes_as_long_as_asked"),
    ("dial", "--state", "a_dial_takes_as_long_as_asked"),
    ("join", "--state", "tokens_join_once"),
    ("join", "--name", "tokens_join_once"),
];

/// The source of these tests, to see that a test which is named is there.
fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_key_and_every_flag_has_a_test_that_it_is_obeyed() {
    let page = include_str!("../../../../docs/config.md");
    let (mut heading, mut keys) = ("", BTreeSet::new());
    for line in page.lines() {
        if line.starts_with("##") {
            heading = line.trim_start_matches(['#', ' ']);
        }
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        if let &[_, key, _, _, _, _, _] = cells.as_slice()
            && key != "key"
            && !key.starts_with('-')
        {
            keys.insert(format!("{heading}.{key}"));
        }
    }
    let tested: BTreeSet<String> = OBEYED.iter().map(|(key, ..)| (*key).to_owned()).collect();
    assert_eq!(tested, keys, "docs/config.md and this table");
    let mut flags = BTreeSet::new();
    for command in ["relay", "up", "dial", "join"] {
        let help = run([command, "--help"]);
        let help = String::from_utf8(help.stdout).unwrap();
        let words = help.split_whitespace().filter(|word| word.starts_with("--") && word.len() > 2);
        let names = words.map(|word| word.trim_end_matches([',', '.', ':', '`']).to_owned());
        // What prose mentions of other commands is none of this one's.
        let lines: Vec<&str> =
            help.lines().map(str::trim_start).filter(|line| line.starts_with('-')).collect();
        let is_own = |name: &String| lines.iter().any(|line| line.split([' ', ',']).any(|word| word == name));
        flags.extend(names.filter(is_own).filter(|name| name != "--help").map(|name| (command, name)));
    }
    let tested = FLAGS.iter().map(|(command, flag, _)| (*command, (*flag).to_owned())).collect();
    assert_eq!(flags, tested, "--help and this table");
    let sources = sources();
    let named = OBEYED.iter().flat_map(|(_, start, reload)| [*start, *reload]);
    for test in named.chain(FLAGS.iter().map(|(.., test)| *test)).filter(|test| !test.is_empty()) {
        assert!(sources.contains(&format!("fn {test}()")), "no test {test}");
    }
}

/// Rewrites the file of an edge and has it read again; waits until it has been.
pub(crate) fn reload(world: &World, edge: &str, change: impl FnOnce(String) -> String) {
    let path = world.folder().join(edge).with_extension("yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, change(text)).unwrap();
    let process = if edge == "agent" { &world.agent.process } else { &world.sidecar.process };
    let reloads = || process.log().matches("config file reloaded").count();
    let before = reloads();
    process.signal(Signal::HUP);
    until("it is reloaded", AT_ONCE, || (reloads() > before).then_some(()));
}

fn dial(world: &World, mapping: &str) -> Conn {
    let listen = world.mapping(mapping).listen;
    match listen.strip_prefix("unix:") {
        Some(path) => Conn::Unix(UnixStream::connect(path).unwrap()).patient(),
        None => Conn::connect(listen),
    }
}

/// How long a connection takes to be refused.
pub(crate) fn refused_after(mut app: Conn) -> Duration {
    let began = Instant::now();
    // It may be refused already.
    drop(app.write_all(b"x"));
    assert_eq!(app.drain().0, b"");
    began.elapsed()
}

#[track_caller]
pub(crate) fn took(what: &str, took: Duration, asked: Duration) {
    // Timers may fire a little early by another clock; nothing here takes twice as long.
    let least = asked.saturating_sub(Duration::from_millis(50));
    assert!((least..asked + AT_ONCE).contains(&took), "{what}: {took:?}, asked for {asked:?}");
}

/// `open_timeout:` of the file and of a mapping. The agent hears nothing, so that nobody answers.
#[test]
fn opens_take_as_long_as_asked() {
    let world = World::start(WorldOptions {
        sidecar_keys: "open_timeout: 3s\n",
        mappings: "  own: { listen: \"127.0.0.1:0\", open_timeout: 300ms }\n",
        services: "  own: { tcp: { tcp: 9 } }\n",
        ..WorldOptions::default()
    });
    let own = world.mapping("own").listen;
    world.agent.process.pause();
    let of_file = world.slots[0].dial(Kind::Tcp);
    let began = Instant::now();
    let own = Conn::connect(own);
    took("of the mapping", refused_after(own), Duration::from_millis(300));
    refused_after(of_file);
    took("of the file", began.elapsed(), Duration::from_secs(3));
    reason_at(&world, "t0", "timeout", 0);
    world.agent.process.resume();
}

/// `hold:` of an edge, also none at all: how long opens wait for a link.
#[test]
fn opens_are_held_as_long_as_asked() {
    for (keys, hold) in [("hold: 1500ms\n", Duration::from_millis(1_500)), ("hold: 0s\n", Duration::ZERO)] {
        let world = World::start(WorldOptions { sidecar_keys: keys, ..WorldOptions::default() });
        let killed = Instant::now();
        world.relay.process.kill();
        let app = world.slots[0].dial(Kind::Tcp);
        refused_after(app);
        took(keys, killed.elapsed(), hold);
        reason_at(&world, "t0", "conn_lost", 0);
    }
}

/// `keepalive:` of both ends of a link: the dialler picks, a relay that says something of its own keeps to that.
#[test]
fn links_watch_themselves_as_asked() {
    let liveness = |world: &World| {
        let at_relay = world.relay.status().links.into_iter().map(|link| link.liveness).collect::<Vec<_>>();
        (world.sidecar.status().links[0].liveness.clone(), at_relay)
    };
    let adopting = World::start(WorldOptions { keepalive: "nat,timeout=40s", ..WorldOptions::default() });
    assert_eq!(liveness(&adopting), ("nat,timeout=40s".into(), vec!["nat,timeout=40s".into(); 2]));
    let own = World::start(WorldOptions {
        keepalive: "nat",
        relay_file: "keepalive: datacenter\n",
        ..WorldOptions::default()
    });
    assert_eq!(liveness(&own), ("nat".into(), vec!["datacenter".into(); 2]));
}

/// `drain:` of an edge, after a reload and at the start. The time before is longer than all that a cut may take.
#[test]
fn an_edge_drains_as_long_as_asked() {
    let mut world = World::start(WorldOptions { drain: "20s", ..WorldOptions::default() });
    for edge in ["sidecar", "agent"] {
        for at_start in [false, true] {
            if !at_start {
                reload(&world, edge, |text| text.replace("drain: 20s", "drain: 300ms"));
            }
            let (mut app, _server) = world.slots[0].answered_pair(Kind::Tcp);
            let process = if edge == "agent" { &world.agent.process } else { &world.sidecar.process };
            let began = Instant::now();
            begin_drain(process);
            assert_eq!(app.drain().1, Ended::Reset);
            took(edge, began.elapsed(), Duration::from_millis(300));
            process.wait_exit(PATIENCE);
            if edge == "agent" { world.restart_agent() } else { world.restart_sidecar() }
        }
    }
}

/// `relay:` goes before what `join` stored; `-c` and `--state` say where to look.
#[test]
fn the_files_relays_are_dialled() {
    let pairs = Pairs::start(["127.0.8.21", "127.0.9.21"], WorldOptions::default());
    let folder = TempDir::new().unwrap();
    let spawn = |name: &str, relay: &str| {
        let admin = format!("unix:{}", folder.path().join(name).with_extension("sock").display());
        let file = folder.path().join(name).with_extension("yaml");
        let mapping = "connect: { first: { listen: \"127.0.0.1:0\" } }";
        std::fs::write(&file, format!("{relay}status: \"{admin}\"\n{mapping}\n")).unwrap();
        let mut command = hopline();
        command.arg("up").arg("-c").arg(file).arg("--state").arg(&pairs.sidecars[0].state);
        let process = Process::spawn(name, folder.path(), command);
        process.logged("link up");
        let Status::Edge(edge) = status(&admin) else { panic!("an edge") };
        let links: Vec<_> = edge.links.iter().map(|link| link.relay.clone()).collect();
        (edge.machine, links)
    };
    let [first, second] = pairs.relays.each_ref().map(|relay| relay.address.to_string());
    let machine = SIDECARS[0].to_owned();
    assert_eq!(spawn("stored", ""), (machine.clone(), vec![first]));
    assert_eq!(spawn("named", &format!("relay: [\"{second}\"]\n")), (machine, vec![second]));
}

/// What a mapping's keys say of its socket, and what is read of it. The group is one that this process may give away.
#[test]
fn sockets_are_as_written() {
    let group = rustix::process::getgroups().unwrap().into_iter().map(rustix::process::Gid::as_raw);
    let own = rustix::process::getegid().as_raw();
    let group = if rustix::process::geteuid().is_root() {
        4_711
    } else {
        group.chain([own]).find(|g| *g != own).unwrap_or(own)
    };
    let folder = TempDir::new().unwrap();
    let plain = folder.path().join("plain.sock");
    let shared = folder.path().join("shared.sock");
    let mappings = format!(
        "  plain: {{ listen: \"unix:{}\" }}\n  shared: {{ listen: \"unix:{}\", mode: 0660, group: \"{group}\", inspect: false }}\n  exposed: {{ listen: \"0.0.0.0:0\", expose: true }}\n",
        plain.display(),
        shared.display()
    );
    let world = World::start(WorldOptions { mappings: mappings.leak(), ..WorldOptions::default() });
    let of = |path: &Path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.permissions().mode() & 0o777, metadata.gid())
    };
    assert_eq!(of(&plain), (0o600, own));
    assert_eq!(of(&shared), (0o660, group));
    assert!(world.mapping("exposed").listen.starts_with("0.0.0.0:"));
    assert_eq!(world.mapping("plain").inspect, Inspect::Unknown);
    assert_eq!(world.mapping("shared").inspect, Inspect::Off);
    assert!(world.mapping("t0").listen.starts_with("127.0.0.1:"));
}

/// SIGHUP: each key of a mapping that has changed is obeyed by the sessions that begin afterwards.
#[test]
fn a_reload_is_obeyed_by_mappings() {
    const REQUEST: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\
        \x00\x00\x03\x01\x05\x00\x00\x00\x01\x83\x86\x84";
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("one.sock");
    let before = format!("  one: {{ listen: \"unix:{}\" }}\n", socket.display());
    let mappings = format!("{before}  two: {{ listen: \"127.0.0.1:0\" }}\n");
    let world = World::start(WorldOptions {
        mappings: mappings.leak(),
        services: "  one: { tcp: { tcp: 9 } }\n  two: { tcp: { tcp: 9 } }\n",
        ..WorldOptions::default()
    });
    let mode = || std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    let keys = format!(
        "mode: 0666, group: \"{}\", open_timeout: 300ms, inspect: false",
        rustix::process::getegid().as_raw()
    );
    let after = before.replace(" }", &format!(", {keys} }}"));
    reload(&world, "sidecar", |text| {
        text.replace(&before, &after)
            .replace("two: { listen: \"127.0.0.1:0\" }", "two: { listen: \"0.0.0.0:0\", expose: true }")
    });
    assert_eq!(mode(), 0o666);
    assert_eq!(world.mapping("one").inspect, Inspect::Off);
    assert!(world.mapping("two").listen.starts_with("0.0.0.0:"));
    world.agent.process.pause();
    took("of the mapping", refused_after(dial(&world, "one")), Duration::from_millis(300));
    // That of the file counts for all that have none of their own, and so did change.
    reload(&world, "sidecar", |text| format!("open_timeout: 400ms\n{text}"));
    took("of the file", refused_after(dial(&world, "two")), Duration::from_millis(400));
    world.agent.process.resume();

    // explain: on, for a call that the path cuts.
    reload(&world, "sidecar", |text| {
        text.replace("open_timeout: 400ms\n", "").replace("  t0: { ", "  t0: { explain: on, ")
    });
    let mut app = dial(&world, "t0");
    app.write_all(REQUEST).unwrap();
    let mut server = world.slots[0].accept();
    server.chunk(REQUEST.len());
    server.write_all(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    app.chunk(9);
    world.agent.process.signal(Signal::INT);
    let (words, _) = app.drain();
    assert!(String::from_utf8_lossy(&words).contains("hopline: shutdown"), "{words:?}");
}

/// `grpc:` and `tcp:`, by port and by `forward:`.
#[test]
fn each_form_of_a_service_is_dialled() {
    let servers: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.2:0").unwrap()).collect();
    let ports: Vec<_> = servers.iter().map(|server| server.local_addr().unwrap().port()).collect();
    let services = format!(
        "  g: {{ grpc: {{ tcp: 9, forward: \"127.0.0.2:{}\" }} }}\n  f: {{ tcp: {{ forward: \"127.0.0.2:{}\" }} }}\n",
        ports[0], ports[1]
    );
    let world = World::start(WorldOptions {
        services: services.leak(),
        mappings: "  g: { listen: \"127.0.0.1:0\" }\n  f: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    for (name, server) in ["g", "f"].iter().zip(&servers) {
        let mut app = dial(&world, name);
        let mut server = Conn::Tcp(server.accept().unwrap().0).patient();
        exchange(&mut app, &mut server);
    }
    // By its port alone: the slots' services.
    world.works(&world.slots[0]);
    assert_eq!(world.service("g").target, format!("127.0.0.2:{}", ports[0]));
}

/// Whether an open of this mapping is let in by the agent's `allow:`; where it is not, that is said at once.
fn is_allowed(world: &World, mapping: &str) -> bool {
    let began = Instant::now();
    let before = world.service(mapping).counts.clone();
    let mut app = dial(world, mapping);
    drop(app.write_all(b"x"));
    let answered = until("it is decided", AT_ONCE, || {
        let now = world.service(mapping).counts;
        (now != before).then(|| world.service(mapping).sessions.total)
    });
    assert!(began.elapsed() < AT_ONCE);
    answered > 0
}

/// `allow:`: no list, an empty one, names and patterns.
#[test]
fn who_may_dial_is_as_written() {
    let cases = [
        ("", true),
        (", allow: []", false),
        (", allow: [sidecar]", true),
        (", allow: [\"side*\"]", true),
        (", allow: [sidecar-2]", false),
        (", allow: [other, \"b-*\", agent]", false),
        (", allow: [other, sidecar]", true),
    ];
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let (mut services, mut mappings) = (String::new(), String::new());
    for (number, (allow, _)) in cases.iter().enumerate() {
        services += &format!("  a{number}: {{ tcp: {{ tcp: {port} }}{allow} }}\n");
        mappings += &format!("  a{number}: {{ listen: \"127.0.0.1:0\" }}\n");
    }
    let world = World::start(WorldOptions {
        services: services.leak(),
        mappings: mappings.leak(),
        ..WorldOptions::default()
    });
    for (number, (allow, expected)) in cases.iter().enumerate() {
        assert_eq!(is_allowed(&world, &format!("a{number}")), *expected, "{allow:?}");
    }
    // F196, and the other way round: a reload lets in, and keeps out.
    reload(&world, "agent", |text| {
        text.replace(", allow: [] }", " }").replace(", allow: [sidecar] }", ", allow: [] }")
    });
    assert!(is_allowed(&world, "a1"), "the empty list is gone");
    let mut app = dial(&world, "a2");
    app.drain();
    reason_at(&world, "a2", "unauthorized", 2);
}

/// SIGHUP: where a service is dialled, what it speaks and who may dial it.
#[test]
fn a_reload_is_obeyed_by_services() {
    let second = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let target = second.local_addr().unwrap();
    let world = World::start(WorldOptions {
        services: "  moves: { tcp: { tcp: 9 } }\n",
        mappings: "  moves: { listen: \"127.0.0.1:0\" }\n",
        ..WorldOptions::default()
    });
    let mut app = dial(&world, "moves");
    app.drain();
    reason_at(&world, "moves", "dial_failed", 2);
    reload(&world, "agent", |text| {
        text.replace("moves: { tcp: { tcp: 9 } }", &format!("moves: {{ grpc: {{ forward: \"{target}\" }} }}"))
    });
    let mut app = dial(&world, "moves");
    let mut server = Conn::Tcp(second.accept().unwrap().0).patient();
    exchange(&mut app, &mut server);
    reload(&world, "agent", |text| text.replace("\" } }", "\" }, allow: [nobody] }"));
    dial(&world, "moves").drain();
    reason_at(&world, "moves", "unauthorized", 2);
    exchange(&mut app, &mut server);
}

/// Keys that a reload does not take over: they stay as they were, and the log names them, all of them and no others.
#[test]
fn what_needs_a_restart_is_said() {
    let world = World::start(WorldOptions::default());
    let before = world.sidecar.status();
    let cases = [
        ("keepalive", "keepalive: \"default\"\n", "keepalive: \"nat\"\n"),
        ("relay", "keepalive: \"default\"\n", "keepalive: \"default\"\nrelay: [\"127.0.0.1:9\"]\n"),
        ("hold", "keepalive: \"default\"\n", "keepalive: \"default\"\nhold: 1s\n"),
        ("status", "status: \"unix:", "status: \"unix:/nonexistent"),
    ];
    let whole = std::fs::read_to_string(world.folder().join("sidecar.yaml")).unwrap();
    for (key, old, new) in cases {
        let said = world.sidecar.process.log().len();
        reload(&world, "sidecar", |_| whole.replace(old, new));
        let says = until("the log names the key", AT_ONCE, || {
            let log = world.sidecar.process.log();
            let line = log[said..].lines().find(|line| line.contains("need a restart"))?.to_owned();
            Some(line)
        });
        assert!(says.contains(&format!("[\"{key}\"]")), "{key}: {says}");
        let after = world.sidecar.status();
        assert_eq!(after.links[0].liveness, before.links[0].liveness, "{key}");
        assert_eq!(after.links.len(), 1, "{key}");
    }
    world.works(&world.slots[0]);
}

/// `log:` of a relay and of an edge: the level and the form of the lines. `access:` has tests of its own.
#[test]
fn the_log_is_as_asked() {
    let folder = TempDir::new().unwrap();
    let machine = crate::harness::shared();
    let lines = |role: &str, log: &str, number: usize| {
        let name = format!("{role}{number}");
        let file = folder.path().join(&name).with_extension("yaml");
        let mut command = hopline();
        match role {
            "relay" => {
                std::fs::write(
                    &file,
                    format!("{log}\nlisten: 127.0.0.1:0\nstate: {}\n", folder.path().join("state").display()),
                )
                .unwrap();
                command.arg("relay").arg("-c").arg(&file);
            }
            _ => {
                std::fs::write(&file, format!("{log}\nconnect: {{ any: {{ listen: \"127.0.0.1:0\" }} }}\n"))
                    .unwrap();
                command.arg("up").arg("-c").arg(&file).arg("--state").arg(&machine.sidecar.state);
            }
        }
        let process = Process::spawn(&name, folder.path(), command);
        // Whatever its log says, it has signals in hand once its socket is there.
        until("it listens", PATIENCE, || {
            assert!(process.is_running(), "{}", process.log());
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let listens: Vec<&str> = table.lines().filter(|line| line.contains(" 0A ")).collect();
            let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.pid())).ok()?;
            let sockets: Vec<String> = descriptors
                .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
                .filter_map(|target| {
                    Some(target.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
                })
                .collect();
            let is_ours = |line: &&str| {
                line.split_whitespace().nth(9).is_some_and(|inode| sockets.iter().any(|s| s == inode))
            };
            listens.iter().any(is_ours).then_some(())
        });
        process.signal(Signal::TERM);
        process.wait_exit(AT_ONCE);
        process.log()
    };
    for role in ["relay", "edge"] {
        assert_eq!(lines(role, "log: { level: error }", 0), "", "{role}");
        let info = lines(role, "log: { level: info }", 1);
        assert!(
            info.contains(" INFO ") && !info.contains(" DEBUG ") && !info.contains('{'),
            "{role}: {info}"
        );
        let json = lines(role, "log: { level: info, format: json }", 2);
        assert!(json.lines().count() > 1, "{role}: {json}");
        for line in json.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["level"], "INFO", "{role}: {line}");
        }
    }
}

/// The keys of a relay's file, each of them; then the flags, which go before them.
#[test]
fn a_relay_obeys_its_file_and_its_flags() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let file = path("relay.yaml");
    let text = format!(
        "listen: 127.0.8.31:0\nstate: {}\nadmin: unix:{}\ndrain: 300ms\n",
        path("by-file").display(),
        path("file.sock").display()
    );
    std::fs::write(&file, text).unwrap();
    let spawn = |name: &str, flags: &[&str]| {
        let mut command = hopline();
        command.arg("relay").arg("-c").arg(&file).args(flags);
        let process = Process::spawn(name, folder.path(), command);
        let listens = process.logged("relay listens listen=").trim_matches('"').to_owned();
        (process, listens)
    };
    let (by_file, listens) = spawn("by-file", &[]);
    assert!(listens.starts_with("127.0.8.31:"), "{listens}");
    let Status::Relay(relay) = status(&format!("unix:{}", path("file.sock").display())) else {
        panic!("a relay")
    };
    assert!(!relay.name.is_empty());
    assert!(path("by-file").join("ca.pem").exists());
    assert_eq!(drain_of(&by_file), "deadline=300ms");
    let (reloaded, _) = spawn("reloaded", &[]);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("300ms", "450ms")).unwrap();
    reloaded.signal(Signal::HUP);
    reloaded.logged("config file reloaded");
    assert_eq!(drain_of(&reloaded), "deadline=450ms");

    let admin = format!("unix:{}", path("flag.sock").display());
    let state = path("by-flag").display().to_string();
    let flags = [
        "--listen",
        "127.0.9.31:0",
        "--state",
        &state,
        "--admin",
        &admin,
        "--drain",
        "700ms",
        "--name",
        "relay-x",
    ];
    let (by_flag, listens) = spawn("by-flag", &flags);
    assert!(listens.starts_with("127.0.9.31:"), "{listens}");
    let Status::Relay(relay) = status(&admin) else { panic!("a relay") };
    assert_eq!(relay.name, "relay-x");
    assert!(path("by-flag").join("ca.pem").exists());
    assert_eq!(drain_of(&by_flag), "deadline=700ms");
}

/// What it says of the deadline of its drain.
fn drain_of(process: &Process) -> String {
    process.signal(Signal::TERM);
    assert!(process.wait_exit(AT_ONCE).success());
    let log = process.log();
    let (_, rest) = log.split_once("draining ").unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

/// `hopline dial --open-timeout`, of the machine in `--state`.
#[test]
fn a_dial_takes_as_long_as_asked() {
    let world = World::start(WorldOptions::default());
    world.agent.process.pause();
    let began = Instant::now();
    let state = world.sidecar.state.to_str().unwrap();
    let dialled = run(["dial", "t0", "--open-timeout", "700ms", "--state", state]);
    took("dial", began.elapsed(), Duration::from_millis(700));
    assert!(!dialled.status.success(), "{dialled:?}");
    world.agent.process.resume();
    let nothing = run(["dial", "t0", "--state", "/nonexistent"]);
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("/nonexistent"), "{nothing:?}");
}
