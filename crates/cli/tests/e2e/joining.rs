//! Join tokens as people have them, and where they do not belong.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Output, Stdio};

use tempfile::TempDir;

use crate::harness::{World, hopline, run, shared, write_secret};

fn token(world: &World) -> String {
    let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
    let made = run(["token", "create", "--state", state, "--relay", &relay, "--dial", "*"]);
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap()
}

fn join(file: &Path, folder: &Path, name: &str) -> Output {
    let mut command = hopline();
    command.arg("join").arg(file).args(["--name", name, "--state"]).arg(folder.join(name));
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8([output.stdout.as_slice(), &output.stderr].concat()).unwrap()
}

#[test]
fn a_token_joins_in_any_encoding() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let utf16 = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let line = |text: &str| text.trim_end().to_owned();
    type Form = fn(&str) -> String;
    let forms: [(&str, Form); 4] = [
        ("mark", |text| format!("\u{feff}{text}")),
        ("crlf", |text| format!("\u{feff}\"{}\"\r\n", text.trim_end())),
        ("wrapped", |text| format!("{}\r\n  {}\r\n", &text[..76], &text[76..])),
        ("quoted", |text| format!("'{}'", text.trim_end())),
    ];
    for (name, form) in forms {
        let (plain, wide) =
            (folder.path().join(format!("{name}.txt")), folder.path().join(format!("{name}-16.txt")));
        write_secret(&plain, form(&line(&token(&world))).as_bytes());
        write_secret(&wide, &utf16(&form(&format!("\u{feff}{}", token(&world)))));
        for (file, name) in [(plain, name.to_owned()), (wide, format!("{name}-16"))] {
            let joined = join(&file, folder.path(), &name);
            assert!(joined.status.success(), "{name}: {}", said(&joined));
        }
    }
}

/// A file that others can read is refused as a key is; one that Kubernetes mounts is not.
#[test]
fn a_tokens_file_is_its_owners() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("token.txt");
    for (mode, good) in
        [(0o644, false), (0o604, false), (0o620, false), (0o440, true), (0o640, true), (0o400, true)]
    {
        let text = token(&world);
        write_secret(&file, text.as_bytes());
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let joined = join(&file, folder.path(), &format!("mode-{mode:o}"));
        assert_eq!(joined.status.success(), good, "{mode:o}: {}", said(&joined));
        if !good {
            let said = said(&joined);
            assert!(said.contains(&format!("mode 0{mode:o}")) && said.contains("chmod 600"), "{said}");
            assert!(!said.contains(&text[15..40]), "{said}");
        }
    }
}

/// Descriptor 0 is read as it is, by whatever name: a socket can't be opened.
#[test]
fn stdin_is_read_itself() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    for (name, path) in [("socket-0", "-"), ("socket-1", "/dev/stdin"), ("socket-2", "/proc/self/fd/0")] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut command = hopline();
        command.args(["join", path, "--name", name, "--state"]).arg(folder.path().join(name));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        drop(command);
        ours.write_all(token(&world).as_bytes()).unwrap();
        drop(ours);
        let joined = child.wait_with_output().unwrap();
        assert!(joined.status.success(), "{path}: {}", said(&joined));
    }
    let empty = hopline().args(["join", "-", "--state"]).arg(folder.path().join("empty")).output().unwrap();
    assert_eq!(empty.status.code(), Some(1));
    assert_eq!(said(&empty), "hopline: no join token in stdin: it is empty\n");
}

