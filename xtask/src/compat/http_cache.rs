//! http-tests/cache-tests: gate, nginx and Varnish as caches before the suite's own origin, at the same time.
//!
//! The suite has no "directly": a test says what a cache should do. So what gate fails is compared with the document, and the
//! others are shown beside it. Each cache runs as it comes; gate has `keep_own`, which the others do by nature.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Result, anyhow, bail, ensure};

use super::listed::Listed;
use super::servers::started;
use super::{Scratch, limited, printed_by};
use crate::lab::process::{ChildProcess, bound_command};
use crate::{paths, sh};

/// A cache that the suite is run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cache {
    Gate,
    Nginx,
    Varnish,
}

impl Cache {
    const ALL: [Self; 3] = [Self::Gate, Self::Nginx, Self::Varnish];

    const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Nginx => "nginx",
            Self::Varnish => "Varnish",
        }
    }

    fn is_installed(self) -> bool {
        match self {
            Self::Gate => true,
            Self::Nginx => sh::find("nginx").is_some(),
            Self::Varnish => sh::find("varnishd").is_some(),
        }
    }

    /// Starts it at `address`, before `origin`.
    fn start(self, address: SocketAddr, origin: SocketAddr, directory: &Path) -> Result<ChildProcess> {
        fs::create_dir_all(directory)?;
        let command = match self {
            Self::Gate => gate(address, origin, directory)?,
            Self::Nginx => nginx(address, origin, directory)?,
            Self::Varnish => {
                let mut command = bound_command("varnishd");
                command.args(["-F", "-a", &address.to_string(), "-b", &origin.to_string()]);
                // Most tests depend on one that a lifetime by default fails.
                command.args(["-t", "0", "-p", "default_grace=0"]).arg("-n").arg(directory);
                command
            }
        };
        started(self.name(), command, address)
    }
}

/// The kind and the result of each test, by name.
type Outcomes = BTreeMap<String, Outcome>;

/// One test's line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    kind: String,
    result: String,
    reason: String,
}

impl Outcome {
    /// True if the cache did not do what the test asks for; a test whose condition another one is does not say.
    fn has_failed(&self) -> bool {
        self.kind != "check" && matches!(self.result.as_str(), "fail" | "optional_fail")
    }

    fn is(&self, kind: &str, result: &str) -> bool {
        self.kind == kind && self.result == result
    }
}

/// Runs the suite in `source` against all that are installed.
///
/// # Errors
///
/// If something is missing, or gate fails a test that the document does not list.
pub(super) fn run(source: &Path, only: Option<&str>, listed: &Listed) -> Result<()> {
    ensure!(sh::find("node").is_some(), "node is missing: apt-get install nodejs (20 or newer)");
    let source = fs::canonicalize(source)?;
    let scratch = Scratch::new()?;
    let script = scratch.0.join("http_cache.mjs");
    fs::write(&script, SCRIPT)?;
    let at =
        |last| SocketAddr::from((Ipv4Addr::new(127, 103, std::process::id().to_be_bytes()[3], last), PORT));
    // It listens on all addresses.
    let origin = SocketAddr::from((Ipv4Addr::LOCALHOST, ORIGIN_PORT));
    let _origin = started("node", origin_command(&source, &scratch.0), origin)?;
    let mut running = Vec::new();
    for (cache, last) in Cache::ALL.into_iter().zip(1..) {
        if cache.is_installed() {
            let directory = scratch.0.join(cache.name());
            let server = cache.start(at(last), origin, &directory)?;
            running.push((cache, at(last), directory, server));
        } else {
            println!("{} is not installed, and left out", cache.name());
        }
    }
    let outcomes: Vec<(Cache, Result<Outcomes>)> = thread::scope(|scope| {
        let clients: Vec<_> = running
            .iter()
            .map(|(cache, address, directory, _)| {
                let script = &script;
                let source = &source;
                (*cache, scope.spawn(move || tested(script, source, *address, only, directory)))
            })
            .collect();
        let joined = clients.into_iter().map(|(cache, client)| {
            let outcomes = client.join().unwrap_or_else(|_| Err(anyhow!("its client panicked")));
            (cache, outcomes)
        });
        joined.collect()
    });
    let mut columns = Vec::new();
    for (cache, outcomes) in outcomes {
        columns.push((cache, outcomes?));
    }
    report(&columns, listed)
}

