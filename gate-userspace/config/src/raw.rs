//! The document as it is written: TOML, and the place of everything in it.
//!
//! A [`Section`] is asked for its keys one by one. What it is asked for is what it knows: a key that
//! nobody has asked for is unknown. A fault never ends the reading, so that all are found at once.
//!
//! After a syntax error the rest of the document is what the parser could make of it. Then only what
//! stands plainly on other lines is judged: a missing key or an absent tenant may be the error's
//! doing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Faults, did_you_mean};
use super::units::Wrong;

/// Reads `text` with `read`, which may return anything once a fault has been reported.
pub(super) fn parse<T>(file: &str, text: &str, read: impl FnOnce(Section<'_>) -> T) -> Result<T, Faults> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let report = Report::new(text);
    let value = read(Section::new(&report, String::new(), root.span(), Some(root.get_ref())));
    let faults = report.finish(&errors);
    if faults.is_empty() { Ok(value) } else { Err(Faults { file: file.to_owned(), faults }) }
}

/// One table of the document, or an absent one, which has no keys.
pub(super) struct Section<'d> {
    report: &'d Report<'d>,
    path: String,
    header: Range<usize>,
    keys: BTreeMap<&'d str, (Range<usize>, &'d Spanned<DeValue<'d>>)>,
    known: BTreeSet<&'d str>,
    sound: bool,
}

impl<'d> Section<'d> {
    fn new(
        report: &'d Report<'d>,
        path: String,
        header: Range<usize>,
        table: Option<&'d DeTable<'d>>,
    ) -> Self {
        let entries = table.into_iter().flatten();
        let keys = entries.map(|(key, value)| (key.get_ref().as_ref(), (key.span(), value))).collect();
        Self { report, path, header, keys, known: BTreeSet::new(), sound: true }
    }

    /// The value of `key`; `None` if it is absent or, which is reported, wrong.
    pub(super) fn get<T>(&mut self, key: &'d str, read: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        let value = self.value(key)?;
        let read = self.report.scalar(&self.path_of(key), value, read);
        self.sound &= read.is_some();
        read
    }

    /// The value of `key`, which must be there, as `example` shows.
    pub(super) fn need<T>(
        &mut self,
        key: &'d str,
        example: &str,
        read: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        self.demand(key, example);
        self.get(key, read)
    }

    /// The items of `key` that are right; none if it is absent. A list of one may be written without
    /// brackets.
    pub(super) fn list<T>(
        &mut self,
        key: &'d str,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Vec<Item<'d, T>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let path = self.path_of(key);
        let item = |path: String, value: &'d Spanned<DeValue<'d>>| {
            let read = self.report.scalar(&path, value, &read)?;
            Some(Item { value: read, report: self.report, path, span: value.span() })
        };
        match value.get_ref() {
            DeValue::Array(items) if items.is_empty() => {
                self.fault(key, "is empty; give at least one, or leave the key out".to_owned());
                Vec::new()
            }
            DeValue::Array(items) => items
                .iter()
                .enumerate()
                .filter_map(|(i, value)| item(format!("{path}[{i}]"), value))
                .collect(),
            _ => item(path, value).into_iter().collect(),
        }
    }

    /// [`Section::list`], which must be there, as `example` shows.
    pub(super) fn need_list<T>(
        &mut self,
        key: &'d str,
        example: &str,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Vec<Item<'d, T>> {
        self.demand(key, example);
        self.list(key, read)
    }

