//! `cargo xtask`: set-up, the eBPF build, the lab, the package, tests and benchmarks.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::setup::{self, Purpose};
use xtask::{bench, ebpf, package, run, test};

/// gate's automation.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Get what is missing; says how where it may not.
    Setup {
        /// The purpose.
        #[arg(value_enum, default_value = "test")]
        purpose: Purpose,
    },
    /// Build the eBPF object that gate's binary embeds.
    BuildEbpf,
    /// Open the lab: a gate between three tenants and a store, on a network of its own.
    ///
    /// Without root: its proxied half, on loopback. With --fleet: three gates that share their limits, with the owners of these.
    /// With arguments for `gate run` after `--`, attach to a real interface instead.
    Run(run::Args),
    /// Measure gate and its peers in one run, side by side.
    Bench(bench::Args),
    /// Build gate as a Debian package.
    Package(package::Args),
    /// Run everything that must pass, real servers included.
    Test(test::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().task {
        Task::Setup { purpose } => set_up(purpose),
        Task::BuildEbpf => build_ebpf(),
        Task::Run(args) => run::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Package(args) => package::run(&args),
        Task::Test(args) => test::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn set_up(purpose: Purpose) -> Result<()> {
    if purpose == Purpose::Fleet {
        setup::setup_fleet()?;
        println!("everything is there");
        return Ok(());
    }
    let toolchain = setup::setup(purpose)?;
    println!("everything is there; the eBPF object is built with {toolchain}");
    Ok(())
}

fn build_ebpf() -> Result<()> {
    println!("{}", ebpf::build(&setup::setup(Purpose::Build)?)?.display());
    Ok(())
}
