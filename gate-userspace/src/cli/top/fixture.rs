//! Readings for tests.

use gate_common::units::Nanos;

use super::reading::{Documents, Reading, Wanted};
use crate::admin::hotkeys::Hotkeys;
use crate::admin::listing::Tenants;
use crate::admin::queues::Queues;
use crate::admin::selection::Selection;
use crate::admin::verdicts::SourceList;

/// A reading at so many seconds, of an empty gate.
pub(super) fn empty(secs: u64, documents: Documents) -> Reading {
    let status = serde_json::json!({
        "daemon": 7, "interface": null, "mode": "none", "abi_version": 1, "epoch": 1, "generation": 1,
        "heartbeat_age_ms": 10, "stale": false, "shadow": false, "on_stale": "bucket", "enforced_percent": 100.0,
        "sample_every": 1, "clock_tick_ns": 1, "tenants": 0, "services": [], "exits": {}, "events": {},
    });
    Reading {
        at: Nanos::from_secs(secs),
        of: Wanted { documents, tenants: Selection::default(), detail: None },
        status: serde_json::from_value(status).unwrap(),
        tenants: Tenants::default(),
        detail: None,
        queues: Queues { window_s: 10.0, services: Vec::new(), probed: Vec::new(), in_passing: Vec::new() },
        hotkeys: Hotkeys::default(),
        sources: SourceList::default(),
    }
}
