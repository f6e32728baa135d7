//! The store of a proxied service, in the admin documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dispatcher::{NodeReading, Reached, ServiceMetrics};

/// The store behind a proxied service, and the service's clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Store {
    /// True if it can be reached; nothing if that has not been tried.
    pub up: Option<bool>,
    /// How long that has been so, in seconds.
    pub for_s: f64,
    /// Shared connections to it.
    pub connections: u64,
    /// Clients that are connected to the service.
    pub clients: u64,
}

impl Store {
    pub(super) fn of(metrics: &ServiceMetrics, now: Nanos) -> Self {
        let reached = metrics.store_reached();
        let since = reached.map_or(now, |Reached { since, .. }| since);
        Self {
            up: reached.map(|reached| reached.up),
            for_s: now.saturating_sub(since).0 as f64 / 1e9,
            connections: metrics.store_connections(),
            clients: metrics.clients(),
        }
    }
}

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
}

impl Node {
    pub(super) fn of(reading: NodeReading, now: Nanos) -> Self {
        let NodeReading { place, reached, connections } = reading;
        let since = reached.map_or(now, |Reached { since, .. }| since);
        Self {
            address: place.address,
            up: reached.map(|reached| reached.up),
            for_s: now.saturating_sub(since).0 as f64 / 1e9,
            connections,
            slots: place.slots,
        }
    }
}
