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

/// What may stand in a record's place: each is told apart from a record that is not there, and none is waited for.
#[test]
fn what_stands_in_a_files_place_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink("/nonexistent/record", at("link")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for (name, fault) in
        [("folder", "is a folder"), ("link", "/nonexistent/record"), ("pipe", "no regular file")]
    {
        let error = read(&at(name), Guard::Secret).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, StateError::Damaged { .. }) && text.contains(fault), "{name}: {text}");
    }
    assert!(matches!(folder_exists(&at("link")), Err(StateError::Damaged { .. })));
    assert!(matches!(make_folder(&at("pipe")), Err(StateError::NotAFolder { .. })));
}

/// Three files change together: whichever change fails, all three are the old ones or all three the new ones.
#[test]
fn files_that_belong_together_change_together() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a", "b", "c"].iter().map(|name| dir.path().join(name)).collect();
    let write = |contents: &[u8]| {
        let files: Vec<_> = paths.iter().map(|path| (path.clone(), contents)).collect();
        write_together(&files)
    };
    let all = |contents: &[u8]| paths.iter().all(|path| std::fs::read(path).unwrap() == contents);
    write(b"old").unwrap();
    let mut failed = 0;
    for good in 0.. {
        let failing = faults::Failing::after(dir.path(), good);
        let written = write(b"new");
        if !failing.met() {
            written.unwrap();
            break;
        }
        drop(failing);
        failed += 1;
        written.unwrap_err();
        assert!(all(b"old") || all(b"new"), "after {good} changes");
        assert_eq!(entries(dir.path()).unwrap().len(), 3, "after {good} changes nothing else is left");
        write(b"old").unwrap();
    }
    // Created, written and synced, three times; renamed three times; the folder synced.
    assert_eq!(failed, 13);
}
