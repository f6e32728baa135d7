//! redis-py's tests, in pytest: those of one Redis without modules, and without TLS.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::servers::{Servers, Side};
use super::{Results, Runner, Scratch, printed};

/// The suite, unpacked, and the Python that can run it.
pub(super) struct RedisPy {
    source: PathBuf,
    python: PathBuf,
    scratch: Scratch,
}

impl RedisPy {
    pub(super) fn new(source: &Path) -> Result<Self> {
        let source = source.canonicalize().with_context(|| source.display().to_string())?;
        let tests = source.join("tests/conftest.py");
        ensure!(tests.exists(), "{}: name a directory with redis-py's source", tests.display());
        let own = source.with_file_name("venv").join("bin/python");
        let python = if own.exists() { own } else { "python3".into() };
        Ok(Self { source, python, scratch: Scratch::new()? })
    }

    fn pytest(&self, arguments: &[&str]) -> Result<String> {
        let fixed = ["-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", "-o", "asyncio_mode=auto"];
        let selected = ["-m", "not redismod and not ssl", "-k", "not cluster and not sentinel"];
        let all = [&fixed[..], &selected, arguments].concat();
        printed(&self.python.to_string_lossy(), &all, LONGEST, &self.source)
    }
}

impl Runner for RedisPy {
    fn files(&self) -> Result<Vec<String>> {
        // No server is asked for this.
        let listed =
            self.pytest(&["--collect-only", "-q", "--redis-url", "redis://127.0.0.1:1/0", "tests"])?;
        let files: BTreeSet<_> =
            listed.lines().filter_map(|line| Some(line.split_once("::")?.0.to_owned())).collect();
        ensure!(!files.is_empty(), "pytest finds no tests:\n{listed}");
        Ok(files.into_iter().collect())
    }

    fn run(&self, file: &str, side: Side) -> Result<Results> {
        let servers = Servers::start(side, &self.scratch.0)?;
        let url = format!("redis://{}/0", servers.address);
        let printed = self.pytest(&["-v", "--tb=no", "--timeout", "30", "--redis-url", &url, file])?;
        Ok(results(&printed))
    }
}

/// `tests/a.py::Test::test_b[c d] PASSED      [ 10%]`.
fn results(printed: &str) -> Results {
    let mut results = Results::new();
    for line in printed.lines().filter(|line| line.contains("::")) {
        let Some((line, _)) = line.rsplit_once('[') else { continue };
        // The reason of a test that was left out may follow.
        let found = RESULTS.iter().find_map(|result| line.split_once(result));
        if let (Some((test, _)), Some(result)) = (found, RESULTS.iter().find(|result| line.contains(*result)))
        {
            results.entry(test.to_owned()).or_default().push(result.trim().to_lowercase());
        }
    }
    results
}

/// As they stand behind a test's name.
const RESULTS: [&str; 6] = [" PASSED ", " FAILED ", " ERROR ", " SKIPPED ", " XFAIL ", " XPASS "];
/// For one file, in seconds.
const LONGEST: &str = "600";

#[cfg(test)]
mod tests {
    use super::results;

    #[test]
    fn results_are_read_from_what_pytest_prints() {
        let printed = "collecting ... collected 3 items\n\ntests/t.py::A::test_a[x y] PASSED      [ 33%]\n\
                       tests/t.py::test_b SKIPPED (Redis version required < 7)  [ 66%]\ntests/t.py::test_c FAILED [100%]\n\
                       tests/t.py::test_c ERROR [100%]\n= short test summary =\nFAILED tests/t.py::test_c - Error\n";
        let found = results(printed);
        let result = |test: &str| found[test].join(" ");
        assert_eq!(result("tests/t.py::A::test_a[x y]"), "passed");
        assert_eq!(result("tests/t.py::test_b"), "skipped");
        assert_eq!(result("tests/t.py::test_c"), "failed error");
        assert_eq!(found.len(), 3);
    }
}
