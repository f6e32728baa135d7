//! `gate sources`: the addresses that are refused or unknown most.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::document::Versioned;
use crate::admin::verdicts::SourceList;

/// Show the addresses that are refused most, or that no rule names, each with the bound of its error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gate sources
  gate sources --unknown -n 5
  gate sources --json | jq '.refused[] | select(.reason == \"quota\")'

Counts are of sampled requests, each weighed by the sampling interval (`sample`); they halve every 60 s. A source was refused at
most `estimate` and at least `estimate - error` times, by what was sampled. A running gate answers. What is refused at the interface
is among them: there sources may be forged.")]
pub(super) struct Args {
    /// Show sources that no rule names.
    #[arg(long)]
    unknown: bool,
    /// How many to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=256))]
    top: u16,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut list: SourceList = args.source.ask()?;
    list.refused.truncate(args.top.into());
    list.unknown.truncate(args.top.into());
    if args.source.pins.json {
        print::json(&Versioned::new(list))?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if args.unknown { list.unknown } else { list.refused };
    let mut table = Table::new(&[
        text("source"),
        text("service"),
        text("tenant"),
        text("reason"),
        number("estimate"),
        number("error at most"),
    ]);
    for refused in shown {
        table.add_row([
            refused.source,
            refused.service,
            refused.tenant.unwrap_or_default(),
            refused.reason,
            print::count(refused.estimate),
            print::count(refused.error),
        ]);
    }
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}
