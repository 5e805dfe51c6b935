//! Modes under a umask of 0, in a process of its own since a umask is of the whole process.

#![expect(clippy::unwrap_used, reason = "a test panics on whatever it does not expect, helpers included")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hopline_identity::{RelayState, TokenSpec, create_token, join, serve_join};
use hopline_names::Grants;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

fn modes(dir: &Path, found: &mut Vec<(PathBuf, u32, bool)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.metadata().unwrap();
        found.push((path.clone(), metadata.permissions().mode() & 0o7777, metadata.is_dir()));
        if metadata.is_dir() {
            modes(&path, found);
        }
    }
}

#[tokio::test]
async fn nothing_is_open_to_others_under_any_umask() {
    let parent = tempfile::tempdir().unwrap();
    rustix::process::umask(rustix::fs::Mode::empty());
    let (relay_dir, machine_dir) = (parent.path().join("relay"), parent.path().join("machine"));
    let state = RelayState::open(&relay_dir, &"relay-a".parse().unwrap()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let spec = TokenSpec {
        relay: listener.local_addr().unwrap().to_string(),
        grants: Grants { publish: vec!["ledger".parse().unwrap()], dial: Vec::new() },
        ttl: Duration::from_secs(60),
        uses: 1,
    };
    let token = create_token(&relay_dir, &spec, SystemTime::now()).unwrap();
    let serving = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let stream = TlsAcceptor::from(state.server_config()).accept(tcp).await.unwrap();
        serve_join(stream, &state).await.unwrap();
    };
    let name = "web-1".parse().unwrap();
    let (joined, ()) = tokio::join!(join(&token, &name, &machine_dir), serving);
    joined.unwrap();

    let mut found = Vec::new();
    modes(parent.path(), &mut found);
    // Two state folders and two of records; lock, version, ca.pem, ca.key and a machine's record, since the token is used
    // up; lock, version and four of the machine.
    assert_eq!(found.iter().filter(|(_, _, is_dir)| *is_dir).count(), 4, "{found:?}");
    assert_eq!(found.iter().filter(|(_, _, is_dir)| !is_dir).count(), 11, "{found:?}");
    for (path, mode, is_dir) in found {
        let expected = if is_dir { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{} has {mode:04o}", path.display());
    }
}
