//! The host names under which a status address may be asked for.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tempfile::TempDir;

use crate::harness::{Process, hopline, run, shared};

/// The answer to a request for `/healthz` under this host.
fn ask(address: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Served under the names that are configured, and under no other one; the refusal says what to do.
fn answers_to(process: &Process, names: &[&str]) {
    let address = process.logged("status address open address=");
    for name in names.iter().chain(&["localhost", "127.0.0.1", "[::1]:80"]) {
        let answer = ask(&address, name);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{name}: {answer}");
    }
    for name in ["evil.example", "status.example.evil.example"] {
        let answer = ask(&address, name);
        assert!(answer.starts_with("HTTP/1.1 421 "), "{name}: {answer}");
        assert!(answer.contains("configured by hosts:"), "{answer}");
    }
}

#[test]
fn an_edge_answers_to_the_names_of_its_file() {
    let (world, folder) = (shared(), TempDir::new().unwrap());
    let file = folder.path().join("edge.yaml");
    let status = "status: { listen: \"127.0.0.1:0\", hosts: [Status.Example, web-1] }\n";
    std::fs::write(&file, format!("{status}connect: {{ any: {{ listen: \"127.0.0.1:0\" }} }}\n")).unwrap();
    let mut command = hopline();
    command.arg("up").arg("-c").arg(&file).arg("--state").arg(&world.sidecar.state);
    let edge = Process::spawn("named", folder.path(), command);
    answers_to(&edge, &["status.example", "STATUS.example:7801", "web-1"]);
}

#[test]
fn a_relay_answers_to_the_names_of_its_flags_and_its_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("relay.yaml");
    std::fs::write(&file, "admin: { listen: \"127.0.0.1:0\", hosts: [relay.example] }\n").unwrap();
    let mut command = hopline();
    command.args(["relay", "--listen", "127.0.0.1:0", "--admin-host", "status.example", "-c"]);
    command.arg(&file).arg("--state").arg(folder.path().join("state"));
    let relay = Process::spawn("relay", folder.path(), command);
    answers_to(&relay, &["status.example:80", "relay.example"]);
}

#[test]
fn a_name_without_an_address_of_tcp_is_refused() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state").display().to_string();
    let socket = format!("unix:{}", folder.path().join("a.sock").display());
    for admin in [&[][..], &["--admin", &socket]] {
        let base = ["relay", "--listen", "127.0.0.1:0", "--admin-host", "a", "--state", &state];
        let output = run(base.iter().chain(admin));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--admin HOST:PORT"), "{output:?}");
    }
}
