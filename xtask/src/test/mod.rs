//! `cargo xtask test`: everything that must pass, with a summary that says what did not run.

mod cases;
mod machine;
mod queue;
mod stress;
pub(crate) mod suites;

use std::env;
use std::io::{BufRead as _, BufReader, Read};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;

use self::cases::TestCase;
use self::queue::{Outcome, Pace};
use self::stress::{Load, Table};
use self::suites::Selection;
use crate::setup::{self, Purpose};
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
    /// Run the tests of the suites this many times, in a random order, beside two busy loops and a disk writer, and say which
    /// failed how often.
    #[arg(long, value_name = "N", conflicts_with_all = ["kernels", "compat"])]
    stress: Option<NonZeroU32>,
    /// The order of an earlier run.
    #[arg(long, requires = "stress")]
    seed: Option<u64>,
    /// Set up, and build what the tests run, and no more.
    #[arg(long, conflicts_with_all = ["kernels", "compat", "stress"])]
    no_run: bool,
    /// The number of tests that run at once; two for each core, if not given.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
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
  cargo xtask test proxy --stress 10     one suite ten times on a machine that is busy otherwise
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
    let directory = paths::workspace().join("tests/suites");
    let selected = match &args.suite {
        Some(name) => suites::select(&directory, name)?,
        None => suites::all(&directory)?,
    };
    if selected.iter().any(Selection::needs_gate) {
        prepare(&mut counts)?;
    }
    if args.no_run {
        sh::stream(units().arg("--no-run"))?;
        return suites::build(&suites::names(&selected)).map(|_| ());
    }
    if args.suite.is_none() && args.stress.is_none() {
        counts.count(&mut units(), args.long)?;
    }
    let filter = args.filter.as_deref().unwrap_or_default();
    let cases = cases::list(&selected, filter)?;
    if cases.all.is_empty() {
        bail!("no test of {} has a name with {filter:?} in it", args.suite.as_deref().unwrap_or("any suite"));
    }
    counts.ignored += cases.ignored;
    run_cases(cases.all, args, &mut counts)?;
    counts.report(started)
}

/// The unit tests of all packages, and the tests of gate's command line.
fn units() -> Command {
    let mut units = sh::cargo();
    units.args(["test", "--no-fail-fast"]).args(suites::PACKAGES);
    units.args(["--lib", "--bins", "--test", "cli"]);
    units
}

/// Runs the cases of suites, several at once, and says which took longest or, under stress, which failed how often.
fn run_cases(cases: Vec<TestCase>, args: &Args, counts: &mut TestCounts) -> Result<()> {
    let pace = Pace {
        at_once: args.jobs.map_or_else(default_jobs, NonZeroUsize::get),
        deadline: if args.long { LONG_DEADLINE } else { DEADLINE },
        long: args.long,
    };
    let mut table = Table::default();
    let mut times = Vec::new();
    let (cases, _load) = match args.stress {
        Some(times) => {
            let seed = args.seed.unwrap_or_else(stress::new_seed);
            println!("stress: {times} times each, in the order of --seed {seed}");
            (stress::repeated(&cases, times.get(), seed), Some(Load::start()))
        }
        None => (cases, None),
    };
    let all = cases.len();
    queue::run(cases, pace, |outcome| {
        counts.add(&outcome);
        table.add(&outcome);
        times.push((outcome.took, outcome.name.clone()));
        report_case(&outcome, times.len(), all);
    })?;
    times.sort_unstable_by(|a, b| b.cmp(a));
    println!();
    match args.stress {
        Some(_) => table.lines().iter().for_each(|line| println!("{line}")),
        None if all > NAMED => {
            println!("The {NAMED} slowest:");
            for (took, name) in times.iter().take(NAMED) {
                println!("{:7.1} s  {name}", took.as_secs_f32());
            }
        }
        None => {}
    }
    Ok(())
}

fn report_case(outcome: &Outcome, ended: usize, all: usize) {
    let seconds = outcome.took.as_secs_f32();
    let name = &outcome.name;
    match &outcome.failure {
        None => println!("[{ended:>4}/{all}] ok     {seconds:6.1} s  {name}"),
        Some(why) => println!(
            "{}\n[{ended:>4}/{all}] FAILED {seconds:6.1} s  {name}: {why}",
            outcome.output.trim_end()
        ),
    }
}

/// How many of the slowest tests are named at the end of a run.
const NAMED: usize = 30;
/// The time that a test may take before it is ended: several times what the longest takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);
/// The same at full size.
const LONG_DEADLINE: Duration = Duration::from_secs(3600);

/// Most tests wait for ticks, timeouts and servers, so that a core carries more than one.
fn default_jobs() -> usize {
    2 * std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
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

/// How a test begins the line that says that it did not run.
const NOT_RUN: &str = "not run: ";

/// The results that cargo and the test harness printed.
#[derive(Default)]
struct TestCounts {
    passed: u64,
    failed: u64,
    ignored: u64,
    not_run: Vec<String>,
    /// The name of each test that failed, and why it did, to be said once more at the end.
    failures: Vec<String>,
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

    fn add(&mut self, outcome: &Outcome) {
        if let Some(why) = &outcome.failure {
            self.failed += 1;
            self.failures.push(format!("{}: {why}\n{}", outcome.name, excerpt(&outcome.output)));
        } else {
            self.passed += 1;
        }
        self.not_run
            .extend(outcome.output.lines().filter(|line| line.starts_with(NOT_RUN)).map(str::to_owned));
    }

    fn note(&mut self, line: &str) {
        if line.starts_with(NOT_RUN) {
            self.not_run.push(line.to_owned());
        }
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(format!("{name}: failed\n"));
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
        for failure in &self.failures {
            println!("FAILED {failure}");
        }
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

/// The end of what a test that failed has said, without stacks and the harness' own lines.
fn excerpt(output: &str) -> String {
    let is_frame = |line: &str| {
        let line = line.trim_start();
        let number = line.split_once(": ").map(|(number, _)| number);
        line.starts_with("at ") || number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let own = output.lines().take_while(|line| !line.ends_with(" ... FAILED"));
    // The causes of an error are numbered as frames are, and stand before them.
    let mut is_behind = false;
    let mut is_told = |line: &&str| {
        is_behind |= line.trim().eq_ignore_ascii_case("stack backtrace:");
        !(line.trim().is_empty() || is_behind && is_frame(line))
    };
    let lines: Vec<_> = own.filter(|line| is_told(line)).collect();
    let last = &lines[lines.len().saturating_sub(EXCERPT)..];
    last.iter().map(|line| format!("    {line}\n")).collect()
}

/// The lines of an excerpt.
const EXCERPT: usize = 30;

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
    use super::{EXCERPT, TestCounts, excerpt};

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

    #[test]
    fn an_excerpt_is_the_end_of_what_a_test_has_said() {
        let said: String = (0..EXCERPT).map(|line| format!("line {line}\n")).collect();
        let output = format!(
            "running 1 test\n{said}Error: no answer\n\nCaused by:\n    0: closed\n\nStack backtrace:\n   0: a::b\n             \
             at ./a.rs:1:2\ntest a ... FAILED\n\nfailures:\n"
        );
        let excerpt = excerpt(&output);
        assert_eq!(excerpt.lines().count(), EXCERPT);
        assert!(excerpt.starts_with("    line 4\n"), "{excerpt}");
        let end = "    Error: no answer\n    Caused by:\n        0: closed\n    Stack backtrace:\n";
        assert!(excerpt.ends_with(end), "{excerpt}");
    }
}
