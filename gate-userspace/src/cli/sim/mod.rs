//! `gate sim`: the policies in virtual time, one file per simulation.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::sim::plot::{self, Chart};

/// Run the policies in virtual time.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    simulation: Simulation,
}

#[derive(Debug, clap::Subcommand)]
enum Simulation {}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.simulation {}
}

/// Writes `charts` below each other as one SVG picture to `path`.
#[expect(dead_code, reason = "the simulations that draw with it land next")]
fn write_plot(path: &Path, title: &str, charts: &[Chart]) -> anyhow::Result<()> {
    let picture = plot::to_svg(title, charts).context("cannot draw the picture")?;
    std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))
}
