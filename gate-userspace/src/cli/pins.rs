//! What the commands that read the pinned maps share.

use std::path::PathBuf;

use crate::kernel::{Maps, Result};

/// Where to find the maps.
#[derive(Debug, clap::Args)]
pub(super) struct Pins {
    /// Where the gate has pinned its maps.
    #[arg(long, value_name = "DIR", default_value = DEFAULT)]
    pub(super) pin_dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Pins {
    /// Opens the maps to be read.
    pub(super) fn maps(&self) -> Result<Maps> {
        Maps::pinned(&self.pin_dir, false)
    }
}

const DEFAULT: &str = "/sys/fs/bpf/gate";
