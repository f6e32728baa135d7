//! The differences that `docs/COMPATIBILITY.md` lists, with their reasons, and the files that it leaves out.
//!
//! The document has a section for each suite. In a section, a table whose first column is headed `differs` names tests, one
//! headed `left out` names files, and tests of Redis; names stand between backticks.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::Suite;
use crate::paths;

/// One suite's section.
#[derive(Debug, Default)]
pub(super) struct Listed {
    differs: BTreeSet<String>,
    left_out: BTreeSet<String>,
}

impl Listed {
    /// The section of a suite.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(super) fn of(suite: Suite) -> Result<Self> {
        let path = paths::workspace().join("docs/COMPATIBILITY.md");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::read(&text, heading(suite))
    }

    fn read(text: &str, heading: &str) -> Result<Self> {
        let mut lines = text.lines().skip_while(|line| *line != heading).skip(1).peekable();
        ensure!(lines.peek().is_some(), "docs/COMPATIBILITY.md has no section {heading:?}");
        let mut this = Self::default();
        let mut table = None;
        for line in lines.take_while(|line| !line.starts_with("## ")) {
            let Some(row) = line.strip_prefix('|') else {
                table = None;
                continue;
            };
            let cell = row.split('|').next().unwrap_or_default().trim();
            match (cell, &mut table) {
                ("differs", _) => table = Some(&mut this.differs),
                ("left out", _) => table = Some(&mut this.left_out),
                (_, Some(names)) => names.extend(quoted(cell)),
                (_, None) => {}
            }
        }
        Ok(this)
    }

    #[cfg(test)]
    pub(super) fn with(differs: &[&str]) -> Self {
        Self { differs: differs.iter().map(|&name| name.to_owned()).collect(), ..Self::default() }
    }

    /// True if a test of this name may have another result through gate.
    pub(super) fn has(&self, test: &str) -> bool {
        self.differs.contains(test)
    }

    /// The names of files, and of tests, that are not run.
    pub(super) fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.iter().map(String::as_str)
    }

    /// True if a file is not run.
    pub(super) fn leaves_out(&self, file: &str) -> bool {
        self.left_out.contains(file)
    }
}

/// The names between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

fn heading(suite: Suite) -> &'static str {
    match suite {
        Suite::Redis => "## Redis' own tests",
        Suite::Memcached => "## memcached's own tests",
        Suite::RedisPy => "## redis-py's own tests",
        Suite::HttpCache => "## http-tests' cache-tests",
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_tables_of_a_section_are_read() {
        let text = "# C\n\n## Other\n\n| differs | why |\n|---|---|\n| `x` | |\n\n## This\n\ntext\n\n| differs | why |\n|---|---|\n\
                    | `a b`, `c` | so `d` |\n\n| left out | why |\n|---|---|\n| `f.t` | |\n\n## Next\n\n| differs |\n|---|\n| `y` |\n";
        let listed = Listed::read(text, "## This").unwrap();
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        assert_eq!(names(&listed.differs), ["a b", "c"]);
        assert_eq!(names(&listed.left_out), ["f.t"]);
        assert!(Listed::read(text, "## Missing").is_err());
    }

    #[test]
    fn the_document_has_a_section_for_each_suite() {
        for suite in Suite::value_variants() {
            Listed::of(*suite).unwrap();
        }
    }
}
