//! Sums over all tenants.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tenants::{LayerCounts, by_reason};
use crate::kernel::{ByLayer, Layer};

/// Sums over all tenants, since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Requests that passed.
    pub passed: u64,
    /// TCP segments with payload that passed.
    #[serde(default)]
    pub segments: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<Cow<'static, str>, u64>,
    /// Both by layer: `xdp`, `proxy`.
    #[serde(default)]
    pub layers: BTreeMap<Cow<'static, str>, LayerCounts>,
}

impl Totals {
    /// Of these sums.
    pub(super) fn of(by_layer: &ByLayer) -> Self {
        let [mut all, proxy] = *by_layer;
        all.add(&proxy);
        let layers = Layer::ALL.iter().zip(by_layer);
        let layers = layers.map(|(layer, counters)| (layer.name().into(), LayerCounts::of(counters)));
        Self {
            passed: all.passed,
            segments: all.segments,
            refused: by_reason(&all.refused),
            layers: layers.filter(|(_, counts)| *counts != LayerCounts::default()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use gate_common::abi::{Reason, TenantCounters};

    use super::*;

    #[test]
    fn sums_are_of_both_layers_and_of_each() {
        let mut xdp = TenantCounters { passed: 3, segments: 2, ..TenantCounters::default() };
        xdp.refused[Reason::Quota.index()] = 4;
        let mut proxy = TenantCounters { passed: 5, ..TenantCounters::default() };
        proxy.refused[Reason::Quota.index()] = 1;
        proxy.refused[Reason::Slo.index()] = 7;
        let totals = Totals::of(&[xdp, proxy]);
        assert_eq!((totals.passed, totals.segments), (8, 2));
        assert_eq!(totals.refused, [("quota".into(), 5), ("slo".into(), 7)].into());
        assert_eq!(totals.layers["xdp"].refused, [("quota".into(), 4)].into());
        assert_eq!((totals.layers["proxy"].passed, totals.layers.len()), (5, 2));
        assert!(Totals::of(&ByLayer::default()).layers.is_empty());
    }
}
