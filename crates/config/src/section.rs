//! Mappings of the tree, opened against the keys that their place knows, and the values in them.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hopline_duration::parse_duration;
use humantime::format_duration;

use crate::fault::{Position, Report, clip};
use crate::pending::{self, PENDING, Pending};
use crate::suggest::nearest;
use crate::yaml::{Entry, Node, Value};

/// A kind of mapping with a fixed set of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Edge,
    Relay,
    Service,
    Target,
    Mapping,
    Log,
    Status,
}

impl Place {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 7] =
        [Self::Edge, Self::Relay, Self::Service, Self::Target, Self::Mapping, Self::Log, Self::Status];

    /// The keys that are read here.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Edge => &[
                "relay",
                "status",
                "dns",
                "keepalive",
                "open_timeout",
                "hold",
                "drain",
                "services",
                "connect",
                "log",
            ],
            Self::Relay => {
                &["listen", "state", "admin", "keepalive", "hold", "drain", "answer_timeout", "log"]
            }
            Self::Service => &["grpc", "tcp", "allow"],
            Self::Target => &["tcp", "forward"],
            Self::Mapping => &["listen", "open_timeout", "inspect", "explain", "mode", "group", "expose"],
            Self::Log => &["format", "level", "access"],
            Self::Status => &["listen", "hosts"],
        }
    }
}

/// A value with the path of keys that leads to it.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) path: String,
    pub(crate) node: &'a Node,
}

/// A mapping whose keys were checked.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    pub(crate) path: String,
    pub(crate) at: Position,
    entries: &'a [Entry],
    /// Known keys that unknown ones were most likely meant to be.
    meant: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Reports unknown, duplicate and pending keys. `None` when there is no mapping, which is reported too.
    pub(crate) fn open(field: Field<'a>, place: Place, report: &mut Report) -> Option<Self> {
        let entries = field.entries(place.keys().join(", "), report)?;
        let mut meant = Vec::new();
        for entry in entries {
            let path = join(&field.path, &entry.key);
            match pending::find(place, &entry.key) {
                Some(line) => check_pending(line, entry, &path, report),
                None if !place.keys().contains(&entry.key.as_str()) => {
                    meant.extend(report_unknown(place, entry, &path, report));
                }
                None => {}
            }
        }
        Some(Self { path: field.path, at: field.node.at, entries, meant })
    }

    /// The value of `key`, if it was written.
    pub(crate) fn field(&self, key: &str) -> Option<Field<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(Field { path: join(&self.path, key), node: &entry.node })
    }

    /// Whether `key` was written, or what was most likely meant to be it: then it isn't missing, it is misspelt.
    pub(crate) fn has_or_meant(&self, key: &str) -> bool {
        self.meant.contains(&key) || self.field(key).is_some()
    }

    /// The value of `key` parsed by its type; a value that does not parse is reported.
    pub(crate) fn parse<T: FromStr<Err: fmt::Display>>(&self, key: &str, report: &mut Report) -> Option<T> {
        self.parse_with(key, report, |text| text.parse::<T>())
    }

    /// The value of `key` parsed by `parse`; a value that does not parse is reported.
    pub(crate) fn parse_with<T, E: fmt::Display>(
        &self,
        key: &str,
        report: &mut Report,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.field(key)?.parse_with(report, parse)
    }

    /// `true` or `false`.
    pub(crate) fn bool(&self, key: &str, report: &mut Report) -> Option<bool> {
        self.parse_with(key, report, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("write true or false"),
        })
    }

    /// A duration within `least..=most`.
    pub(crate) fn duration(
        &self,
        key: &str,
        (least, most): (Duration, Duration),
        report: &mut Report,
    ) -> Option<Duration> {
        self.parse_with(key, report, |text| match parse_duration(text) {
            Err(error) => Err(error.to_string()),
            Ok(duration) if duration < least || duration > most => {
                Err(format!("must be from {} to {}", format_duration(least), format_duration(most)))
            }
            Ok(duration) => Ok(duration),
        })
    }
}

impl<'a> Field<'a> {
    /// Whether `{}` stands here.
    pub(crate) fn is_empty_map(&self) -> bool {
        matches!(&self.node.value, Value::Map(entries) if entries.is_empty())
    }