/// A token on a command line is not repeated, and whoever gave it is told how to revoke it.
#[test]
fn a_token_as_an_argument_is_not_repeated() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let text = token(&world);
    let text = text.trim_end();
    let listed = run(["token", "list", "--state", world.relay.state.to_str().unwrap()]);
    let name = format!("--name={text}");
    let short = format!("-c{text}");
    let cases: [&[&str]; 14] = [
        &["join", text],
        &["join", "--token", text],
        &["join", "-", "--name", text],
        &["join", "-", &name],
        &["join", "-", "--state", text],
        &["dial", text],
        &["dial", "ledger", "--listen", text],
        &["up", "-c", text],
        &["up", &short],
        &["check", "-c", text],
        &["status", text],
        &["token", "revoke", text],
        &["nonsense", text],
        &[text],
    ];
    for args in cases {
        let output = hopline().args(args).current_dir(folder.path()).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for part in 15..text.len() - 12 {
            assert!(!said.contains(&text[part..part + 12]), "{said}");
        }
        let (_, rest) = said.split_once("hopline token revoke ").unwrap_or_else(|| panic!("{said}"));
        let id = &rest[..16];
        assert!(String::from_utf8_lossy(&listed.stdout).contains(id), "{said}");
    }
    // Wrapped, so that it came as several; and damaged.
    let parts: [&[&str]; 2] = [&["join", &text[..70], &text[70..]], &["join", &text[..90]]];
    for args in parts {
        let output = hopline().args(args).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("hopline token revoke") && !said.contains(&text[20..40]), "{said}");
    }
    // In a config file, or instead of one.
    let file = folder.path().join("token.yaml");
    for content in [
        text.to_owned(),
        format!("relay: [{text}]\nconnect: {{ a: {{ listen: \"127.0.0.1:0\" }} }}\n"),
        format!("{text}: 1\n"),
    ] {
        std::fs::write(&file, content).unwrap();
        let output = hopline().args(["check", "-c"]).arg(&file).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains(&text[15..27]), "{said}");
    }
}

/// A connection that breaks in the middle of a join is told in words of this program.
#[test]
fn a_join_that_is_broken_off_says_what_to_do() {
    let world = shared();
    let folder = TempDir::new().unwrap();
    let (listener, state) = (TcpListener::bind("127.0.0.1:0").unwrap(), world.relay.state.to_str().unwrap());
    let address = listener.local_addr().unwrap().to_string();
    let made = run(["token", "create", "--state", state, "--relay", &address, "--dial", "*"]);
    let file = folder.path().join("token.txt");
    write_secret(&file, &made.stdout);
    let closing = std::thread::spawn(move || {
        // One closes at once, one in the middle of TLS, one speaks something else.
        drop(listener.accept().unwrap());
        let (mut second, _) = listener.accept().unwrap();
        let mut some = [0; 16];
        second.read_exact(&mut some).unwrap();
        drop(second);
        let (mut third, _) = listener.accept().unwrap();
        third.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = third.read_to_end(&mut Vec::new());
    });
    for _ in 0..3 {
        let joined = join(&file, folder.path(), "broken");
        let said = said(&joined);
        assert_eq!(joined.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains(&address), "{said}");
        assert!(
            !said.contains("://") && !said.contains("rustls") && !said.contains("close_notify"),
            "{said}"
        );
    }
    closing.join().unwrap();
}

/// A token that nobody got is none: stdout is full, closed, or has no reader.
#[test]
fn a_token_that_could_not_be_written_is_revoked() {
    let world = shared();
    let (state, relay) = (world.relay.state.to_str().unwrap(), world.relay.address.to_string());
    let tokens = || {
        let listed = run(["token", "list", "--state", state]);
        String::from_utf8(listed.stdout).unwrap().matches("dial nobody-has-it").count()
    };
    let args = ["token", "create", "--state", state, "--relay", &relay, "--dial", "nobody-has-it"];
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let unread = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    for (what, stdout) in [("full", full()), ("unread", unread())] {
        let made = hopline().args(args).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(made.status.code(), Some(1), "{what}");
        assert!(said(&made).contains("it was revoked"), "{what}: {}", said(&made));
    }
    let mut closed = std::process::Command::new("/bin/sh");
    closed.arg("-c").arg("exec \"$0\" \"$@\" >&-").arg(hopline().get_program()).args(args);
    let made = closed.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(made.status.code(), Some(1));
    assert!(said(&made).contains("stdout is closed"), "{}", said(&made));
    assert_eq!(tokens(), 0);

    // A list that can't be written is a failure; one whose reader has had enough is not.
    for (stdout, code) in [(full(), 1), (unread(), 0)] {
        let listed = hopline().args(["machine", "list", "--state", state]).stdout(stdout).output().unwrap();
        assert_eq!(listed.status.code(), Some(code), "{}", said(&listed));
    }
}
