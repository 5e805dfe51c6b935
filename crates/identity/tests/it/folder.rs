//! State folders: what is in them, who may read it, and what happens when it is damaged.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime};

use hopline_identity::{
    DateFault, LoadMachineError, Machine, RelayState, StateError, create_token, list_machines, list_tokens,
    revoke_token,
};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::common::{name, relay_with_machine, spec, token};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Puts a file back that a test has removed, with the mode that it had.
fn restore(path: &Path, contents: &[u8]) {
    fs::write(path, contents).unwrap();
    chmod(path, 0o600);
}

fn open_error(dir: &Path) -> StateError {
    RelayState::open(dir, &name("relay-a")).unwrap_err()
}

fn new_relay_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    dir
}

#[test]
fn the_authority_outlives_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = RelayState::open(dir.path(), &name("relay-a")).unwrap().authority_fingerprint();
    assert_eq!(RelayState::open(dir.path(), &name("relay-b")).unwrap().authority_fingerprint(), first);
}

#[test]
fn those_who_start_at_once_share_one_authority() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("state");
    let starters = 8;
    let barrier = Arc::new(Barrier::new(starters));
    let threads: Vec<_> = (0..starters)
        .map(|n| {
            let (dir, barrier) = (dir.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let fingerprint = RelayState::open(&dir, &name("relay-a")).unwrap().authority_fingerprint();
                if n % 2 == 0 {
                    create_token(&dir, &spec("relay:1"), SystemTime::now()).unwrap();
                }
                fingerprint
            })
        })
        .collect();
    let fingerprints: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(fingerprints.iter().all(|fingerprint| *fingerprint == fingerprints[0]));
    assert_eq!(list_tokens(&dir).unwrap().records.len(), starters / 2);
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let dir = new_relay_dir();
    let key = dir.path().join("ca.key");
    for mode in [0o644, 0o604, 0o620, 0o602, 0o660, 0o777] {
        chmod(&key, mode);
        let error = open_error(dir.path());
        assert!(matches!(error, StateError::Permissions { .. }), "{mode:o}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{mode:04o}")) && !text.contains('\n'), "{text}");
        assert!(text.contains(&format!("chmod 600 {}", key.display())), "{text}");
    }
    for mode in [0o600, 0o400, 0o440, 0o640] {
        chmod(&key, mode);
        RelayState::open(dir.path(), &name("relay-a")).unwrap();
    }
    // The certificate is no secret, but whoever may write it may redirect trust.
    let certificate = dir.path().join("ca.pem");
    chmod(&certificate, 0o644);
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    chmod(&certificate, 0o664);
    assert!(matches!(open_error(dir.path()), StateError::Permissions { .. }));
}

#[test]
fn a_damaged_authority_is_never_replaced() {
    for file in ["ca.key", "ca.pem"] {
        let dir = new_relay_dir();
        let path = dir.path().join(file);
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 10] {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = open_error(dir.path());
            assert!(matches!(error, StateError::Damaged { .. }), "{file} cut at {cut}: {error}");
            assert!(error.to_string().contains(file) && error.to_string().contains("backup"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), whole[..cut], "left as it is");
            create_token(dir.path(), &spec("relay:1"), SystemTime::now()).unwrap_err();
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(open_error(dir.path()), StateError::AuthorityIncomplete { .. }));
        assert!(!path.exists());
        restore(&path, &whole);
        RelayState::open(dir.path(), &name("relay-a")).unwrap();
    }
}

#[test]
fn an_authority_that_is_gone_is_not_made_again_beside_its_machines() {
    let dir = new_relay_dir();
    token(dir.path(), "relay:1", 1);
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    fs::remove_file(dir.path().join("ca.pem")).unwrap();
    assert!(matches!(open_error(dir.path()), StateError::AuthorityLost { .. }));
    assert!(!dir.path().join("ca.key").exists());
}

