//! Limits of envoyproxy/ratelimit, as gate's.
//!
//! **Source.** Its configuration, version 3: a domain, and descriptors by key and perhaps value, nested, each of which may have a limit. A
//! request's descriptor has a limit if its entries lead to one, each by its key and value, else by the first value with a `*` that fits, else by its
//! key alone, and nothing below is taken back.
//!
//! **Deviations.** Where a value leads nowhere, gate goes back to a shorter beginning of it and to the key alone; ratelimit does not. So a value
//! without a limit gets one that is unlimited where those have a limit. What gate has no counterpart of is noted with its line, or is left out
//! if it would refuse more than there.

mod descriptor;
mod yaml;

use std::collections::BTreeSet;
use std::fmt::Write as _;

pub use self::descriptor::Note;
use self::descriptor::{Descriptor, Entry, Rate};
use super::fault::Faults;
use gate_limits::Pattern;

/// The limits of a configuration, in a file of gate's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The file: sections `[[limit]]`.
    pub text: String,
    /// How many there are.
    pub limits: usize,
    /// Everything that was not carried over, by line.
    pub notes: Vec<Note>,
}

/// Reads a configuration of envoyproxy/ratelimit; `file` is what faults call it. With `by_calendar`, limits count in windows of the calendar,
/// but for those by the second.
///
/// # Errors
///
/// Everything that ratelimit would refuse, by line.
pub fn import_ratelimit(file: &str, text: &str, by_calendar: bool) -> Result<Imported, Faults> {
    let root = yaml::read(file, text)?;
    let mut notes = Vec::new();
    let read = descriptor::read(&root, &mut notes);
    let (domain, descriptors) = read.map_err(|faults| Faults { file: file.to_owned(), faults })?;
    let mut rules =
        RuleWriter { domain: &domain, by_calendar, text: String::new(), taken: BTreeSet::new(), notes };
    rules.text.push_str(if by_calendar { HEAD_OF_WINDOWS } else { HEAD });
    rules.add_all(&descriptors, &mut Vec::new());
    let RuleWriter { text, taken, mut notes, .. } = rules;
    notes.sort();
    Ok(Imported { text, limits: taken.len(), notes })
}

struct RuleWriter<'d> {
    domain: &'d str,
    by_calendar: bool,
    text: String,
    taken: BTreeSet<Pattern>,
    notes: Vec<Note>,
}

impl<'d> RuleWriter<'d> {
    fn add_all(&mut self, level: &'d [Descriptor], path: &mut Vec<Entry<'d>>) {
        for descriptor in level {
            path.push(descriptor.entry());
            if let Some(rate) = &descriptor.rate {
                self.add(descriptor.line, path, rate, descriptor.is_shadow);
            }
            self.add_all(&descriptor.below, path);
            for behind in level.iter().filter(|other| other.is_behind(descriptor)) {
                self.exempt(descriptor, behind, path);
            }
            path.pop();
        }
    }

    /// Lifts the limits of a descriptor that gate would go back to from a more specific one.
    fn exempt(&mut self, specific: &'d Descriptor, behind: &'d Descriptor, path: &mut Vec<Entry<'d>>) {
        let mut all = Vec::new();
        behind.limited(&mut Vec::new(), &mut all);
        for below in all {
            if !specific.is_limited(&below) {
                let len = path.len();
                path.extend(below);
                self.add(specific.line, path, &Rate::Unlimited, false);
                path.truncate(len);
            }
        }
    }

    fn add(&mut self, line: usize, path: &[Entry<'_>], rate: &Rate, is_shadow: bool) {
        match Pattern::of(self.domain, path.iter().copied()) {
            Ok(pattern) if self.taken.contains(&pattern) => {}
            Ok(pattern) => {
                let name = toml::Value::String(pattern.as_str().to_owned());
                let _ = write!(self.text, "\n[[limit]] # line {line}\nname = {name}\nquota = \"{rate}\"\n");
                if self.by_calendar && rate.has_window() {
                    self.text.push_str("window = \"calendar\"\n");
                }
                if is_shadow {
                    self.text.push_str("mode = \"shadow\"\n");
                }
                self.taken.insert(pattern);
            }
            Err(error) => {
                self.notes.push(Note { line, what: format!("the limit is left out: its name {error}") });
            }
        }
    }
}

const HEAD: &str = "\
# Made by `gate quota import` of a configuration of envoyproxy/ratelimit. A limit is a bucket that holds its number of requests and fills
# evenly within its unit of time, not a window that begins anew with the unit.
";
const HEAD_OF_WINDOWS: &str = "\
# Made by `gate quota import --calendar` of a configuration of envoyproxy/ratelimit. Windows are those of the calendar in UTC; there weeks begin
# on Thursday, and months and years have 30 and 365 days. A limit by the second is a bucket that fills evenly.
";

#[cfg(test)]
mod tests;
