//! What mappings and the status listen on: sockets that vanish, move, are busy, or are there only later.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use hopline_admin::status::MappingState;
use rustix::process::Signal;

use crate::harness::{Conn, Kind, PATIENCE, Process, Slot, World, WorldOptions, hopline, until};
use crate::reload::rewrite;

/// In which a vanished socket must be back by itself.
const BACK: Duration = Duration::from_secs(10);

fn works_at(path: &Path, slot: &Slot) {
    let mut app = Conn::Unix(UnixStream::connect(path).unwrap()).patient();
    app.write_all(b"to").unwrap();
    // Whether somebody listens on a socket is found out by dialling it: such a connection comes as far as the server.
    let mut read = [0; 2];
    while slot.accept().read_exact(&mut read).is_err() {}
    assert_eq!(&read, b"to");
}

fn state(world: &World, name: &str, state: MappingState) {
    until(&format!("{name} is {state:?}"), PATIENCE, || (world.mapping(name).state == state).then_some(()));
}

#[test]
fn a_socket_file_that_vanishes_is_made_again() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let mut open = slot.pair(Kind::Unix);
    fs::remove_file(slot.path()).unwrap();
    let app = until("the socket is back", BACK, || UnixStream::connect(slot.path()).ok());
    drop((slot.accept(), app));
    let log = world.sidecar.process.log();
    assert!(log.contains("u0.sock: its socket file is gone; trying again"), "{log}");
    world.works(slot);
    // What was open has not noticed.
    open.0.write_all(b"!").unwrap();
    assert_eq!(open.1.chunk(1), b"!");

    // Something else in its place is not touched, and said, until it is gone.
    fs::remove_file(slot.path()).unwrap();
    fs::write(slot.path(), "precious").unwrap();
    state(&world, "u0", MappingState::Failed);
    let error = world.mapping("u0").last_error.unwrap();
    assert!(error.message.contains("u0.sock"), "{error:?}");
    assert_eq!(fs::read_to_string(slot.path()).unwrap(), "precious");
    fs::remove_file(slot.path()).unwrap();
    state(&world, "u0", MappingState::Ready);
    world.works(slot);
}

/// A SIGHUP heals at once; by itself it takes up to 2 s each time.
#[test]
fn a_reload_makes_a_vanished_socket_again_at_once() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let mut took = Duration::ZERO;
    for _ in 0..5 {
        fs::remove_file(slot.path()).unwrap();
        let began = Instant::now();
        world.sidecar.process.signal(Signal::HUP);
        let app = until("the socket is back", BACK, || UnixStream::connect(slot.path()).ok());
        took += began.elapsed();
        drop((slot.accept(), app));
    }
    assert!(took < Duration::from_secs(3), "{took:?} for five");
}

/// As $XDG_RUNTIME_DIR at a logout: the folder of the sockets goes, and comes back with the next login.
#[test]
fn a_folder_that_goes_and_comes_back() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let folder = world.folder().join("run");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("u0.sock");
    rewrite(&world, "sidecar", |text| text.replace(slot.path().to_str().unwrap(), path.to_str().unwrap()));
    world.sidecar.process.signal(Signal::HUP);
    let app = until("the socket has moved", PATIENCE, || UnixStream::connect(&path).ok());
    drop((slot.accept(), app));
    assert!(!slot.path().exists(), "the old one is gone");
    fs::remove_dir_all(&folder).unwrap();
    state(&world, "u0", MappingState::Failed);
    // First that the socket is gone, then why it can't be made again.
    until("the missing folder is named", PATIENCE, || {
        world.mapping("u0").last_error.filter(|error| error.message.contains("does not exist"))
    });
    fs::create_dir(&folder).unwrap();
    state(&world, "u0", MappingState::Ready);
    works_at(&path, slot);
}

/// The new socket first, then the old one goes: what can't be opened takes nothing away.
#[test]
fn a_reload_to_what_cannot_be_opened_leaves_the_old_socket() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let missing = world.folder().join("later");
    let path = missing.join("u0.sock");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap();
    rewrite(&world, "sidecar", |text| {
        let moved = text.replace(slot.path().to_str().unwrap(), path.to_str().unwrap());
        moved.replace("t0: { listen: \"127.0.0.1:0\"", &format!("t0: {{ listen: \"{address}\""))
    });
    world.sidecar.process.signal(Signal::HUP);
    for (name, words) in [("u0", "does not exist"), ("t0", "another program listens on this address")] {
        state(&world, name, MappingState::Degraded);
        let error = world.mapping(name).last_error.unwrap().message;
        assert!(error.contains(words) && error.ends_with("serves on meanwhile"), "{error}");
    }
    assert_eq!(world.mapping("t0").listen, slot.address().to_string());
    // Where they were, both work.
    world.works(slot);
    // Each moves once it can.
    fs::create_dir(&missing).unwrap();
    drop(busy);
    for name in ["u0", "t0"] {
        state(&world, name, MappingState::Ready);
    }
    assert_eq!(world.mapping("t0").listen, address.to_string());
    works_at(&path, slot);
    let app = TcpStream::connect(address).unwrap();
    drop((slot.accept(), app));
    assert!(!slot.path().exists());
    TcpStream::connect(slot.address()).unwrap_err();
}

