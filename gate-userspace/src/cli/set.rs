//! `gate set`: change a running gate.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use crate::admin::change::{Changed, Done, Order, Override};
use crate::admin::document::Versioned;

/// Change a running gate: a quota, a tier, a price, the mode. Lasts until it ends, unless it is saved.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The key to change.
    #[arg(required_unless_present_any = ["unset", "list"], requires = "value")]
    key: Option<String>,
    /// Its new value, as the configuration would say it.
    value: Option<String>,
    /// Give this key back the configuration's value. May be said several times.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["key", "list", "save"])]
    unset: Vec<String>,
    /// List what has been changed since the gate started.
    #[arg(long, conflicts_with_all = ["key", "save"])]
    list: bool,
    /// Also write it into the configuration, so that it lasts.
    #[arg(long)]
    save: bool,
    /// Only say whether it could be done, and what would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate set tenant.search.quota \"8000 RU/s\"       until the gate ends
  gate set tenant.search.quota \"8000 RU/s\" --save  and from then on
  gate set tenant.batch.tier best-effort
  gate set tenant.batch.multiplier 4             four times as dear
  gate set tenant.batch.refuse on                all of them are refused
  gate set service.cache.price.row \"0.2 RU\"
  gate set gate.mode shadow --dry-run            whether that is right
  gate set --list
  gate set --unset tenant.search.quota           as the configuration has it

Values are checked as those of the configuration are; one that does not fit changes nothing. What is set survives
a SIGHUP.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { key, value, unset, save, dry_run, source, .. } = args;
    let set = key.zip(value).map(|(key, value)| Override { key, value }).into_iter().collect();
    let done: Done = source.change(&Order { set, unset, save, dry_run })?;
    if source.pins.json {
        print::json(&Versioned::new(done))?;
        return Ok(ExitCode::SUCCESS);
    }
    for Changed { key, from, to } in &done.changed {
        println!("{key}: {} => {}{}", shown(from), shown(to), if dry_run { ", if it were done" } else { "" });
    }
    if done.changed.is_empty() {
        list(&done.overrides);
    }
    if let Some(file) = &done.saved {
        println!("saved in {file}");
    }
    if done.edited {
        println!(
            "the file had been edited since it was read: all that it says {}",
            if dry_run { "would be in force" } else { "is in force now" }
        );
    }
    for later in &done.later {
        println!("{later}");
    }
    Ok(ExitCode::SUCCESS)
}

fn list(overrides: &[Override]) {
    if overrides.is_empty() {
        println!("nothing is set: all is as the configuration has it");
    }
    overrides.iter().for_each(|Override { key, value }| println!("{key} = {value:?}"));
}

fn shown(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| "the default".to_owned(), |value| format!("{value:?}"))
}
