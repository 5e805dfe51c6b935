use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::files::faults::Failing;
use crate::list_tokens;
use crate::token::tests::{grants, name};

fn spec() -> TokenSpec {
    TokenSpec {
        relay: "relay:1".to_owned(),
        grants: grants(&[], &["*"]),
        ttl: Duration::from_secs(600),
        uses: 1,
    }
}

/// The disk fails at any one change of a relay's first start: what is there of an authority is never in the way of the
/// next start, and no token is made on it.
#[test]
fn a_disk_that_fails_leaves_no_half_authority() {
    let mut failed = 0;
    for good in 0.. {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("relay");
        let failing = Failing::after(&dir, good);
        let opened = RelayState::open(&dir, &name("relay-a"));
        if !failing.met() {
            opened.unwrap();
            break;
        }
        failed += 1;
        drop(failing);
        opened.unwrap_err();
        // Whatever can be made of it before the relay comes again is good with the relay that comes.
        let early = create_token(&dir, &spec(), SystemTime::now());
        let state = RelayState::open(&dir, &name("relay-a")).unwrap();
        if let Ok(token) = early {
            assert_eq!(token.authority, state.authority_fingerprint(), "after {good} changes");
        }
        create_token(&dir, &spec(), SystemTime::now()).unwrap();
        assert_eq!(
            RelayState::open(&dir, &name("relay-a")).unwrap().authority_fingerprint(),
            state.authority_fingerprint()
        );
    }
    assert!(failed > 15, "{failed}");
}

/// The process ends while the authority is made, which no clean-up of its own can mend: the next start makes it. What a
/// record depends on is never made anew.
#[test]
fn an_authority_whose_making_was_cut_short_is_made_anew() {
    let making = |dir: &Path| std::fs::write(dir.join(MAKING), "x").unwrap();
    for left in ["ca.key", "ca.pem"] {
        let dir = tempfile::tempdir().unwrap();
        let first = RelayState::open(dir.path(), &name("relay-a")).unwrap().authority_fingerprint();
        let lost = if left == "ca.key" { "ca.pem" } else { "ca.key" };
        std::fs::remove_file(dir.path().join(lost)).unwrap();
        RelayState::open(dir.path(), &name("relay-a")).unwrap_err();
        making(dir.path());
        create_token(dir.path(), &spec(), SystemTime::now()).unwrap_err();
        let second = RelayState::open(dir.path(), &name("relay-a")).unwrap().authority_fingerprint();
        assert_ne!(first, second);

        create_token(dir.path(), &spec(), SystemTime::now()).unwrap();
        making(dir.path());
        assert_eq!(RelayState::open(dir.path(), &name("relay-a")).unwrap().authority_fingerprint(), second);
    }
}

/// A token whose making fails is not there: nobody has its secret.
#[test]
fn a_token_that_could_not_be_written_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    for good in 0..5 {
        let failing = Failing::after(dir.path(), good);
        create_token(dir.path(), &spec(), SystemTime::now()).unwrap_err();
        assert!(failing.met());
        drop(failing);
        // It could not be removed either, but what is left is not listed and goes with the next start.
        let listed = list_tokens(dir.path()).unwrap();
        assert!(listed.records.len() <= 1 && listed.unreadable.is_empty(), "after {good} changes");
    }
}

/// A join that holds the lock may have read the token, and would write it back behind the revocation.
#[test]
fn a_revocation_waits_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    RelayState::open(dir.path(), &name("relay-a")).unwrap();
    let token = create_token(dir.path(), &spec(), SystemTime::now()).unwrap();
    let path = token_path(dir.path(), token.id());
    let record = std::fs::read(&path).unwrap();
    let held = FolderLock::wait(dir.path()).unwrap();
    std::thread::scope(|scope| {
        let revoking = scope.spawn(|| revoke_token(dir.path(), token.id()));
        // Whoever changes things without the lock has done so long before.
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            assert!(path.exists() && !revoking.is_finished(), "revoked beside whoever holds the lock");
            std::thread::yield_now();
        }
        files::write_atomic(&path, &record).unwrap();
        drop(held);
        revoking.join().unwrap().unwrap();
    });
    assert!(!path.exists());
    assert_eq!(list_tokens(dir.path()).unwrap().records, []);
}

/// A clock that a test sets.
fn clock(start: SystemTime) -> (Clock, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(unix_s(start)));
    let shared = Arc::clone(&now);
    let clock =
        Clock::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(shared.load(Ordering::Relaxed)));
    (clock, now)
}

#[test]
fn a_relay_that_starts_in_1970_makes_an_authority_for_today() {
    let dir = tempfile::tempdir().unwrap();
    let (clock, _) = clock(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
    let state = RelayState::open_by(dir.path(), &name("relay-a"), clock).unwrap();
    let facts = Facts::read(state.authority().certificate()).unwrap();
    let now = SystemTime::now();
    assert!(facts.not_before < now && facts.not_after > now + Duration::from_secs(5 * 365 * 86_400));
    assert_eq!(
        RelayState::open(dir.path(), &name("relay-a")).unwrap().authority_fingerprint(),
        state.authority_fingerprint()
    );
    let error = create_token(dir.path(), &spec(), SystemTime::UNIX_EPOCH).unwrap_err().to_string();
    assert!(error.contains("clock seems wrong: it says 1970-01-01"), "{error}");
}