/// Mappings that take each other's addresses in one reload.
#[test]
fn two_mappings_swap_their_addresses() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let [first, second] = world.slots.as_slice() else { panic!("two slots") };
    rewrite(&world, "sidecar", |text| {
        let (one, other) = (first.path().to_str().unwrap(), second.path().to_str().unwrap());
        text.replace(one, "SWAP").replace(other, one).replace("SWAP", other)
    });
    world.sidecar.process.signal(Signal::HUP);
    let listens = |slot: &Slot| format!("unix:{}", slot.path().display());
    until("they have swapped", PATIENCE, || {
        let (one, other) = (world.mapping("u0"), world.mapping("u1"));
        let ready = [&one, &other].iter().all(|mapping| mapping.state == MappingState::Ready);
        (ready && one.listen == listens(second) && other.listen == listens(first)).then_some(())
    });
    works_at(second.path(), first);
    works_at(first.path(), second);
}

/// A reload touches nothing that is the same, and keeps the socket where only other keys have changed.
#[test]
fn a_reload_keeps_every_socket_whose_address_is_the_same() {
    let world = World::start(WorldOptions { slots: 2, ..WorldOptions::default() });
    let inodes =
        || world.slots.iter().map(|slot| fs::metadata(slot.path()).unwrap().ino()).collect::<Vec<_>>();
    let listens = || ["t0", "t1"].map(|name| world.mapping(name).listen);
    let (inodes_before, listens_before) = (inodes(), listens());
    rewrite(&world, "sidecar", |text| {
        let line =
            text.lines().map(|line| match line.trim_start().starts_with("t0:") || line.contains("u0.sock") {
                true => line.replace(" }", ", open_timeout: 7s }"),
                false => line.to_owned(),
            });
        line.collect::<Vec<_>>().join("\n")
    });
    world.sidecar.process.signal(Signal::HUP);
    world.sidecar.process.logged("changed=[\"u0\", \"t0\"]");
    assert_eq!(inodes(), inodes_before);
    assert_eq!(listens(), listens_before);
    for slot in &world.slots {
        world.works(slot);
    }
}

/// A sole mapping and the status address, both busy at the start: the edge waits for them.
#[test]
fn what_is_busy_at_the_start_is_waited_for() {
    let world = World::start(WorldOptions::default());
    let slot = world.slot();
    let (for_status, for_mapping) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (status, mapping) = (for_status.local_addr().unwrap(), for_mapping.local_addr().unwrap());
    let file = world.folder().join("late.yaml");
    fs::write(&file, format!("status: {status}\nconnect: {{ t0: {{ listen: \"{mapping}\" }} }}\n")).unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
    let late = Process::spawn("late", world.folder(), command);
    late.logged(&format!("status address {status}: in use by another process; trying again"));
    late.logged(&format!("mapping t0: {mapping}: another program listens on this address; trying again"));
    drop(for_status);
    let ready = || ureq(status, "/readyz");
    until("the status is there, and says that not all is well", PATIENCE, || {
        ready()
            .filter(|answer| answer.starts_with("HTTP/1.1 503") && answer.contains("another program listens"))
    });
    drop(for_mapping);
    until("all is well", PATIENCE, || ready().filter(|answer| answer.starts_with("HTTP/1.1 200")));
    let mut app = Conn::connect(mapping);
    app.write_all(b"to").unwrap();
    assert_eq!(slot.accept().chunk(2), b"to");
    let log = late.log();
    assert_eq!(log.matches("trying again").count(), 2, "a line each:\n{log}");
}

/// A bare request; nothing where nobody listens.
fn ureq(address: std::net::SocketAddr, path: &str) -> Option<String> {
    use std::io::Read as _;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The status socket's own file: whoever deletes it does not lose the status.
#[test]
fn a_status_socket_that_vanishes_is_made_again() {
    let world = World::start(WorldOptions::default());
    let path = world.sidecar.admin.strip_prefix("unix:").unwrap().to_owned();
    fs::remove_file(&path).unwrap();
    until("the status is back", BACK, || UnixStream::connect(&path).ok());
    assert!(world.sidecar.status().mappings.len() == 2);
    world.sidecar.process.logged("the status socket's file had gone; it is made again");
}

/// P7: opens of a mapping that a reload has added are held like those of the others, for which the relay must know of it.
#[test]
fn a_reload_tells_the_relay_of_a_new_mapping() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let service = format!("  late: {{ tcp: {{ tcp: {} }} }}\n", server.local_addr().unwrap().port());
    let world = World::start(WorldOptions {
        services: Box::leak(service.into_boxed_str()),
        ..WorldOptions::default()
    });
    rewrite(&world, "sidecar", |text| format!("{text}\n  late: {{ listen: \"127.0.0.1:0\" }}\n"));
    world.sidecar.process.signal(Signal::HUP);
    let agents = || {
        let mappings = world.sidecar.status().mappings;
        mappings.into_iter().find(|mapping| mapping.name == "late").map(|mapping| mapping.agents)
    };
    let agents =
        until("the relay has told who serves it", PATIENCE, || agents().filter(|agents| !agents.is_empty()));
    assert_eq!(agents[0].machine, "agent");
}