    /// The table `[key]`, empty if it is absent.
    pub(super) fn section(&mut self, key: &'d str) -> Self {
        let Some(value) = self.value(key) else {
            return Self::new(self.report, self.path_of(key), self.header.clone(), None);
        };
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.fault(key, format!("must be a table: {key} = {{ ... }}"));
        }
        Self::new(self.report, self.path_of(key), value.span(), table)
    }

    /// The tables `[[key]]`, in order; none if it is absent.
    pub(super) fn sections(&mut self, key: &'d str) -> Vec<Self> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let path = self.path_of(key);
        let wrong = format!("must be a list of tables: write [[{key}]]");
        let items = match value.get_ref() {
            DeValue::Array(items) => items.as_ref(),
            _ => {
                self.fault(key, wrong);
                return Vec::new();
            }
        };
        let mut sections = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let path = format!("{path}[{i}]");
            match item.get_ref().as_table() {
                Some(table) => sections.push(Self::new(self.report, path, item.span(), Some(table))),
                None => self.report.push(Kind::Plain, path, Some(item.span()), item.span(), wrong.clone()),
            }
        }
        sections
    }

    /// True if every value read so far was right, so that they can be compared.
    pub(super) fn is_sound(&self) -> bool {
        self.sound
    }

    /// True if `key` is there, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// True if `key` is there with this text as its value.
    pub(super) fn says(&self, key: &str, text: &str) -> bool {
        self.keys.get(key).is_some_and(|(_, value)| value.get_ref().as_str() == Some(text))
    }

    /// True if `key` is there and a table.
    pub(super) fn has_table(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|(_, value)| value.get_ref().is_table())
    }

    /// Its keys, right or wrong.
    pub(super) fn keys(&self) -> Vec<&'d str> {
        self.keys.keys().copied().collect()
    }

    /// The line of `key`, or of the section's header.
    pub(super) fn line(&self, key: &str) -> usize {
        self.report.line(self.place(key).1.start)
    }

    /// The line of `key`, and its path in the document, for a fault that is found later.
    pub(super) fn place_of(&self, key: &str) -> (usize, String) {
        (self.line(key), self.path_of(key))
    }

    /// Reports that `key`, read for itself, does not fit the rest of the document.
    pub(super) fn fault(&self, key: &str, message: String) {
        let (value, at) = self.place(key);
        self.report.push(Kind::Context, self.path_of(key), value, at, message);
    }

    /// Reports every key that was never asked for.
    pub(super) fn finish(self) {
        for (&key, (span, value)) in &self.keys {
            if self.known.contains(key) {
                continue;
            }
            let near = did_you_mean(key, self.known.iter().copied());
            if let Some(absent) = near.filter(|near| !self.has(near)) {
                self.report.misspelt.borrow_mut().push(self.path_of(absent));
            }
            let hint = match near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known here: {}", Vec::from_iter(self.known.iter().copied()).join(", ")),
            };
            let shown = (!value.get_ref().is_table()).then(|| value.span());
            let message = format!("unknown key; {hint}");
            self.report.push(Kind::Context, self.path_of(key), shown, span.clone(), message);
        }
    }

    fn demand(&mut self, key: &'d str, example: &str) {
        if !self.has(key) {
            self.fault(key, format!("is missing, e.g. {key} = {example}"));
        }
    }

    fn value(&mut self, key: &'d str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.known.insert(key);
        self.keys.get(key).map(|&(_, value)| value)
    }

    /// The span of the value at `key`, and the span that a fault points at.
    fn place(&self, key: &str) -> (Option<Range<usize>>, Range<usize>) {
        match self.keys.get(key) {
            // All of a table is too much to show, and of a dotted one the place is but its name.
            Some((_, value)) => ((!value.get_ref().is_table()).then(|| value.span()), value.span()),
            None => (None, self.header.clone()),
        }
    }

    fn path_of(&self, key: &str) -> String {
        let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let key = if bare { key.to_owned() } else { format!("{key:?}") };
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }
}

/// One item of a list, read, and its place.
pub(super) struct Item<'d, T> {
    /// The value.
    pub(super) value: T,
    report: &'d Report<'d>,
    path: String,
    span: Range<usize>,
}

impl<T> Item<'_, T> {
    /// Its line.
    pub(super) fn line(&self) -> usize {
        self.report.line(self.span.start)
    }

    /// Reports that it, read for itself, does not fit the rest of the document.
    pub(super) fn fault(&self, message: impl Into<String>) {
        let path = self.path.clone();
        let span = self.span.clone();
        self.report.push(Kind::Context, path, Some(span.clone()), span, message.into());
    }
}

/// How a fault was found, by which it is kept or not beside a syntax error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By looking at one value.
    Plain,
    /// By comparing it with other parts of the document, or by its absence.
    Context,
}

/// The text, and what was found wrong with it.
struct Report<'d> {
    text: &'d str,
    line_starts: Vec<usize>,
    faults: RefCell<Vec<(Kind, Fault)>>,
    /// The paths of keys that are there by another name, as it seems: that they are missing is no fault of its own.
    misspelt: RefCell<Vec<String>>,
}