/// The suite's client against the cache at `address`.
fn tested(
    script: &Path,
    source: &Path,
    address: SocketAddr,
    only: Option<&str>,
    directory: &Path,
) -> Result<Outcomes> {
    let mut command = limited(LONGEST, "node");
    command.arg("--no-warnings").arg(script).arg(source).arg(format!("http://{address}"));
    command.args(only).current_dir(directory);
    let outcomes = outcomes(&printed_by(&mut command, directory)?);
    ensure!(!outcomes.is_empty(), "no test has run against {address}");
    Ok(outcomes)
}

/// Lines of kind, result, name and reason.
fn outcomes(printed: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in printed.lines() {
        let mut columns = line.splitn(4, '\t').map(str::to_owned);
        if let (Some(kind), Some(result), Some(name), Some(reason)) =
            (columns.next(), columns.next(), columns.next(), columns.next())
        {
            outcomes.insert(name, Outcome { kind, result, reason });
        }
    }
    outcomes
}

/// Prints what gate fails, beside the others, and the sums.
fn report(columns: &[(Cache, Outcomes)], listed: &Listed) -> Result<()> {
    let mut unlisted = 0;
    for (cache, outcomes) in columns {
        let failed = outcomes.iter().filter(|(_, outcome)| *cache == Cache::Gate && outcome.has_failed());
        for (name, Outcome { kind, result, reason }) in failed {
            let others: Vec<String> = columns
                .iter()
                .filter(|(other, _)| other != cache)
                .map(|(other, theirs)| {
                    let theirs = theirs.get(name).map_or("not run", |theirs| theirs.result.as_str());
                    format!("{}: {theirs}", other.name())
                })
                .collect();
            let note = if listed.has(name) { "listed" } else { "NOT LISTED" };
            unlisted += usize::from(!listed.has(name));
            println!("{name}: {kind}, {result} ({note}; {}): {reason}", others.join(", "));
        }
    }
    for (cache, outcomes) in columns {
        let count = |kind, result| outcomes.values().filter(|outcome| outcome.is(kind, result)).count();
        println!(
            "{}: required {} passed, {} failed; optimal {} passed, {} not",
            cache.name(),
            count("required", "pass"),
            count("required", "fail"),
            count("optimal", "pass"),
            count("optimal", "optional_fail"),
        );
    }
    match unlisted {
        0 => Ok(()),
        unlisted => bail!("{unlisted} failures that docs/COMPATIBILITY.md does not list"),
    }
}

fn origin_command(source: &Path, directory: &Path) -> Command {
    let mut command = bound_command("node");
    command.arg("test-engine/server/server.mjs").current_dir(source);
    command.env("npm_config_protocol", "http").env("npm_config_port", ORIGIN_PORT.to_string());
    command.env("npm_config_pidfile", directory.join("origin.pid"));
    command
}

fn gate(address: SocketAddr, origin: SocketAddr, directory: &Path) -> Result<Command> {
    let config = directory.join("gate.toml");
    let kept = directory.join("kept");
    let text = format!(
        "[gate]\nxdp = \"off\"\nadmin = \"off\"\n[[service]]\nname = \"http\"\nprotocol = \"http\"\nlisten = \"{address}\"\n\
         backend = \"{origin}\"\ncache = {{ dir = {kept:?}, keep_own = \"on\" }}\n\
         [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n"
    );
    fs::write(&config, text)?;
    let mut command = bound_command(paths::gate());
    command.arg("run").arg("--config").arg(config);
    Ok(command)
}

