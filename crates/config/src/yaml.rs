//! From bytes to a tree in which each key and each value knows its place.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use crate::MAX_FILE_BYTES;
use crate::fault::{Position, Report};

/// The deepest nesting. A config has five levels.
const MAX_DEPTH: usize = 16;
/// The most keys and values together: what 4,096 services and 4,096 mappings with all their keys need, twice.
const MAX_NODES: usize = 256 * 1_024;

/// A value and where it begins.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: Position,
    pub(crate) value: Value,
}

/// What stands at a place. Scalars stay text: what they mean depends on what is wanted there.
#[derive(Debug)]
pub(crate) enum Value {
    /// Nothing, or the plain word `null` or `~`; with what was written.
    Null(String),
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Something that was reported already, so that nobody says more about it.
    Refused,
}

/// One `key: value` of a mapping; duplicates are still there.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_at: Position,
    pub(crate) node: Node,
}

/// Reads the one document of a file.
///
/// `None` when there is no tree to walk, with the fault in `report`. A tree may come with faults too: anchors and
/// tags, aliases (as [`Value::Refused`]) and keys that are no words (left out).
pub(crate) fn read(bytes: &[u8], report: &mut Report) -> Option<Node> {
    if bytes.len() > MAX_FILE_BYTES {
        let message = format_args!("the file has {} bytes; at most {MAX_FILE_BYTES} are read", bytes.len());
        report.fault(Position::START, "", message);
        return None;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            report.fault(end_of(&good), "", "not UTF-8 text: save the file as UTF-8");
            return None;
        }
    };
    let mut builder = Builder { report, open: Vec::new(), root: None, nodes: 0 };
    let mut parser = Parser::new_from_str(text);
    // Events are pulled one by one: the parser's own `load` recurses as deep as the file nests.
    while let Some(event) = parser.next_event() {
        let step = match event {
            Ok((event, span)) => builder.take(event, position(span.start)),
            Err(error) => {
                builder.report.fault(
                    position(*error.marker()),
                    "",
                    format_args!("not YAML: {}", error.info()),
                );
                Step::Stop
            }
        };
        match step {
            Step::Continue => {}
            Step::End => break,
            Step::Stop => return None,
        }
    }
    // A file of comments alone has no document: it is an empty mapping to whoever walks it.
    Some(builder.root.unwrap_or(Node { at: Position::START, value: Value::Null(String::new()) }))
}

enum Step {
    Continue,
    /// The document is complete as far as it is wanted.
    End,
    /// Reported; there is no tree.
    Stop,
}

/// A collection that has begun and not ended.
enum Open {
    List { at: Position, nodes: Vec<Node> },
    Map { at: Position, entries: Vec<Entry>, key: Option<(Option<String>, Position)> },
}

struct Builder<'a> {
    report: &'a mut Report,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, at: Position) -> Step {
        match event {
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => Step::Continue,
            Event::StreamEnd => Step::End,
            Event::DocumentStart(_) => {
                if self.root.is_none() {
                    return Step::Continue;
                }
                self.report.fault(at, "", "a second document begins here: one file holds one document");
                Step::End
            }
            Event::Alias(_) => {
                self.report.fault(at, "", "aliases (*name) are not supported: write the value again");
                self.add(Node { at, value: Value::Refused })
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_anchor_and_tag(at, anchor, tag.is_some());
                let plain = style == ScalarStyle::Plain;
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let text = text.into_owned();
                let value = if null { Value::Null(text) } else { Value::Scalar(text) };
                self.add(Node { at, value })
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(at, anchor, tag.as_deref(), |at| Open::List { at, nodes: Vec::new() })
            }
            Event::MappingStart(anchor, tag) => {
                self.begin(at, anchor, tag.as_deref(), |at| Open::Map { at, entries: Vec::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { at, nodes }) => self.add(Node { at, value: Value::List(nodes) }),
                Some(Open::Map { at, entries, .. }) => self.add(Node { at, value: Value::Map(entries) }),
                None => Step::Stop,
            },
        }
    }

    fn begin(
        &mut self,
        at: Position,
        anchor: usize,
        tag: Option<&Tag>,
        open: impl FnOnce(Position) -> Open,
    ) -> Step {
        self.refuse_anchor_and_tag(at, anchor, tag.is_some());
        if self.open.len() == MAX_DEPTH {
            self.report.fault(at, "", format_args!("nested more than {MAX_DEPTH} levels deep"));
            return Step::Stop;
        }
        self.open.push(open(at));
        Step::Continue
    }

    fn refuse_anchor_and_tag(&mut self, at: Position, anchor: usize, tagged: bool) {
        if anchor > 0 {
            self.report.fault(at, "", "anchors (&name) are not supported: write the value where it is used");
        }
        if tagged {
            self.report.fault(at, "", "tags (!name) are not supported: write the value without it");
        }
    }

    /// Puts a finished node where it belongs.
    fn add(&mut self, node: Node) -> Step {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            self.report.fault(node.at, "", format_args!("more than {MAX_NODES} keys and values"));
            return Step::Stop;
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { nodes, .. }) => nodes.push(node),
            Some(Open::Map { entries, key, .. }) => match key.take() {
                None => *key = Some((key_of(&node, self.report), node.at)),
                Some((Some(key), key_at)) => {
                    // Where nothing is written the parser points at what comes next.
                    let at = if matches!(node.value, Value::Null(_)) { key_at } else { node.at };
                    entries.push(Entry { key, key_at, node: Node { at, ..node } });
                }
                // The key was refused, and its value with it.
                Some((None, _)) => {}
            },
        }
        Step::Continue
    }
}

/// The word that a key is; anything else is reported.
fn key_of(node: &Node, report: &mut Report) -> Option<String> {
    match &node.value {
        Value::Scalar(text) | Value::Null(text) if !text.is_empty() => Some(text.clone()),
        Value::Refused => None,
        Value::Scalar(_) | Value::Null(_) | Value::List(_) | Value::Map(_) => {
            report.fault(node.at, "", "a key must be a word");
            None
        }
    }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col().saturating_add(1) }
}

/// The place just after `text`.
fn end_of(text: &str) -> Position {
    let line = text.matches('\n').count() + 1;
    let last = text.rsplit('\n').next().unwrap_or_default();
    Position { line, column: last.chars().count() + 1 }
}
