//! YAML documents as trees of scalars, lists and maps with their lines.
//!
//! Anchors, tags and more than one document are faults: no configuration of limits needs them, and they can make a short file a large one.

use saphyr_parser::{Event, Parser, ScalarStyle};

use crate::fault::{Fault, Faults};

/// A value and the line on which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// The content of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    Scalar(String),
    List(Vec<Node>),
    /// In the order of the file; keys may repeat.
    Map(Vec<(Node, Node)>),
}

/// The only document of a text; `file` is what faults call it.
pub(super) fn read(file: &str, text: &str) -> Result<Node, Faults> {
    let fault = |line, message: &str| one(file, line, message.to_owned());
    let mut open: Vec<Node> = Vec::new();
    let mut root = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| fault(error.marker().line(), error.info()))?;
        let line = span.start.line();
        let done = match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
            Event::DocumentStart(_) if root.is_none() => continue,
            Event::DocumentStart(_) => {
                return Err(fault(line, "begins another document: import one at a time"));
            }
            Event::Alias(_) => return Err(fault(line, "is an alias: write out what it stands for")),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => return Err(fault(line, "has a tag")),
            Event::Scalar(text, style, _, None) => Node { line, value: scalar(&text, style) },
            Event::SequenceStart(_, None) | Event::MappingStart(_, None) if open.len() == MOST_DEPTH => {
                return Err(fault(line, "is nested too deeply"));
            }
            Event::SequenceStart(_, None) => {
                open.push(Node { line, value: Value::List(Vec::new()) });
                continue;
            }
            Event::MappingStart(_, None) => {
                open.push(Node { line, value: Value::Map(Vec::new()) });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(node) => node,
                None => continue,
            },
        };
        match open.last_mut() {
            Some(parent) => parent.add(done),
            None => root = Some(done),
        }
    }
    root.ok_or_else(|| fault(1, "is empty"))
}

/// One fault in a file.
pub(super) fn one(file: &str, line: usize, message: String) -> Faults {
    let fault = Fault { line, path: String::new(), value: None, message };
    Faults { file: file.to_owned(), faults: vec![fault] }
}

impl Node {
    /// Adds an item to a list, or a key or its value to a map.
    fn add(&mut self, node: Node) {
        match &mut self.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => match entries.last_mut() {
                Some((_, value)) if value.line == KEY_ALONE => *value = node,
                _ => entries.push((node, Node { line: KEY_ALONE, value: Value::Null })),
            },
            Value::Null | Value::Scalar(_) => {}
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    match (style, text) {
        (ScalarStyle::Plain, "" | "~" | "null" | "Null" | "NULL") => Value::Null,
        _ => Value::Scalar(text.to_owned()),
    }
}

/// The line of a value that has not come yet; lines count from 1.
const KEY_ALONE: usize = 0;
/// More than eight entries of a name need.
const MOST_DEPTH: usize = 64;
