//! The metrics of an owner of limits, which is a process of its own.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::daemon;
use super::families::Family;
use crate::fleet::owner::Owner;

/// The owner that is read at each scrape.
#[derive(Debug)]
pub(super) struct Scraped(pub(super) Arc<Owner>);

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.0.totals();
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
        Ok(())
    }
}

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