impl<'d> Report<'d> {
    fn new(text: &'d str) -> Self {
        let newlines = text.match_indices('\n').map(|(i, _)| i + 1);
        let line_starts = std::iter::once(0).chain(newlines).collect();
        Self { text, line_starts, faults: RefCell::default(), misspelt: RefCell::default() }
    }

    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }

    fn scalar<T>(
        &self,
        path: &str,
        value: &Spanned<DeValue<'_>>,
        read: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        let read = match value.get_ref() {
            DeValue::String(text) => read(text),
            DeValue::Array(_) => Err("must be one value, not a list".to_owned()),
            DeValue::Table(_) => Err("must be one value, not a table".to_owned()),
            // A bare number is told its unit by the reader; what reads well lacks only the quotes.
            _ => {
                let bare = &self.text[value.span()];
                read(bare).and_then(|_| Err(format!("must be in quotes: \"{bare}\"")))
            }
        };
        read.map_err(|wrong| {
            self.push(Kind::Plain, path.to_owned(), Some(value.span()), value.span(), wrong);
        })
        .ok()
    }

    fn push(&self, kind: Kind, path: String, value: Option<Range<usize>>, at: Range<usize>, message: String) {
        // The place of a table is its header, which is no value.
        let value = value.map(|span| &self.text[span]).filter(|text| is_plain(text) && !is_header(text));
        let value = value.map(str::to_owned);
        self.faults.borrow_mut().push((kind, Fault { line: self.line(at.start), path, value, message }));
    }

    fn finish(&self, errors: &[toml::de::Error]) -> Vec<Fault> {
        let mut syntax = BTreeMap::new();
        let headers = if errors.is_empty() { Vec::new() } else { self.headers() };
        for error in errors {
            let fault = self.syntax_fault(error, &headers);
            syntax.entry(fault.line).or_insert(fault);
        }
        let misspelt = self.misspelt.take();
        let stands = |(kind, fault): &(Kind, Fault)| {
            !misspelt.contains(&fault.path)
                && (syntax.is_empty() || (*kind == Kind::Plain && !syntax.contains_key(&fault.line)))
        };
        let mut faults: Vec<Fault> =
            self.faults.take().into_iter().filter(stands).map(|(_, fault)| fault).collect();
        faults.extend(syntax.into_values());
        faults.sort();
        faults
    }

    /// A syntax error, with the section and the key of its line.
    fn syntax_fault(&self, error: &toml::de::Error, headers: &[(usize, String)]) -> Fault {
        let line = self.line(error.span().map_or(0, |span| span.start));
        let text = self.text[self.line_starts[line - 1]..].lines().next().unwrap_or_default().trim();
        let above = headers.partition_point(|&(header, _)| header < line).checked_sub(1);
        let section = above.map_or("", |i| headers[i].1.as_str());
        let key = text.split_once('=').map_or("", |(key, _)| key.trim());
        let path = match (section, key) {
            _ if text.starts_with('[') => String::new(),
            ("", key) => key.to_owned(),
            (section, "") => section.to_owned(),
            (section, key) => format!("{section}.{key}"),
        };
        let shown = if is_plain(text) { format!("{text}: ") } else { String::new() };
        Fault { line, path, value: None, message: format!("{shown}{}", error.message()) }
    }

    /// The line and path of every section header.
    fn headers(&self) -> Vec<(usize, String)> {
        let mut counts = BTreeMap::new();
        let lines = self.text.lines().map(str::trim).enumerate();
        let headers = lines.filter(|(_, text)| text.starts_with('[')).map(|(i, text)| {
            let name = text.trim_matches(['[', ']', ' ']);
            if !text.starts_with("[[") {
                return (i + 1, name.to_owned());
            }
            let count = counts.entry(name).or_insert(0);
            *count += 1;
            (i + 1, format!("{name}[{}]", *count - 1))
        });
        headers.collect()
    }
}

/// True for a piece of the document that is short and plain enough to be shown.
fn is_plain(text: &str) -> bool {
    text.chars().count() <= 80 && !text.chars().any(char::is_control)
}

fn is_header(text: &str) -> bool {
    text.starts_with("[[") || text.strip_prefix('[').is_some_and(|rest| rest.starts_with(char::is_alphabetic))
}
