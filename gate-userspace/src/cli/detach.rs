//! `gate detach`: remove the program and every pin.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::pins::Pins;
use super::print;
use crate::admin;
use crate::kernel::{Interception, PinDir, PinnedHead, owner};

/// Take the program off its interfaces and remove every pin: nothing is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A running gate detaches by itself on Ctrl-C, and on SIGTERM when its clients have left (`drain`). This is for what one that was killed left behind;
with --force it also pulls the pins from under one that runs, which then ends by itself.")]
pub(super) struct Args {
    /// Detach even though a daemon runs.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pins: Pins,
}

#[derive(Debug, Serialize)]
struct Report {
    pin_dir: PathBuf,
    detached: bool,
    maps_removed: usize,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pin_dir = args.pins.pin_dir.clone();
    // Pins of any ABI version name their owner; what else lies there can be removed all the same.
    if let Ok(maps) = PinnedHead::open(&pin_dir, true) {
        if let Some(pid) = owner::alive(&maps) {
            anyhow::ensure!(
                args.force,
                "gate runs as process {pid}: end it with `kill {pid}`, or detach all the same with --force"
            );
        }
        owner::disown(&maps);
    }
    if let Some(pid) = Interception::owner(&pin_dir) {
        anyhow::ensure!(
            args.force,
            "gate intercepts as process {pid}: end it with `kill {pid}`, or detach all the same with --force"
        );
    }
    Interception::disown(&pin_dir);
    let removed = PinDir::remove(&pin_dir)?;
    admin::remove_dead(&admin::default_path(&pin_dir));
    if args.pins.json {
        print::json(&Report { pin_dir, detached: removed.link, maps_removed: removed.maps })?;
    } else if removed.link || removed.maps > 0 {
        println!("detached; {} maps removed from {}", removed.maps, pin_dir.display());
    } else {
        println!("nothing was attached from {}", pin_dir.display());
    }
    Ok(ExitCode::SUCCESS)
}
