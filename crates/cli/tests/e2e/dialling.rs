//! `hopline dial SERVICE`: stdin and stdout are the connection, and nothing else is.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::harness::{Kind, PATIENCE, Slot, World, WorldOptions, hopline, pattern, shared, until};

/// For an end that waits for nothing but the other processes' turn.
const AT_ONCE: Duration = Duration::from_secs(5);

fn dial(world: &World, slot: &Slot) -> Command {
    let mut command = hopline();
    command.args(["dial", &slot.name(Kind::Tcp), "--state"]).arg(&world.sidecar.state);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit code and what was said.
fn ended(mut child: Child, limit: Duration) -> (Option<i32>, String) {
    let code = until("dial ends", limit, || child.try_wait().unwrap()).code();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (code, said)
}

/// Ports on which a process listens.
fn listens(pid: u32) -> usize {
    let sockets: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let is_ours = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[3] == "0A" && sockets.contains(&format!("socket:[{}]", fields[9]))
    };
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    tables.iter().flatten().map(|table| table.lines().skip(1).filter(is_ours).count()).sum()
}

/// It listens nowhere, and ends when the server has ended, though stdin stays open as that of ssh's ProxyCommand does.
#[test]
fn a_pipe_listens_nowhere_and_ends_with_the_server() {
    let world = shared();
    let slot = world.slot();
    let mut child = dial(&world, slot).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hello").unwrap();
    let mut server = slot.accept();
    assert_eq!(server.chunk(5), b"hello");
    assert_eq!(listens(child.id()), 0);
    assert_eq!(listens(world.relay.process.pid()), 1, "the count itself");
    let reply = pattern(7, 300 << 10);
    server.write_all(&reply).unwrap();
    drop(server);
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert!(got == reply, "{} bytes", got.len());
    assert_eq!(ended(child, AT_ONCE), (Some(0), String::new()));
    drop(stdin);
}

/// A reader that is slow gets all that the server said before it reset the connection, and then the reason.
#[test]
fn a_slow_reader_gets_what_came_before_a_reset() {
    let world = shared();
    for size in [150 << 10, 1 << 20] {
        let slot = world.slot();
        let mut child = dial(&world, slot).spawn().unwrap();
        let _stdin = child.stdin.take();
        let reply = pattern(8, size);
        let mut server = slot.accept();
        server.write_all(&reply).unwrap();
        // The agent has taken it all: what a reset would throw away lies in no kernel's queue.
        let reader = child.stdout.take().unwrap();
        until("the reply is at the sidecar's side", PATIENCE, || {
            let received = world.service(&slot.name(Kind::Tcp)).counts.bytes.sent;
            (received >= size as u64).then_some(())
        });
        server.reset();
        let got = thread::spawn(move || {
            let (mut reader, mut got, mut piece) = (reader, Vec::new(), vec![0; 16 << 10]);
            // Nothing for longer than any end is waited for, then little by little.
            thread::sleep(Duration::from_secs(4));
            while let Ok(n @ 1..) = reader.read(&mut piece) {
                got.extend_from_slice(&piece[..n]);
                thread::sleep(Duration::from_millis(10));
            }
            got
        });
        let got = got.join().unwrap();
        assert!(got == reply, "{} of {size} bytes", got.len());
        let (code, said) = ended(child, AT_ONCE);
        assert_eq!(code, Some(1));
        assert!(said.contains("peer_reset") && said.lines().count() == 1, "{said:?}");
    }
}

/// A server that ends its own direction at once still gets the upload, to the last byte; the reader has its end at once.
#[test]
fn an_upload_outlives_the_servers_end() {
    let world = shared();
    let slot = world.slot();
    let mut child = dial(&world, slot).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut server = slot.accept();
    server.write_all(b"go on").unwrap();
    server.end();
    let mut said = Vec::new();
    let upload = pattern(9, 2 << 20);
    thread::scope(|scope| {
        let upload = &upload;
        scope.spawn(move || {
            for piece in upload.chunks(64 << 10) {
                stdin.write_all(piece).unwrap();
            }
        });
        let got = scope.spawn(|| server.read_to_eof());
        child.stdout.take().unwrap().read_to_end(&mut said).unwrap();
        assert!(got.join().unwrap() == *upload, "another upload");
    });
    assert_eq!(said, b"go on");
    assert_eq!(ended(child, AT_ONCE), (Some(0), String::new()));
}

/// The end of stdin is an end and no more: the reply still comes.
#[test]
fn the_reply_comes_after_the_end_of_stdin() {
    let world = shared();
    let slot = world.slot();
    let mut child = dial(&world, slot).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"question").unwrap();
    let mut server = slot.accept();
    assert_eq!(server.read_to_eof(), b"question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer");
    assert_eq!(ended(child, AT_ONCE), (Some(0), String::new()));
}

