//! `cargo xtask test --compat SUITE`: a store's or a client library's own tests, directly and through gate.
//!
//! The suites are fetched (`sources.rs`) and are no part of this repository. Each of their files runs twice against the
//! installed server: directly, and through a gate with its default configuration. What differs is printed, and fails unless
//! `docs/COMPATIBILITY.md` lists it (`listed.rs`). The suite for caches of HTTP has another shape (`http_cache.rs`).

mod http_cache;
mod listed;
mod memcached;
mod redis;
mod redis_py;
mod servers;
mod sources;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use self::listed::Listed;
use self::servers::Side;
use crate::run;

/// A test suite that others wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// Redis' own tests (Tcl).
    Redis,
    /// memcached's own tests (Perl).
    Memcached,
    /// redis-py's own tests (pytest).
    RedisPy,
    /// http-tests/cache-tests (Node.js), against gate's cache, nginx' and Varnish's.
    HttpCache,
}

/// The results of tests by name, in the order in which they came: a name may stand for several tests.
type Results = BTreeMap<String, Vec<String>>;

/// A suite that can be run file by file.
trait Runner {
    /// The files that can be run, but for those that the document leaves out.
    fn files(&self) -> Result<Vec<String>>;

    /// The results of one file's tests, against a new server.
    fn run(&self, file: &str, side: Side) -> Result<Results>;
}

/// Runs it: its source is in `directory`, or else fetched.
///
/// # Errors
///
/// If something is missing, or a test differs that the document does not list.
pub(crate) fn run(suite: Suite, directory: Option<&Path>, only: Option<&str>) -> Result<()> {
    let began = Instant::now();
    let listed = Listed::of(suite)?;
    run::build_gate()?;
    let source = directory.map_or_else(|| sources::fetch(suite), |directory| Ok(directory.to_owned()))?;
    let runner: Box<dyn Runner> = match suite {
        Suite::HttpCache => return http_cache::run(&source, only, &listed),
        Suite::Redis => Box::new(redis::Redis::new(&source, listed.left_out())?),
        Suite::Memcached => Box::new(memcached::Memcached::new(&source)?),
        Suite::RedisPy => Box::new(redis_py::RedisPy::new(&source)?),
    };
    let mut files = runner.files()?;
    files.retain(|file| !listed.leaves_out(file) && only.is_none_or(|only| file.contains(only)));
    let mut sum = Counts::default();
    for (index, file) in files.iter().enumerate() {
        let file_began = Instant::now();
        let direct = runner.run(file, Side::Direct)?;
        let through = runner.run(file, Side::Gate)?;
        let mut counts = Counts::default();
        compare(file, &direct, &through, &listed, &mut counts);
        let took = file_began.elapsed().as_secs_f32();
        println!("{}/{} {file}: {counts}, {took:.0} s", index + 1, files.len());
        sum.add(&counts);
    }
    println!("{} files: {sum}, in {:.0} s", files.len(), began.elapsed().as_secs_f32());
    match sum.unlisted {
        0 => Ok(()),
        unlisted => bail!("{unlisted} differences that docs/COMPATIBILITY.md does not list"),
    }
}

/// How many tests there were.
#[derive(Debug, Default)]
struct Counts {
    same: usize,
    listed: usize,
    unlisted: usize,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.same += other.same;
        self.listed += other.listed;
        self.unlisted += other.unlisted;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { same, listed, unlisted } = self;
        write!(
            f,
            "{} tests, {same} the same, {listed} listed differences, {unlisted} others",
            same + listed + unlisted
        )
    }
}

/// Counts the tests of one file whose results differ, and prints them.
fn compare(file: &str, direct: &Results, through: &Results, listed: &Listed, counts: &mut Counts) {
    let mut names: Vec<&String> = direct.keys().chain(through.keys()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let results = |side: &Results| side.get(name).cloned().unwrap_or_default();
        let direct = results(direct);
        let through = results(through);
        let number = direct.len().max(through.len());
        if direct == through {
            counts.same += number;
            continue;
        }
        let shown = |results: &[String]| match results {
            [] => "not run".to_owned(),
            results => results.join(", "),
        };
        let note = if listed.has(name) {
            counts.listed += number;
            "listed"
        } else {
            counts.unlisted += number;
            "NOT LISTED"
        };
        println!("{file}: {name}: {} directly, {} through gate ({note})", shown(&direct), shown(&through));
    }
}

/// The standard output of a command, which may fail, and is ended after so many seconds.
fn printed(command: &str, arguments: &[&str], seconds: &str, directory: &Path) -> Result<String> {
    let mut limited = limited(seconds, command);
    limited.args(arguments).current_dir(directory);
    printed_by(&mut limited, directory)
}

/// A command that is ended after so many seconds.
fn limited(seconds: &str, command: &str) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=5", seconds, command]).stdin(Stdio::null());
    limited
}

/// The standard output of a [`limited`] command, in a file below `directory` meanwhile. Ends the programs that it leaves behind.
fn printed_by(command: &mut Command, directory: &Path) -> Result<String> {
    let path = directory.join("printed");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let mut program = command
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    // `timeout` leads a process group of its own.
    let group = Pid::from_raw(i32::try_from(program.id())?);
    program.wait()?;
    // Mostly nobody is left.
    let _ = killpg(group, Signal::SIGKILL);
    Ok(String::from_utf8_lossy(&fs::read(&path)?).into_owned())
}

/// A directory for what runs leave behind; removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let this = Self(std::env::temp_dir().join(format!("gate-compat-{}", std::process::id())));
        fs::create_dir_all(&this.0).with_context(|| this.0.display().to_string())?;
        Ok(this)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(of: &[(&str, &[&str])]) -> Results {
        let owned = |results: &[&str]| results.iter().map(|&result| result.to_owned()).collect();
        of.iter().map(|(name, results)| ((*name).to_owned(), owned(results))).collect()
    }

    #[test]
    fn what_differs_is_counted_by_what_the_document_lists() {
        let direct = results(&[("a", &["ok"]), ("b", &["ok", "ok"]), ("c", &["ok"]), ("d", &["err"])]);
        let through = results(&[("a", &["ok"]), ("b", &["ok", "err"]), ("d", &["ok"])]);
        let mut counts = Counts::default();
        compare("file", &direct, &through, &Listed::with(&["b"]), &mut counts);
        assert_eq!((counts.same, counts.listed, counts.unlisted), (1, 2, 2));
    }
}
