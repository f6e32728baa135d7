//! The metrics of the caches of HTTP services.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::families::Family;
use crate::admin::cache::ByService;
use crate::cache::CacheEvent;

/// All families of caches.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, caches: &ByService) -> fmt::Result {
    let mut series = EVENTS.begin(encoder)?;
    for (service, cache) in caches {
        for event in CacheEvent::ALL {
            series.add(&[("service", service), ("event", event.name())], cache.counters().get(event))?;
        }
    }
    let used: Vec<_> = caches.iter().map(|(service, cache)| (service, cache, cache.usage())).collect();
    let mut series = BYTES.begin(encoder)?;
    for (service, cache, usage) in &used {
        series.add(&[("service", service), ("where", "memory")], cache.memory())?;
        if let Some(usage) = usage {
            series.add(&[("service", service), ("where", "disk")], usage.bytes)?;
        }
    }
    let mut series = RECORDS.begin(encoder)?;
    for (service, _, usage) in &used {
        series.add(&[("service", service)], usage.unwrap_or_default().records)?;
    }
    let mut series = BLOBS.begin(encoder)?;
    for (service, _, usage) in &used {
        series.add(&[("service", service)], usage.unwrap_or_default().blobs)?;
    }
    Ok(())
}

const EVENTS: Family =
    Family::counter("gate_cache_events_total", "What happened in the cache of a service of HTTP, by event.");
const BYTES: Family = Family::gauge("gate_cache_bytes", "The bytes that a cache has in memory and on disk.");
const RECORDS: Family = Family::gauge("gate_cache_records", "The URLs that a cache has on disk.");
const BLOBS: Family = Family::gauge("gate_cache_blobs", "The distinct bodies that a cache has on disk.");
