//! Installing Debian's packages, without starting what they bring.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::step;
use crate::sh;

const OUR_SOURCE: &str = "/etc/apt/sources.list.d/gate-bookworm-security.sources";
/// Debian 12 has its compiler for BPF and LLVM 22 in its security updates. An installed system has this
/// line; a minimal one from debootstrap does not.
const SECURITY_SOURCE: &str = "\
# Added by gate's `cargo xtask setup`: the compiler for BPF and LLVM 22 come from here.
Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

/// True if this machine has apt.
pub(super) fn present() -> bool {
    sh::find("apt-get").is_some() && sh::find("apt-cache").is_some()
}

/// Installs `packages`. Reads the lists of packages anew only if one of them is not listed or not to be had.
///
/// # Errors
///
/// If one does not exist, would remove another package, or cannot be fetched.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    make_known(packages)?;
    let names = packages.join(" ");
    step(&format!("installing Debian's {names} (a minute or two)"), || {
        let _quiet = NoServices::begin()?;
        // A list that is too old names files that are gone: once more with a new one.
        get_packages(packages).or_else(|_| {
            update()?;
            get_packages(packages)
        })
    })
}

fn get_packages(packages: &[&str]) -> Result<()> {
    let mut apt = apt_get();
    // Nothing of the user's may go: Debian's other `rustc` conflicts with `rustc-web`.
    apt.args(["install", "--yes", "--no-install-recommends", "--no-remove"]).args(packages);
    sh::run(&mut apt)
}

/// Sees to it that apt knows where to find `packages`.
fn make_known(packages: &[&str]) -> Result<()> {
    if unknown(packages)?.is_empty() {
        return Ok(());
    }
    step("reading Debian's lists of packages", update)?;
    let missing = unknown(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.contains("VERSION_CODENAME=bookworm") || Path::new(OUR_SOURCE).exists() {
        bail!(
            "apt knows no package {}; they are part of Debian 12 and its security updates",
            missing.join(", ")
        );
    }
    eprintln!(
        "set-up: adding Debian 12's security updates to apt's sources, for {}: {OUR_SOURCE}",
        missing.join(" ")
    );
    fs::write(OUR_SOURCE, SECURITY_SOURCE).with_context(|| format!("cannot write {OUR_SOURCE}"))?;
    step("reading Debian's lists of packages again", update)?;
    match unknown(packages)?.as_slice() {
        [] => Ok(()),
        still => bail!("apt knows no package {}, not even with {OUR_SOURCE}", still.join(", ")),
    }
}

/// Those of `packages` that no source offers.
fn unknown<'a>(packages: &[&'a str]) -> Result<Vec<&'a str>> {
    let policy = sh::output(Command::new("apt-cache").arg("policy").args(packages).env("LC_ALL", "C"))?;
    Ok(packages.iter().copied().filter(|package| !offered(&policy, package)).collect())
}

/// True if apt's `policy` names a candidate for `package`.
fn offered(policy: &str, package: &str) -> bool {
    let mut lines = policy.lines().skip_while(|line| line.strip_suffix(':') != Some(package)).skip(1);
    let candidate = lines.find_map(|line| line.trim_start().strip_prefix("Candidate: "));
    candidate.is_some_and(|version| version != "(none)")
}

fn update() -> Result<()> {
    sh::run(apt_get().arg("update"))
}

fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    apt.args(["--quiet", "-oDPkg::Lock::Timeout=120", "-oDpkg::Use-Pty=0"]);
    apt
}

/// While it lives, packages start no services: a policy of ours, which asks that nothing be done, stands in
/// the place of the machine's own. Ctrl-C and SIGTERM wait for its end.
struct NoServices {
    arrived: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_ASIDE: &str = "/usr/sbin/policy-rc.d.before-gate";
const OUR_POLICY: &str = "#!/bin/sh\n# gate's set-up is installing packages: start no services.\nexit 101\n";

impl NoServices {
    fn begin() -> Result<Self> {
        let arrived = Arc::new(AtomicBool::new(false));
        let over = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&over))?;
            flag::register(signal, Arc::clone(&arrived))?;
        }
        // A killed set-up may have left its policy in place.
        restore()?;
        match fs::rename(POLICY, POLICY_ASIDE) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).context(POLICY),
            _ => {}
        }
        fs::write(POLICY, OUR_POLICY).context(POLICY)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755)).context(POLICY)?;
        Ok(Self { arrived, over })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Err(error) = restore() {
            eprintln!("set-up: {error:#}; see to {POLICY} and {POLICY_ASIDE}");
        }
        self.over.store(true, Ordering::Relaxed);
        if self.arrived.load(Ordering::Relaxed) {
            eprintln!("set-up: stopped");
            std::process::exit(130);
        }
    }
}

/// Puts the machine's own policy back, or takes ours away.
fn restore() -> Result<()> {
    if fs::read_to_string(POLICY).is_ok_and(|text| text == OUR_POLICY) {
        fs::remove_file(POLICY).context(POLICY)?;
    }
    match fs::rename(POLICY_ASIDE, POLICY) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).context(POLICY_ASIDE),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::offered;

    #[test]
    fn a_package_is_offered_if_it_has_a_candidate() {
        let policy = "a:\n  Installed: (none)\n  Candidate: 1.0\n  Version table:\n     1.0 500\n\
                      b:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
        assert_eq!(["a", "b", "c"].map(|package| offered(policy, package)), [true, false, false]);
    }
}