#[test]
fn a_key_of_another_authority_is_found() {
    let (dir, other) = (new_relay_dir(), new_relay_dir());
    fs::copy(other.path().join("ca.key"), dir.path().join("ca.key")).unwrap();
    let error = open_error(dir.path());
    assert!(error.to_string().contains("not the key of ca.pem"), "{error}");
}

#[test]
fn leftovers_of_a_crash_are_cleared_and_never_listed() {
    let dir = new_relay_dir();
    let leftovers = [
        dir.path().join(".tmp-0011"),
        dir.path().join("tokens/.tmp-0022"),
        dir.path().join("machines/.tmp-33"),
    ];
    for path in &leftovers {
        fs::write(path, "half").unwrap();
    }
    assert_eq!(list_tokens(dir.path()).unwrap().records, []);
    assert_eq!(list_machines(dir.path()).unwrap().records, []);
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    assert!(leftovers.iter().all(|path| !path.exists()));
}

#[test]
fn listing_a_folder_that_is_no_relays_makes_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("mistyped");
    assert!(matches!(list_tokens(&dir), Err(StateError::NoFolder { .. })));
    assert!(matches!(list_machines(&dir), Err(StateError::NoFolder { .. })));
    assert!(!dir.exists());
}

#[test]
fn a_damaged_record_is_named_and_its_contents_are_not_shown() {
    let dir = new_relay_dir();
    let token = token(dir.path(), "relay:1", 1);
    let path = dir.path().join("tokens").join(format!("{}.json", token.id()));
    let whole = fs::read_to_string(&path).unwrap();
    let unreadable = || list_tokens(dir.path()).unwrap().unreadable.pop().unwrap();
    for (good, bad) in [("\"uses\": 1", "\"uses\": \"CANARY\""), ("\"batch-*\"", "\"CANARY\"")] {
        assert!(whole.contains(good));
        fs::write(&path, whole.replace(good, bad)).unwrap();
        let error = unreadable().to_string();
        assert!(error.contains(token.id()) && !error.contains("CANARY"), "{error}");
    }
    chmod(&path, 0o644);
    assert!(matches!(unreadable(), StateError::Permissions { .. }));
}

#[test]
fn the_folder_of_a_relay_does_not_hold_a_tokens_secret() {
    let dir = new_relay_dir();
    let text = token(dir.path(), "relay:1", 1).reveal();
    let body = text.strip_prefix("hopline-join-1.").unwrap();
    let bytes = base64::Engine::decode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, body).unwrap();
    // Field 4, 32 bytes long: tag 0x22, length 0x20.
    let at = bytes.windows(2).position(|pair| pair == [0x22, 0x20]).unwrap() + 2;
    let secret = &bytes[at..at + 32];
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut seen = 0;
    for entry in fs::read_dir(dir.path().join("tokens")).unwrap() {
        let contents = fs::read(entry.unwrap().path()).unwrap();
        assert!(!contents.windows(32).any(|window| window == secret));
        assert!(!String::from_utf8(contents).unwrap().contains(&hex));
        seen += 1;
    }
    assert_eq!(seen, 1);
}

#[test]
fn a_folder_without_a_machine_says_what_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let text = Machine::load(dir.path()).unwrap_err().to_string();
    let remedy = format!("run: hopline join TOKENFILE --state {}", dir.path().display());
    assert!(text.contains("machine.json") && text.contains(&remedy), "{text}");
}

#[tokio::test]
async fn each_damaged_file_of_a_machine_is_named_with_the_remedy() {
    let (_relay, _relay_dir, _machine, dir) = relay_with_machine("web-1").await;
    let files = ["machine.json", "machine.pem", "machine.key", "ca.pem"];
    for file in files {
        let path = dir.path().join(file);
        let whole = fs::read(&path).unwrap();
        for cut in [0, whole.len() / 2] {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = Machine::load(dir.path()).unwrap_err();
            assert!(matches!(error, LoadMachineError::Damaged { .. }), "{file} cut at {cut}: {error}");
            let text = error.to_string();
            assert!(text.contains(file) && text.contains("hopline join") && !text.contains('\n'), "{text}");
        }
        fs::remove_file(&path).unwrap();
        let error = Machine::load(dir.path()).unwrap_err();
        assert!(matches!(&error, LoadMachineError::NotJoined { missing, .. } if *missing == path), "{error}");
        restore(&path, &whole);
        Machine::load(dir.path()).unwrap();
    }
    chmod(&dir.path().join("machine.key"), 0o644);
    let error = Machine::load(dir.path()).unwrap_err();
    assert!(matches!(error, LoadMachineError::State(StateError::Permissions { .. })), "{error}");
}

