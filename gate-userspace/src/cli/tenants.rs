//! `gate tenants`: what each tenant may spend, what it spent, what it was refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;

use super::listing::{Listing, NOTHING_LEFT};
use super::pins::Source;
use super::print;
use super::table::{Cell, Column, Table, number, text};
use crate::admin::document::Versioned;
use crate::admin::listing::{self, Tenants};
use crate::admin::selection::Selection;
use crate::admin::tenants::Tenant;
use crate::clock;
use crate::kernel::Maps;

/// Show what each tenant may spend, what it spent, and what it was refused, by reason.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show only this tenant.
    tenant: Option<String>,
    /// Show at most so many, and how many more there are.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate tenants
  gate tenants --sort refused --watch
  gate tenants --filter batch --sort charged --limit 20
  gate tenants search --json | jq .tenants[].refused

Columns to sort by: tenant, tier, quota-ru/s, burst-left, passed, segments, charged-ru, refused, by-reason, by-hand.
The order by `refused` counts what shadow mode has let pass as well.

Reads the pinned maps: works without the daemon too. Where there are none (xdp = \"off\"), it asks the running gate.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.listing.check(&[&COLUMNS]);
    if args.source.pins.json {
        print::json(&Versioned::new(read(&args)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    args.listing.show(|| {
        let all = table(&read(&args)?.tenants);
        let is_empty = all.is_empty();
        let mut wanted = args.listing.arrange(all);
        if wanted.is_empty() && !is_empty {
            return Ok(NOTHING_LEFT.to_owned());
        }
        let left_out = args.limit.map_or(0, |limit| wanted.truncate(limit));
        Ok(if left_out == 0 { wanted.to_string() } else { format!("{wanted}\n{left_out} more") })
    })
}

fn read(args: &Args) -> anyhow::Result<Tenants> {
    // A table is limited once it is in order.
    let limit = if args.source.pins.json { args.limit } else { None };
    let wanted = Selection { tenant: args.tenant.clone(), limit, ..Selection::default() };
    let from_maps = |maps: &Maps| {
        let overrides = args.source.overrides(maps);
        let mut listed = listing::read(maps, &wanted, &overrides, None, clock::monotonic());
        args.source.name_limits(maps, &mut listed.tenants);
        listed
    };
    let listed = args.source.read_or(from_maps, || args.source.tenants(&wanted))?;
    if let Some(tenant) = &wanted.tenant {
        anyhow::ensure!(listed.matching > 0, "there is no tenant {tenant:?}; `gate tenants` lists all");
    }
    Ok(listed)
}

/// The last one is only shown if something was set by hand.
const COLUMNS: [Column; 10] = [
    text("tenant"),
    text("tier"),
    number("quota RU/s"),
    number("burst left"),
    number("passed"),
    number("segments"),
    number("charged RU"),
    number("refused"),
    text("by reason"),
    text("by hand"),
];

fn table(tenants: &[Tenant]) -> Table {
    let is_set = tenants.iter().any(|tenant| !by_hand(tenant).is_empty());
    let shown = COLUMNS.len() - usize::from(!is_set);
    let mut table = Table::new(&COLUMNS[..shown]);
    for tenant in tenants {
        let reasons = |counts: &BTreeMap<Cow<'static, str>, u64>, what: &str| -> Vec<String> {
            counts.iter().map(|(reason, count)| format!("{what}{reason} {}", print::count(*count))).collect()
        };
        let mut by_reason = reasons(&tenant.refused, "");
        by_reason.iter_mut().filter(|said| said.starts_with("quota ")).for_each(|said| {
            said.push_str(&by_bucket(tenant));
        });
        by_reason.extend(reasons(&tenant.shadowed, "shadowed "));
        let quota = tenant.quota_ru_per_sec;
        let row = [
            Cell::text(&tenant.name),
            Cell::text(tenant.tier.clone()),
            Cell {
                text: quota.map_or_else(|| "unlimited".to_owned(), print::amount),
                number: Some(quota.unwrap_or(f64::INFINITY)),
            },
            Cell::number(Some(tenant.burst_left), |left| format!("{:.0}%", left * 100.0)),
            Cell::count(tenant.passed),
            Cell::count(tenant.segments),
            Cell::number(Some(tenant.charged_ru), print::amount),
            refused(tenant),
            Cell::text(by_reason.join(", ")),
            Cell::text(by_hand(tenant)),
        ];
        table.add_row(row.into_iter().take(shown));
    }
    table
}

/// Requests refused. In order come first those of which most were, or would have been without shadow mode.
fn refused(tenant: &Tenant) -> Cell {
    let refused = tenant.refused.values().sum::<u64>();
    let shadowed = tenant.shadowed.values().sum::<u64>();
    Cell { number: Some(refused.saturating_add(shadowed) as f64), ..Cell::count(refused) }
}

/// The buckets that refused for `quota`, unless only the tenant's own did.
fn by_bucket(tenant: &Tenant) -> String {
    if tenant.quota_refused.iter().all(|refused| refused.kind == "quota") {
        return String::new();
    }
    let each = tenant.quota_refused.iter().map(|refused| {
        let limit = if refused.kind == "limit" { "limit " } else { "" };
        let name = if refused.name.is_empty() { "no longer there" } else { &refused.name };
        format!("{limit}{name} {}", print::count(refused.count))
    });
    format!(" ({})", each.collect::<Vec<_>>().join(", "))
}

/// The operator's changes to a tenant: refused, a multiplier, and the keys set since the start.
pub(super) fn by_hand(tenant: &Tenant) -> String {
    let mut said = Vec::new();
    said.extend(tenant.refuse.then(|| "refused".to_owned()));
    // In thousandths, as it is configured; the maps round up.
    let multiplier = (tenant.price_multiplier * 1e3).floor() / 1e3;
    said.extend((multiplier != 1.0).then(|| format!("prices x{multiplier}")));
    if !tenant.overrides.is_empty() {
        said.push(format!("set: {}", print::settings(&tenant.overrides)));
    }
    said.join(", ")
}
