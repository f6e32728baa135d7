//! The command line: one file per command, each with its arguments, its work and its printing.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gate_common::units::Nanos;

use crate::config::units;

mod check;
mod detach;
mod hotkeys;
mod load;
mod maps;
mod peer;
mod pins;
mod print;
mod queues;
mod run;
mod set;
mod signals;
mod sim;
mod status;
mod store;
mod tenants;

/// A front gate for multi-tenant data services.
#[derive(Debug, Parser)]
#[command(name = "gate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Status(status::Args),
    Tenants(tenants::Args),
    Hotkeys(hotkeys::Args),
    Queues(queues::Args),
    Set(set::Args),
    Maps(maps::Args),
    Detach(detach::Args),
    Peer(peer::Args),
    Load(load::Args),
    Sim(sim::Args),
    Store(store::Args),
}

/// Parses the arguments, runs the command, prints a failure to standard error.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Run(_) | Command::Load(_) | Command::Store(_)) {
        signals::die_of_closed_pipes();
    }
    let outcome = match command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Status(args) => status::run(args),
        Command::Tenants(args) => tenants::run(args),
        Command::Hotkeys(args) => hotkeys::run(args),
        Command::Queues(args) => queues::run(args),
        Command::Set(args) => set::run(args),
        Command::Maps(args) => maps::run(args),
        Command::Detach(args) => detach::run(args),
        Command::Peer(args) => peer::run(args),
        Command::Load(args) => load::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Store(args) => store::run(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A time with its unit, up to a day.
fn duration(text: &str) -> Result<Nanos, String> {
    units::duration(text, Nanos::ZERO, Nanos::from_secs(86_400))
}

/// A size with its unit, up to 1 TiB.
fn bytes(text: &str) -> Result<u64, String> {
    units::size(text, 0, 1 << 40)
}

/// Logs to standard error, at the level that `GATE_LOG` says, `info` without it.
fn log_to_stderr() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("GATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
