//! A fault in a configuration, with its path and line.

use std::fmt;

use serde::Serialize;

/// One thing that is wrong, where it is, and what would be right.
///
/// Prints as `gate.toml:12: tenant[2].quota = "-5": must be above 0, e.g. "5000 RU/s"`, without the
/// file's name, which [`Faults`] adds. Lists are counted from 0, lines from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// The line of the value, or, for a missing key, of its section's header; from 1.
    pub line: usize,
    /// Where in the document: `tenant[2].quota`. Empty for the document as a whole.
    pub path: String,
    /// The value, as it is written; `None` if there is none, or more than fits a line.
    pub value: Option<String>,
    /// The remedy.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.line)?;
        match (self.path.as_str(), &self.value) {
            ("", _) => {}
            (path, None) => write!(f, "{path}: ")?,
            (path, Some(value)) => write!(f, "{path} = {value}: ")?,
        }
        f.write_str(&self.message)
    }
}

/// Everything that is wrong with one file, by line. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Faults {
    /// The file, as the user named it.
    pub file: String,
    /// By line, then by path.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{fault}", self.file)?;
        }
        Ok(())
    }
}

/// The candidate nearest to `word`, if it is near enough to be what was meant: one edit in three
/// letters, at most three.
pub(super) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.chars().count() / 3).clamp(1, 3);
    let near = candidates.into_iter().filter(|candidate| candidate.len().abs_diff(word.len()) <= allowed);
    let near = near.map(|candidate| (edits(word, candidate), candidate));
    near.filter(|&(edits, _)| edits <= allowed).min().map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour to get from one
/// word to the other (optimal string alignment).
fn edits(from: &str, to: &str) -> usize {
    let from: Vec<char> = from.chars().collect();
    let to: Vec<char> = to.chars().collect();
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let replaced = above[j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                let swapped: usize = before[j - 2];
                best = best.min(swapped + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_suggested_and_a_far_one_is_not() {
        let keys = ["quota", "burst", "sources", "reply_budget", "tier"];
        for (word, meant) in [
            ("qouta", Some("quota")),
            ("quotas", Some("quota")),
            ("source", Some("sources")),
            ("reply-budget", Some("reply_budget")),
            ("tire", Some("tier")),
            ("weight", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(did_you_mean(word, keys), meant, "{word:?}");
        }
    }
}
