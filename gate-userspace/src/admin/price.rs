//! The price of a request at a service, as it is shown.

use std::borrow::Cow;
use std::collections::BTreeMap;

use gate_common::abi::ServiceState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::board::{LearnedReport, PriceReport};
use crate::protocol::price_class::Names;

/// The coefficients of a price, in request units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Price {
    /// Of any request.
    pub base: f64,
    /// Of each row.
    pub row: f64,
    /// Of each 1,024 bytes.
    pub kib: f64,
    /// The price of the expected latency of each class, where it is above zero.
    #[serde(default)]
    pub latency: BTreeMap<Cow<'static, str>, f64>,
    /// The learned coefficients, if prices are learned; only the daemon itself knows.
    #[serde(default)]
    pub learned: Option<Learned>,
}

/// The coefficients of learned prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Learned {
    /// The price of one reference read's worth of expected latency, in request units.
    pub of_latency: f64,
    /// The recent time of a reference read; `None` while there were too few.
    pub reference_ms: Option<f64>,
}

impl Price {
    /// Of what is in force at a service whose requests are of these classes.
    #[must_use]
    pub fn of(report: &PriceReport, classes: &Names) -> Self {
        let PriceReport { base_mru, row_mru, kib_mru, latency_mru, learned } = *report;
        let latency = classes.iter().zip(latency_mru).filter(|(_, mru)| *mru > 0);
        Self {
            base: ru(base_mru),
            row: ru(row_mru),
            kib: ru(kib_mru),
            latency: latency.map(|(class, mru)| ((*class).into(), ru(mru))).collect(),
            learned: learned.as_ref().map(Learned::of),
        }
    }

    /// Of what the maps hold.
    #[must_use]
    pub fn of_state(state: &ServiceState, classes: &Names) -> Self {
        let ServiceState { base_mru, row_mru, kib_mru, latency_mru, .. } = *state;
        Self::of(&PriceReport { base_mru, row_mru, kib_mru, latency_mru, learned: None }, classes)
    }
}

impl Learned {
    /// Of what the control loop says.
    #[must_use]
    pub fn of(report: &LearnedReport) -> Self {
        let reference_ms = report.reference_ns.map(|ns| ns as f64 / 1e6);
        Self { of_latency: ru(report.of_latency_mru), reference_ms }
    }
}

fn ru(milli: u32) -> f64 {
    f64::from(milli) / 1e3
}

#[cfg(test)]
mod tests {
    use gate_common::abi::QueryClass;

    use super::*;
    use crate::protocol::price_class::PriceClass;

    #[test]
    fn latency_is_named_where_it_costs_anything() {
        let mut state = ServiceState { base_mru: 500, row_mru: 20, kib_mru: 1, ..ServiceState::default() };
        let of_state = |state: &ServiceState| Price::of_state(state, &PriceClass::OF_MEMCACHED);
        assert_eq!(of_state(&state), Price { base: 0.5, row: 0.02, kib: 0.001, ..Price::default() });
        state.latency_mru[QueryClass::MultiGet as usize] = 1_250;
        state.latency_mru[QueryClass::Unread as usize] = 2_000;
        let latency = BTreeMap::from([("mget".into(), 1.25), ("unread".into(), 2.0)]);
        assert_eq!(of_state(&state).latency, latency);
        let latency = Price::of_state(&state, &PriceClass::OF_REDIS).latency;
        assert_eq!(latency, BTreeMap::from([("mget".into(), 1.25), ("unread".into(), 2.0)]));
    }
}
