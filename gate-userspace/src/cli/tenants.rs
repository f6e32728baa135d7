//! `gate tenants`: what each tenant may spend, what it spent, what it was refused.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::ExitCode;

use gate_common::abi::{Name, Reason, Tenant as Element, bank_of};
use gate_common::token_bucket::debt_ns;
use serde::Serialize;

use super::pins::Pins;
use super::print;
use crate::clock;
use crate::kernel::Maps;
use crate::policy::Tier;

/// Show what each tenant may spend, what it spent, and what it was refused, by reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "Reads the pinned maps: works without the daemon too.")]
pub(super) struct Args {
    /// Show only this tenant.
    tenant: Option<String>,
    #[command(flatten)]
    pins: Pins,
}

/// What `--json` prints of each.
#[derive(Debug, Serialize)]
struct Tenant {
    id: u32,
    name: String,
    tier: &'static str,
    /// Request units per second; nothing if unlimited.
    quota_ru_per_sec: Option<f64>,
    burst_ms: f64,
    /// How much of the burst is left now, from 0 to 1.
    burst_left: f64,
    /// How long before the bucket admits anything, if it is in debt.
    debt_ms: f64,
    price_multiplier: f64,
    rejection_rate: f64,
    passed: u64,
    passed_bytes: u64,
    charged_ru: f64,
    refused_ru: f64,
    /// Requests refused, by reason.
    refused: BTreeMap<&'static str, u64>,
    /// Requests that shadowed rules would have refused, by reason.
    shadowed: BTreeMap<&'static str, u64>,
    /// Refusals that were answered.
    replied: u64,
    /// Requests that the candidate quota would have refused.
    candidate_refused: u64,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let maps = args.pins.maps()?;
    let mut tenants: Vec<Tenant> = (1..=maps.view().last_tenant)
        .filter(|&id| exists(&maps, id))
        .map(|id| Tenant::read(&maps, id))
        .collect();
    if let Some(wanted) = &args.tenant {
        tenants.retain(|tenant| tenant.name == *wanted);
        anyhow::ensure!(!tenants.is_empty(), "there is no tenant {wanted:?}; `gate tenants` lists all");
    }
    if args.pins.json {
        print::json(&tenants)?;
    } else {
        print_table(&tenants);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a configuration uses this id.
pub(super) fn exists(maps: &Maps, id: u32) -> bool {
    let name: Name = maps.tenants.load_at(id as usize, offset_of!(Element, name));
    !name.as_str().is_empty()
}

impl Tenant {
    fn read(maps: &Maps, id: u32) -> Self {
        let element = maps.tenants.load(id as usize);
        let state = &element.banks[bank_of(maps.generation())];
        let counters = maps.tenant_counters(id as usize);
        let now = maps.clock().at_monotonic(clock::monotonic());
        let owed = element.quota_tat.saturating_sub(now.0);
        let burst = state.quota.burst_ns;
        let by_reason = |counts: &[u64; Reason::COUNT]| {
            let named = Reason::ALL.iter().map(|reason| (reason.name(), counts[reason.index()]));
            named.filter(|(_, count)| *count > 0).collect()
        };
        Self {
            id,
            name: element.name.as_str().to_owned(),
            tier: Tier::ALL.get(usize::from(state.tier)).map_or("?", |tier| tier.name()),
            quota_ru_per_sec: state.quota.rate.units_per_sec().map(|milli| milli as f64 / 1e3),
            burst_ms: burst as f64 / 1e6,
            burst_left: if burst == 0 { 0.0 } else { 1.0 - owed.min(burst) as f64 / burst as f64 },
            debt_ms: debt_ns(element.quota_tat, now.0, burst) as f64 / 1e6,
            price_multiplier: f64::from(state.multiplier) / 65_536.0,
            rejection_rate: f64::from(state.rejection_rate) / 65_536.0,
            passed: counters.passed,
            passed_bytes: counters.passed_bytes,
            charged_ru: counters.charged_mru as f64 / 1e3,
            refused_ru: counters.refused_mru as f64 / 1e3,
            refused: by_reason(&counters.refused),
            shadowed: by_reason(&counters.shadowed),
            replied: counters.replied,
            candidate_refused: counters.candidate_refused,
        }
    }
}

fn print_table(tenants: &[Tenant]) {
    let mut table = print::table(&[
        "tenant",
        "tier",
        "quota RU/s",
        "burst left",
        "passed",
        "charged RU",
        "refused",
        "by reason",
    ]);
    print::right(&mut table, &[2, 3, 4, 5, 6]);
    for tenant in tenants {
        let reasons = |counts: &BTreeMap<&str, u64>, what: &str| -> Vec<String> {
            counts.iter().map(|(reason, count)| format!("{what}{reason} {}", print::count(*count))).collect()
        };
        let mut by_reason = reasons(&tenant.refused, "");
        by_reason.extend(reasons(&tenant.shadowed, "shadowed "));
        table.add_row([
            tenant.name.clone(),
            tenant.tier.to_owned(),
            tenant.quota_ru_per_sec.map_or_else(|| "unlimited".to_owned(), print::amount),
            format!("{:.0}%", tenant.burst_left * 100.0),
            print::count(tenant.passed),
            print::amount(tenant.charged_ru),
            print::count(tenant.refused.values().sum()),
            by_reason.join(", "),
        ]);
    }
    println!("{table}");
}