#[tokio::test]
async fn files_of_two_machines_do_not_mix() {
    let (_relay_a, _relay_dir_a, _a, dir_a) = relay_with_machine("web-1").await;
    let (_relay_b, _relay_dir_b, _b, dir_b) = relay_with_machine("web-1").await;
    for file in ["machine.pem", "machine.key", "ca.pem"] {
        let path = dir_a.path().join(file);
        let own = fs::read(&path).unwrap();
        fs::copy(dir_b.path().join(file), &path).unwrap();
        let error = Machine::load(dir_a.path()).unwrap_err();
        assert!(matches!(error, LoadMachineError::Damaged { .. }), "{file}: {error}");
        fs::write(&path, own).unwrap();
    }
    Machine::load(dir_a.path()).unwrap();
}

#[tokio::test]
async fn a_certificate_past_its_end_or_before_its_start_is_a_clear_error() {
    let (_relay, relay_dir, _machine, dir) = relay_with_machine("web-1").await;
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let issuer_key = KeyPair::from_pem(&read(&relay_dir.path().join("ca.key"))).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read(&relay_dir.path().join("ca.pem")), issuer_key).unwrap();
    let key = KeyPair::from_pem(&read(&dir.path().join("machine.key"))).unwrap();
    let now = OffsetDateTime::from(SystemTime::now());
    let store = |from_days: i64, to_days: i64| {
        let mut params = CertificateParams::default();
        params.not_before = now + time::Duration::days(from_days);
        params.not_after = now + time::Duration::days(to_days);
        params.subject_alt_names = vec![SanType::URI("hopline://machine/web-1".try_into().unwrap())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        fs::write(dir.path().join("machine.pem"), pem).unwrap();
        params.not_after.date()
    };

    let on = store(-30, -1);
    let error = Machine::load(dir.path()).unwrap().check_dates().unwrap_err();
    assert!(matches!(error, DateFault::Expired { .. }), "{error}");
    assert!(
        error.to_string().contains(&on.to_string()) && error.to_string().contains("hopline join"),
        "{error}"
    );
    store(1, 30);
    let error = Machine::load(dir.path()).unwrap().check_dates().unwrap_err();
    assert!(matches!(error, DateFault::NotValidYet { .. }), "{error}");
    assert!(error.to_string().contains("clock seems wrong"), "{error}");
    store(-1, 30);
    Machine::load(dir.path()).unwrap().check_dates().unwrap();
}

/// One record that is broken, in each way in which it can be, hides no other.
#[test]
fn a_broken_record_hides_no_other() {
    let dir = new_relay_dir();
    let (good, bad) = (token(dir.path(), "relay:1", 1), token(dir.path(), "relay:1", 1));
    let path = dir.path().join("tokens").join(format!("{}.json", bad.id()));
    let broken: [(&str, &dyn Fn()); 6] = [
        ("is empty", &|| restore(&path, b"")),
        ("it is a folder", &|| fs::create_dir(&path).unwrap()),
        ("others could read", &|| {
            restore(&path, b"{}");
            chmod(&path, 0o644);
        }),
        ("not the JSON expected", &|| restore(&path, &[0xff; 100])),
        ("symbolic link to /nonexistent", &|| std::os::unix::fs::symlink("/nonexistent", &path).unwrap()),
        ("another record than its name says", &|| {
            fs::copy(dir.path().join("tokens").join(format!("{}.json", good.id())), &path).unwrap();
        }),
    ];
    for (fault, make) in broken {
        if path.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.unwrap();
        make();
        let listing = list_tokens(dir.path()).unwrap();
        assert_eq!(
            listing.records.iter().map(|info| info.id.as_str()).collect::<Vec<_>>(),
            [good.id()],
            "{fault}"
        );
        let said: Vec<String> = listing.unreadable.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(fault) && said[0].contains(bad.id()), "{said:?}");
        // A relay starts on it, and makes tokens.
        RelayState::open(dir.path(), &name("relay-a")).unwrap();
        revoke_token(dir.path(), token(dir.path(), "relay:1", 1).id()).unwrap();
    }
}

