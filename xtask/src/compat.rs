//! `cargo xtask test --compat DIRECTORY`: Redis' own test suite against the installed server, directly and through gate.
//!
//! The suite is Redis' (`tests/` of its source, of the server's version) and is not part of this repository. Each of its files
//! runs twice against servers of their own. What differs is printed, and fails unless `docs/COMPATIBILITY.md` says why.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::lab::process::ChildProcess;
use crate::{paths, run, sh};

/// The suite's files that know how to run against a server that they have not started.
const UNITS: [&str; 17] = [
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/stream",
    "unit/keyspace",
    "unit/multi",
    "unit/pubsub",
    "unit/quit",
    "unit/protocol",
    "unit/expire",
    "unit/sort",
    "unit/scan",
    "unit/hyperloglog",
    "unit/bitops",
    "unit/geo",
];

/// Runs them.
///
/// # Errors
///
/// If something is missing, or a test differs that the document does not name.
pub(crate) fn run(suite: &Path) -> Result<()> {
    ensure!(
        suite.join("tests/test_helper.tcl").exists(),
        "{}: no tests/test_helper.tcl: name a directory with Redis' source, of the installed server's version",
        suite.display()
    );
    ensure!(sh::find("tclsh").is_some(), "tclsh is missing: apt-get install tcl");
    run::build_gate()?;
    let scratch = Scratch::new(suite)?;
    let documented = fs::read_to_string(paths::workspace().join("docs/COMPATIBILITY.md"))?;
    let mut same = 0;
    let mut unexplained = 0;
    for unit in UNITS {
        let direct = scratch.run(unit, false)?;
        let through = scratch.run(unit, true)?;
        for (test, result) in &direct {
            let other = through.get(test).map_or("not run", String::as_str);
            if other == result {
                same += 1;
                continue;
            }
            let is_documented = documented.contains(test.as_str());
            unexplained += usize::from(!is_documented);
            let note = if is_documented { "documented" } else { "NOT DOCUMENTED" };
            println!("{unit}: {test}: {result} directly, {other} through gate ({note})");
        }
        println!("{unit}: {} tests", direct.len());
    }
    println!("{same} tests have the same result");
    if unexplained > 0 {
        bail!("{unexplained} differences that docs/COMPATIBILITY.md does not name");
    }
    Ok(())
}

/// The suite's files, and where its runs leave theirs; removed at the end.
struct Scratch {
    directory: PathBuf,
    /// Runs so far. Each has a port of its own for the suite's own processes: the last one's is not free again at once.
    runs: Cell<u16>,
}

impl Scratch {
    fn new(suite: &Path) -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("gate-compat-{}", std::process::id()));
        let this = Self { directory, runs: Cell::new(0) };
        fs::create_dir_all(this.directory.join("src"))?;
        sh::run(Command::new("cp").arg("-r").arg(suite.join("tests")).arg(&this.directory))?;
        sh::run(Command::new("cp").arg("-r").arg(suite.join("utils")).arg(&this.directory))?;
        for program in ["redis-cli", "redis-benchmark"] {
            let found = sh::find(program).with_context(|| format!("{program} is missing"))?;
            symlink(found, this.directory.join("src").join(program))?;
        }
        Ok(this)
    }

    /// The results of one file's tests by name, against a new server.
    fn run(&self, unit: &str, through_gate: bool) -> Result<BTreeMap<String, String>> {
        let address =
            |last| SocketAddr::from((Ipv4Addr::new(127, 101, std::process::id() as u8, last), PORT));
        let store = address(1);
        let proxy = address(2);
        let mut command = Command::new("redis-server");
        command.args(["--bind", &store.ip().to_string(), "--port", &PORT.to_string()]);
        command
            .args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
            .current_dir(&self.directory);
        let _store = started("redis-server", command, store)?;
        let mut _gate = None;
        if through_gate {
            let config = self.directory.join("gate.toml");
            let admin = self.directory.join("gate.sock");
            let text = format!(
                "[gate]\nxdp = \"off\"\nadmin = {admin:?}\n[[service]]\nname = \"store\"\nprotocol = \"resp\"\nlisten = \"{proxy}\"\n\
                 backend = \"{store}\"\n[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n"
            );
            fs::write(&config, text)?;
            let mut command = Command::new(paths::gate());
            command.arg("run").arg("--config").arg(config);
            _gate = Some(started("gate", command, proxy)?);
        }
        let asked = if through_gate { proxy } else { store };
        self.runs.set(self.runs.get() + 1);
        let own_port = OWN_PORTS + 64 * self.runs.get();
        let mut suite = Command::new("timeout");
        suite.args([LONGEST, "tclsh", "tests/test_helper.tcl", "--clients", "1", "--single", unit]);
        suite.args([
            "--host",
            &asked.ip().to_string(),
            "--port",
            &PORT.to_string(),
            "--tags",
            "-needs:repl -slow",
        ]);
        suite.args(["--baseport", &own_port.to_string()]);
        let output = suite
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .output()
            .context("cannot run the suite")?;
        let results = results(&String::from_utf8_lossy(&output.stdout));
        ensure!(!results.is_empty(), "{unit} did not run: {}", String::from_utf8_lossy(&output.stdout));
        Ok(results)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn started(name: &'static str, command: Command, address: SocketAddr) -> Result<ChildProcess> {
    let mut process = ChildProcess::start(name, command)?;
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        ensure!(process.is_running()? && started.elapsed() < PATIENCE, "{name} does not come up");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Ok(process)
}

/// `[ok]: a test (3 ms)`, `[err]: a test in a file`, with colours.
fn results(printed: &str) -> BTreeMap<String, String> {
    let result = |line: &str| {
        let mut plain = String::new();
        let mut pieces = line.split('\u{1b}');
        plain.push_str(pieces.next().unwrap_or_default());
        pieces.for_each(|piece| plain.push_str(piece.split_once('m').map_or("", |(_, text)| text)));
        let (word, rest) = plain.strip_prefix('[')?.split_once("]: ")?;
        let test = match word {
            "ok" => rest.rsplit_once(" (").map_or(rest, |(test, _)| test),
            "err" => rest.rsplit_once(" in tests/").map_or(rest, |(test, _)| test),
            _ => return None,
        };
        Some((test.to_owned(), word.to_owned()))
    };
    printed.lines().filter_map(result).collect()
}

const PORT: u16 = 21_390;
const OWN_PORTS: u16 = 22_000;
const PATIENCE: Duration = Duration::from_secs(20);
/// For one file, in seconds.
const LONGEST: &str = "240";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_what_the_suite_prints() {
        let printed = "[ready]: 7\n\u{1b}[1;37;49mTesting unit\u{1b}[0m\n[\u{1b}[0;32;49mok\u{1b}[0m]: SET (and GET) (0 ms)\n\
                       [\u{1b}[0;31;49merr\u{1b}[0m]: EXEC in tests/unit/multi.tcl\n[\u{1b}[0;36;49mignore\u{1b}[0m]: X: Tag\n";
        let expected =
            [("EXEC", "err"), ("SET (and GET)", "ok")].map(|(test, word)| (test.to_owned(), word.to_owned()));
        assert_eq!(results(printed), BTreeMap::from(expected));
    }
}