    /// The text of a scalar; anything else is reported.
    pub(crate) fn text(&self, report: &mut Report) -> Option<&'a str> {
        let found = match &self.node.value {
            Value::Scalar(text) => return Some(text),
            Value::Refused => return None,
            Value::Null(_) => {
                report.fault(self.node.at, &self.path, "has no value: write one, or leave the key out");
                return None;
            }
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        };
        report.fault(self.node.at, &self.path, format_args!("{found} stands here: write a single value"));
        None
    }

    /// The scalar parsed by `parse`.
    pub(crate) fn parse_with<T, E: fmt::Display>(
        &self,
        report: &mut Report,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(report)?;
        match parse(text) {
            Ok(value) => Some(value),
            Err(error) => {
                report.bad_value(self.node.at, &self.path, text, error);
                None
            }
        }
    }

    /// The elements of a list of at most `most`; anything else is reported.
    pub(crate) fn list(
        &self,
        most: usize,
        example: &str,
        report: &mut Report,
    ) -> Option<impl Iterator<Item = Self> + use<'a>> {
        let nodes = match &self.node.value {
            Value::List(nodes) => nodes,
            Value::Refused => return None,
            Value::Scalar(text) => {
                report.bad_value(
                    self.node.at,
                    &self.path,
                    text,
                    format_args!("write a list, such as {example}"),
                );
                return None;
            }
            Value::Null(_) | Value::Map(_) => {
                report.fault(self.node.at, &self.path, format_args!("write a list, such as {example}"));
                return None;
            }
        };
        if nodes.len() > most {
            let message = format_args!("{} entries; at most {most} are allowed", nodes.len());
            report.fault(self.node.at, &self.path, message);
            return None;
        }
        let path = self.path.clone();
        Some(nodes.iter().enumerate().map(move |(i, node)| Self { path: format!("{path}[{i}]"), node }))
    }

    /// The entries of a mapping. Duplicates among them are reported, as is anything that is no mapping.
    ///
    /// `contents` says in words what the mapping holds.
    pub(crate) fn entries(&self, contents: impl fmt::Display, report: &mut Report) -> Option<&'a [Entry]> {
        let wanted = format_args!("write a mapping of {contents}").to_string();
        match &self.node.value {
            Value::Map(entries) => {
                report_duplicates(&self.path, entries, report);
                return Some(entries);
            }
            Value::Refused => {}
            Value::Scalar(text) => report.bad_value(self.node.at, &self.path, text, wanted),
            Value::Null(_) => {
                report.fault(self.node.at, &self.path, format_args!("has no value: {wanted}; {{}} for none"));
            }
            Value::List(_) => {
                report.fault(self.node.at, &self.path, format_args!("a list stands here: {wanted}"));
            }
        }
        None
    }
}

/// `path` and `key` as one path.
pub(crate) fn join(path: &str, key: &str) -> String {
    // Longer keys are no names and no known words; a path of them need not be carried along whole.
    let key = clip(key, 64);
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

fn report_duplicates(path: &str, entries: &[Entry], report: &mut Report) {
    let mut first: HashMap<&str, Position> = HashMap::new();
    for entry in entries {
        if let Some(at) = first.get(entry.key.as_str()) {
            let message = format_args!("this key was given before, in line {}: keep one of them", at.line);
            report.fault(entry.key_at, &join(path, &entry.key), message);
        } else {
            first.insert(&entry.key, entry.key_at);
        }
    }
}

fn check_pending(line: &Pending, entry: &Entry, path: &str, report: &mut Report) {
    match (&entry.node.value, line.allowed) {
        (Value::Scalar(text), Some(allowed)) if text == allowed => {}
        (_, Some(allowed)) => {
            let message =
                format_args!("not in this version yet: {}; leave it out or write {allowed}", line.purpose);
            report.fault(entry.node.at, path, message);
        }
        (_, None) => {
            let message = format_args!("not in this version yet: {}; leave it out", line.purpose);
            report.fault(entry.key_at, path, message);
        }
    }
}

/// The key that it was most likely meant to be, if one is near.
fn report_unknown(place: Place, entry: &Entry, path: &str, report: &mut Report) -> Option<&'static str> {
    let pending = PENDING.iter().filter(|line| line.place == place).map(|line| line.key);
    let known = place.keys().iter().copied();
    let near = nearest(&entry.key, known.chain(pending));
    match near {
        Some(near) => report.fault(entry.key_at, path, format_args!("unknown key; did you mean {near}?")),
        None => {
            let known = place.keys().join(", ");
            report.fault(entry.key_at, path, format_args!("unknown key; known here: {known}"));
        }
    }
    near
}
