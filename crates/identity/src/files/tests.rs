use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn a_reader_never_sees_half_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record");
    let (old, new) = (vec![b'o'; 10], vec![b'n'; 300_000]);
    write_atomic(&path, &old).unwrap();
    let done = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Acquire) || reads == 0 {
                let seen = read(&path, Guard::Secret).unwrap().unwrap();
                assert!(*seen == old || *seen == new, "{} bytes", seen.len());
                reads += 1;
            }
            reads
        });
        for round in 0..50 {
            write_atomic(&path, if round % 2 == 0 { &new } else { &old }).unwrap();
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert!(reads > 0);
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record");
    // A folder with something in it cannot be replaced by a file.
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("inside"), "kept").unwrap();
    let error = write_atomic(&path, b"new").unwrap_err();
    assert!(matches!(error, StateError::Io { action: "replace", .. }), "{error}");
    assert_eq!(std::fs::read_to_string(path.join("inside")).unwrap(), "kept");
    assert_eq!(entries(dir.path()).unwrap(), [path]);
}

#[test]
fn missing_and_empty_are_two_things() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record");
    assert!(read(&path, Guard::Secret).unwrap().is_none());
    write_atomic(&path, b"").unwrap();
    assert!(matches!(read(&path, Guard::Secret), Err(StateError::Damaged { .. })));
    assert!(remove(&path).unwrap());
    assert!(!remove(&path).unwrap());
}

#[test]
fn a_file_that_is_not_ours_is_not_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record");
    write_atomic(&path, &vec![b'x'; 1024 * 1024 + 1]).unwrap();
    assert!(matches!(read(&path, Guard::Secret), Err(StateError::Damaged { .. })));
}

#[test]
fn one_holder_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderLock::wait(dir.path()).unwrap();
    assert!(FolderLock::try_take(dir.path()).unwrap().is_none());
    drop(held);
    assert!(FolderLock::try_take(dir.path()).unwrap().is_some());
}
