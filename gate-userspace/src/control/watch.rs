//! What is observed of each service's store: how long it takes, whether its queue stands, whether it is there.
//!
//! Of a proxied service the dispatcher's threads record every answer, of a guarded one its
//! [probe](crate::probe). Nobody looks at a guarded service without one.
//!
//! **Invariant.** What a service was like is remembered by its name across reloads, so that a configuration
//! read again in the middle of an overload does not take it for the normal state of things.

use std::collections::HashMap;
use std::sync::Arc;

use gate_common::abi::QueryClass;
use gate_common::units::Nanos;

use super::board::{ServiceReport, TypeReport};
use super::decide::ServiceSnapshot;
use super::lessons::Lessons;
use crate::config::{self, Config};
use crate::dispatcher::ServiceFigures;
use crate::policy::Tier;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::latency_ratio::{Latencies, LatencyRatio, Settings};
use crate::policy::pricing::{ByClass, Lesson};
use crate::policy::range::OutOfRange;
use crate::probe::Probed;

/// Observes all services, in the order of the configuration.
#[derive(Debug, Default)]
pub struct Watch {
    services: Vec<(String, Option<Watched>)>,
}

/// A service that somebody looks at.
#[derive(Debug)]
struct Watched {
    source: Source,
    settings: Settings,
    ratio: LatencyRatio,
    last: ServiceSnapshot,
    /// What its answers teach, where prices learn.
    lessons: Option<Lessons>,
}

/// Who looks.
#[derive(Clone, Debug)]
enum Source {
    Dispatcher(ServiceFigures),
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
        proxied: &[ServiceFigures],
        now: Nanos,
    ) -> Result<(), OutOfRange> {
        let mut before: HashMap<_, _> = std::mem::take(&mut self.services).into_iter().collect();
        for service in &config.services {
            let before = before.remove(&service.name).flatten();
            let watched = match source(service, proxied, before.as_ref()) {
                Some(source) => {
                    let mut watched = Watched::new(source, service.shedding.ratio, before, now)?;
                    watched.learn(service.price.learn.is_some(), now);
                    Some(watched)
                }
                None => None,
            };
            self.services.push((service.name.clone(), watched));
        }
        Ok(())
    }

    /// Where the probe of a service leaves what it finds; `None` if it has no probe.
    #[must_use]
    pub fn probed(&self, service: usize) -> Option<Arc<Probed>> {
        match self.services.get(service) {
            Some((_, Some(Watched { source: Source::Probe(probed), .. }))) => Some(Arc::clone(probed)),
            _ => None,
        }
    }

    /// What is to be said of each service at this tick; `overloaded` is what the last tick took it for.
    pub fn tick(&mut self, now: Nanos, overloaded: impl Fn(usize) -> bool) -> Vec<ServiceSnapshot> {
        let services = self.services.iter_mut().enumerate();
        services
            .map(|(place, (_, watched))| match watched {
                Some(watched) => watched.tick(now, overloaded(place)),
                None => UNSEEN,
            })
            .collect()
    }

    /// Tells those who gather what is to be learned what each class of a service's requests is expected to take, and what
    /// they are measured by; nothing where nothing is learned.
    pub fn expect<'e>(&self, expected: impl Fn(usize) -> Option<(&'e ByClass<u32>, Option<Measure>)>) {
        for (place, (_, watched)) in self.services.iter().enumerate() {
            if let Some(Watched { source: Source::Dispatcher(figures), .. }) = watched {
                figures.expect(expected(place));
            }
        }
    }

    /// What was observed at the last tick.
    #[must_use]
    pub fn report(&self) -> Vec<ServiceReport> {
        let report = |(name, watched): &(String, Option<Watched>)| {
            let seen = watched.as_ref().map(Watched::report).unwrap_or_default();
            ServiceReport { name: name.clone(), ..seen }
        };
        self.services.iter().map(report).collect()
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
        Ok(Self { source, settings, ratio, last: UNSEEN, lessons: None })
    }

    /// Learns from now on, as before if it did; or no longer.
    fn learn(&mut self, learns: bool, now: Nanos) {
        self.lessons = match (self.lessons.take(), &self.source) {
            (before @ Some(_), _) if learns => before,
            (None, Source::Dispatcher(figures)) if learns => Some(Lessons::new(figures.clone(), now)),
            _ => None,
        };
    }

    fn tick(&mut self, now: Nanos, overloaded: bool) -> ServiceSnapshot {
        self.last = ServiceSnapshot {
            ratio: self.ratio.tick(now, overloaded),
            queue_stands: self.source.queue_stands(),
            store_up: self.source.store_up(),
            lesson: self.lessons.as_mut().map(|lessons| lessons.take(now)).unwrap_or_default(),
        };
        self.last
    }

    fn report(&self) -> ServiceReport {
        let of_type = |(place, name): (usize, &str)| {
            let p95_us = self.ratio.recent_p95(place)?.0 / 1_000;
            Some(TypeReport { name: name.to_owned(), latency_ratio: self.ratio.of_type(place), p95_us })
        };
        let types = match &self.source {
            Source::Dispatcher(figures) => figures.types.names().enumerate().filter_map(of_type).collect(),
            Source::Probe(_) => of_type((0, "probe")).into_iter().collect(),
        };
        ServiceReport {
            latency_ratio: self.last.ratio,
            types,
            queued: self.source.queued(),
            queue_stands: self.last.queue_stands,
            store_up: Some(self.last.store_up),
            probe_failures: self.source.probe_failures(),
            ..ServiceReport::default()
        }
    }
}

impl Source {
    fn latencies(&self) -> &Arc<Latencies> {
        match self {
            Self::Dispatcher(figures) => &figures.responses,
            Self::Probe(probed) => probed.latencies(),
        }
    }

    fn queued(&self) -> u64 {
        match self {
            Self::Dispatcher(figures) => figures.queued(),
            Self::Probe(_) => 0,
        }
    }

    /// A tier's queue that stands is enough: the lowest one's does first.
    fn queue_stands(&self) -> bool {
        match self {
            Self::Dispatcher(figures) => Tier::ALL.iter().any(|&tier| figures.queue(tier).stands),
            Self::Probe(_) => false,
        }
    }

    fn store_up(&self) -> bool {
        match self {
            Self::Dispatcher(figures) => figures.store_links() > 0,
            Self::Probe(probed) => probed.is_up(),
        }
    }

    fn probe_failures(&self) -> Option<u64> {
        match self {
            Self::Dispatcher(_) => None,
            Self::Probe(probed) => Some(probed.failures()),
        }
    }
}

/// Who looks at a service. A probe goes on leaving what it finds where it did.
fn source(service: &config::Service, proxied: &[ServiceFigures], before: Option<&Watched>) -> Option<Source> {
    if service.backend.is_some() {
        let figures = proxied.iter().find(|figures| figures.name == service.name)?;
        return Some(Source::Dispatcher(figures.clone()));
    }
    service.probe?;
    Some(match before {
        Some(Watched { source: source @ Source::Probe(_), .. }) => source.clone(),
        _ => Source::Probe(Arc::default()),
    })
}

/// A service that nobody looks at, or has not looked at yet.
const UNSEEN: ServiceSnapshot = ServiceSnapshot {
    ratio: None,
    queue_stands: false,
    store_up: true,
    lesson: Lesson { window: Window::EMPTY, p95: [None; QueryClass::COUNT] },
};

#[cfg(test)]
mod tests;
