//! How many connections a second a tenant, or a service's unknown sources, may try to open.

use gate_common::token_bucket::{Limits, Rate};
use gate_common::units::{MilliRu, NANOS_PER_SEC};

use super::raw::Section;
use super::units::{self, Wrong};

/// A tenant's: by default as many as its quota pays requests for one row at `row`, and [`LEAST_PER_SEC`] at least.
pub(super) fn of_tenant(section: &mut Section<'_>, quota: Option<u64>, row: MilliRu) -> Limits {
    let rate = section.get("syn_rate", rate).unwrap_or_else(|| {
        let paid = |quota: u64| u128::from(quota) * 1_000 / u128::from(row.0.max(1));
        let fastest = u128::from(Rate::MAX_PER_SEC);
        quota.map(|quota| paid(quota).clamp(u128::from(LEAST_PER_SEC), fastest) as u64)
    });
    limits(rate)
}

/// That of a service's unknown sources together.
pub(super) fn of_unknown(section: &mut Section<'_>) -> Limits {
    limits(section.get("unknown_syn_rate", rate).unwrap_or(Some(LEAST_PER_SEC)))
}

/// Thousandths of connection attempts a second; `None` for `"unlimited"`.
fn rate(text: &str) -> Result<Option<u64>, Wrong> {
    if text == "unlimited" {
        return Ok(None);
    }
    units::event_rate(text).map(Some).map_err(|wrong| format!("{wrong}, or \"unlimited\""))
}

/// Those of a second may come at once: clients open their pools' connections together.
fn limits(per_sec: Option<u64>) -> Limits {
    let Some(per_sec) = per_sec else { return Limits::UNLIMITED };
    let rate = Rate::per_sec(per_sec);
    Limits { rate, burst_ns: rate.time_for(1_000).max(NANOS_PER_SEC), max_debt_ns: 0 }
}

/// In thousandths: enough for clients that are all started at once, and a fraction of what fills a listening socket's
/// queue for as long as it keeps attempts that nobody completes.
const LEAST_PER_SEC: u64 = 1_000_000;