/// Configured as the suite's own image of it is.
fn nginx(address: SocketAddr, origin: SocketAddr, directory: &Path) -> Result<Command> {
    let config = directory.join("nginx.conf");
    let place = directory.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {place}/{name};\n"))
        .concat();
    let text = format!(
        "daemon off;\nmaster_process off;\npid {place}/pid;\nerror_log {place}/error.log crit;\nevents {{ }}\nhttp {{\n\
         {temporary}access_log off;\nproxy_cache_path {place}/kept levels=1:2 keys_zone=all:8m max_size=1000m inactive=600m;\n\
         server {{ listen {address}; location / {{ proxy_pass http://{origin}; proxy_cache all; proxy_cache_revalidate on;\n\
         proxy_http_version 1.1; }} }}\n}}\n"
    );
    fs::write(&config, text)?;
    let mut command = bound_command("nginx");
    command.arg("-c").arg(&config).arg("-p").arg(directory).arg("-e").arg(directory.join("error.log"));
    Ok(command)
}

/// The suite's source at the commit that the document's table is of, with the library that some of its tests need.
///
/// # Errors
///
/// If it cannot be had; with what git or npm says.
pub(super) fn fetch(directory: &Path) -> Result<PathBuf> {
    let unpacked = directory.join(format!("cache-tests-{}", &COMMIT[..12]));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    for (program, package) in [("git", "git"), ("npm", "npm")] {
        ensure!(
            sh::find(program).is_some(),
            "{program} is missing: apt-get install {package}, or give --source"
        );
    }
    eprintln!(
        "compat: getting http-tests/cache-tests from GitHub, and {UNDICI} from npm, into {}",
        unpacked.display()
    );
    let partial = directory.join("cache-tests-partial");
    // A run that was ended left it.
    let _ = fs::remove_dir_all(&partial);
    let library = partial.join("node_modules/undici");
    fs::create_dir_all(&library)?;
    let git = |arguments: &[&str]| sh::run(Command::new("git").args(arguments).current_dir(&partial));
    git(&["init", "--quiet"])?;
    git(&["fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT])?;
    git(&["checkout", "--quiet", "FETCH_HEAD"])?;
    let packed = sh::output(Command::new("npm").args(["pack", "--silent", UNDICI]).current_dir(&partial))?;
    sh::run(
        Command::new("tar")
            .args(["-xzf", packed.trim(), "--strip-components=1", "-C"])
            .arg(&library)
            .current_dir(&partial),
    )?;
    fs::rename(&partial, &unpacked)?;
    Ok(unpacked)
}

const SCRIPT: &str = include_str!("http_cache.mjs");
const REPOSITORY: &str = "https://github.com/http-tests/cache-tests.git";
const COMMIT: &str = "b55b8bda3dbb8c927c04e85bd8d496a8caa3e4ba";
/// Node.js has its `fetch` from it, but does not let others import it.
const UNDICI: &str = "undici@7.30.2";
const PORT: u16 = 21_391;
const ORIGIN_PORT: u16 = 21_392;
/// In seconds.
const LONGEST: &str = "600";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_of_a_test_that_was_judged() {
        let printed = "required\tfail\ta\tbecause of\tthis\noptimal\toptional_fail\tb\tx\ncheck\tno\tc\ty\n\
                       required\tdependency_fail\td\tz\nrequired\tpass\te\t\nnoise\n";
        let outcomes = outcomes(printed);
        let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.has_failed()).collect();
        assert_eq!(failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((outcomes.len(), failed[0].1.reason.as_str()), (5, "because of\tthis"));
        let gate = |listed: &[&str]| report(&[(Cache::Gate, outcomes.clone())], &Listed::with(listed));
        assert!(gate(&["a"]).is_err() && gate(&["a", "b"]).is_ok());
    }
}
