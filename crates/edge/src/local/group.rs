//! A group's number by its name, wherever the system has it.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::BindFault;

/// How long the system may take to find a group: behind it may be LDAP, sssd or systemd.
const PATIENCE: Duration = Duration::from_secs(3);

/// The number of a group that is given by name or by number: from `/etc/group`, else by `getent`, which asks whatever
/// `nsswitch.conf` names.
///
/// # Errors
/// [`BindFault::Group`], with what was asked.
pub async fn gid(group: &str) -> Result<u32, BindFault> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let file = tokio::fs::read_to_string("/etc/group").await.unwrap_or_default();
    match number(&file, group) {
        Some(number) => Ok(number),
        None => by_getent("getent", group, PATIENCE).await,
    }
}

/// The number in the line of a group, in the form of group(5).
fn number(lines: &str, group: &str) -> Option<u32> {
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    })
}

async fn by_getent(program: &str, group: &str, patience: Duration) -> Result<u32, BindFault> {
    let fault = |problem: String| BindFault::Group { group: group.to_owned(), problem };
    let mut command = Command::new(program);
    command.args(["group", group]).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(patience, command.output()).await {
        Err(_) => {
            Err(fault(format!("is not in /etc/group, and `getent group` gave no answer in {patience:?}")))
        }
        Ok(Err(error)) => Err(fault(format!("is not in /etc/group, and `getent` can't be run ({error})"))),
        Ok(Ok(output)) => number(&String::from_utf8_lossy(&output.stdout), group).ok_or_else(|| {
            fault("is not on this machine: neither /etc/group nor `getent group` has it".to_owned())
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn numbers_and_the_groups_file_ask_nobody() {
        assert_eq!(gid("4711").await.unwrap(), 4711);
        assert_eq!(gid("root").await.unwrap(), 0);
        assert_eq!(number("root:x:0:\napp:x:990:me,you\n", "app"), Some(990));
        assert_eq!(number("app-x:x:990:\napp:x:oops:\n", "app"), None);
    }

    #[tokio::test]
    async fn a_group_that_nobody_has_is_said_plainly() {
        let error = gid("no-such-group-here").await.unwrap_err().to_string();
        let known = ["neither /etc/group nor `getent group` has it", "`getent` can't be run"];
        assert!(known.iter().any(|words| error.contains(words)), "{error}");
        assert!(error.starts_with("group \"no-such-group-here\" is not "), "{error}");
    }

    #[tokio::test]
    async fn a_group_of_ldap_is_found_and_a_silent_directory_waited_for_no_longer_than_that() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("getent");
        let script = "#!/bin/sh\n[ \"$2\" = slow ] && exec sleep 600\necho \"$2:*:70123:\"\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = program.to_str().unwrap();
        // Another test may be forking while the file was open for writing: "text file busy".
        let found = loop {
            match by_getent(program, "ldap-app", Duration::from_secs(60)).await {
                Err(error) if error.to_string().contains("busy") => tokio::task::yield_now().await,
                found => break found,
            }
        };
        assert_eq!(found.unwrap(), 70_123);
        let began = Instant::now();
        let error = by_getent(program, "slow", Duration::from_millis(200)).await.unwrap_err().to_string();
        assert!(error.contains("gave no answer in 200ms"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
