//! `gate completions`: completions of gate's command line, for a shell.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

/// Print completions of gate's commands and options for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The shell.
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  gate completions bash > /usr/share/bash-completion/completions/gate
  source <(gate completions zsh)";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    clap_complete::generate(args.shell, &mut super::Cli::command(), "gate", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
