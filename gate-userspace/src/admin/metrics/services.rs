//! The metrics of services: their stores, queues, requests and prices.

use std::fmt;

use gate_common::units::Nanos;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};

use super::families::Family;
use crate::admin::in_passing::{InPassing, Response};
use crate::admin::observer::Observer;
use crate::control::board::{PriceReport, Report, ServiceReport};
use crate::dispatcher::{Counts, Event, LatencySnapshot, ServiceMetrics, Timing};
use crate::policy::Tier;

/// All families of services.
pub(super) fn write(encoder: &mut DescriptorEncoder<'_>, observer: &Observer) -> fmt::Result {
    let report = observer.report();
    requests(encoder, &observer.services)?;
    stores(encoder, &observer.services, &report)?;
    queues(encoder, &observer.services)?;
    events(encoder, &observer.services)?;
    decisions(encoder, &report)?;
    in_passing(encoder, &report)
}

/// By query type: what was offered and rejected, and how long it took.
fn requests(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceMetrics]) -> fmt::Result {
    let counts: Vec<_> = services.iter().map(|service| (service, service.counts())).collect();
    let types = || {
        counts.iter().flat_map(|(service, counts)| {
            let types = service.types.names().zip(counts);
            types.map(|(name, counts)| ([("service", service.name.as_str()), ("type", name)], counts))
        })
    };
    let mut series = OFFERED.begin(encoder)?;
    types().try_for_each(|(labels, counts)| series.add_touched(&labels, counts.offered()))?;
    let mut series = REJECTED.begin(encoder)?;
    types().try_for_each(|(labels, counts)| series.add_touched(&labels, counts.refused))?;
    for (family, timing) in
        [(RESPONSE, Timing::Response), (QUEUED_FOR, Timing::Wait), (PROCESSING, Timing::Processing)]
    {
        let mut series = family.begin(encoder)?;
        for (labels, counts) in types().filter(|(_, counts)| counts.answered() > 0) {
            series.add_histogram(&labels, seconds(counts.sum(timing)), &buckets(counts, timing))?;
        }
    }
    Ok(())
}

/// Upper bounds in seconds, each with the count between it and the one before.
fn buckets(counts: &Counts, timing: Timing) -> Vec<(f64, u64)> {
    let (by_bound, beyond) = counts.timing(timing).by_bound();
    let bounds = LatencySnapshot::BOUNDS.into_iter().map(seconds);
    bounds.zip(by_bound).chain([(f64::INFINITY, beyond)]).collect()
}

fn stores(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceMetrics], report: &Report) -> fmt::Result {
    let mut series = STORE_UP.begin(encoder)?;
    for service in services {
        if let Some(reached) = service.store_reached() {
            series.add(&[("service", &service.name)], u32::from(reached.up))?;
        }
    }
    for service in report.services.iter().filter(|service| service.probe_failures.is_some()) {
        if let Some(up) = service.store_up {
            series.add(&[("service", &service.name)], u32::from(up))?;
        }
    }
    let mut series = NODE_UP.begin(encoder)?;
    for service in services {
        for node in service.nodes() {
            if let Some(reached) = node.reached {
                let labels = [("service", service.name.as_str()), ("node", &node.place.address)];
                series.add(&labels, u32::from(reached.up))?;
            }
        }
    }
    by_service(encoder, STORE_CONNECTIONS, services, |service| Some(service.store_connections()))?;
    by_service(encoder, CONCURRENCY_LIMIT, services, ServiceMetrics::parallelism)?;
    by_service(encoder, CLIENTS, services, |service| Some(service.clients()))
}

fn queues(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceMetrics]) -> fmt::Result {
    by_tier(encoder, WAITING, services, |service, tier| service.queue(tier).waiting)?;
    by_tier(encoder, QUEUE_DELAY, services, |service, tier| seconds(service.queue(tier).delay))
}

