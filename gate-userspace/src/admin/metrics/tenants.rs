//! The metrics of tenants.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use gate_common::abi::{Name, Reason, TenantCounters};
use prometheus_client::encoding::DescriptorEncoder;

use super::families::{Family, Series};
use super::promotion::{OTHER, Promotion, Reading};
use crate::admin::tenants::Level;
use crate::config::{Config, TenantMetrics};
use crate::kernel::{ByLayer, Layer, Maps};

/// The tenants that have series of their own.
#[derive(Debug)]
pub(super) struct Tenants(Mutex<Promotion>);

impl Tenants {
    pub(super) fn new(maps: &Maps) -> Self {
        Self(Mutex::new(Promotion::new(maps)))
    }

    /// Takes over what was cleared. To be called from time to time.
    pub(super) fn absorb(&self, maps: &Maps) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).absorb(maps);
    }

    pub(super) fn write(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        maps: &Maps,
        config: &Config,
    ) -> fmt::Result {
        let named = config.tenants.iter().filter(|tenant| tenant.metrics == TenantMetrics::On);
        let named: HashSet<Name> = named.filter_map(|tenant| Name::new(&tenant.name)).collect();
        let most = config.gate.metrics_tenants;
        let (reading, promoted) = {
            let mut promotion = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (promotion.read(maps, &named, most), promotion.len())
        };
        TENANTS.write(encoder, promoted)?;
        MOST_TENANTS.write(encoder, most)?;
        counters(encoder, &reading)?;
        levels(encoder, maps, &reading)?;
        unknown(encoder, &maps.counters_by_layer(0))
    }
}

/// Every tenant's counters, those of `other` last.
fn counters(encoder: &mut DescriptorEncoder<'_>, reading: &Reading) -> fmt::Result {
    let own = reading.promoted.iter().map(|own| (own.name.as_str(), &own.counters));
    let all: Vec<(&str, &ByLayer)> = own.chain([(OTHER, &reading.other)]).collect();
    let each = |write: &mut dyn FnMut(&str, &str, &TenantCounters) -> fmt::Result| {
        all.iter().try_for_each(|(tenant, by_layer)| {
            let mut layers = Layer::ALL.iter().zip(by_layer.iter());
            layers.try_for_each(|(layer, counters)| write(tenant, layer.name(), counters))
        })
    };
    let mut series = PASSED.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        series.add_touched(&[("tenant", tenant), ("layer", layer)], counters.passed)
    })?;
    let mut series = SEGMENTS.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        series.add_touched(&[("tenant", tenant), ("layer", layer)], counters.segments)
    })?;
    let mut series = CHARGED.begin(encoder)?;
    each(&mut |tenant, layer, counters| match counters.charged_mru {
        0 => Ok(()),
        charged => series.add(&[("tenant", tenant), ("layer", layer)], charged as f64 / 1e3),
    })?;
    let mut series = REFUSED.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        by_reason(&mut series, &[("tenant", tenant), ("layer", layer)], &counters.refused)
    })?;
    let mut series = QUOTA_REFUSED.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        let [first, second, limit] = counters.quota_refused;
        let buckets = [
            ("own", counters.refused_by_own_quota()),
            ("charge", first.wrapping_add(second)),
            ("limit", limit),
        ];
        buckets.iter().try_for_each(|&(bucket, count)| {
            series.add_touched(&[("tenant", tenant), ("layer", layer), ("bucket", bucket)], count)
        })
    })?;
    let mut series = SHADOWED.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        by_reason(&mut series, &[("tenant", tenant), ("layer", layer)], &counters.shadowed)
    })?;
    let mut series = CANDIDATE_REFUSED.begin(encoder)?;
    each(&mut |tenant, layer, counters| {
        series.add_touched(&[("tenant", tenant), ("layer", layer)], counters.candidate_refused)
    })
}

/// The quotas and debts of promoted tenants that are in the configuration.
fn levels(encoder: &mut DescriptorEncoder<'_>, maps: &Maps, reading: &Reading) -> fmt::Result {
    let levels = reading.promoted.iter().filter_map(|own| Some((own, Level::read(maps, own.number?))));
    let levels: Vec<_> = levels.collect();
    let mut series = QUOTA.begin(encoder)?;
    for (own, level) in &levels {
        if let Some(quota) = level.quota_ru_per_sec {
            series.add(&[("tenant", own.name.as_str())], quota)?;
        }
    }
    let mut series = DEBT.begin(encoder)?;
    for (own, level) in &levels {
        series.add(&[("tenant", own.name.as_str())], level.debt.0 as f64 / 1e9)?;
    }
    Ok(())
}

/// The refusals of sources that no tenant names.
fn unknown(encoder: &mut DescriptorEncoder<'_>, counters: &ByLayer) -> fmt::Result {
    let mut series = UNKNOWN_REFUSED.begin(encoder)?;
    let mut layers = Layer::ALL.iter().zip(counters);
    layers.try_for_each(|(layer, counters)| {
        by_reason(&mut series, &[("layer", layer.name())], &counters.refused)
    })
}

/// Adds the counts of reasons that there were.
fn by_reason<const N: usize>(
    series: &mut Series<'_>,
    labels: &[(&str, &str); N],
    counts: &[u64; Reason::COUNT],
) -> fmt::Result {
    let mut reasons = Reason::ALL.iter().zip(counts);
    reasons.try_for_each(|(reason, &count)| {
        let all: Vec<_> = labels.iter().copied().chain([("reason", reason.name())]).collect();
        series.add_touched(&all, count)
    })
}

const TENANTS: Family =
    Family::gauge("gate_metrics_tenants", "Tenants that have series of their own; the rest is `other`.");
const MOST_TENANTS: Family =
    Family::gauge("gate_metrics_tenants_limit", "How many may have them: metrics_tenants in [gate].");
const PASSED: Family = Family::counter("gate_tenant_passed_requests_total", "Requests that passed.");
const SEGMENTS: Family =
    Family::counter("gate_tenant_passed_segments_total", "TCP segments with payload that passed.");
const CHARGED: Family =
    Family::counter("gate_tenant_charged_request_units_total", "Request units that were charged.");
const REFUSED: Family =
    Family::counter("gate_tenant_refused_requests_total", "Requests that were refused, by reason.");
const QUOTA_REFUSED: Family = Family::counter(
    "gate_tenant_quota_refused_requests_total",
    "Requests that were refused for `quota`, by the bucket that lacked their price.",
);
const SHADOWED: Family = Family::counter(
    "gate_tenant_shadowed_requests_total",
    "Requests that passed, and that shadowed rules would have refused, by reason.",
);
const CANDIDATE_REFUSED: Family = Family::counter(
    "gate_tenant_candidate_refused_requests_total",
    "Requests that the tenant's candidate quota would have refused.",
);
const QUOTA: Family = Family::gauge(
    "gate_tenant_quota_request_units_per_second",
    "Request units a second that a tenant may spend; none if it is unlimited.",
);
const DEBT: Family =
    Family::gauge("gate_tenant_debt_seconds", "How long before a tenant's bucket admits anything.");
const UNKNOWN_REFUSED: Family = Family::counter(
    "gate_unknown_refused_requests_total",
    "Requests of sources that no tenant names which were refused, by reason.",
);
