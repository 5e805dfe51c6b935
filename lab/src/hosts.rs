//! Hosts of their own: network namespaces, joined by a switch in a further namespace.
//!
//! ```text
//! host "web"            the switch's namespace                       host "relay"
//!  eth0 ------ p-web = b-web = u-web ------ s-web = sw = s-relay ... eth0
//! ```
//!
//! Each host has a small bridge of its own in the switch, so that both of its directions leave by a port whose queue can
//! be shaped, away from the host: a queue on the host itself would push back on its TCP. Everything hangs on
//! namespaces, so to delete them is to clean up.

use std::fmt::Write as _;
use std::fs;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::shell;

/// What all namespaces of the lab begin with; the lab's process id follows.
const PREFIX: &str = "hl";

/// One set of hosts. Dropping it ends every process in them and removes them.
#[derive(Debug)]
pub(crate) struct Net {
    prefix: String,
    hosts: Vec<String>,
    /// The host that has a NAT of its own between itself and the switch.
    behind_nat: Option<String>,
}

impl Net {
    /// Builds a switch and these hosts; the first has the address 10.64.0.1, the second 10.64.0.2, and so on. One of them
    /// may be behind a NAT, which then has its address.
    ///
    /// # Errors
    ///
    /// When a command fails, as without root.
    pub(crate) fn build(number: usize, hosts: &[&str], behind_nat: Option<&str>) -> anyhow::Result<Self> {
        let prefix = format!("{PREFIX}{}w{number}", std::process::id());
        let own = |host: &&str| (*host).to_owned();
        let net =
            Self { prefix, hosts: hosts.iter().map(own).collect(), behind_nat: behind_nat.as_ref().map(own) };
        let switch = net.switch();
        let mut namespaces = format!("netns add {switch}\n");
        let mut links = String::from("link add sw type bridge mcast_snooping 0\nlink set sw up\n");
        for host in hosts {
            let far = net.outermost(host);
            writeln!(namespaces, "netns add {far}")?;
            writeln!(links, "link add b-{host} type bridge mcast_snooping 0")?;
            writeln!(links, "link add p-{host} type veth peer name eth0 netns {far}")?;
            writeln!(links, "link add u-{host} type veth peer name s-{host}")?;
            writeln!(links, "link set p-{host} master b-{host}\nlink set u-{host} master b-{host}")?;
            writeln!(links, "link set s-{host} master sw")?;
            for port in ["b", "p", "u", "s"] {
                // One packet is one packet: loss and queues would else meet bundles of up to 64 KiB.
                writeln!(links, "link set {port}-{host} gso_max_segs 1 up")?;
            }
        }
        shell::run_with(&["ip", "-batch", "-"], &namespaces)?;
        shell::run_with(&["ip", "-n", &switch, "-batch", "-"], &links).context("the switch")?;
        for host in hosts {
            let own = format!(
                "link set lo up\naddr add {}/24 dev eth0\nlink set eth0 gso_max_segs 1 up\n",
                net.address(host)
            );
            let far = net.outermost(host);
            shell::run_with(&["ip", "-n", &far, "-batch", "-"], &own).with_context(|| host.to_string())?;
        }
        if let Some(host) = behind_nat {
            net.put_behind_nat(host)?;
        }
        Ok(net)
    }

    /// A host behind a NAT that lets nothing in, and forgets flows that it is told to.
    fn put_behind_nat(&self, host: &str) -> anyhow::Result<()> {
        let (nat, inner) = (self.outermost(host), self.namespace(host));
        shell::run(&["ip", "netns", "add", &inner])?;
        let outer = format!(
            "link add eth1 type veth peer name eth0 netns {inner}\naddr add 10.65.0.1/24 dev eth1\n\
             link set eth1 gso_max_segs 1 up\n"
        );
        shell::run_with(&["ip", "-n", &nat, "-batch", "-"], &outer).context("the NAT")?;
        let own = "link set lo up\naddr add 10.65.0.2/24 dev eth0\nlink set eth0 gso_max_segs 1 up\n\
                   route add default via 10.65.0.1\n";
        shell::run_with(&["ip", "-n", &inner, "-batch", "-"], own)?;
        let rules = "table ip nat { chain out { type nat hook postrouting priority 100; oifname eth0 masquerade; }\n}\n\
                     table ip filter {\n\
                     chain forward { type filter hook forward priority 0; policy drop;\n\
                     ct state established accept\niifname eth1 ct state new tcp flags & (syn | ack) == syn accept\n}\n\
                     chain input { type filter hook input priority 0; policy accept; iifname eth0 drop; }\n}\n";
        shell::run_with(&["ip", "netns", "exec", &nat, "nft", "-f", "-"], rules)
            .context("the NAT's rules")?;
        // A flow that it does not know is not picked up in its middle.
        for (key, value) in [("ip_forward", "1"), ("netfilter/nf_conntrack_tcp_loose", "0")] {
            self.set_kernel(host, key, value)?;
        }
        Ok(())
    }

