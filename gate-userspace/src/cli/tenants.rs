//! `gate tenants`: what each tenant may spend, what it spent, what it was refused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;

use super::pins::Source;
use super::print;
use crate::admin::document::Versioned;
use crate::admin::tenants::{self, Tenant, Tenants};
use crate::kernel::Maps;

/// Show what each tenant may spend, what it spent, and what it was refused, by reason.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show only this tenant.
    tenant: Option<String>,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate tenants
  gate tenants search --json | jq .tenants[].refused

Reads the pinned maps: works without the daemon too. Where there are none (xdp = \"off\"), it asks the running gate.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let from_maps = |maps: &Maps| Tenants { tenants: tenants::read(maps, &args.source.overrides(maps)) };
    let Tenants { mut tenants } = args.source.read(from_maps)?;
    if let Some(wanted) = &args.tenant {
        tenants.retain(|tenant| tenant.name == *wanted);
        anyhow::ensure!(!tenants.is_empty(), "there is no tenant {wanted:?}; `gate tenants` lists all");
    }
    if args.source.pins.json {
        print::json(&Versioned::new(Tenants { tenants }))?;
    } else {
        print_table(&tenants);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_table(tenants: &[Tenant]) {
    let mut columns =
        vec!["tenant", "tier", "quota RU/s", "burst left", "passed", "charged RU", "refused", "by reason"];
    let set_at_all = tenants.iter().any(|tenant| !by_hand(tenant).is_empty());
    columns.extend(set_at_all.then_some("by hand"));
    let mut table = print::table(&columns);
    print::right(&mut table, &[2, 3, 4, 5, 6]);
    for tenant in tenants {
        let reasons = |counts: &BTreeMap<Cow<'static, str>, u64>, what: &str| -> Vec<String> {
            counts.iter().map(|(reason, count)| format!("{what}{reason} {}", print::count(*count))).collect()
        };
        let mut by_reason = reasons(&tenant.refused, "");
        by_reason.extend(reasons(&tenant.shadowed, "shadowed "));
        let mut row = vec![
            tenant.name.clone(),
            tenant.tier.to_string(),
            tenant.quota_ru_per_sec.map_or_else(|| "unlimited".to_owned(), print::amount),
            format!("{:.0}%", tenant.burst_left * 100.0),
            print::count(tenant.passed),
            print::amount(tenant.charged_ru),
            print::count(tenant.refused.values().sum()),
            by_reason.join(", "),
        ];
        row.extend(set_at_all.then(|| by_hand(tenant)));
        table.add_row(row);
    }
    println!("{table}");
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
