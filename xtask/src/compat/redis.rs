//! Redis' tests, in Tcl, as far as they can run against a server that they have not started (`external` in Redis' own words).

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::servers::{Servers, Side};
use super::{Results, Runner, Scratch, printed};
use crate::sh;

/// The suite's files, and where its runs leave theirs.
pub(super) struct Redis {
    scratch: Scratch,
    /// Runs so far. Each has a port of its own for the suite's own processes: the last one's is not free again at once.
    runs: Cell<u16>,
    /// Arguments that leave tests out.
    skipped: Vec<String>,
}

impl Redis {
    /// The suite in `source`, without the tests of these names.
    pub(super) fn new<'a>(source: &Path, left_out: impl Iterator<Item = &'a str>) -> Result<Self> {
        let helper = source.join("tests/test_helper.tcl");
        ensure!(helper.exists(), "{}: name a directory with Redis' source", helper.display());
        ensure!(sh::find("tclsh").is_some(), "tclsh is missing: apt-get install tcl");
        let scratch = Scratch::new()?;
        fs::create_dir_all(scratch.0.join("src"))?;
        for part in ["tests", "utils"] {
            sh::run(Command::new("cp").arg("-r").arg(source.join(part)).arg(&scratch.0))?;
        }
        for program in ["redis-cli", "redis-benchmark"] {
            let found = sh::find(program).with_context(|| format!("{program} is missing"))?;
            symlink(found, scratch.0.join("src").join(program))?;
        }
        let skipped = left_out.flat_map(|test| ["--skiptest".to_owned(), test.to_owned()]).collect();
        Ok(Self { scratch, runs: Cell::new(0), skipped })
    }
}

impl Runner for Redis {
    fn files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for directory in ["unit", "unit/type"] {
            let inside = self.scratch.0.join("tests").join(directory);
            for entry in fs::read_dir(&inside).with_context(|| inside.display().to_string())? {
                let path = entry?.path();
                let stem = path.file_stem().unwrap_or_default().to_string_lossy();
                if path.extension().is_some_and(|extension| extension == "tcl") {
                    files.push(format!("{directory}/{stem}"));
                }
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn run(&self, file: &str, side: Side) -> Result<Results> {
        let servers = Servers::start(side, &self.scratch.0)?;
        let host = servers.address.ip().to_string();
        let port = servers.address.port().to_string();
        self.runs.set(self.runs.get() + 1);
        let own_port = (OWN_PORTS + 64 * self.runs.get()).to_string();
        let fixed =
            ["tests/test_helper.tcl", "--clients", "1", "--tags", "-needs:repl -slow", "--single", file];
        let where_to = ["--host", &host, "--port", &port, "--baseport", &own_port];
        let skipped: Vec<_> = self.skipped.iter().map(String::as_str).collect();
        let arguments = [&fixed[..], &where_to, &skipped].concat();
        let printed = printed("tclsh", &arguments, LONGEST, &self.scratch.0)?;
        ensure!(printed.contains("Testing unit"), "{file} did not run: {printed}");
        Ok(results(&printed))
    }
}

/// `[ok]: a test (3 ms)`, `[err]: a test in a file`, with colours.
fn results(printed: &str) -> Results {
    let mut results = Results::new();
    for line in printed.lines() {
        let mut plain = String::new();
        let mut pieces = line.split('\u{1b}');
        plain.push_str(pieces.next().unwrap_or_default());
        pieces.for_each(|piece| plain.push_str(piece.split_once('m').map_or("", |(_, text)| text)));
        let Some((word, rest)) = plain.strip_prefix('[').and_then(|line| line.split_once("]: ")) else {
            continue;
        };
        let test = match word {
            "ok" => rest.rsplit_once(" (").map_or(rest, |(test, _)| test),
            "err" => rest.rsplit_once(" in tests/").map_or(rest, |(test, _)| test),
            _ => continue,
        };
        results.entry(test.to_owned()).or_default().push(word.to_owned());
    }
    results
}

const OWN_PORTS: u16 = 22_000;
/// For one file, in seconds.
const LONGEST: &str = "300";

#[cfg(test)]
mod tests {
    use super::results;

    #[test]
    fn results_are_read_from_what_the_suite_prints() {
        let printed = "[ready]: 7\n\u{1b}[1;37;49mTesting unit\u{1b}[0m\n[\u{1b}[0;32;49mok\u{1b}[0m]: SET (and GET) (0 ms)\n\
                       [\u{1b}[0;31;49merr\u{1b}[0m]: EXEC in tests/unit/multi.tcl\n[\u{1b}[0;36;49mignore\u{1b}[0m]: X: Tag\n";
        let found = results(printed);
        assert_eq!(found["EXEC"], ["err"]);
        assert_eq!(found["SET (and GET)"], ["ok"]);
        assert_eq!(found.len(), 2);
    }
}