#[test]
fn tokens_that_nobody_can_redeem_go_by_themselves() {
    let dir = new_relay_dir();
    let files = || fs::read_dir(dir.path().join("tokens")).unwrap().count();
    let old = SystemTime::now() - std::time::Duration::from_secs(86_400);
    for _ in 0..20 {
        create_token(dir.path(), &spec("relay:1"), old).unwrap();
    }
    assert_eq!(files(), 1, "each new one takes the dead ones away");
    assert_eq!(list_tokens(dir.path()).unwrap().records, []);
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    assert_eq!(files(), 0);
    create_token(dir.path(), &spec("relay:1"), old).unwrap();
    let live = token(dir.path(), "relay:1", 1);
    let state = RelayState::open(dir.path(), &name("relay-a")).unwrap();
    fs::copy(
        dir.path().join("tokens").join(format!("{}.json", live.id())),
        dir.path().join("tokens/.tmp-copy"),
    )
    .unwrap();
    state.tidy().unwrap();
    assert_eq!(list_tokens(dir.path()).unwrap().records.len(), 1);
}

/// A token is made where a relay has been, and nowhere else; nothing is made on the way to the error.
#[tokio::test]
async fn a_token_is_made_at_a_relays_folder_only() {
    let (_relay, _relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let parent = tempfile::tempdir().unwrap();
    let at = |name: &str| parent.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), "x").unwrap();
    fs::create_dir_all(at("lost/machines")).unwrap();
    fs::write(at("lost/machines/web-1.json"), "{}").unwrap();
    std::os::unix::fs::symlink("/nonexistent", at("link")).unwrap();
    let before = walk(parent.path());
    let cases = [
        (at("missing"), "does not exist"),
        (at("missing/deep"), "does not exist"),
        (at("empty"), "holds no relay state"),
        (at("file"), "is a file, not a folder"),
        (at("link"), "symbolic link to /nonexistent"),
        (at("lost"), "neither ca.pem nor ca.key"),
        (machine_dir.path().to_owned(), "a machine's key"),
    ];
    for (dir, said) in cases {
        let error = create_token(&dir, &spec("relay:1"), SystemTime::now()).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(dir.to_str().unwrap()), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    assert_eq!(walk(parent.path()), before);
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// Only root can be denied nothing.
#[test]
fn a_folder_that_is_denied_is_named_with_its_owner() {
    let dir = new_relay_dir();
    chmod(dir.path(), 0o000);
    let (made, listed) =
        (create_token(dir.path(), &spec("relay:1"), SystemTime::now()), list_tokens(dir.path()).map(drop));
    let opened = RelayState::open(dir.path(), &name("relay-a")).map(drop);
    chmod(dir.path(), 0o700);
    if rustix::process::geteuid().is_root() {
        return;
    }
    let uid = format!("uid {}", rustix::process::geteuid().as_raw());
    for error in
        [made.unwrap_err().to_string(), listed.unwrap_err().to_string(), opened.unwrap_err().to_string()]
    {
        for part in ["permission denied", dir.path().to_str().unwrap(), &uid, "mode 0000", "chmod"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}

#[tokio::test]
async fn a_folder_of_a_newer_version_is_not_misread() {
    let (relay, relay_dir, _machine, machine_dir) = relay_with_machine("web-1").await;
    let token = token(relay_dir.path(), &relay.address, 1);
    for dir in [relay_dir.path(), machine_dir.path()] {
        assert_eq!(fs::read_to_string(dir.join("version")).unwrap(), "1\n");
        fs::write(dir.join("version"), "2\n").unwrap();
    }
    let errors = [
        open_error(relay_dir.path()).to_string(),
        create_token(relay_dir.path(), &spec("relay:1"), SystemTime::now()).unwrap_err().to_string(),
        list_machines(relay_dir.path()).unwrap_err().to_string(),
        Machine::load(machine_dir.path()).unwrap_err().to_string(),
        hopline_identity::join(&token, &name("web-1"), machine_dir.path()).await.unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("newer hopline (state version 2, this program knows 1)"), "{error}");
    }
    // Version 0.1.0 wrote none.
    for dir in [relay_dir.path(), machine_dir.path()] {
        fs::remove_file(dir.join("version")).unwrap();
    }
    RelayState::open(relay_dir.path(), &name("relay-a")).unwrap();
    Machine::load(machine_dir.path()).unwrap();
}

/// What stands in the place of a state folder, or of one of its parts, at a start.
#[test]
fn what_is_no_state_folder_is_a_clear_error() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "x").unwrap();
    let text = open_error(&file).to_string();
    assert!(text.contains("is a file, not a folder") && text.contains(file.to_str().unwrap()), "{text}");
    let text = Machine::load(&file).unwrap_err().to_string();
    assert!(text.contains("is a file, not a folder"), "{text}");
    let text = open_error(&file.join("below")).to_string();
    assert!(text.contains(file.to_str().unwrap()), "{text}");

    let dir = new_relay_dir();
    for records in ["tokens", "machines"] {
        let path = dir.path().join(records);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "x").unwrap();
        let text = open_error(dir.path()).to_string();
        assert!(text.contains("is a file, not a folder") && text.contains(records), "{text}");
        fs::remove_file(&path).unwrap();
        RelayState::open(dir.path(), &name("relay-a")).unwrap();
    }
    // A folder in a file's place, and one that a crash has left.
    fs::create_dir(dir.path().join(".tmp-folder")).unwrap();
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    fs::create_dir(dir.path().join("version")).unwrap_err();
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    fs::create_dir(dir.path().join("ca.key")).unwrap();
    assert!(open_error(dir.path()).to_string().contains("it is a folder"));
}

