//! `cargo xtask bench`: gate and its peers, measured in one run, side by side.

use std::path::PathBuf;

use anyhow::Result;

mod load;
mod proxy;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum)]
    what: What,
    /// Also write what was measured to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only loads with this in their name, such as "memcached GET" or "x16".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// How long each load runs against each target, in milliseconds.
    #[arg(long, default_value_t = 1_000, value_name = "MS")]
    each: u64,
    /// How often; the medians are shown.
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Redis and memcached: directly, through gate, nutcracker and haproxy.
    Proxy,
}

/// Measures, and prints a table.
///
/// # Errors
///
/// If a part cannot be had or fails.
pub fn run(args: &Args) -> Result<()> {
    match args.what {
        What::Proxy => proxy::run(args),
    }
}
