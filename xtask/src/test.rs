//! `cargo xtask test`: everything that must pass, with a summary that says what did not run.

use std::env;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::setup::{self, Purpose};
use crate::suites::{self, Selection};
use crate::{compat, ebpf, kernels, paths, run, sh};

/// The extent of a test run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this suite (`proxy`), or this module of one (`hot` or `proxy_hot`).
    #[arg(conflicts_with = "kernels")]
    suite: Option<String>,
    /// Only the tests whose names contain this.
    #[arg(requires = "suite")]
    filter: Option<String>,
    /// The same suites at full size.
    #[arg(long)]
    long: bool,
    /// Boot Debian's kernels under qemu instead: the fixtures, a lab and a takeover on each.
    ///
    /// With --long also one that is too old for gate's XDP program.
    #[arg(long)]
    kernels: bool,
    /// Run others' tests instead, directly and through gate, and compare the results with docs/COMPATIBILITY.md.
    ///
    /// Gets their source of the installed version: for Redis and memcached Debian's source package, for redis-py and pytest
    /// PyPI's packages, all below target/compat. Takes minutes; a line for each file says how far it is.
    #[arg(long, value_name = "SUITE", conflicts_with_all = ["suite", "kernels"])]
    compat: Option<compat::Suite>,
    /// The suite's source is in this directory, and is not fetched.
    #[arg(long, value_name = "DIRECTORY", requires = "compat")]
    source: Option<PathBuf>,
    /// Of that suite only the files whose names contain this.
    #[arg(long, value_name = "FILE", requires = "compat")]
    only: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask test                       everything
  cargo xtask test proxy                 one suite
  cargo xtask test hot                   one module of any suite; `proxy_hot` says which suite
  cargo xtask test proxy_hot flight      the tests of a module whose names contain `flight`
  cargo xtask test repository            the rules of the source, within seconds
  cargo xtask test --compat redis        Redis' own tests, directly and through gate
  cargo xtask test --compat memcached --only t/cas.t
                                         one file of memcached's
  cargo xtask test --kernels             the suites `fixtures` and `kernels` in Debian's kernels

An unknown name prints the list of suites and modules.";

/// Sets up, builds and runs the tests: all of them, or those of one suite.
///
/// # Errors
///
/// If anything fails or nothing is selected; in CI (`$CI` is set) also if anything could not run.
pub fn run(args: &Args) -> Result<()> {
    if args.kernels {
        return kernels::run(args.long);
    }
    if let Some(suite) = args.compat {
        return compat::run(suite, args.source.as_deref(), args.only.as_deref());
    }
    let started = Instant::now();
    let mut counts = TestCounts::default();
    if let Some(name) = &args.suite {
        let filter = args.filter.as_deref().unwrap_or_default();
        run_suite(name, filter, args.long, &mut counts)?;
        return counts.report(started);
    }
    prepare(&mut counts)?;

    let rest = ["--workspace", "--exclude", "gate-ebpf", "--exclude", "gate-tests"];
    let mut units = sh::cargo();
    units.args(["test", "--no-fail-fast"]).args(rest).args(run::features());
    // One at a time: these share the machine's cores with the servers and the load that they start.
    let mut suites = sh::cargo();
    suites.args(["test", "--no-fail-fast", "--package", "gate-tests"]).args(run::features());
    suites.args(["--", "--test-threads=1"]);
    for mut command in [units, suites] {
        counts.count(&mut command, args.long)?;
    }
    counts.report(started)
}

/// Runs what is called `name`, a suite or modules of suites, after building what it needs.
fn run_suite(name: &str, filter: &str, long: bool, counts: &mut TestCounts) -> Result<()> {
    let selected = suites::select(&paths::workspace().join("tests/suites"), name)?;
    if selected.iter().any(Selection::needs_gate) {
        prepare(counts)?;
    }
    let mut ran = false;
    for selection in &selected {
        if let Some(mut command) = selection.command(filter)? {
            ran = true;
            counts.count(&mut command, long)?;
        }
    }
    ensure!(ran, "no test of {name} has a name with {filter:?} in it");
    Ok(())
}

/// Sets up, and builds the eBPF object and gate.
fn prepare(counts: &mut TestCounts) -> Result<()> {
    match setup::setup(Purpose::Test).and_then(|toolchain| ebpf::build(&toolchain)) {
        Ok(_) => {}
        Err(error) if geteuid().is_root() || env::var_os("CI").is_some() => return Err(error),
        Err(error) => {
            counts.not_run.push(format!("not run: what needs the eBPF object or a server ({error:#})"))
        }
    }
    run::build_gate()
}

/// The results that cargo and the test harness printed.
#[derive(Default)]
struct TestCounts {
    passed: u64,
    failed: u64,
    ignored: u64,
    not_run: Vec<String>,
    commands_failed: bool,
}

impl TestCounts {
    /// Runs the tests, at full size if `long`, passes on what they print, and counts.
    fn count(&mut self, command: &mut Command, long: bool) -> Result<()> {
        if long {
            command.env("GATE_LONG", "1");
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run cargo test")?;
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let counts = Mutex::new(&mut *self);
        let note = |line: &str| counts.lock().expect("no one panics while noting a line").note(line);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                each_line(stderr, |line| {
                    eprintln!("{line}");
                    note(line);
                })
            });
            each_line(stdout, |line| {
                println!("{line}");
                note(line);
            });
        });
        self.commands_failed |= !child.wait()?.success();
        Ok(())
    }

    fn note(&mut self, line: &str) {
        if line.starts_with("not run: ") {
            self.not_run.push(line.to_owned());
        }
        let Some(result) = line.strip_prefix("test result: ") else { return };
        for (field, count) in
            [("passed;", &mut self.passed), ("failed;", &mut self.failed), ("ignored;", &mut self.ignored)]
        {
            let words: Vec<_> = result.split(' ').collect();
            let number = words.windows(2).find(|pair| pair[1] == field).and_then(|pair| pair[0].parse().ok());
            *count += number.unwrap_or(0);
        }
    }

    fn report(&self, started: Instant) -> Result<()> {
        let passed = self.passed;
        let failed = self.failed;
        let not_run = self.not_run.len();
        println!();
        for line in &self.not_run {
            println!("{line}");
        }
        println!(
            "{passed} passed, {failed} failed, {} ignored, {not_run} not run, in {:.0} s",
            self.ignored,
            started.elapsed().as_secs_f32()
        );
        if self.commands_failed || failed > 0 {
            bail!("tests failed");
        }
        if not_run > 0 && env::var_os("CI").is_some() {
            bail!("in CI nothing may be left out");
        }
        Ok(())
    }
}

fn each_line(output: Option<impl Read>, mut seen: impl FnMut(&str)) {
    let Some(output) = output else { return };
    for line in BufReader::new(output).lines() {
        match line {
            Ok(line) => seen(&line),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TestCounts;

    #[test]
    fn results_and_omissions_are_counted() {
        let mut counts = TestCounts::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "not run: net::x (needs root)",
            "test net::x ... ok",
        ] {
            counts.note(line);
        }
        assert_eq!((counts.passed, counts.failed, counts.ignored), (5, 4, 1));
        assert_eq!(counts.not_run, ["not run: net::x (needs root)"]);
    }
}
