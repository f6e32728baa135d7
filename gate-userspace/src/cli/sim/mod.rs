//! `gate sim`: the policies in virtual time, one file per simulation.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

use crate::policy::range::OutOfRange;
use crate::sim::parallel::Progress;
use crate::sim::plot::{self, Chart};

mod bouncer;
mod coldstart;
mod concurrency;
mod cost;
mod goodput;
mod hotkeys;
mod overload;
mod quota;

/// Run the policies in virtual time.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    simulation: Simulation,
}

#[derive(Debug, clap::Subcommand)]
enum Simulation {
    Bouncer(bouncer::Args),
    Coldstart(coldstart::Args),
    Concurrency(concurrency::Args),
    Cost(cost::Args),
    Goodput(goodput::Args),
    Hotkeys(hotkeys::Args),
    Overload(overload::Args),
    Quota(quota::Args),
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.simulation {
        Simulation::Bouncer(args) => bouncer::run(args),
        Simulation::Coldstart(args) => coldstart::run(args),
        Simulation::Concurrency(args) => concurrency::run(args),
        Simulation::Cost(args) => cost::run(args),
        Simulation::Goodput(args) => goodput::run(args),
        Simulation::Hotkeys(args) => hotkeys::run(args),
        Simulation::Overload(args) => overload::run(args),
        Simulation::Quota(args) => quota::run(args),
    }
}

/// Says which argument is impossible, as clap does: wrong usage.
fn impossible(argument: &OutOfRange) -> ExitCode {
    eprintln!("error: {argument}");
    ExitCode::from(2)
}

/// Writes `charts` below each other as one SVG picture to `path`.
fn write_plot(path: &Path, title: &str, charts: &[Chart]) -> anyhow::Result<()> {
    let picture = plot::to_svg(title, charts).context("cannot draw the picture")?;
    std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs `simulate`, meanwhile drawing its progress towards `total` units on standard error, if that
/// is a terminal.
fn with_progress<T: Send>(total: u64, simulate: impl FnOnce(&Progress) -> T + Send) -> T {
    // Hidden by itself where standard error is no terminal.
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3}% {eta} left") {
        bar.set_style(style);
    }
    let progress = Progress::default();
    let watcher = thread::current();
    let result = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let result = simulate(&progress);
            watcher.unpark();
            result
        });
        while !worker.is_finished() {
            bar.set_position(progress.done());
            thread::park_timeout(Duration::from_millis(50));
        }
        worker.join()
    });
    bar.finish_and_clear();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
