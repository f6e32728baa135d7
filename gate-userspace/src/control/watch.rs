//! The observation of each service's store: latency, standing queue, reachability.
//!
//! Of a proxied service the dispatcher's threads record every answer, of a guarded one its
//! [probe](crate::probe), and the answers that are [measured in passing](super::in_passing). Each has a latency ratio of its own, and the lower
//! one counts: a store is slow if it is slow for clients, and if it is idle the probe knows.
//!
//! **Invariant.** The usual latency of a service is kept by its name across reloads, so that a configuration
//! read again in the middle of an overload does not take it for the normal state of things.

use std::collections::HashMap;
use std::sync::Arc;

use gate_common::abi::{Measured, QueryClass};
use gate_common::units::Nanos;

use super::board::{ServiceReport, TypeReport};
use super::cost_sampler::CostSampler;
use super::decide::ServiceSnapshot;
use super::in_passing::{self, InPassing};
use crate::config::{self, Config, Protocol};
use crate::dispatcher::ServiceMetrics;
use crate::kernel::Maps;
use crate::policy::Tier;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::latency_ratio::{Latencies, LatencyRatio, Settings};
use crate::policy::pricing::{ByClass, CostSamples};
use crate::policy::range::OutOfRange;
use crate::probe::Probed;

/// Observes all services, in the order of the configuration.
#[derive(Debug, Default)]
pub struct Watch {
    services: Vec<(String, Option<Watched>)>,
    /// In the same order: the services that are measured in passing.
    in_passing: Vec<Option<InPassing>>,
    last: Option<Nanos>,
}

/// A service that is observed.
#[derive(Debug)]
struct Watched {
    source: Source,
    settings: Settings,
    /// The ratio below which the first tier gives way; `None` where none does.
    shed_below: Option<f64>,
    ratio: LatencyRatio,
    last: ServiceSnapshot,
    /// The source of cost samples, where prices learn.
    cost_sampler: Option<CostSampler>,
}

/// The source of observations.
#[derive(Clone, Debug)]
enum Source {
    Dispatcher(ServiceMetrics),
    Probe(Arc<Probed>),
}

