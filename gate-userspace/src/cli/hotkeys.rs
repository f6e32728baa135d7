//! `gate hotkeys`: the keys that are asked for most.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::document::Versioned;
use crate::admin::hotkeys::{self, Hotkeys, Key};

/// Show the keys that are asked for most, each with the bound of its error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gate hotkeys -n 5
  gate hotkeys --json | jq '.keys[] | select(.hot)'

Counts are of sampled requests, each weighed by the sampling interval; they halve every 10 s. A key was asked
for at most `estimate` and at least `estimate - error` times, by what was sampled.
Reads the pinned maps: works without the daemon too. Where there are none (xdp = \"off\"), it asks the running gate.")]
pub(super) struct Args {
    /// How many keys to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=64))]
    top: u16,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Hotkeys { mut keys } = args.source.read(|maps| Hotkeys { keys: hotkeys::read(maps) })?;
    keys.truncate(usize::from(args.top));
    if args.source.pins.json {
        print::json(&Versioned::new(Hotkeys { keys }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        number("rank"),
        text("service"),
        text("key"),
        number("estimate"),
        number("error at most"),
        text(""),
    ]);
    for key in &keys {
        table.add_row([
            key.rank.to_string(),
            key.service.clone(),
            key.key.clone(),
            print::count(key.estimate),
            print::count(key.error),
            match key {
                Key { limited: true, .. } => "hot, limited",
                Key { hot: true, .. } => "hot",
                _ => "",
            }
            .to_owned(),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}
