use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("hl").tempdir().unwrap()
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn with_mode(mode: u32) -> UnixOptions {
    UnixOptions { mode, ..UnixOptions::default() }
}

/// Leaves a socket file on which nobody listens.
fn leave_dead(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    assert!(UnixStream::connect(path).is_err());
}

#[test]
fn a_socket_is_made_private_and_removed_in_the_end() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    let (listener, file) = bind(&path, &UnixOptions::default()).unwrap();
    assert_eq!(file.path(), path);
    assert_eq!(mode_of(&path), 0o600);
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(path.as_path()), "ss and lsof show this");
    let _client = UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
    drop(file);
    assert_eq!(names_in(folder.path()), Vec::<String>::new());
}

#[test]
fn mode_and_group_are_as_asked_whatever_the_umask() {
    let folder = folder();
    let own_gid = std::fs::metadata(folder.path()).unwrap().gid();
    let table = [0o600, 0o660, 0o666, 0o777, 0o620, 0o400, 0o060, 0o000];
    assert_eq!(table.len(), 8);
    for mode in table {
        let path = folder.path().join(format!("{mode:o}.sock"));
        let options = UnixOptions { gid: Some(own_gid), ..with_mode(mode) };
        let (_listener, _file) = bind(&path, &options).unwrap();
        assert_eq!(mode_of(&path), mode, "{mode:o}");
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().gid(), own_gid);
    }
    let error = bind(&folder.path().join("s"), &with_mode(0o1600)).unwrap_err();
    assert!(matches!(error, UnixBindError::Mode { mode: 0o1600, .. }), "{error}");
}

#[test]
fn f130_the_first_moment_is_for_the_owner_alone() {
    let folder = folder();
    for mode in [0o600, 0o666, 0o060, 0o400] {
        let path = folder.path().join(format!("{mode:o}.sock"));
        let address = SocketAddrUnix::new(&path).unwrap();
        let _socket = bind_private(&path, folder.path(), &address, mode).unwrap();
        assert_eq!(mode_of(&path) & !(mode & 0o600), 0, "{mode:o}");
        assert!(UnixStream::connect(&path).is_err(), "nobody can connect yet");
    }
}

#[test]
fn a_folder_that_another_process_works_in_is_waited_for_but_not_for_ever() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    let other = open_folder(folder.path()).unwrap();
    lock(&other, Duration::ZERO);
    let begin = Instant::now();
    let (_listener, file) = bind(&path, &UnixOptions::default()).unwrap();
    assert!(begin.elapsed() >= LOCK_PATIENCE, "{:?}", begin.elapsed());
    let begin = Instant::now();
    drop(file);
    assert!(begin.elapsed() < LOCK_PATIENCE, "the end does not wait");
    assert!(!path.exists());
}