/// Sockets, one for both directions, that do not block or that do: they work, and are left as they were given.
#[test]
fn descriptors_are_used_as_they_are_given() {
    let world = shared();
    for nonblocking in [true, false] {
        let slot = world.slot();
        let (ours, theirs) = UnixStream::pair().unwrap();
        if nonblocking {
            fcntl_setfl(&theirs, fcntl_getfl(&theirs).unwrap() | OFlags::NONBLOCK).unwrap();
        }
        let flags = fcntl_getfl(&theirs).unwrap();
        let mut command = dial(&world, slot);
        command
            .stdin(OwnedFd::from(theirs.try_clone().unwrap()))
            .stdout(OwnedFd::from(theirs.try_clone().unwrap()));
        let child = command.spawn().unwrap();
        drop(command);
        let (request, reply) = (pattern(1, 3 << 20), pattern(2, 3 << 20));
        thread::scope(|scope| {
            scope.spawn(|| {
                (&ours).write_all(&request).unwrap();
                ours.shutdown(std::net::Shutdown::Write).unwrap();
            });
            scope.spawn(|| {
                let mut server = slot.accept();
                assert!(server.read_to_eof() == request, "another request");
                server.write_all(&reply).unwrap();
            });
            let mut got = vec![0; reply.len()];
            (&ours).read_exact(&mut got).unwrap();
            assert!(got == reply, "another reply");
        });
        assert_eq!(ended(child, AT_ONCE), (Some(0), String::new()));
        assert_eq!(fcntl_getfl(&theirs).unwrap(), flags, "flags are everybody's");
    }
}

/// Whatever fails is a reason on stderr and an exit code: nobody serves, nobody reads, nothing can be read, the path is lost.
#[test]
fn what_fails_has_a_reason_and_an_exit_code() {
    let world = World::start(WorldOptions::default());
    let slot = &world.slots[0];
    let mut nobody = hopline();
    nobody.args(["dial", "nobody", "--state"]).arg(&world.sidecar.state).stdin(Stdio::piped());
    let child = nobody.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The relay is young, and waits for who may come.
    let (code, said) = ended(child, PATIENCE);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("hopline: nobody: ") && said.contains("offline"), "{said}");

    // Nobody reads stdout.
    let mut child = dial(&world, slot).spawn().unwrap();
    let stdin = child.stdin.take();
    drop(child.stdout.take());
    let mut server = slot.accept();
    server.write_all(b"for nobody").unwrap();
    let (code, said) = ended(child, AT_ONCE);
    assert_eq!(code, Some(1));
    assert!(said.contains("stdout"), "{said}");
    drop(stdin);
    server.drain();

    // Nobody reads stdout, and there is nothing more to say: nobody waits for the server either.
    let mut child = dial(&world, slot).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"farewell").unwrap();
    drop(child.stdout.take());
    let mut server = slot.accept();
    assert_eq!(server.read_to_eof(), b"farewell");
    let (code, _) = ended(child, AT_ONCE);
    assert_eq!(code, Some(1));

    // A folder can't be read.
    let folder = std::fs::File::open(world.folder()).unwrap();
    let child = dial(&world, slot).stdin(folder).spawn().unwrap();
    let (code, said) = ended(child, AT_ONCE);
    assert_eq!(code, Some(1));
    assert!(said.contains("stdin can't be read"), "{said}");

    // Stdout is full, whether the session is over by then or not.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = dial(&world, slot).stdin(Stdio::null()).stdout(full).spawn().unwrap();
    let mut server = slot.accept();
    assert_eq!(server.read_to_eof(), b"");
    server.write_all(b"too much").unwrap();
    drop(server);
    let (code, said) = ended(child, AT_ONCE);
    assert_eq!(code, Some(1));
    assert!(said.contains("stdout can't be written") && said.lines().count() == 1, "{said}");

    // The path is lost.
    let mut child = dial(&world, slot).spawn().unwrap();
    let _stdin = child.stdin.take();
    let mut server = slot.accept();
    server.write_all(&pattern(3, 200 << 10)).unwrap();
    let mut got = vec![0; 200 << 10];
    child.stdout.as_mut().unwrap().read_exact(&mut got).unwrap();
    world.agent.process.kill();
    let began = Instant::now();
    let (code, said) = ended(child, PATIENCE);
    assert_eq!(code, Some(1));
    assert!(said.contains("conn_lost") && said.contains('1'), "{said}, {:?}", began.elapsed());
}