impl Watch {
    /// Observes the services of a configuration from now on, those that it observed before as before;
    /// `proxied` are the dispatcher's.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub fn follow(
        &mut self,
        config: &Config,
        proxied: &[ServiceMetrics],
        now: Nanos,
    ) -> Result<(), OutOfRange> {
        let before = std::mem::take(&mut self.services).into_iter();
        let mut before: HashMap<_, _> = before
            .zip(self.in_passing.drain(..))
            .map(|((name, watched), measured)| (name, (watched, measured)))
            .collect();
        for service in &config.services {
            let (before, measured) = before.remove(&service.name).unwrap_or_default();
            self.in_passing.push(
                match measured.filter(|before| *before.settings() == service.shedding.ratio) {
                    before @ Some(_) if is_measured(service) => before,
                    None if is_measured(service) => Some(InPassing::new(service.shedding.ratio, now)?),
                    _ => None,
                },
            );
            let watched = match source(service, proxied, before.as_ref()) {
                Some(source) => {
                    let mut watched = Watched::new(source, service.shedding.ratio, before, now)?;
                    watched.learn(service.price.learning().is_some(), now);
                    let shedding = &service.shedding;
                    let lowest = shedding.ladder.shed_below[Tier::BestEffort.index()];
                    watched.shed_below = shedding.enabled.then_some(lowest);
                    Some(watched)
                }
                None => None,
            };
            self.services.push((service.name.clone(), watched));
        }
        Ok(())
    }

    /// The results of a service's probe; `None` if it has no probe.
    #[must_use]
    pub fn probed(&self, service: usize) -> Option<Arc<Probed>> {
        match self.services.get(service) {
            Some((_, Some(Watched { source: Source::Probe(probed), .. }))) => Some(Arc::clone(probed)),
            _ => None,
        }
    }

    /// Takes in answers that were measured.
    pub fn record(&mut self, maps: &Maps, answers: &[Measured]) {
        in_passing::record(maps, answers, &mut self.in_passing);
    }

    /// Has requests noted, so that their answers are measured; none if `is_on` is not set.
    pub fn pace(&mut self, maps: &Maps, now: Nanos, is_on: bool) {
        let interval = now.saturating_sub(self.last.replace(now).unwrap_or(now));
        in_passing::pace(maps, &mut self.in_passing, is_on, now, interval);
    }

    /// Each service's snapshot for this tick; `overloaded` tells if the last tick shed anything of a service.
    pub fn tick(&mut self, now: Nanos, overloaded: impl Fn(usize) -> bool) -> Vec<ServiceSnapshot> {
        let services = self.services.iter_mut().enumerate();
        services
            .zip(&mut self.in_passing)
            .map(|((place, (name, watched)), measured)| {
                let mut snapshot = match watched {
                    Some(watched) => watched.tick(name, now, overloaded(place)),
                    None => UNSEEN,
                };
                let measured = measured.as_mut().and_then(|measured| measured.tick(now, overloaded(place)));
                snapshot.ratio = lower(snapshot.ratio, measured);
                watched.iter_mut().for_each(|watched| watched.last.ratio = snapshot.ratio);
                snapshot
            })
            .collect()
    }

    /// Passes the expected time of each class of a service's requests to the workers that take cost samples, and the
    /// measure for settlements; `None` where prices are not learned.
    pub fn expect<'e>(&self, expected: impl Fn(usize) -> Option<(&'e ByClass<u32>, Option<Measure>)>) {
        for (place, (_, watched)) in self.services.iter().enumerate() {
            if let Some(Watched { source: Source::Dispatcher(metrics), .. }) = watched {
                metrics.expect(expected(place));
            }
        }
    }

    /// The observations of the last tick.
    #[must_use]
    pub fn report(&self) -> Vec<ServiceReport> {
        let report = |((name, watched), measured): (&(String, Option<Watched>), &Option<InPassing>)| {
            let seen = watched.as_ref().map(Watched::report).unwrap_or_default();
            let in_passing = measured.as_ref().map(InPassing::report);
            ServiceReport { name: name.clone(), in_passing, ..seen }
        };
        self.services.iter().zip(&self.in_passing).map(report).collect()
    }
}

impl Watched {
    /// `before` goes on if it is the same but for what is read from it.
    fn new(source: Source, settings: Settings, before: Option<Self>, now: Nanos) -> Result<Self, OutOfRange> {
        let same = |before: &Self| {
            before.settings == settings && Arc::ptr_eq(before.source.latencies(), source.latencies())
        };
        if let Some(before) = before.filter(same) {
            return Ok(before);
        }
        let ratio = LatencyRatio::of(Arc::clone(source.latencies()), settings, now)?;
        Ok(Self { source, settings, shed_below: None, ratio, last: UNSEEN, cost_sampler: None })
    }

    /// Learns from now on, as before if it did; or no longer.
    fn learn(&mut self, learns: bool, now: Nanos) {
        self.cost_sampler = match (self.cost_sampler.take(), &self.source) {
            (before @ Some(_), _) if learns => before,
            (None, Source::Dispatcher(metrics)) if learns => Some(CostSampler::new(metrics.clone(), now)),
            (_, Source::Dispatcher(_) | Source::Probe(_)) => None,
        };
    }

    fn tick(&mut self, service: &str, now: Nanos, overloaded: bool) -> ServiceSnapshot {
        let shares_cut = self.source.shares_cut();
        match (self.last.shares_cut, shares_cut) {
            (false, true) => tracing::warn!(
                service,
                "its store cannot do all that it is asked for: who asks for more than their share is refused a part of it"
            ),
            (true, false) => tracing::info!(service, "its store can do all that it is asked for again"),
            (false, false) | (true, true) => {}
        }
        let ratio = self.ratio.tick(now, overloaded || shares_cut);
        let is_slow = ratio.zip(self.shed_below).is_some_and(|(ratio, bound)| ratio < bound);
        self.source.set_slow(is_slow);
        self.last = ServiceSnapshot {
            ratio,
            queue_stands: self.source.queue_stands(),
            shares_cut,
            store_up: !self.source.is_down(now),
            cost_samples: self
                .cost_sampler
                .as_mut()
                .map(|cost_sampler| cost_sampler.take(now))
                .unwrap_or_default(),
        };
        self.last
    }

