//! Set-up: every dependency is present, or installed, or named with the command to type.
//!
//! Looking costs a fraction of a second. Only Debian's own packages are ever installed, only as root, and
//! nothing that they bring is started.

mod apt;
pub mod envoy;
mod packages;
mod toolchain;

use std::time::Instant;

use anyhow::{Result, bail};
use nix::unistd::geteuid;

pub use toolchain::Toolchain;

/// The purpose that the machine is set up for. Each includes the ones before it, but for running, which needs no packages, and
/// other kernels, which need no benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Purpose {
    /// Building the eBPF object.
    Build,
    /// Making a package: Debian's tools for that as well.
    Package,
    /// Running gate and the lab.
    Run,
    /// Running the tests: real servers as well.
    Test,
    /// Running the benchmarks: gate's peers as well.
    Bench,
    /// Running the tests on other kernels: an emulator as well.
    Kernels,
}

impl Purpose {
    /// True if what is needed for `other` is needed for this.
    fn includes(self, other: Self) -> bool {
        let needless = [(Self::Run, Self::Package), (Self::Kernels, Self::Bench)];
        other <= self && !needless.contains(&(self, other))
    }
}

/// Sees to it that everything needed for `purpose` is there.
///
/// # Errors
///
/// If something is missing and cannot be had; the error names all of it and what to type.
pub fn setup(purpose: Purpose) -> Result<Toolchain> {
    let mut wanted = packages::missing(purpose);
    let mut toolchain = Toolchain::find();
    if toolchain.is_none() {
        wanted.extend(toolchain::debian_packages_missing());
    }
    if !wanted.is_empty() {
        if !geteuid().is_root() || !apt::present() {
            bail!(packages::how_to_get(&wanted, toolchain.is_none()));
        }
        apt::install(&wanted)?;
    }
    if purpose.includes(Purpose::Test) {
        envoy::fetch()?;
    }
    if toolchain.is_none() {
        toolchain::build_linker()?;
        toolchain = Toolchain::find();
    }
    match toolchain {
        Some(toolchain) => Ok(toolchain),
        None => bail!("the eBPF toolchain was set up but cannot be used:\n{}", toolchain::findings()),
    }
}

/// Announces a step, does it, and says how long it took.
fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("set-up: {what}");
    let started = Instant::now();
    let done = work()?;
    eprintln!("set-up: done in {:.0} s", started.elapsed().as_secs_f32());
    Ok(done)
}
