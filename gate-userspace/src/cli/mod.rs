//! The command line: one file per command, each with its arguments, its work and its printing.
//!
//! Exit codes: 0 fine, 1 failed, 2 wrong usage.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};
use gate_common::units::Nanos;

use crate::config::units;

mod cache;
mod check;
mod completions;
mod detach;
mod explain;
mod help;
mod hotkeys;
mod listing;
mod load;
mod man;
mod maps;
mod members;
mod peer;
mod pins;
mod print;
mod queues;
mod quota;
mod redraw;
mod run;
mod schema;
mod set;
mod signals;
mod sim;
mod sources;
mod status;
mod store;
mod table;
mod tenants;
mod top;
mod watch;
mod web;

/// A front gate for multi-tenant data services.
#[derive(Debug, Parser)]
#[command(name = "gate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Completions(completions::Args),
    Status(status::Args),
    Tenants(tenants::Args),
    Hotkeys(hotkeys::Args),
    Queues(queues::Args),
    Quota(quota::Args),
    Explain(explain::Args),
    Members(members::Args),
    Sources(sources::Args),
    Watch(watch::Args),
    Cache(cache::Args),
    Set(set::Args),
    Schema(schema::Args),
    Maps(maps::Args),
    Detach(detach::Args),
    Peer(peer::Args),
    Load(load::Args),
    Man(man::Args),
    Sim(sim::Args),
    Store(store::Args),
    Top(top::Args),
    Web(web::Args),
}

/// Parses the arguments, runs the command, prints a failure to standard error.
pub fn main() -> ExitCode {
    let Cli { command } =
        Cli::from_arg_matches(&help::command().get_matches()).unwrap_or_else(|error| error.exit());
    // `quota` serves or asks over sockets, and does so itself once it has something to print.
    if !matches!(command, Command::Run(_) | Command::Load(_) | Command::Store(_) | Command::Quota(_)) {
        signals::die_of_closed_pipes();
    }
    let outcome = match command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Status(args) => status::run(args),
        Command::Tenants(args) => tenants::run(args),
        Command::Hotkeys(args) => hotkeys::run(args),
        Command::Queues(args) => queues::run(args),
        Command::Quota(args) => quota::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Members(args) => members::run(args),
        Command::Sources(args) => sources::run(args),
        Command::Watch(args) => watch::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Set(args) => set::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Maps(args) => maps::run(args),
        Command::Detach(args) => detach::run(args),
        Command::Peer(args) => peer::run(args),
        Command::Load(args) => load::run(args),
        Command::Man(args) => man::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Store(args) => store::run(args),
        Command::Top(args) => top::run(args),
        Command::Web(args) => web::run(args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // Where there is no room for it, there is nobody to tell.
            let _ = writeln!(io::stderr(), "gate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A time with its unit, up to a day.
fn duration(text: &str) -> Result<Nanos, String> {
    units::duration(text, Nanos::ZERO, Nanos::from_secs(86_400))
}

/// A size with its unit, up to 1 TiB.
fn bytes(text: &str) -> Result<u64, String> {
    units::size(text, 0, 1 << 40)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_that_help_against_refusals_are_there() {
        use crate::admin::reasons::{Command, Reasons};
        for reason in Reasons::all().reasons {
            let command = match reason.command {
                Command::Set(key) => format!("gate set tenant.shop.{key} 5"),
                Command::Look(command) => command.into_owned(),
            };
            for command in [command.clone(), format!("{command} --socket /run/gate/other.sock")] {
                let parsed = Cli::command().try_get_matches_from(command.split(' '));
                assert!(parsed.is_ok(), "{}: {command}", reason.reason);
            }
        }
    }

    #[test]
    fn every_command_has_a_page_and_a_completion() -> anyhow::Result<()> {
        let mut cli = Cli::command();
        let mut completions = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut cli, "gate", &mut completions);
        let completions = String::from_utf8(completions)?;
        let dir = std::env::temp_dir().join(format!("gate-man-{}", std::process::id()));
        man::write(&dir)?;
        for command in cli.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help") {
            assert!(dir.join(format!("gate-{command}.1")).exists(), "{command}");
            assert!(completions.contains(&format!("gate,{command})")), "{command}");
        }
        std::fs::remove_dir_all(&dir)?;
        Ok(())
    }
}
