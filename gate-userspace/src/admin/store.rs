//! The store of a proxied service, in the admin documents.

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dispatcher::{Reached, ServiceMetrics};

/// The store behind a proxied service, and the service's clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Store {
    /// True if it can be reached; nothing if that has not been tried.
    pub up: Option<bool>,
    /// How long that has been so, in seconds.
    pub for_s: f64,
    /// Set while it says nothing, and has a request that may take it long.
    #[serde(default)]
    pub busy: Option<Busy>,
    /// Shared connections to it.
    pub connections: u64,
    /// Clients that are connected to the service.
    pub clients: u64,
}

/// A store that does one thing at a time, and is busy with what may take it long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Busy {
    /// How long it has said nothing, in seconds.
    pub for_s: f64,
    /// The command of the oldest request that it may be busy with, in lower case.
    pub command: String,
}

impl Store {
    pub(super) fn of(metrics: &ServiceMetrics, now: Nanos) -> Self {
        let (up, for_s) = since(metrics.store_reached(), now);
        let busy = metrics.store_busy(now).map(|busy| Busy {
            for_s: busy.silent_for.0 as f64 / 1e9,
            command: busy.command.name().to_owned(),
        });
        Self { up, for_s, busy, connections: metrics.store_connections(), clients: metrics.clients() }
    }
}

/// Reachability, and how many seconds it has been so.
pub(super) fn since(reached: Option<Reached>, now: Nanos) -> (Option<bool>, f64) {
    let since = reached.map_or(now, |reached| reached.since);
    (reached.map(|reached| reached.up), now.saturating_sub(since).0 as f64 / 1e9)
}
