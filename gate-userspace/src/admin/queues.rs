//! The document of `gate queues`: proxied services by query type, and by tier where requests wait; guarded ones by their
//! probe, and by answers that were measured in passing.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::change::{Override, by_section};
use super::in_passing::InPassing;
use super::nodes::{self, Node};
use super::observer::{Observer, ServiceReading};
use super::percentiles::{Percentiles, ms};
use super::price::Price;
use super::store::Store;
use crate::config::{Backend, Config, Protocol, Settle};
use crate::control::board::ServiceReport;
use crate::dispatcher::{self, Counts, Event, ReadPriceSums, ServiceMetrics, Timing};
use crate::policy::Tier;
use crate::protocol::price_class::PriceClass;

/// The document of `gate queues --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Queues {
    /// The window of percentiles and shares, in seconds.
    pub window_s: f64,
    /// Those that are proxied.
    pub services: Vec<Service>,
    /// Those that are guarded and have a probe.
    #[serde(default)]
    pub probed: Vec<Probed>,
    /// Guarded services whose answers are measured in passing.
    #[serde(default)]
    pub in_passing: Vec<InPassing>,
}

/// One guarded service, as its probe finds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probed {
    /// Its name.
    pub name: String,
    /// True if it can be reached.
    pub up: bool,
    /// How its store is doing: about 1 when healthy, towards 0.3 when latency climbs; nothing while there is
    /// too little to say.
    pub latency_ratio: Option<f64>,
    /// The recent p95 of its answers.
    pub p95_ms: Option<f64>,
    /// Probes that failed since the start.
    pub failures: u64,
    /// Where shedding stands, if it is on.
    pub shedding: Option<String>,
    /// By tier, the most critical first: how much dearer its requests are, doubled so often; at 7 they are refused.
    pub rungs: [u32; 4],
    /// By tier: how long they have been dearer, or refused, in seconds; nothing while they are neither.
    #[serde(default)]
    pub rungs_for_s: [Option<f64>; 4],
    /// The overrides, by key.
    #[serde(default)]
    pub overrides: BTreeMap<String, String>,
}

/// One proxied service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its store and its clients.
    #[serde(default)]
    pub store: Option<Store>,
    /// Each of its stores, if they are several.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// How its store is doing: about 1 when healthy, towards 0.3 when latency climbs; nothing while there is
    /// too little to say.
    pub latency_ratio: Option<f64>,
    /// Where shedding stands, if it is on.
    pub shedding: Option<String>,
    /// The price of a request.
    pub price: Price,
    /// Request units that were charged since the start beyond prices, for requests that turned out to cost more;
    /// nothing where that is not charged.
    #[serde(default)]
    pub settled_ru: Option<f64>,
    /// Prices that were learned from what requests read, by price class; nothing where prices do not follow that.
    #[serde(default)]
    pub read_prices: BTreeMap<Cow<'static, str>, ReadPrice>,
    /// The overrides, by key.
    #[serde(default)]
    pub overrides: BTreeMap<String, String>,
    /// How many requests may be at the store at once now; nothing for any number.
    #[serde(default)]
    pub parallelism: Option<u64>,
    /// The most critical first.
    pub tiers: Vec<TierQueue>,
    /// Those of which there were any.
    pub types: Vec<QueryType>,
    /// Requests that were refused as soon as they were decoded.
    #[serde(default)]
    pub refusals: Refusals,
    /// The counters since the start.
    pub events: BTreeMap<Cow<'static, str>, u64>,
}

/// The requests of a price class whose price was learned from what those before them read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReadPrice {
    /// How many.
    pub requests: u64,
    /// The mean price of their class, in request units.
    pub class_ru: f64,
    /// The mean price that they were to pay.
    pub learned_ru: f64,
}

/// A tier's queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TierQueue {
    /// The tier.
    pub tier: Cow<'static, str>,
    /// Requests that wait.
    pub waiting: u64,
    /// The longest wait lately.
    pub delay_ms: f64,
    /// How long one more would wait, as the admission policy sees it.
    pub expected_wait_ms: Option<f64>,
    /// True while requests are refused because it does not drain.
    pub stands: bool,
    /// How much dearer the tier's requests are: doubled so often; at 7 they are refused.
    pub rung: u32,
    /// How long they have been dearer, or refused, in seconds; nothing while they are neither.
    #[serde(default)]
    pub rung_for_s: Option<f64>,
}

