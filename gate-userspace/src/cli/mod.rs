//! The command line: one file per command, each with its arguments, its work and its printing.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod check;
mod peer;
mod sim;

/// A front gate for multi-tenant data services.
#[derive(Debug, Parser)]
#[command(name = "gate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::Args),
    Peer(peer::Args),
    Sim(sim::Args),
}

/// Parses the arguments, runs the command, prints a failure to standard error.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Check(args) => check::run(args),
        Command::Peer(args) => peer::run(args),
        Command::Sim(args) => sim::run(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gate: {error:#}");
            ExitCode::FAILURE
        }
    }
}
