//! The suites' sources, below `target/compat`: of the servers Debian's source packages, of redis-py what PyPI has, of the
//! suite for caches a commit of its repository.
//!
//! apt is given sources and lists of its own, as for kernels, so that neither the machine's sources matter nor a privilege
//! is needed. Nothing is built or installed: the suites are scripts. A source that is there is not fetched again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Suite, http_cache};
use crate::{paths, sh};

/// The directory with a suite's source.
///
/// # Errors
///
/// If it cannot be had; with what apt or pip says.
pub(super) fn fetch(suite: Suite) -> Result<PathBuf> {
    let directory = paths::target().join("compat");
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    match suite {
        Suite::Redis => debian(&directory, "redis", "redis-server"),
        Suite::Memcached => debian(&directory, "memcached", "memcached"),
        Suite::RedisPy => pypi(&directory),
        Suite::HttpCache => http_cache::fetch(&directory),
    }
}

/// Debian's source package of the version of `package` that is installed.
fn debian(directory: &Path, source: &str, package: &str) -> Result<PathBuf> {
    for (program, package) in [("dpkg-source", "dpkg-dev"), ("apt-get", "apt")] {
        ensure!(
            sh::find(program).is_some(),
            "{program} is missing: apt-get install {package}, or give --source"
        );
    }
    let version =
        sh::output(Command::new("dpkg-query").args(["--show", "--showformat=${source:Version}", package]))
            .with_context(|| format!("{package} is not installed as a package: give --source"))?;
    let unpacked = directory.join(format!("{source}-{}", version.replace(':', "_")));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    eprintln!("compat: getting Debian's source package {source} {version}");
    for made in ["lists/partial", "cache/archives/partial", "downloads"] {
        fs::create_dir_all(directory.join(made))?;
    }
    let line = |archive: &str, suite: &str| {
        format!("deb-src [signed-by={KEYS}] http://deb.debian.org/{archive} {suite} main\n")
    };
    let lines = line("debian", "bookworm") + &line("debian-security", "bookworm-security");
    fs::write(directory.join("sources.list"), lines)?;
    sh::run(apt(directory).args(["-o", "APT::Update::Error-Mode=any", "--quiet", "update"]))?;
    let downloads = directory.join("downloads");
    let named = format!("{source}={version}");
    sh::run(
        apt(directory).args(["--quiet", "--download-only", "source"]).arg(named).current_dir(&downloads),
    )?;
    let number = version.split_once(':').map_or(version.as_str(), |(_, number)| number);
    let description = downloads.join(format!("{source}_{number}.dsc"));
    sh::run(Command::new("dpkg-source").arg("-x").arg(&description).arg(&unpacked))?;
    Ok(unpacked)
}

fn apt(directory: &Path) -> Command {
    let mut command = Command::new("apt-get");
    let place = |name: &str| directory.join(name).display().to_string();
    for (key, value) in [
        ("Dir::Etc::SourceList", place("sources.list")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::State::Lists", place("lists")),
        ("Dir::Cache", place("cache")),
        ("Acquire::Languages", "none".into()),
        // Its own user could not write below ours.
        ("APT::Sandbox::User", "root".into()),
    ] {
        command.arg("-o").arg(format!("{key}={value}"));
    }
    command.env("LC_ALL", "C").current_dir(directory);
    command
}

/// redis-py's source, with a virtual environment beside it (`venv`) that can run its tests.
fn pypi(directory: &Path) -> Result<PathBuf> {
    let unpacked = directory.join(REDIS_PY.replace("==", "-"));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    eprintln!("compat: getting {REDIS_PY} and pytest from PyPI into {}", directory.display());
    let environment = directory.join("venv");
    let made = Command::new("python3").args(["-m", "venv"]).arg(&environment).status();
    ensure!(made.is_ok_and(|status| status.success()), "python3 -m venv fails: apt-get install python3-venv");
    let pip = environment.join("bin/pip");
    sh::run(Command::new(&pip).args(["install", "--quiet"]).args(TOOLS))?;
    let download =
        ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", REDIS_PY];
    sh::run(Command::new(&pip).args(download).current_dir(directory))?;
    let archive = unpacked.with_file_name(format!("{}.tar.gz", REDIS_PY.replace("==", "-")));
    sh::run(Command::new("tar").arg("-xf").arg(archive).current_dir(directory))?;
    if !unpacked.join("tests").exists() {
        bail!("{} has no tests", unpacked.display());
    }
    Ok(unpacked)
}

const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The last version whose tests are written for Redis 7.0 and 7.2.
const REDIS_PY: &str = "redis==5.0.8";
const TOOLS: [&str; 8] = [
    "setuptools==65.5.0",
    "wheel",
    "pytest==7.4.4",
    "pytest-asyncio==0.21.1",
    "pytest-timeout==2.2.0",
    "mock",
    "packaging",
    "async-timeout",
];
