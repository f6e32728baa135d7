//! The descriptors of a configuration of envoyproxy/ratelimit.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::yaml::{Node, Value};
use crate::fault::{Fault, did_you_mean};
use gate_limits::Fit;

/// A setting that was not carried over.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// Its line, from 1.
    pub line: usize,
    /// The setting, and what becomes of it.
    pub what: String,
}

/// A key, and the values that it is about.
pub(super) type Entry<'d> = (&'d str, Fit<'d>);

/// A descriptor with what is carried over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) line: usize,
    pub(super) key: String,
    value: Option<String>,
    /// `None` if it has no limit, or one that is left out.
    pub(super) rate: Option<Rate>,
    /// True if its limit refuses nothing.
    pub(super) is_shadow: bool,
    pub(super) below: Vec<Descriptor>,
}

/// The limit of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rate {
    Unlimited,
    /// So many requests in the unit of this name.
    Requests(u32, &'static str),
}

impl Rate {
    /// True if there are windows of the calendar of its unit.
    pub(super) fn has_window(self) -> bool {
        matches!(self, Self::Requests(1.., unit) if unit != SECOND)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Requests(0, _) => f.write_str("0"),
            Self::Requests(count, unit) => write!(f, "{count}/{unit}"),
        }
    }
}

impl Descriptor {
    /// Its key, and the values that it is about.
    pub(super) fn entry(&self) -> Entry<'_> {
        (&self.key, Fit::of(self.value.as_deref().unwrap_or("*")))
    }

    /// True if gate goes on to this one where `other`, of the same level, leads nowhere: it is about the same key, and all values of that and more.
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        self.key == other.key && covers(self.entry().1, other.entry().1) && self.entry() != other.entry()
    }

    /// True if ratelimit never comes to `later`, of the same level: of values with a `*` it takes the first that fits.
    fn is_before(&self, later: &Self) -> bool {
        let has_star =
            |descriptor: &Self| descriptor.value.as_deref().is_some_and(|value| value.ends_with('*'));
        has_star(self) && has_star(later) && self.is_behind(later)
    }

    /// The entries below it that lead to a limit.
    pub(super) fn limited<'d>(&'d self, path: &mut Vec<Entry<'d>>, to: &mut Vec<Vec<Entry<'d>>>) {
        if self.rate.is_some() {
            to.push(path.clone());
        }
        for below in &self.below {
            path.push(below.entry());
            below.limited(path, to);
            path.pop();
        }
    }

    /// True if entries below it lead to a limit.
    pub(super) fn is_limited(&self, entries: &[Entry<'_>]) -> bool {
        let Some(((key, value), rest)) = entries.split_first() else { return self.rate.is_some() };
        let covering = self.below.iter().filter(|below| below.key == *key && covers(below.entry().1, *value));
        covering.min_by_key(|below| below.entry().1.order()).is_some_and(|below| below.is_limited(rest))
    }
}

/// True if `fit` is about all values that `other` is about.
fn covers(fit: Fit<'_>, other: Fit<'_>) -> bool {
    match (fit, other) {
        (Fit::Exact(_), _) => fit == other,
        (Fit::Beginning(beginning), Fit::Exact(value) | Fit::Beginning(value)) => {
            value.starts_with(beginning)
        }
    }
}

/// The domain and the descriptors of a document.
///
/// # Errors
///
/// Everything that ratelimit would refuse.
pub(super) fn read(root: &Node, notes: &mut Vec<Note>) -> Result<(String, Vec<Descriptor>), Vec<Fault>> {
    let mut reader = Reader { notes, faults: Vec::new() };
    let fields = reader.fields(root, "the document", &["domain", "descriptors"]);
    let domain = fields.iter().find(|(name, _)| *name == "domain").and_then(|(_, node)| reader.text(node));
    if domain.is_none() {
        reader.fault(root.line, "domain", "is missing or empty, e.g. domain: shop".to_owned());
    }
    let descriptors = fields.iter().find(|(name, _)| *name == "descriptors");
    let descriptors = descriptors.map(|(_, node)| reader.descriptors(node)).unwrap_or_default();
    let Reader { mut faults, .. } = reader;
    faults.sort();
    if faults.is_empty() { Ok((domain.unwrap_or_default(), descriptors)) } else { Err(faults) }
}