fn events(encoder: &mut DescriptorEncoder<'_>, services: &[ServiceMetrics]) -> fmt::Result {
    for (family, event) in [
        (CACHE_HITS, Event::CacheHit),
        (COALESCED, Event::Coalesced),
        (STORE_FAILURES, Event::StoreFailed),
        (ACCEPTED_CLIENTS, Event::Accepted),
        (TURNED_AWAY, Event::TurnedAway),
    ] {
        by_service(encoder, family, services, |service| Some(service.get(event)).filter(|&count| count > 0))?;
    }
    let settled = |service: &ServiceMetrics| Some(service.settled_mru()).filter(|&mru| mru > 0);
    by_service(encoder, SETTLED, services, |service| settled(service).map(|mru| mru as f64 / 1e3))
}

/// The guarded services whose answers are measured in passing.
fn in_passing(encoder: &mut DescriptorEncoder<'_>, report: &Report) -> fmt::Result {
    let measured: Vec<_> = report.services.iter().filter_map(InPassing::of).collect();
    let mut series = NOTED.begin(encoder)?;
    measured.iter().try_for_each(|of| series.add(&[("service", &of.name)], of.noted))?;
    let mut series = MEASURED.begin(encoder)?;
    measured.iter().try_for_each(|of| series.add(&[("service", &of.name)], of.answered))?;
    let mut series = MEASURED_ERRORS.begin(encoder)?;
    measured.iter().try_for_each(|of| series.add(&[("service", &of.name)], of.failed))?;
    let mut series = SEEN.begin(encoder)?;
    for of in &measured {
        if let Some(percent) = of.seen_percent {
            series.add(&[("service", &of.name)], percent / 100.0)?;
        }
    }
    let mut series = GUARDED_RESPONSE.begin(encoder)?;
    for of in &measured {
        for (class, Response { p50_ms, p95_ms }) in &of.classes {
            for (quantile, ms) in [("0.5", p50_ms), ("0.95", p95_ms)] {
                let labels = [("service", of.name.as_str()), ("class", class), ("quantile", quantile)];
                series.add(&labels, ms / 1e3)?;
            }
        }
    }
    Ok(())
}

/// The findings and decisions of the last tick.
fn decisions(encoder: &mut DescriptorEncoder<'_>, report: &Report) -> fmt::Result {
    let mut series = LATENCY_RATIO.begin(encoder)?;
    for service in &report.services {
        if let Some(ratio) = service.latency_ratio {
            series.add(&[("service", &service.name)], ratio)?;
        }
    }
    let mut series = RUNG.begin(encoder)?;
    // Where shedding is off there is no ladder.
    for service in report.services.iter().filter(|service| service.phase.is_some()) {
        for (tier, rung) in Tier::ALL.into_iter().zip(service.rungs) {
            series.add(&[("service", &service.name), ("tier", tier.name())], rung)?;
        }
    }
    let mut series = PRICE.begin(encoder)?;
    for ServiceReport { name, prices, .. } in &report.services {
        let PriceReport { base_mru, row_mru, kib_mru, .. } = *prices;
        let dearest_mru = prices.latency_mru.into_iter().max().unwrap_or(0);
        for (term, mru) in
            [("base", base_mru), ("row", row_mru), ("kib", kib_mru), ("latency-of-dearest", dearest_mru)]
        {
            series.add(&[("service", name), ("term", term)], f64::from(mru) / 1e3)?;
        }
    }
    Ok(())
}

/// One series for each service that has a value.
fn by_service<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    family: Family,
    services: &[ServiceMetrics],
    value: impl Fn(&ServiceMetrics) -> Option<V>,
) -> fmt::Result {
    let mut series = family.begin(encoder)?;
    let mut values = services.iter().filter_map(|service| Some((service, value(service)?)));
    values.try_for_each(|(service, value)| series.add(&[("service", &service.name)], value))
}