/// Refusals that were decided as soon as the request was decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Refusals {
    /// Those that nothing held back.
    pub written: u64,
    /// From when these were decoded until they had been written.
    pub written_ms: Option<Written>,
    /// Those that could only be written behind an answer of the store, or when the client had read what came before.
    pub held_back: u64,
}

/// How long writing took, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Written {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// A query type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueryType {
    /// Its name in the configuration.
    pub name: Cow<'static, str>,
    /// Requests that wait now.
    #[serde(default)]
    pub waiting: u64,
    /// Requests that could pay and wanted to the store.
    pub offered: u64,
    /// Those of them that were refused on their way there.
    pub refused: u64,
    /// Requests that the store answered.
    pub answered: u64,
    /// The share of those offered that were not refused.
    pub accepted: Option<f64>,
    /// How long one more would wait now, as the admission policy sees it: the mean over the tiers that those offered
    /// had.
    #[serde(default)]
    pub expected_wait_ms: Option<f64>,
    /// How long they waited for the store.
    pub wait_ms: Option<Percentiles>,
    /// How long the store took.
    pub processing_ms: Option<Percentiles>,
    /// How long they took together: waiting and the store.
    pub response_ms: Option<Percentiles>,
    /// The objective of response times, by percentile.
    pub objective_ms: BTreeMap<String, f64>,
}

impl Queues {
    /// The services at `now`, with the window since one or two readings ago, and their overrides.
    #[must_use]
    pub fn read(observer: &Observer, overrides: &[Override], now: Nanos) -> Self {
        let after = observer.read(now);
        let before = observer.before();
        let board = observer.board.read();
        let config = observer.config.borrow().clone();
        let readings = before.services.iter().zip(after.services.iter());
        let names: Vec<_> = config.services.iter().map(|service| service.name.as_str()).collect();
        let set: HashMap<_, _> = names.iter().zip(by_section(overrides, "service", &names)).collect();
        let set_of = |name: &str| set.get(&name).cloned().unwrap_or_default();
        let services = observer.services.iter().zip(readings).map(|(metrics, (before, after))| {
            let report = board.services.iter().find(|report| report.name == metrics.name);
            let overrides = set_of(&metrics.name);
            let store = Some(Store::of(metrics, now));
            let window = after.since(before);
            let nodes = nodes::of(metrics, &window.nodes, now);
            Service { overrides, store, nodes, ..Service::new(metrics, report, &config, &window) }
        });
        let probed = board.services.iter().filter_map(Probed::of);
        let probed = probed.map(|probed| Probed { overrides: set_of(&probed.name), ..probed });
        Self {
            window_s: now.saturating_sub(before.at).0 as f64 / 1e9,
            services: services.collect(),
            probed: probed.collect(),
            in_passing: board.services.iter().filter_map(InPassing::of).collect(),
        }
    }
}

impl Probed {
    fn of(report: &ServiceReport) -> Option<Self> {
        Some(Self {
            name: report.name.clone(),
            up: report.store_up?,
            latency_ratio: report.latency_ratio,
            p95_ms: report.types.first().map(|probe| probe.p95_us as f64 / 1e3),
            failures: report.probe_failures?,
            shedding: report.phase.map(str::to_owned),
            rungs: report.rungs,
            rungs_for_s: report.treated_for.map(|time| time.map(seconds)),
            overrides: BTreeMap::new(),
        })
    }
}

