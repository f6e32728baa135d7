//! The names by which sections refer to each other.

use std::collections::HashMap;

use super::fault::did_you_mean;
use super::raw::Section;
use super::units::Wrong;
use super::values::TenantIndex;

/// The names of the `[[service]]`s or the `[[tenant]]`s.
pub(super) struct Names {
    pub(super) list: Vec<String>,
    index: HashMap<String, TenantIndex>,
}

impl Names {
    /// Reads them all, so that any section may refer to any other; `max` is how many there may be.
    pub(super) fn read(
        sections: &mut [Section<'_>],
        max: usize,
        name: fn(&str) -> Result<String, Wrong>,
    ) -> Self {
        let mut names = Self { list: Vec::new(), index: HashMap::new() };
        let mut lines: HashMap<String, usize> = HashMap::new();
        for (i, section) in sections.iter_mut().enumerate() {
            if i == max {
                section.fault("name", format!("is one too many: there may be {max}"));
            }
            let name = section.need("name", "\"polite\"", name).unwrap_or_default();
            if let Some(line) = lines.get(&name) {
                section.fault("name", format!("is taken, on line {line}"));
            } else if !name.is_empty() {
                lines.insert(name.clone(), section.line("name"));
                names.index.insert(name.clone(), TenantIndex(i));
            }
            names.list.push(name);
        }
        names
    }

    pub(super) fn find(&self, name: &str) -> Result<TenantIndex, Wrong> {
        self.index.get(name).copied().ok_or_else(|| {
            match did_you_mean(name, self.index.keys().map(String::as_str)) {
                Some(near) => format!("no tenant has this name; did you mean \"{near}\"?"),
                None => format!("no tenant has this name; add a [[tenant]] with name = {name:?}"),
            }
        })
    }
}

/// Names of tenants in a sentence: some of them, if they are many.
pub(super) fn listed(names: &[&str]) -> Option<String> {
    const MOST: usize = 3;
    match names {
        [] => None,
        [name] => Some(format!("tenant {name}")),
        _ if names.len() <= MOST => Some(format!("tenants {}", names.join(", "))),
        _ => Some(format!("tenants {} and {} more", names[..MOST].join(", "), names.len() - MOST)),
    }
}
