//! The suites' tests as cases: one test of one suite each, with the program that contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::suites::{self, Selection};
use crate::{paths, sh};

/// A test of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TestCase {
    /// Its suite and its path in it, as `proxy::hot::flight`.
    pub(super) name: String,
    /// The program of its suite.
    pub(super) program: PathBuf,
    /// Its slot in a run.
    pub(super) slot: Slot,
}

/// The part of a run in which a test starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    /// Before others, since it takes long.
    Early,
    /// Together with others.
    Shared,
    /// After those, [`PACED_AT_ONCE`](super::queue::PACED_AT_ONCE) at a time: it counts against the clock, and takes up to a core.
    Paced,
    /// After all others, with the machine to itself.
    Exclusive,
}

/// The cases of a run, and the number of tests that their suites leave out (`#[ignore]`).
#[derive(Debug, Default)]
pub(super) struct Cases {
    /// In the order in which they start.
    pub(super) all: Vec<TestCase>,
    /// Tests that only other runs want.
    pub(super) ignored: u64,
}

impl TestCase {
    /// Its path in its suite, as the harness knows it.
    pub(super) fn path(&self) -> &str {
        self.name.split_once("::").map_or(&*self.name, |(_, path)| path)
    }
}

/// Builds the suites of `selected`, and lists the tests whose paths contain `filter`.
///
/// # Errors
///
/// If a suite does not build or list its tests, or [`SCHEDULE`] names a test that is not there.
pub(super) fn list(selected: &[Selection], filter: &str) -> Result<Cases> {
    let schedule = Schedule::read()?;
    let mut ignored_tests = 0;
    let mut placed = Vec::new();
    let built: BTreeMap<String, PathBuf> = suites::build(&suites::names(selected))?.into_iter().collect();
    for selection in selected {
        let program = &built[selection.suite()];
        let ignored: BTreeSet<String> = tests(program, &["--ignored"])?.into_iter().collect();
        let there = tests(program, &[])?;
        schedule.ensure_there(selection.suite(), &there)?;
        let wanted = there.into_iter().filter(|path| selection.contains(path) && path.contains(filter));
        let (left_out, wanted): (Vec<_>, Vec<_>) = wanted.partition(|path| ignored.contains(path));
        ignored_tests += left_out.len() as u64;
        let all = wanted.len();
        for (at, path) in wanted.into_iter().enumerate() {
            let name = format!("{}::{path}", selection.suite());
            let case = TestCase { slot: schedule.slot(&name), name, program: program.clone() };
            placed.push(((case.slot, at * PLACES / all), case));
        }
    }
    // Suites run side by side from their first test to their last: some wait where others compute.
    placed.sort_by_key(|&(place, _)| place);
    Ok(Cases { all: placed.into_iter().map(|(_, case)| case).collect(), ignored: ignored_tests })
}

/// The number of places from a suite's first test to its last.
const PLACES: usize = 1_000_000;

fn tests(program: &Path, more: &[&str]) -> Result<Vec<String>> {
    let listed = sh::output(Command::new(program).args(["--list", "--format=terse"]).args(more))?;
    Ok(listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// The slots of tests that are not [`Slot::Shared`], from [`SCHEDULE`].
struct Schedule {
    lines: Vec<(Slot, String)>,
}

/// A line each: `early`, `paced` or `exclusive`, the test's name with its suite, and the reason.
const SCHEDULE: &str = "tests/suites/schedule.txt";

impl Schedule {
    fn read() -> Result<Self> {
        let file = paths::workspace().join(SCHEDULE);
        Self::parse(&fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let slot = match words.next() {
                Some("early") => Slot::Early,
                Some("paced") => Slot::Paced,
                Some("exclusive") => Slot::Exclusive,
                _ => bail!("{SCHEDULE}: {line:?} does not begin with `early`, `paced` or `exclusive`"),
            };
            let name = words.next().with_context(|| format!("{SCHEDULE}: {line:?} names no test"))?;
            ensure!(words.next().is_some(), "{SCHEDULE}: {line:?} gives no reason");
            lines.push((slot, name.to_owned()));
        }
        Ok(Self { lines })
    }

    fn slot(&self, name: &str) -> Slot {
        let line = self.lines.iter().find(|(_, test)| test == name);
        line.map_or(Slot::Shared, |&(slot, _)| slot)
    }

    /// # Errors
    ///
    /// If a line names a test of this suite that is not there: it was renamed, and runs in the wrong slot.
    fn ensure_there(&self, suite: &str, tests: &[String]) -> Result<()> {
        for (_, name) in &self.lines {
            let path = name.strip_prefix(suite).and_then(|rest| rest.strip_prefix("::"));
            let gone = path.is_some_and(|path| tests.iter().all(|test| test != path));
            ensure!(!gone, "{SCHEDULE}: there is no test {name}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, Slot};

    #[test]
    fn a_schedule_names_tests_with_their_slots_and_reasons() {
        let text =
            "# a comment\n\nexclusive proxy::busy::p99 compares times\nearly daemon::lab::story takes 60 s\n";
        let schedule = Schedule::parse(text).unwrap();
        assert_eq!(schedule.slot("proxy::busy::p99"), Slot::Exclusive);
        assert_eq!(schedule.slot("daemon::lab::story"), Slot::Early);
        assert_eq!(schedule.slot("daemon::lab"), Slot::Shared);

        assert!(schedule.ensure_there("proxy", &["busy::p99".to_owned()]).is_ok());
        let gone = schedule.ensure_there("daemon", &["lab::tale".to_owned()]).unwrap_err();
        assert!(gone.to_string().contains("there is no test daemon::lab::story"), "{gone}");
    }

    #[test]
    fn a_line_of_a_schedule_without_a_reason_is_an_error() {
        for line in ["exclusive proxy::a", "exclusive", "later proxy::a since", "proxy::a since"] {
            assert!(Schedule::parse(line).is_err(), "{line}");
        }
    }
}
