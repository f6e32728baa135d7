//! `gate sim`: the policies in virtual time.

use std::process::ExitCode;

/// Run the policies in virtual time.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