#[test]
fn f130_no_watcher_ever_sees_a_wider_mode() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    let (seen, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Ok(found) = std::fs::symlink_metadata(&path) {
                    let mode = found.permissions().mode() & 0o777;
                    assert_eq!(mode & !0o640, 0, "wider than asked: {mode:o}");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..300 {
            let before = seen.load(Ordering::Relaxed);
            let made = bind(&path, &with_mode(0o640)).unwrap();
            while seen.load(Ordering::Relaxed) == before {
                assert!(!watcher.is_finished(), "the watcher has seen a wider mode");
                std::thread::yield_now();
            }
            drop(made);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn f127_a_dead_socket_is_replaced() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    leave_dead(&path);
    let (listener, _file) = bind(&path, &UnixOptions::default()).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
    assert_eq!(names_in(folder.path()), ["s.sock"]);
}

#[test]
fn f127_a_live_socket_is_refused_and_stays() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    let (listener, _file) = bind(&path, &UnixOptions::default()).unwrap();
    let error = bind(&path, &UnixOptions::default()).unwrap_err();
    assert!(matches!(error, UnixBindError::InUse { .. }), "{error}");
    assert_eq!(error.to_string(), format!("{}: another process listens on this socket", path.display()));
    listener.accept().expect("the probe");
    let _client = UnixStream::connect(&path).unwrap();
    listener.accept().unwrap();
}

#[test]
fn a_live_socket_with_a_full_queue_is_live() {
    let folder = folder();
    let path = folder.path().join("s.sock");
    let address = SocketAddrUnix::new(&path).unwrap();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let listener = open();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut clients = Vec::new();
    loop {
        let client = open();
        match rustix::net::connect(&client, &address) {
            Ok(()) => clients.push(client),
            Err(errno) => break assert_eq!(errno, Errno::AGAIN),
        }
    }
    let error = bind(&path, &UnixOptions::default()).unwrap_err();
    assert!(matches!(error, UnixBindError::InUse { .. }), "{error}");
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
}

#[test]
fn f131_what_is_no_dead_socket_is_left_alone() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "precious").unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    leave_dead(&at("dead"));
    symlink(at("dead"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _datagram = UnixDatagram::bind(at("datagram")).unwrap();
    let before = names_in(folder.path());
    let table = [
        ("file", "is a regular file, not a socket"),
        ("dir", "is a directory, not a socket"),
        ("link", "is a symbolic link, not a socket"),
        ("dangling", "is a symbolic link, not a socket"),
        ("pipe", "is a pipe, not a socket"),
        ("datagram", "another process listens"),
        ("missing/s", "the folder"),
        ("file/s", "is not a folder"),
        ("dead/s", "is not a folder"),
        ("", "is a directory"),
        ("..", "has no file name"),
    ];
    assert_eq!(table.len(), 11);
    for (name, wanted) in table {
        let path = at(name);
        let error = bind(&path, &UnixOptions::default()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{name}: {error}");
        assert!(error.contains(folder.path().to_str().unwrap()), "names the path: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert_eq!(names_in(folder.path()), before, "{name}");
    }
    assert_eq!(std::fs::read_to_string(at("file")).unwrap(), "precious");
    let missing = bind(&at("missing/s"), &UnixOptions::default()).unwrap_err().to_string();
    assert!(
        missing.ends_with(&format!("the folder {} does not exist", at("missing").display())),
        "{missing}"
    );
}

#[test]
fn f131_a_folder_that_cannot_be_written() {
    // For root every mode is writable; the folders of /proc take no socket from anybody.
    let own = folder();
    let is_root = rustix::process::geteuid().is_root();
    let path = if is_root {
        PathBuf::from("/proc/self/s.sock")
    } else {
        std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
        own.path().join("s.sock")
    };
    let error = bind(&path, &UnixOptions::default()).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    let known = bind_error(&path, own.path(), Errno::ACCESS).to_string();
    assert!(known.contains("cannot be written by this user"), "{known}");
    assert!(bind_error(&path, own.path(), Errno::ROFS).to_string().contains("read-only"));
}

#[test]
fn the_longest_path_works_and_one_byte_more_is_refused() {
    let folder = folder();
    let room = MAX_PATH_BYTES - folder.path().as_os_str().len() - 1;
    let longest = folder.path().join("s".repeat(room));
    assert_eq!(longest.as_os_str().len(), MAX_PATH_BYTES);
    let (_listener, file) = bind(&longest, &UnixOptions::default()).unwrap();
    UnixStream::connect(&longest).unwrap();
    drop(file);
    // A dead one there is replaced as well: nothing needs a longer name beside it.
    leave_dead(&longest);
    drop(bind(&longest, &UnixOptions::default()).unwrap());

    let error = bind(&folder.path().join("s".repeat(room + 1)), &UnixOptions::default()).unwrap_err();
    assert!(error.to_string().contains("is 108 bytes long"), "{error}");
    let error = bind(Path::new("/tmp/a\0b"), &UnixOptions::default()).unwrap_err();
    assert!(error.to_string().contains("zero byte"), "{error}");
    assert!(bind(Path::new("/"), &UnixOptions::default()).is_err());
    assert!(bind(Path::new(""), &UnixOptions::default()).is_err());
}

#[test]
fn f128_only_the_own_socket_is_removed_in_the_end() {
    type Replace = fn(&Path);
    let table: [(&str, Replace); 4] = [
        ("socket", |path| drop(UnixListener::bind(path).unwrap())),
        ("file", |path| std::fs::write(path, "precious").unwrap()),
        ("directory", |path| std::fs::create_dir(path).unwrap()),
        ("symlink", |path| symlink("elsewhere", path).unwrap()),
    ];
    assert_eq!(table.len(), 4);
    for (what, replace) in table {
        let folder = folder();
        let path = folder.path().join("s.sock");
        let (_listener, file) = bind(&path, &UnixOptions::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        replace(&path);
        let theirs = path.symlink_metadata().unwrap().ino();
        drop(file);
        assert_eq!(path.symlink_metadata().unwrap().ino(), theirs, "{what}");
        assert_eq!(names_in(folder.path()), ["s.sock"], "{what}");
    }
}

#[test]
fn f128_a_file_that_took_the_name_at_the_last_moment_is_put_back() {
    let folder = folder();
    let folder_fd = open_folder(folder.path()).unwrap();
    let name = OsStr::new("s.sock");
    let path = folder.path().join(name);
    leave_dead(&path);
    let wanted = open_handle(&folder_fd, name).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    let removed = remove_by_way_of_aside(&folder_fd, name, &rustix::fs::fstat(&wanted).unwrap());
    assert_eq!(removed, Ok(false));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    assert_eq!(names_in(folder.path()), ["s.sock"]);
}

#[test]
fn a_socket_or_folder_that_went_before_is_no_trouble() {
    let folder = folder();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let (_listener, file) = bind(&inner.join("a"), &UnixOptions::default()).unwrap();
    std::fs::remove_file(inner.join("a")).unwrap();
    drop(file);
    let (_listener, file) = bind(&inner.join("b"), &UnixOptions::default()).unwrap();
    std::fs::remove_dir_all(&inner).unwrap();
    drop(file);
    assert_eq!(names_in(folder.path()), Vec::<String>::new());
}

#[test]
fn of_many_that_find_a_dead_socket_one_takes_it() {
    const STARTERS: usize = 6;
    let folder = folder();
    let path = folder.path().join("s.sock");
    for round in 0..40 {
        leave_dead(&path);
        let barrier = Barrier::new(STARTERS);
        let made: Vec<_> = std::thread::scope(|scope| {
            let starters: Vec<_> = (0..STARTERS)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        bind(&path, &UnixOptions::default())
                    })
                })
                .collect();
            starters.into_iter().map(|starter| starter.join().unwrap()).collect()
        });
        let winners: Vec<_> = made.iter().filter_map(|made| made.as_ref().ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {made:?}");
        let losers = made.iter().filter_map(|made| made.as_ref().err());
        assert!(losers.into_iter().all(|error| matches!(error, UnixBindError::InUse { .. })), "{made:?}");
        UnixStream::connect(&path).expect("the winner listens at the path");
        drop(made);
        assert_eq!(names_in(folder.path()), Vec::<String>::new());
    }
}

#[test]
fn the_own_folder_is_made_private() {
    let base = folder();
    let own = base.path().join("hopline");
    let options = UnixOptions { make_folder: true, ..UnixOptions::default() };
    let (_listener, file) = bind(&own.join("s"), &options).unwrap();
    assert_eq!(mode_of(&own), 0o700);
    drop(file);
    assert_eq!(names_in(base.path()), ["hopline"], "the folder stays");
    bind(&own.join("s"), &options).expect("and is used again");

    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o770)).unwrap();
    let error = bind(&own.join("s"), &options).unwrap_err().to_string();
    assert!(error.contains("can be written by others"), "{error}");
    bind(&own.join("s"), &UnixOptions::default()).expect("a folder that the user chose is the user's affair");

    let error = bind(&base.path().join("a/b/s"), &options).unwrap_err();
    assert!(matches!(error, UnixBindError::NoFolder { .. }), "one folder is made, not a path: {error}");
}
