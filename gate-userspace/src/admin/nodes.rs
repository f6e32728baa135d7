//! The stores that share the keys of a proxied service, each by itself, in the admin documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::observer::NodeTimes;
use super::percentiles::Percentiles;
use super::store::since;
use crate::dispatcher::{NodeReading, ServiceMetrics};
use crate::policy::peers::{Answers, Comparison, compare};

/// One of several stores that share the keys of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its address, as the configuration or the cluster says it.
    pub address: String,
    /// True if it can be reached; nothing if that has not been tried.
    pub up: Option<bool>,
    /// How long that has been so, in seconds.
    pub for_s: f64,
    /// Shared connections to it.
    pub connections: u64,
    /// The slots that it has of a cluster; nothing in a pool.
    #[serde(default)]
    pub slots: Option<u32>,
    /// The requests and parts of requests that it has answered on them in the window.
    #[serde(default)]
    pub answered: u64,
    /// How long it took for these.
    #[serde(default)]
    pub store_ms: Option<Percentiles>,
    /// Its p90 over the median of the other stores'; nothing where too little was answered to say.
    #[serde(default)]
    pub times_peers: Option<f64>,
    /// True if it is so much slower than the others that its keys are felt to be slow.
    #[serde(default)]
    pub is_slow: bool,
}

/// Each of a service's stores at `now`, with their times in the window.
pub(super) fn of(metrics: &ServiceMetrics, window: &[NodeTimes], now: Nanos) -> Vec<Node> {
    let readings = metrics.nodes();
    let times = readings.iter().map(|NodeReading { number, place, .. }| {
        window.iter().find(|times| times.is_of(*number, &place.address))
    });
    let times: Vec<_> = times.collect();
    let answers = times.iter().map(|times| Answers {
        count: times.map_or(0, |found| found.times.len()),
        p90: times.and_then(|found| found.times.percentile(90.0)),
    });
    let compared = compare(&answers.collect::<Vec<_>>());
    let node = |((reading, times), compared): ((NodeReading, Option<&NodeTimes>), Option<Comparison>)| {
        let NodeReading { place, reached, connections, .. } = reading;
        let (up, for_s) = since(reached, now);
        Node {
            address: place.address,
            up,
            for_s,
            connections,
            slots: place.slots,
            answered: times.map_or(0, |found| found.times.len()),
            store_ms: times.and_then(|found| Percentiles::of(&found.times)),
            times_peers: compared.map(|compared| compared.times),
            is_slow: compared.is_some_and(|compared| compared.is_slow),
        }
    };
    readings.into_iter().zip(times).zip(compared).map(node).collect()
}
