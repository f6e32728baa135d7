//! Debian's kernel packages: listed, downloaded, unpacked, and never installed.
//!
//! apt is given sources, lists and a status of its own, so that neither the machine's sources nor what it has
//! installed matters, and no privilege is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

use super::Kernel;
use crate::sh;

/// An unpacked kernel.
#[derive(Debug)]
pub(super) struct Package {
    /// The kernel's image.
    pub(super) image: PathBuf,
    /// Where its modules lie.
    pub(super) modules: PathBuf,
}

/// How long a list of packages is good for.
const LIST_TTL: Duration = Duration::from_hours(24);
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The newest package of each kernel, unpacked below `directory`. Without a network, those that are there.
///
/// # Errors
///
/// If one cannot be had; with what apt says.
pub(super) fn fetch(directory: &Path, kernels: &[&Kernel]) -> Result<Vec<Package>> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let apt = Apt { directory: directory.to_owned() };
    let listed = apt.update(kernels);
    let each = kernels.iter().map(|kernel| match &listed {
        Ok(()) => apt.get(&newest(&apt.list(kernel.series)?, kernel.series)?),
        Err(error) => {
            let name = newest(&apt.unpacked(), kernel.series)
                .with_context(|| format!("Debian's packages cannot be listed: {error:#}"))?;
            eprintln!("kernels: Debian's packages cannot be listed, so {name} is used, which is there");
            apt.get(&name)
        }
    });
    each.collect()
}

/// apt, in a directory of its own.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let place = |name: &str| self.directory.join(name).display().to_string();
        for (key, value) in [
            ("Dir::Etc::SourceList", place("sources.list")),
            ("Dir::Etc::SourceParts", "/dev/null".into()),
            ("Dir::Etc::Preferences", "/dev/null".into()),
            ("Dir::Etc::PreferencesParts", "/dev/null".into()),
            ("Dir::State::Lists", place("lists")),
            ("Dir::State::status", "/dev/null".into()),
            ("Dir::Cache", place("cache")),
            ("Acquire::Languages", "none".into()),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false".into()),
            // Its own user could not write below ours.
            ("APT::Sandbox::User", "root".into()),
        ] {
            command.arg("-o").arg(format!("{key}={value}"));
        }
        command.env("LC_ALL", "C").current_dir(&self.directory);
        command
    }

    /// Reads the lists that `kernels` are in, unless that was done lately.
    fn update(&self, kernels: &[&Kernel]) -> Result<()> {
        let mut sources: Vec<&str> = kernels.iter().flat_map(|kernel| kernel.sources).copied().collect();
        sources.sort_unstable();
        sources.dedup();
        let line = |source: &&str| {
            let (archive, suite) = source.split_once(' ').expect("an archive and a suite");
            format!("deb [signed-by={KEYS}] http://deb.debian.org/{archive} {suite} main\n")
        };
        let sources: String = sources.iter().map(line).collect();
        let file = self.directory.join("sources.list");
        let stamp = self.directory.join("listed");
        if fs::read_to_string(&stamp).is_ok_and(|listed| listed == sources) && is_younger(&stamp, LIST_TTL) {
            return Ok(());
        }
        for made in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(self.directory.join(made))?;
        }
        fs::write(&file, &sources).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("kernels: reading Debian's lists of packages");
        // Without this a list that cannot be had is only a warning.
        sh::run(self.command("apt-get").args(["-o", "APT::Update::Error-Mode=any", "--quiet", "update"]))?;
        fs::write(&stamp, &sources).with_context(|| format!("cannot write {}", stamp.display()))
    }

    /// The packages that have a kernel of a series.
    fn list(&self, series: &str) -> Result<String> {
        let pattern = format!("^linux-image-{}\\..*-cloud-amd64$", series.replace('.', "\\."));
        sh::output(self.command("apt-cache").args(["search", "--names-only", &pattern]))
    }

    /// The packages that are unpacked already, in the form of [`Apt::list`].
    fn unpacked(&self) -> String {
        let Ok(entries) = fs::read_dir(&self.directory) else { return String::new() };
        entries.flatten().map(|entry| format!("{} \n", entry.file_name().to_string_lossy())).collect()
    }

    /// Downloads and unpacks a package, unless it is there.
    fn get(&self, name: &str) -> Result<Package> {
        let place = self.directory.join(name);
        if !place.exists() {
            eprintln!("kernels: getting {name}");
            let new = self.directory.join(format!("{name}.new"));
            let _ = fs::remove_dir_all(&new);
            fs::create_dir_all(&new)?;
            sh::run(self.command("apt-get").args(["--quiet", "download", name]).current_dir(&new))?;
            let file = only_file(&new, |file| file.ends_with(".deb"))?;
            sh::run(Command::new("dpkg").arg("-x").arg(&file).arg(&new))?;
            fs::remove_file(&file)?;
            fs::rename(&new, &place)?;
        }
        let image = only_file(&place.join("boot"), |file| file.starts_with("vmlinuz-"))?;
        let modules = place.join("lib/modules");
        Ok(Package { image, modules })
    }
}

/// The newest of `packages` (as `apt-cache search` prints them) that is a kernel of this series.
fn newest(packages: &str, series: &str) -> Result<String> {
    let names = packages.lines().filter_map(|line| line.split(' ').next());
    let kernels = names.filter_map(|name| Some((version(name, series)?, name)));
    match kernels.max() {
        Some((_, name)) => Ok(name.to_owned()),
        None => {
            bail!("no package of a Linux {series} for clouds (linux-image-{series}.*-cloud-amd64) is known")
        }
    }
}

/// The numbers in a kernel package's name.
fn version(name: &str, series: &str) -> Option<Vec<u64>> {
    let version = name.strip_prefix("linux-image-")?.strip_suffix("-cloud-amd64")?;
    version.strip_prefix(series)?.strip_prefix('.')?;
    let numbers = version.split(|c: char| !c.is_ascii_digit());
    Some(numbers.filter_map(|number| number.parse().ok()).collect())
}

fn only_file(directory: &Path, is_it: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let found = entries.flatten().find(|entry| is_it(&entry.file_name().to_string_lossy()));
    found.map(|entry| entry.path()).with_context(|| format!("{} lacks a file", directory.display()))
}

fn is_younger(file: &Path, ttl: Duration) -> bool {
    let written = fs::metadata(file).and_then(|file| file.modified());
    written.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_has_the_highest_numbers() {
        let listed = "linux-image-6.12.95+deb12-cloud-amd64 - Linux 6.12\n\
                      linux-image-6.12.117+deb12-cloud-amd64 - Linux 6.12\n\
                      linux-image-6.12-cloud-amd64 - Linux for x86-64 cloud (meta-package)\n\
                      linux-image-6.12.200+deb12-cloud-amd64-unsigned - Linux 6.12\n\
                      linux-image-6.12.200+deb12-rt-amd64 - Linux 6.12\n\
                      linux-image-6.1.0-9-cloud-amd64 - Linux 6.1\n\
                      linux-image-6.1.0-56-cloud-amd64 - Linux 6.1\n";
        assert_eq!(newest(listed, "6.12").unwrap(), "linux-image-6.12.117+deb12-cloud-amd64");
        assert_eq!(newest(listed, "6.1").unwrap(), "linux-image-6.1.0-56-cloud-amd64");
        let error = newest(listed, "5.10").unwrap_err().to_string();
        assert!(error.contains("linux-image-5.10"), "{error}");
    }
}
