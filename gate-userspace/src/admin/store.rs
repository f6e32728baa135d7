//! The store of a proxied service, in the admin documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dispatcher::{Reached, ServiceMetrics};

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
        let (up, for_s) = since(metrics.store_reached(), now);
        Self { up, for_s, connections: metrics.store_connections(), clients: metrics.clients() }
    }
}

/// Reachability, and how many seconds it has been so.
pub(super) fn since(reached: Option<Reached>, now: Nanos) -> (Option<bool>, f64) {
    let since = reached.map_or(now, |reached| reached.since);
    (reached.map(|reached| reached.up), now.saturating_sub(since).0 as f64 / 1e9)
}
