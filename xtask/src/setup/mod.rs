//! Set-up: every dependency is present, or installed, or named with the command to type.
//!
//! Looking costs a fraction of a second. Only Debian's own packages are ever installed, only as root, and
//! nothing that they bring is started.

mod apt;
pub mod envoy;
mod packages;
pub mod throttlecrab;
mod toolchain;

use std::time::Instant;

use anyhow::{Result, bail};
use nix::unistd::geteuid;

pub use toolchain::Toolchain;

/// The purpose that the machine is set up for. Each includes the ones before it, but for running, which needs no packages, a
/// fleet, which needs nothing for XDP, and other kernels, which need no benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Purpose {
    /// Building the eBPF object.
    Build,
    /// Making a package: Debian's tools for that as well.
    Package,
    /// Running gate and the lab.
    Run,
    /// Running the lab of several gates: etcd and Envoy.
    Fleet,
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
        let is_needless = self == Self::Fleet || needless.contains(&(self, other));
        self == other || other < self && !is_needless
    }
}

/// Sees to it that everything needed for `purpose` is there.
///
/// # Errors
///
/// If something is missing and cannot be had; the error names all of it and what to type.
pub fn setup(purpose: Purpose) -> Result<Toolchain> {
    let mut toolchain = Toolchain::find();
    let compiler = if toolchain.is_none() { Some(toolchain::debian_packages_missing()) } else { None };
    get_programs(purpose, compiler)?;
    if toolchain.is_none() {
        toolchain::build_linker()?;
        toolchain = Toolchain::find();
    }
    match toolchain {
        Some(toolchain) => Ok(toolchain),
        None => bail!("the eBPF toolchain was set up but cannot be used:\n{}", toolchain::findings()),
    }
}

/// [`setup`] for [`Purpose::Fleet`], which needs no toolchain for the eBPF object.
///
/// # Errors
///
/// As there.
pub fn setup_fleet() -> Result<()> {
    get_programs(Purpose::Fleet, None)
}

/// Installs the programs for `purpose`, and with them the packages of a compiler that is missing.
fn get_programs(purpose: Purpose, compiler: Option<Vec<&'static str>>) -> Result<()> {
    let lacks_compiler = compiler.is_some();
    let mut wanted = packages::missing(purpose);
    wanted.extend(compiler.unwrap_or_default());
    if !wanted.is_empty() {
        if !geteuid().is_root() || !apt::present() {
            bail!(packages::how_to_get(&wanted, lacks_compiler));
        }
        apt::install(&wanted)?;
    }
    if purpose.includes(Purpose::Fleet) { envoy::fetch() } else { Ok(()) }
}

/// Announces a step, does it, and says how long it took.
fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("set-up: {what}");
    let started = Instant::now();
    let done = work()?;
    eprintln!("set-up: done in {:.0} s", started.elapsed().as_secs_f32());
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::Purpose::{Bench, Build, Fleet, Kernels, Package, Run, Test};

    #[test]
    fn a_purpose_includes_those_before_it_and_a_fleet_none() {
        for (purpose, others) in [
            (Build, &[Build][..]),
            (Package, &[Build, Package]),
            (Run, &[Build, Run]),
            (Fleet, &[Fleet]),
            (Test, &[Build, Package, Run, Fleet, Test]),
            (Bench, &[Build, Package, Run, Fleet, Test, Bench]),
            (Kernels, &[Build, Package, Run, Fleet, Test, Kernels]),
        ] {
            let all = [Build, Package, Run, Fleet, Test, Bench, Kernels];
            let included: Vec<_> = all.into_iter().filter(|other| purpose.includes(*other)).collect();
            assert_eq!(included, others, "{purpose:?}");
        }
    }
}