/// Whoever changes a folder of records waits for the lock: a join at that moment could else write a token back that was
/// revoked, or count one use less than there was.
#[test]
fn what_changes_records_waits_for_the_lock() {
    let dir = new_relay_dir();
    let known = token(dir.path(), "relay:1", 1).id().to_owned();
    let folder = dir.path().to_owned();
    type Change = Box<dyn FnOnce() + Send>;
    let changes: [(&str, Change); 3] = [
        (
            "open",
            Box::new({
                let folder = folder.clone();
                move || drop(RelayState::open(&folder, &name("relay-a")).unwrap())
            }),
        ),
        (
            "create",
            Box::new({
                let folder = folder.clone();
                move || drop(token(&folder, "relay:1", 1))
            }),
        ),
        ("revoke", Box::new(move || revoke_token(&folder, &known).unwrap())),
    ];
    for (what, change) in changes {
        let held = fs::OpenOptions::new().read(true).write(true).open(dir.path().join("lock")).unwrap();
        held.lock().unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            change();
            done.send(()).unwrap();
        });
        // While somebody else has it nothing is done, however long that is.
        let early = is_done.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "{what} did not wait for the lock");
        drop(held);
        is_done.recv_timeout(Duration::from_secs(5)).unwrap_or_else(|_| panic!("{what} waits on"));
        thread.join().unwrap();
    }
    assert_eq!(list_tokens(dir.path()).unwrap().records.len(), 1, "one was made, one revoked");
}