struct Reader<'n> {
    notes: &'n mut Vec<Note>,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, line: usize, path: &str, message: String) {
        self.faults.push(Fault { line, path: path.to_owned(), value: None, message });
    }

    fn note(&mut self, line: usize, what: &str) {
        self.notes.push(Note { line, what: what.to_owned() });
    }

    /// The fields of a map, each of which is one of `known` and there once.
    fn fields<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        known: &[&'static str],
    ) -> Vec<(&'static str, &'n Node)> {
        let Value::Map(entries) = &node.value else {
            self.fault(node.line, "", format!("{what} must be a map of {}", known.join(", ")));
            return Vec::new();
        };
        let mut fields: Vec<(&'static str, &Node)> = Vec::new();
        for (key, value) in entries {
            let Value::Scalar(name) = &key.value else {
                self.fault(key.line, "", "a key must be a word".to_owned());
                continue;
            };
            match known.iter().find(|known| *known == name) {
                Some(name) if fields.iter().any(|(before, _)| before == name) => {
                    self.fault(key.line, name, "is there twice".to_owned());
                }
                Some(name) => fields.push((name, value)),
                None => {
                    let hint = did_you_mean(name, known.iter().copied());
                    let hint = hint.map(|hint| format!("; did you mean {hint}?")).unwrap_or_default();
                    self.fault(key.line, name, format!("unknown key{hint}"));
                }
            }
        }
        fields
    }

    /// A scalar; `None` if it is empty.
    fn text(&mut self, node: &Node) -> Option<String> {
        match &node.value {
            Value::Scalar(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Null => None,
            Value::List(_) | Value::Map(_) => {
                self.fault(node.line, "", "must be a word or a number".to_owned());
                None
            }
        }
    }

    fn is_true(&mut self, node: &Node) -> bool {
        match self.text(node).as_deref() {
            Some("true" | "True" | "TRUE" | "yes" | "on") => true,
            None | Some("false" | "False" | "FALSE" | "no" | "off") => false,
            Some(_) => {
                self.fault(node.line, "", "must be true or false".to_owned());
                false
            }
        }
    }

    fn list<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.value {
            Value::List(items) => items,
            Value::Null => &[],
            Value::Scalar(_) | Value::Map(_) => {
                self.fault(node.line, what, "must be a list".to_owned());
                &[]
            }
        }
    }

    fn descriptors(&mut self, node: &Node) -> Vec<Descriptor> {
        let mut taken = BTreeSet::new();
        let mut all = Vec::new();
        for item in self.list(node, "descriptors") {
            let Some(descriptor) = self.descriptor(item) else { continue };
            let value = descriptor.value.as_deref().unwrap_or("*");
            if !taken.insert((descriptor.key.clone(), value.to_owned())) {
                let message = "a descriptor with this key and value is there already".to_owned();
                self.fault(item.line, "key", message);
            }
            if value.strip_suffix('*').unwrap_or(value).contains('*') {
                self.note(
                    item.line,
                    "the descriptor is left out, with all below it: gate has a '*' only at the end of a value",
                );
            } else if let Some(first) = all.iter().find(|first: &&Descriptor| first.is_before(&descriptor)) {
                let what = format!(
                    "the descriptor is left out, with all below it: its values have the '*' of line {}, which comes first",
                    first.line
                );
                self.note(item.line, &what);
            } else {
                all.push(descriptor);
            }
        }
        all
    }

    /// A descriptor; `None` if it has no key.
    fn descriptor(&mut self, node: &Node) -> Option<Descriptor> {
        let mut descriptor = Descriptor { line: node.line, ..Descriptor::default() };
        let mut left_out = None;
        let fields = self.fields(node, "a descriptor", &DESCRIPTOR);
        for (name, value) in &fields {
            match *name {
                "key" => descriptor.key = self.text(value).unwrap_or_default(),
                "value" => descriptor.value = self.text(value),
                "rate_limit" => descriptor.rate = self.rate(value),
                "descriptors" => descriptor.below = self.descriptors(value),
                "shadow_mode" => descriptor.is_shadow = self.is_true(value),
                "quota_mode" if self.is_true(value) => {
                    left_out = Some((
                        value.line,
                        "quota_mode: the limit is left out, since gate would refuse requests for it",
                    ));
                }
                "share_threshold" if self.is_true(value) => {
                    self.note(value.line, "share_threshold: here each value has a bucket of its own");
                }
                "detailed_metric" if self.is_true(value) => {
                    self.note(
                        value.line,
                        "detailed_metric: metrics name the limits that are asked for most (`metrics_limits`), whichever they are",
                    );
                }
                "value_to_metric" if self.is_true(value) => {
                    self.note(
                        value.line,
                        "value_to_metric: metrics name the limits that are asked for most (`metrics_limits`), whichever they are",
                    );
                }
                "metadata" => self.note(value.line, "metadata: gate's answers have none"),
                _ => {}
            }
        }
        if let Some((line, why)) = left_out.filter(|_| descriptor.rate.take().is_some()) {
            self.note(line, why);
        }
        if descriptor.key.is_empty() {
            if !fields.is_empty() {
                self.fault(node.line, "key", "is missing or empty".to_owned());
            }
            return None;
        }
        Some(descriptor)
    }

    fn rate(&mut self, node: &Node) -> Option<Rate> {
        if node.value == Value::Null {
            return None;
        }
        let mut count = 0;
        let mut unit = None;
        let mut is_unlimited = false;
        let mut own_name = None;
        let mut replaced = None;
        for (name, value) in self.fields(node, "rate_limit", &RATE) {
            match name {
                "requests_per_unit" => {
                    let text = self.text(value);
                    match text.as_deref().unwrap_or("0").parse() {
                        Ok(number) => count = number,
                        Err(_) => {
                            self.fault(value.line, name, format!("must be a whole number up to {}", u32::MAX))
                        }
                    }
                }
                "unit" => unit = self.text(value),
                "unlimited" => is_unlimited = self.is_true(value),
                "name" => own_name = self.text(value),
                "replaces" => replaced = Some(value),
                _ => {}
            }
        }
        if let Some(replaced) = replaced {
            self.replaces(replaced, own_name.as_deref());
        }
        let known =
            unit.as_deref().and_then(|unit| UNITS.iter().find(|known| known.eq_ignore_ascii_case(unit)));
        match (is_unlimited, known) {
            (true, None) => Some(Rate::Unlimited),
            (true, Some(_)) => {
                self.fault(node.line, "unit", "stands beside unlimited: name one of the two".to_owned());
                None
            }
            (false, Some(unit)) => Some(Rate::Requests(count, unit)),
            (false, None) => {
                self.fault(node.line, "unit", format!("must be one of {}", UNITS.join(", ")));
                None
            }
        }
    }

    fn replaces(&mut self, node: &Node, own_name: Option<&str>) {
        for item in self.list(node, "replaces") {
            let fields = self.fields(item, "an item of replaces", &["name"]);
            let name = fields.first().and_then(|(_, name)| self.text(name));
            if name.is_none() {
                self.fault(item.line, "replaces", "needs the name of another limit".to_owned());
            } else if name.as_deref() == own_name {
                self.fault(item.line, "replaces", "names this very limit".to_owned());
            }
        }
        self.note(node.line, "replaces: a request is held to the limits of all of its descriptors");
    }
}

const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const SECOND: &str = "second";
const UNITS: [&str; 7] = [SECOND, "minute", "hour", "day", "week", "month", "year"];
