use super::*;

#[test]
fn one_holder_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderLock::wait(dir.path()).unwrap();
    assert!(FolderLock::try_take(dir.path()).unwrap().is_none());
    drop(held);
    assert!(FolderLock::try_take(dir.path()).unwrap().is_some());
}

#[test]
fn the_holder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderLock::wait(dir.path()).unwrap();
    // Where the system tells at all: it does not in every sandbox.
    assert!(["this process itself", "another process"].contains(&holder(dir.path()).as_str()));
    drop(held);
    assert_eq!(holder(dir.path()), "another process");
}

#[test]
fn locks_as_the_kernel_lists_them() {
    let locks = "1: FLOCK  ADVISORY  WRITE 100 fe:01:7 0 EOF\n\
                 1: -> FLOCK  ADVISORY  WRITE 101 fe:01:7 0 EOF\n\
                 2: POSIX  ADVISORY  WRITE 102 fe:01:8 0 EOF\n\
                 3: FLOCK  ADVISORY  WRITE 0 fe:01:9 0 EOF\n\
                 4: FLOCK  ADVISORY  WRITE 103 00:2a:10 0 EOF\n\
                 5: FLOCK  ADVISORY  WRITE 104 00:2a:11 0 EOF\n\
                 6: FLOCK  ADVISORY  WRITE 105 00:2b:11 0 EOF\nnonsense\n";
    let dev = rustix::fs::makedev(0xfe, 1);
    for (ino, expected) in [(7, Some(100)), (8, None), (9, None), (10, Some(103)), (11, None), (12, None)] {
        assert_eq!(holder_in(locks, dev, ino), expected, "inode {ino}");
    }
}

#[tokio::test]
async fn a_wait_that_is_given_up_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderLock::wait(dir.path()).unwrap();
    tokio::select! {
        biased;
        lock = FolderLock::free(dir.path()) => panic!("{lock:?}"),
        () = tokio::task::yield_now() => {}
    }
    drop(held);
    assert!(FolderLock::try_take(dir.path()).unwrap().is_some());
}

/// Somebody deletes the file while it is held: whoever takes the new file must not be let in beside the holder of the
/// old one for longer than that one's hold; and the deleted one is never taken for the lock.
#[test]
fn a_lock_whose_file_was_replaced_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = lock_path(dir.path());
    let old = File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(!is_still(&path, &old));
    File::create(&path).unwrap();
    assert!(!is_still(&path, &old));
}