/// One series for each service and tier.
fn by_tier<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    family: Family,
    services: &[ServiceMetrics],
    value: impl Fn(&ServiceMetrics, Tier) -> V,
) -> fmt::Result {
    let mut series = family.begin(encoder)?;
    let mut tiers = services.iter().flat_map(|service| Tier::ALL.map(|tier| (service, tier)));
    tiers.try_for_each(|(service, tier)| {
        series.add(&[("service", &service.name), ("tier", tier.name())], value(service, tier))
    })
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

const OFFERED: Family = Family::counter(
    "gate_offered_requests_total",
    "Requests that could pay and wanted to the store, by query type.",
);
const REJECTED: Family = Family::counter(
    "gate_rejected_requests_total",
    "Those of the offered requests that were refused on their way to the store, by query type.",
);
const RESPONSE: Family = Family::histogram(
    "gate_request_response_seconds",
    "How long answered requests took from admission to answer: queue and processing.",
);
const QUEUED_FOR: Family =
    Family::histogram("gate_request_queue_seconds", "How long answered requests waited for the store.");
const PROCESSING: Family =
    Family::histogram("gate_request_processing_seconds", "How long the store took for answered requests.");
const STORE_UP: Family =
    Family::gauge("gate_store_up", "1 if the store or the probe of a service answers, 0 if not.");
const NODE_UP: Family =
    Family::gauge("gate_store_node_up", "1 if one of several stores of a service answers, 0 if not.");
const STORE_CONNECTIONS: Family =
    Family::gauge("gate_store_connections", "Shared connections to the store of a proxied service.");
const CONCURRENCY_LIMIT: Family = Family::gauge(
    "gate_store_concurrency_limit",
    "Requests that may be with the store at once; none if any number may.",
);
const CLIENTS: Family = Family::gauge("gate_clients", "Clients that are connected to a proxied service.");
const WAITING: Family = Family::gauge("gate_queued_requests", "Requests that wait for the store.");
const QUEUE_DELAY: Family =
    Family::gauge("gate_queue_delay_seconds", "The longest wait for the store as of the last tick.");
const CACHE_HITS: Family =
    Family::counter("gate_cache_hits_total", "Reads of hot keys that were answered from memory.");
const COALESCED: Family = Family::counter(
    "gate_coalesced_reads_total",
    "Reads of hot keys that were answered by another client's read.",
);
const STORE_FAILURES: Family = Family::counter(
    "gate_store_failures_total",
    "Connections to the store that failed or could not be made.",
);
const ACCEPTED_CLIENTS: Family =
    Family::counter("gate_accepted_clients_total", "Clients that were accepted.");
const TURNED_AWAY: Family = Family::counter(
    "gate_turned_away_clients_total",
    "Clients that were not accepted since there were too many.",
);
const SETTLED: Family = Family::counter(
    "gate_settled_request_units_total",
    "Request units that were charged beyond prices, for requests that turned out to cost more.",
);
const NOTED: Family = Family::counter(
    "gate_guarded_noted_requests_total",
    "Requests to a guarded service that were noted, so that their answers are measured in passing.",
);
const MEASURED: Family =
    Family::counter("gate_guarded_measured_answers_total", "Answers that were measured in passing.");
const MEASURED_ERRORS: Family = Family::counter(
    "gate_guarded_measured_errors_total",
    "Answers that were measured in passing and are errors of the store.",
);
const SEEN: Family = Family::gauge(
    "gate_guarded_seen_ratio",
    "The share of requests over UDP whose answers were measured in passing in the last second.",
);
const GUARDED_RESPONSE: Family = Family::gauge(
    "gate_guarded_response_seconds",
    "Recent response times of a guarded service as measured in passing, by price class and quantile.",
);
const LATENCY_RATIO: Family = Family::gauge(
    "gate_latency_ratio",
    "How the store is doing: about 1 when healthy, towards 0.3 when latency climbs.",
);
const RUNG: Family = Family::gauge(
    "gate_shedding_rung",
    "How much of a tier is shed: 0 nothing, 1 to 6 prices doubled so often, 7 everything is refused.",
);
const PRICE: Family =
    Family::gauge("gate_price_request_units", "The terms of a request's price that are in force.");