    /// Sets a key of a host's kernel, or of its NAT's: how long that remembers an idle flow.
    ///
    /// # Errors
    ///
    /// When there is no such key.
    pub(crate) fn set_kernel(&self, host: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let root = if key.starts_with("netfilter/") { "/proc/sys/net" } else { "/proc/sys/net/ipv4" };
        let script = format!("echo {value} > {root}/{key}");
        shell::run(&["ip", "netns", "exec", &self.outermost(host), "sh", "-c", &script]).map(drop)
    }

    /// Gives all hosts a TCP whose slow start ends with a loss only (reno). Cubic's takes the delays of a busy machine for
    /// those of a full queue, and stops at some dozen packets.
    ///
    /// # Errors
    ///
    /// When the kernel has none.
    pub(crate) fn plain_slow_start(&self) -> anyhow::Result<()> {
        let script = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control";
        self.hosts.iter().try_for_each(|host| {
            shell::run(&["ip", "netns", "exec", &self.namespace(host), "sh", "-c", script]).map(drop)
        })
    }

    /// The namespace that has the host's address: its NAT, or its own.
    pub(crate) fn outermost(&self, host: &str) -> String {
        match &self.behind_nat {
            Some(behind) if behind == host => format!("{}-nat", self.prefix),
            _ => self.namespace(host),
        }
    }

    /// The namespace of a host.
    pub(crate) fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// The namespace of the switch.
    pub(crate) fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    /// The host's address.
    pub(crate) fn address(&self, host: &str) -> String {
        let index = self.hosts.iter().position(|other| other == host).unwrap_or(self.hosts.len());
        format!("10.64.0.{}", index + 1)
    }

    /// The address that the host gets when it loses its own.
    pub(crate) fn other_address(&self, host: &str) -> String {
        self.address(host).replace("10.64.0.", "10.64.0.1")
    }

    /// The words that run a program on a host; they end with the parent's thread that used them.
    pub(crate) fn enter(&self, host: &str) -> Vec<String> {
        enter(self.namespace(host))
    }

    /// The same for the namespace that has the host's address.
    pub(crate) fn enter_outermost(&self, host: &str) -> Vec<String> {
        enter(self.outermost(host))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        remove(&self.prefix);
    }
}

fn enter(namespace: String) -> Vec<String> {
    let words = ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec"];
    words.iter().map(|&word| word.to_owned()).chain([namespace]).collect()
}

/// The process ids of all labs that have namespaces.
pub(crate) fn owners() -> Vec<u32> {
    list().iter().filter_map(|namespace| owner(namespace)).collect()
}

/// Removes the namespaces of the lab with this process id, and every process in them.
pub(crate) fn remove_all_of(pid: u32) {
    for namespace in list().iter().filter(|namespace| owner(namespace) == Some(pid)) {
        remove_one(namespace);
    }
}

fn remove(prefix: &str) {
    let start = format!("{prefix}-");
    for namespace in list().iter().filter(|namespace| namespace.starts_with(&start)) {
        remove_one(namespace);
    }
}

fn remove_one(namespace: &str) {
    // A namespace without processes, or one that is gone already, is as good.
    let pids = shell::run(&["ip", "netns", "pids", namespace]).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|word| word.parse().ok()).filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = shell::run(&["ip", "netns", "del", namespace]);
}

fn list() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The process id in the name of a namespace of the lab.
fn owner(namespace: &str) -> Option<u32> {
    let rest = namespace.strip_prefix(PREFIX)?;
    let (pid, rest) = rest.split_once('w')?;
    rest.starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_labs_have_an_owner() {
        assert_eq!(owner("hl123w4-web"), Some(123));
        assert_eq!(owner("hl123w40-switch"), Some(123));
        let foreign = ["web", "hl", "hlw1-web", "hl12", "hl12wide", "hlxw1-a", "xhl1w1-a"];
        assert!(foreign.iter().all(|name| owner(name).is_none()));
    }
}
