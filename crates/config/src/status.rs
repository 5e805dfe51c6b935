//! `status:` of an edge and `admin:` of a relay: an address, or a mapping of one and of host names.

use std::fmt;
use std::str::FromStr;

use crate::MAX_LIST;
use crate::address::{AddressError, StatusAddress, is_host_name};
use crate::fault::Report;
use crate::section::{Field, Place, Section};
use crate::yaml::Value;

/// Where the status is served, and under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusConfig {
    /// The address.
    pub listen: StatusAddress,
    /// What a request's `Host` may be, beside IP addresses and `localhost`; at most 1,024, and none for a unix socket.
    pub hosts: Vec<HostName>,
}

/// A name by which a machine is reached, such as `status.example`: without a port, in the letters that were written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if is_host_name(text) { Ok(Self(text.to_owned())) } else { Err(AddressError::Name) }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of `status:` or `admin:`, and where its address stands.
pub(crate) fn parse_status<'a>(field: Field<'a>, report: &mut Report) -> Option<(StatusConfig, Field<'a>)> {
    if !matches!(field.node.value, Value::Map(_)) {
        let listen = field.parse_with(report, str::parse)?;
        return Some((StatusConfig { listen, hosts: Vec::new() }, field));
    }
    let section = Section::open(field, Place::Status, report)?;
    let hosts = section.field("hosts").map(|field| (parse_hosts(&field, report), field));
    let Some(field) = section.field("listen") else {
        if !section.has_or_meant("listen") {
            report.fault(section.at, &section.path, "names no address: write listen: 127.0.0.1:7801");
        }
        return None;
    };
    let listen = field.parse_with(report, str::parse)?;
    if let (StatusAddress::Unix(_), Some((_, hosts))) = (&listen, &hosts) {
        let message = "only for a TCP address: a unix socket is answered whatever the host; remove it";
        report.fault(hosts.node.at, &hosts.path, message);
    }
    Some((StatusConfig { listen, hosts: hosts.map(|(hosts, _)| hosts).unwrap_or_default() }, field))
}

fn parse_hosts(field: &Field<'_>, report: &mut Report) -> Vec<HostName> {
    let Some(elements) = field.list(MAX_LIST, "[status.example]", report) else { return Vec::new() };
    elements.filter_map(|element| element.parse_with(report, str::parse)).collect()
}
