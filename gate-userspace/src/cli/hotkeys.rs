//! `gate hotkeys`: the keys that are asked for most.

use std::process::ExitCode;

use serde::Serialize;

use super::pins::Pins;
use super::print;
use crate::control::hot_keys::published;
use crate::kernel::Maps;

/// Show the keys that are asked for most, each with the bound of its error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Counts are of sampled requests, each weighed by the sampling interval; they halve every 10 s. A key was asked
for at most `estimate` and at least `estimate - error` times, by what was sampled.
Reads the pinned maps: works without the daemon too.")]
pub(super) struct Args {
    /// How many keys to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=64))]
    top: u16,
    #[command(flatten)]
    pins: Pins,
}

/// What `--json` prints of each.
#[derive(Debug, Serialize)]
struct Key {
    rank: usize,
    service: String,
    /// Bytes that are not printable ASCII as `\xNN`.
    key: String,
    estimate: u64,
    error: u64,
    hot: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let maps = args.pins.maps()?;
    let mut keys = read(&maps);
    keys.truncate(usize::from(args.top));
    if args.pins.json {
        print::json(&keys)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = print::table(&["rank", "service", "key", "estimate", "error at most", ""]);
    print::right(&mut table, &[0, 3, 4]);
    for key in &keys {
        table.add_row([
            key.rank.to_string(),
            key.service.clone(),
            key.key.clone(),
            print::count(key.estimate),
            print::count(key.error),
            if key.hot { "hot" } else { "" }.to_owned(),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn read(maps: &Maps) -> Vec<Key> {
    let view = maps.view();
    let services: Vec<_> = (view.first_service..view.first_service + view.services)
        .map(|slot| maps.services.load(slot as usize))
        .collect();
    let name = |id: u32| {
        let service = services.iter().find(|service| service.id == id);
        service.map_or_else(|| format!("service {id}"), |service| service.name.as_str().to_owned())
    };
    let keys = published(maps).into_iter().enumerate().map(|(place, key)| Key {
        rank: place + 1,
        service: name(key.service),
        key: key.key[..usize::from(key.key_len).min(key.key.len())].escape_ascii().to_string(),
        estimate: key.estimate,
        error: key.error,
        hot: key.hot != 0,
    });
    keys.collect()
}
