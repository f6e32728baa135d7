//! `cargo xtask test --kernels`: Debian's own kernels under qemu, and what must hold on each.
//!
//! A kernel boots with an initramfs that holds gate, the test suites and the programs that they need, runs the suites
//! on its serial console, and ends. Nothing is installed, no disk and no network card is given to it, and the machine's
//! own network has no part in it. All that is fetched stays below `target/kernels`.

mod emulator;
mod guest;
mod initramfs;
mod packages;

use std::env::consts::ARCH;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::setup::{self, Purpose};
use crate::test::suites::{self, Executables};
use crate::{ebpf, paths, run, sh};
use emulator::Emulator;
use guest::Outcome;
use initramfs::Suite;

/// A kernel of Debian's, and what is run on it.
#[derive(Debug)]
struct Kernel {
    /// The start of its version.
    series: &'static str,
    /// Below Debian's mirror: where its packages are listed.
    sources: &'static [&'static str],
    suites: &'static [Suite],
}

const FIXTURES: Suite = Suite {
    skipped: &[
        ("every_packet_leaves_so_however_little_of_it_is_linear", NO_LINEAR_PART),
        ("both_readers_of_a_single_get_judge_alike", NO_LINEAR_PART),
    ],
    ..Suite::new("fixtures")
};
const NO_LINEAR_PART: &str =
    "needs a kernel whose test run can be told how much of a packet is linear, such as Linux 6.18";
const KERNELS: [Kernel; 2] = [
    Kernel {
        series: "6.1",
        sources: &["debian-security bookworm-security"],
        suites: &[Suite::new("kernels"), FIXTURES],
    },
    Kernel {
        series: "6.12",
        sources: &["debian-security bookworm-security", "debian bookworm-backports"],
        suites: &[Suite::new("kernels"), FIXTURES],
    },
];
/// One that is too old for gate's XDP program.
const TOO_OLD: Kernel = Kernel {
    series: "5.10",
    sources: &["debian bullseye"],
    suites: &[Suite { arguments: "--ignored old_kernel", ..Suite::new("kernels") }],
};

/// Boots each kernel, all at once, and says in a line for each what became of it; `long`: an old one as well.
///
/// # Errors
///
/// If something is missing, does not build or does not hold on one of them.
pub fn run(long: bool) -> Result<()> {
    let started = Instant::now();
    ensure!(ARCH == "x86_64", "Debian's x86_64 kernels are booted, and this machine is {ARCH}");
    for program in ["apt-get", "apt-cache", "dpkg"] {
        ensure!(
            sh::find(program).is_some(),
            "no {program}: the kernels are Debian's packages, so this needs Debian or a system made from it"
        );
    }
    ebpf::build(&setup::setup(Purpose::Kernels)?)?;
    run::build_gate()?;
    let suites = suites::build(&["fixtures", "kernels"])?;
    let kernels: Vec<&Kernel> = KERNELS.iter().chain(long.then_some(&TOO_OLD)).collect();
    let installed = packages::fetch(&directory(), &kernels)?;
    let emulator = Emulator::find(&directory())?;

    let outcomes: Vec<Result<Outcome>> = std::thread::scope(|scope| {
        let boot = |(kernel, package)| {
            let emulator = &emulator;
            let suites = &suites;
            scope.spawn(move || boot(emulator, kernel, package, suites))
        };
        let guests: Vec<_> = kernels.iter().copied().zip(&installed).map(boot).collect();
        guests
            .into_iter()
            .map(|guest| guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    report(&kernels, &outcomes, started)
}

fn boot(
    emulator: &Emulator,
    kernel: &Kernel,
    package: &packages::Package,
    suites: &Executables,
) -> Result<Outcome> {
    let place = directory().join(kernel.series);
    let initramfs = initramfs::pack(&place, package, kernel.suites, suites)?;
    guest::boot(emulator, (&package.image, &initramfs), &place.join("console.log"), kernel.suites)
}

/// A line for each kernel, and the end of the console of those that failed.
fn report(kernels: &[&Kernel], outcomes: &[Result<Outcome>], started: Instant) -> Result<()> {
    println!();
    let mut passed = 0;
    let mut failed = 0;
    for (kernel, outcome) in kernels.iter().zip(outcomes) {
        match outcome {
            Ok(outcome) => {
                passed += outcome.passed;
                failed += outcome.failed.max(u64::from(!outcome.fine()));
                println!("Linux {}: {outcome}", kernel.series);
                for what in
                    kernel.suites.iter().flat_map(Suite::left_out).chain(outcome.not_run.iter().cloned())
                {
                    println!("Linux {}: not run: {what}", kernel.series);
                }
                if !outcome.fine() {
                    println!("{}\n(the whole console: {})", outcome.end_of_log(), outcome.log.display());
                }
            }
            Err(error) => {
                failed += 1;
                println!("Linux {}: FAILED before it could run anything: {error:#}", kernel.series);
            }
        }
    }
    println!("{passed} passed, {failed} failed, in {:.0} s", started.elapsed().as_secs_f32());
    if failed > 0 {
        bail!("not every kernel runs gate");
    }
    Ok(())
}

/// Where kernels, initramfs and consoles are kept.
fn directory() -> PathBuf {
    paths::target().join("kernels")
}
