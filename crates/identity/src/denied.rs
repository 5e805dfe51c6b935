//! Why the system denies this user a file: whose it is, and who asks.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Whose file or folder is in the way, and as whom this process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The file, or the first folder on the way to it that does not let this user through.
    place: PathBuf,
    owner: u32,
    mode: u32,
    user: u32,
}

impl Denied {
    pub(crate) fn find(action: &str, path: &Path) -> Self {
        // A new name, and an old one taken away, are a matter of the folder.
        let of_folder = ["create", "replace", "remove"].contains(&action);
        let places = path.ancestors().skip(usize::from(of_folder));
        let known = |place: &Path| {
            let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
            std::fs::metadata(place).ok().map(|metadata| (place.to_owned(), metadata))
        };
        let user = rustix::process::geteuid().as_raw();
        match places.into_iter().find_map(known) {
            Some((place, metadata)) => {
                Self { place, owner: metadata.uid(), mode: metadata.mode() & 0o7777, user }
            }
            None => Self { place: path.to_owned(), owner: user, mode: 0, user },
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, owner, mode, user } = self;
        let place = place.display();
        let (owner_name, user_name) = (name_of(*owner), name_of(*user));
        if owner == user {
            return write!(
                f,
                "{place} is this user's, {user_name}, but has mode {mode:04o}; run: chmod u+rwX {place}"
            );
        }
        write!(
            f,
            "{place} belongs to {owner_name} and has mode {mode:04o}, and this process runs as {user_name}; run it as {owner_name}, or have the owner changed"
        )
    }
}

/// `user hopline (uid 995)`; without the name where `/etc/passwd` does not have it.
fn name_of(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match name_in(&passwd, uid) {
        Some(name) => format!("user {name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

fn name_in(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nhopline:x:995:995::/var/lib/hopline:/bin/false\n";
        assert_eq!(name_in(passwd, 995), Some("hopline"));
        assert_eq!(name_in(passwd, 0), Some("root"));
        assert_eq!(name_in(passwd, 1), None);
    }

    #[test]
    fn what_is_in_the_way_is_named_with_its_owner_and_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let missing = Denied::find("examine", &dir.path().join("a/b/c"));
        assert_eq!((missing.place.as_path(), missing.user), (dir.path(), user));
        let text = Denied {
            place: "/var/lib/hopline".into(),
            owner: 4_000_000_001,
            mode: 0o700,
            user: 4_000_000_002,
        };
        let text = text.to_string();
        for part in ["/var/lib/hopline belongs to uid 4000000001", "mode 0700", "runs as uid 4000000002"] {
            assert!(text.contains(part), "{text}");
        }
        let own = Denied { place: "/x".into(), owner: user, mode: 0, user }.to_string();
        assert!(own.contains("chmod u+rwX /x"), "{own}");
    }
}
