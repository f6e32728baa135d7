//! `gate members`: the members of tenants that have least left of their quotas.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::client;
use crate::admin::document::Versioned;
use crate::admin::members::{MemberList, TenantMembers};

/// Show the members of tenants such as `api/*` whose buckets have least left: near 0 % they are refused for quota.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gate members
  gate members 'api/*' -n 5
  gate members --json | jq '.members[] | select(.burst_left < 0.1).member'

Members with full buckets are not shown. A running gate answers. `gate explain --tenant api/alice` says what the next request of one gets.")]
pub(super) struct Args {
    /// Show those of this tenant alone.
    #[arg(value_name = "TENANT")]
    tenant: Option<String>,
    /// How many to show.
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=256))]
    top: u16,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let MemberList { tenants, mut members } = client::members(&args.source.socket(), args.tenant.as_deref())?;
    members.truncate(args.top.into());
    if args.source.pins.json {
        print::json(&Versioned::new(MemberList { tenants, members }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if tenants.is_empty() {
        println!("no tenant has members: those are tenants with a name such as `api/*`");
        return Ok(ExitCode::SUCCESS);
    }
    let mut table =
        Table::new(&[text("member"), text("tenant"), number("burst left"), number("in debt for")]);
    for member in members {
        table.add_row([
            member.member,
            member.tenant,
            format!("{:.0}%", member.burst_left * 100.0),
            if member.debt_ms > 0.0 { print::age(member.debt_ms / 1e3) } else { String::new() },
        ]);
    }
    println!("{table}");
    for TenantMembers { tenant, members, without_room, .. } in tenants {
        println!("{}", summary(&tenant, members, without_room));
    }
    Ok(ExitCode::SUCCESS)
}

fn summary(tenant: &str, members: usize, without_room: u64) -> String {
    let all = format!("{tenant} has {} members with a bucket", print::count(members as u64));
    match without_room {
        0 => all,
        _ => format!("{all}; for others there was no room, and they share one: see member_memory"),
    }
}
