//! memcached's tests, in Perl. They start their servers themselves, by the name of a debug build beside them: in its place stands
//! `memcached.pl`, which starts the installed one, and gate before it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::servers::Side;
use super::{Results, Runner, Scratch, limited, printed_by};
use crate::{paths, sh};

/// The suite's files, and the programs that its tests start.
pub(super) struct Memcached {
    scratch: Scratch,
}

impl Memcached {
    pub(super) fn new(source: &Path) -> Result<Self> {
        let library = source.join("t/lib/MemcachedTest.pm");
        ensure!(library.exists(), "{}: name a directory with memcached's source", library.display());
        for program in ["perl", "memcached"] {
            ensure!(sh::find(program).is_some(), "{program} is missing: apt-get install {program}");
        }
        let scratch = Scratch::new()?;
        for part in ["t", "doc"] {
            sh::run(Command::new("cp").arg("-r").arg(source.join(part)).arg(&scratch.0))?;
        }
        // The second gets a time limit first.
        for (name, text) in [("memcached-debug", WRAPPER), ("timedrun", TIMED)] {
            let path = scratch.0.join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { scratch })
    }
}

impl Runner for Memcached {
    fn files(&self) -> Result<Vec<String>> {
        let inside = self.scratch.0.join("t");
        let mut files = Vec::new();
        for entry in fs::read_dir(&inside).with_context(|| inside.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "t") {
                files.push(format!("t/{}", path.file_name().unwrap_or_default().to_string_lossy()));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn run(&self, file: &str, side: Side) -> Result<Results> {
        let mut command = limited(LONGEST, "perl");
        command.args(["-It/lib", file]).current_dir(&self.scratch.0);
        if side == Side::Gate {
            let last = std::process::id().to_be_bytes()[3];
            command.env("GATE", paths::gate()).env("GATE_STORE", format!("127.102.{last}.1"));
        }
        Ok(results(file, &printed_by(&mut command, &self.scratch.0)?))
    }
}

/// `ok 1 - a test`, `not ok 2 - another`, `ok 3 # skip why`, `1..0 # SKIP why`.
fn results(file: &str, printed: &str) -> Results {
    let mut results = Results::new();
    for line in printed.lines() {
        let (result, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => ("ok", rest),
            (_, Some(rest)) => ("not ok", rest),
            _ if line.starts_with("1..0 # SKIP") => ("skipped", "1"),
            _ => continue,
        };
        let (number, name) = rest.split_once(" - ").unwrap_or((rest, ""));
        let name = if name.is_empty() { number } else { name };
        // A value behind that may be random.
        let name = name.split(" == '").next().unwrap_or(name);
        results.entry(format!("{file}: {name}")).or_default().push(result.to_owned());
    }
    results
}

const WRAPPER: &str = include_str!("memcached.pl");
const TIMED: &str = "#!/bin/sh\nshift\nexec \"$@\"\n";
/// For one file, in seconds.
const LONGEST: &str = "400";

#[cfg(test)]
mod tests {
    use super::results;

    #[test]
    fn results_are_read_from_what_perl_prints() {
        let found = results(
            "t/a.t",
            "1..4\nok 1 - stored\nok 2 - stored\nok 5 - big == 'XY'\n# note\nnot ok 3 - gone\nok 4\n",
        );
        assert_eq!(found["t/a.t: stored"], ["ok", "ok"]);
        assert_eq!(found["t/a.t: gone"], ["not ok"]);
        assert_eq!(found["t/a.t: 4"], ["ok"]);
        assert_eq!(found["t/a.t: big"], ["ok"]);
        assert_eq!(results("t/b.t", "1..0 # SKIP no TLS\n")["t/b.t: 1"], ["skipped"]);
    }
}
