//! `gate man`: manual pages of gate and all its commands.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

/// Write manual pages of gate and its commands into a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The directory; it is made if it is not there.
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  gate man /usr/local/share/man/man1 && man gate-queues";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    write(&args.dir).with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for gate and one for each command.
pub(super) fn write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(super::Cli::command(), dir)
}