    fn report(&self) -> ServiceReport {
        let of_type = |(place, name): (usize, &str)| {
            let p95_us = self.ratio.recent_p95(place)?.0 / 1_000;
            Some(TypeReport { name: name.to_owned(), latency_ratio: self.ratio.of_type(place), p95_us })
        };
        let types = match &self.source {
            Source::Dispatcher(metrics) => metrics.types.names().enumerate().filter_map(of_type).collect(),
            Source::Probe(_) => of_type((0, "probe")).into_iter().collect(),
        };
        ServiceReport {
            latency_ratio: self.last.ratio,
            types,
            queued: self.source.queued(),
            queue_stands: self.last.queue_stands,
            shares_cut: self.last.shares_cut,
            store_up: Some(self.source.answers()),
            probe_failures: self.source.probe_failures(),
            ..ServiceReport::default()
        }
    }
}

impl Source {
    fn latencies(&self) -> &Arc<Latencies> {
        match self {
            Self::Dispatcher(metrics) => &metrics.responses,
            Self::Probe(probed) => probed.latencies(),
        }
    }

    fn queued(&self) -> u64 {
        match self {
            Self::Dispatcher(metrics) => metrics.queued(),
            Self::Probe(_) => 0,
        }
    }

    /// True if any tier's queue stands: the lowest tier's does first.
    fn queue_stands(&self) -> bool {
        match self {
            Self::Dispatcher(metrics) => Tier::ALL.iter().any(|&tier| metrics.queue(tier).stands),
            Self::Probe(_) => false,
        }
    }

    fn shares_cut(&self) -> bool {
        match self {
            Self::Dispatcher(metrics) => metrics.shares_cut(),
            Self::Probe(_) => false,
        }
    }

    fn set_slow(&self, is_slow: bool) {
        if let Self::Dispatcher(metrics) = self {
            metrics.set_slow(is_slow);
        }
    }

    /// True if there is a connection to the store, or the last probe was answered.
    fn answers(&self) -> bool {
        match self {
            Self::Dispatcher(metrics) => metrics.store_connections() > 0,
            Self::Probe(probed) => probed.is_up(),
        }
    }

    /// True if the store is known to be down. Where all requests are refused nobody connects to it, and that is no
    /// reason to go on refusing them.
    fn is_down(&self, now: Nanos) -> bool {
        match self {
            Self::Dispatcher(metrics) => metrics.is_store_down(now),
            Self::Probe(probed) => !probed.is_up(),
        }
    }

    fn probe_failures(&self) -> Option<u64> {
        match self {
            Self::Dispatcher(_) => None,
            Self::Probe(probed) => Some(probed.failures()),
        }
    }
}

/// The source of observations of a service. A probe keeps its results across reloads.
fn source(service: &config::Service, proxied: &[ServiceMetrics], before: Option<&Watched>) -> Option<Source> {
    if service.backend.is_some() {
        let metrics = proxied.iter().find(|metrics| metrics.name == service.name)?;
        return Some(Source::Dispatcher(metrics.clone()));
    }
    service.probe?;
    Some(match before {
        Some(Watched { source: source @ Source::Probe(_), .. }) => source.clone(),
        _ => Source::Probe(Arc::default()),
    })
}

/// True if XDP reads the service's requests and the daemon sees none of them.
#[must_use]
pub fn is_measured(service: &config::Service) -> bool {
    service.backend.is_none() && service.protocol == Protocol::Memcached && service.transports.udp
}

/// The lower of two ratios; the other, if one is not known.
fn lower(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.map_or(other, |one| Some(other.map_or(one, |other| one.min(other))))
}

/// A service that is not observed, or not yet.
const UNSEEN: ServiceSnapshot = ServiceSnapshot {
    ratio: None,
    queue_stands: false,
    shares_cut: false,
    store_up: true,
    cost_samples: CostSamples { window: Window::EMPTY, p95: [None; QueryClass::COUNT] },
};

#[cfg(test)]
mod tests;