impl Service {
    fn new(
        metrics: &ServiceMetrics,
        report: Option<&ServiceReport>,
        config: &Config,
        window: &ServiceReading,
    ) -> Self {
        let tier = |tier: Tier| {
            let queue = metrics.queue(tier);
            TierQueue {
                tier: tier.name().into(),
                waiting: queue.waiting,
                delay_ms: ms(queue.delay),
                expected_wait_ms: metrics.expected_wait(tier).map(ms),
                stands: queue.stands,
                rung: report.map_or(0, |report| report.rungs[tier.index()]),
                rung_for_s: report.and_then(|report| report.treated_for[tier.index()]).map(seconds),
            }
        };
        let configured = config.services.iter().find(|found| found.name == metrics.name);
        let backend = configured.and_then(|service| service.backend.as_ref());
        let classes = match configured.map(|service| service.protocol) {
            Some(Protocol::Resp) => &PriceClass::OF_REDIS,
            Some(Protocol::Http) => &PriceClass::OF_HTTP,
            Some(Protocol::Memcached | Protocol::Opaque) | None => &PriceClass::OF_MEMCACHED,
        };
        let learn = configured.and_then(|service| service.price.learn);
        let settles = learn.is_some_and(|learn| learn.settle == Settle::Debt);
        let types = metrics.types.names().zip(&window.counts);
        let types = types.filter(|(_, counts)| counts.offered() + counts.answered() + counts.waiting > 0);
        Self {
            name: metrics.name.clone(),
            store: None,
            nodes: Vec::new(),
            latency_ratio: report.and_then(|report| report.latency_ratio),
            shedding: report.and_then(|report| report.phase).map(str::to_owned),
            price: report.map(|report| Price::of(&report.prices, classes)).unwrap_or_default(),
            settled_ru: settles.then(|| metrics.settled_mru() as f64 / 1e3),
            read_prices: classes
                .iter()
                .zip(&window.read_prices)
                .filter_map(|(class, sums)| Some(((*class).into(), ReadPrice::of(sums)?)))
                .collect(),
            overrides: BTreeMap::new(),
            parallelism: metrics.parallelism().map(|limit| limit as u64),
            tiers: Tier::ALL.into_iter().map(tier).collect(),
            types: types.map(|(name, counts)| QueryType::new(name, metrics, backend, counts)).collect(),
            refusals: Refusals::of(&window.refusals),
            events: Event::ALL.iter().map(|&event| (event.name().into(), metrics.get(event))).collect(),
        }
    }
}

impl ReadPrice {
    fn of(sums: &ReadPriceSums) -> Option<Self> {
        let mean = |sum: u64| sum as f64 / sums.count as f64 / 1e3;
        (sums.count > 0).then(|| Self {
            requests: sums.count,
            class_ru: mean(sums.class_mru),
            learned_ru: mean(sums.learned_mru),
        })
    }
}

impl Refusals {
    fn of(refusals: &dispatcher::RefusalSnapshot) -> Self {
        let dispatcher::RefusalSnapshot { took, held_back } = refusals;
        let at = |percent| took.percentile(percent).map(ms);
        let written = || Some(Written { p50: at(50.0)?, p99: at(99.0)?, max: at(100.0)? });
        Self { written: took.len(), written_ms: written(), held_back: *held_back }
    }
}

impl QueryType {
    fn new(name: &str, metrics: &ServiceMetrics, backend: Option<&Backend>, counts: &Counts) -> Self {
        let objective = backend.and_then(|backend| backend.objective(name));
        let offered = counts.offered();
        let accepted = offered.saturating_sub(counts.refused) as f64 / offered as f64;
        Self {
            name: name.to_owned().into(),
            waiting: counts.waiting,
            offered,
            refused: counts.refused,
            answered: counts.answered(),
            accepted: (offered > 0).then_some(accepted),
            expected_wait_ms: expected_wait(metrics, counts).map(|wait| wait / 1e6),
            wait_ms: Percentiles::of(counts.timing(Timing::Wait)),
            processing_ms: Percentiles::of(counts.timing(Timing::Processing)),
            response_ms: Percentiles::of(counts.timing(Timing::Response)),
            objective_ms: objective
                .into_iter()
                .flatten()
                .map(|&(percent, limit)| (format!("p{percent}"), ms(limit)))
                .collect(),
        }
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// In nanoseconds, by the tiers of what was offered.
fn expected_wait(metrics: &ServiceMetrics, counts: &Counts) -> Option<f64> {
    let mut offered = 0;
    let mut sum = 0.0;
    for (tier, of_tier) in Tier::ALL.into_iter().zip(counts.offered_by_tier).filter(|(_, count)| *count > 0) {
        offered += of_tier;
        sum += metrics.expected_wait(tier)?.0 as f64 * of_tier as f64;
    }
    (offered > 0).then(|| sum / offered as f64)
}
