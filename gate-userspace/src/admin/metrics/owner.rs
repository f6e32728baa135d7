//! The metrics of an owner of limits, which is a process of its own.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::daemon;
use super::families::Family;
use crate::fleet::owner::{Owner, UsedLimit};

/// The owner that is read at each scrape.
#[derive(Debug)]
pub(super) struct Scraped {
    pub(super) owner: Arc<Owner>,
    /// So many limits are named, those that are asked for most.
    pub(super) named: usize,
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.owner.totals();
        daemon::write_process(&mut encoder)?;
        for (family, value) in [
            (DECIDING, u64::from(totals.decides)),
            (GATES, totals.gates as u64),
            (ACCOUNTS, totals.accounts as u64),
            (ACCOUNTS_LIMIT, totals.most_accounts as u64),
            (SESSION_BYTES, totals.session_bytes as u64),
            (LIMITS_KEPT, u64::from(totals.keeps_limits)),
        ] {
            family.write(&mut encoder, value)?;
        }
        let mut series = EVENTS.begin(&mut encoder)?;
        for (event, count) in totals.events {
            series.add(&[("event", event.name())], count)?;
        }
        write_most_used(&mut encoder, &self.owner.most_used(self.named))
    }
}

/// The number of a limit in one family.
type Amount = fn(&UsedLimit) -> f64;

/// The families of limits by name, none if no limit is named.
fn write_most_used(encoder: &mut DescriptorEncoder<'_>, limits: &[UsedLimit]) -> fmt::Result {
    if limits.is_empty() {
        return Ok(());
    }
    let families: [(Family, Amount); 5] = [
        (DEMAND, |limit| limit.demand),
        (LEFT, |limit| limit.left),
        (HELD_BACK, |limit| f64::from(u8::from(limit.is_held_back))),
        (CHARGED, |limit| limit.charged),
        (REFUSED, |limit| limit.refused),
    ];
    for (family, value) in families {
        let mut series = family.begin(encoder)?;
        limits.iter().try_for_each(|limit| series.add(&[("limit", &limit.name)], value(limit)))?;
    }
    Ok(())
}

const DEMAND: Family = Family::gauge(
    "gate_quota_limit_demand_request_units_per_second",
    "The demand for a limit at all gates, refusals included; of those that are asked for most.",
);
const LEFT: Family = Family::gauge(
    "gate_quota_limit_left_request_units",
    "What is left in a limit's bucket, below zero in debt.",
);
const HELD_BACK: Family =
    Family::gauge("gate_quota_limit_held_back", "1 while gates are held back to their shares of a limit.");
const CHARGED: Family = Family::counter(
    "gate_quota_limit_charged_request_units_total",
    "Charged to a limit since it was first used.",
);
const REFUSED: Family = Family::counter(
    "gate_quota_limit_refused_request_units_total",
    "Refused for the sake of a limit since it was first used.",
);
const DECIDING: Family = Family::gauge(
    "gate_quota_deciding",
    "1 while this owner decides reports, 0 while it does not know of its lease in etcd, or another has its address.",
);
const GATES: Family = Family::gauge("gate_quota_gates", "Gates that report at present.");
const ACCOUNTS: Family = Family::gauge("gate_quota_accounts", "Names that have an account.");
const ACCOUNTS_LIMIT: Family =
    Family::gauge("gate_quota_accounts_limit", "The most names that may have one.");
const SESSION_BYTES: Family = Family::gauge(
    "gate_quota_session_bytes",
    "The memory that the names of gates' sessions take beside accounts, as it is counted.",
);
const LIMITS_KEPT: Family = Family::gauge(
    "gate_quota_limits_kept",
    "1 while the last good limits are in force because those that were found since are missing or faulty.",
);
const EVENTS: Family = Family::counter("gate_quota_events_total", "What happened at this owner, by event.");
