//! `/metrics`: what was counted, for Prometheus.
//!
//! A [`Collector`] reads the counters that there are at each scrape; nothing is kept beside them but which tenants have
//! series of their own. Labels are names of tenants, services and query types, and never keys, users or sources. Times are
//! in seconds, amounts in request units.
//!
//! - `families`: names, and how series are written.
//! - `promotion`: which tenants have series of their own.
//! - `tenants`, `services`, `caches`, `envoy`, `fleet`, `interception`, `daemon`: the families of each.
//! - `owner`: those of an owner of limits, which is another process.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

use self::tenants::Tenants;
use super::sources::Sources;
use crate::clock;
use crate::fleet::owner::Owner;

mod caches;
mod daemon;
mod envoy;
mod families;
mod fleet;
mod interception;
mod members;
mod owner;
mod promotion;
mod services;
mod tenants;

/// The metrics of a running gate.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    scraped: Arc<Scraped>,
}

/// The sources of a scrape.
#[derive(Debug)]
struct Scraped {
    sources: Arc<Sources>,
    tenants: Tenants,
}

impl Metrics {
    pub(super) fn new(sources: Arc<Sources>) -> Self {
        let tenants = Tenants::new(&sources.maps);
        let scraped = Arc::new(Scraped { sources, tenants });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&scraped)));
        Self { registry, scraped }
    }

    /// Takes over what need not be kept for the next scrape. To be called from time to time.
    pub(super) fn look(&self) {
        self.scraped.tenants.absorb(&self.scraped.sources.maps);
    }

    /// All metrics as they are now, in Prometheus' text format.
    ///
    /// # Errors
    ///
    /// None that a string has.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        text(&self.registry)
    }
}

/// The metrics of an owner of limits.
#[derive(Debug)]
pub(super) struct OwnerMetrics(Registry);

impl OwnerMetrics {
    pub(super) fn new(owner: Arc<Owner>, named: usize) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(owner::Scraped { owner, named }));
        Self(registry)
    }

    /// As [`Metrics::text`].
    ///
    /// # Errors
    ///
    /// As there.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        text(&self.0)
    }
}

fn text(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode_registry(&mut text, registry)?;
    Ok(text)
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self { sources, tenants } = self;
        let config = sources.queues.config.borrow().clone();
        daemon::write(&mut encoder, sources)?;
        tenants.write(&mut encoder, &sources.maps, &config)?;
        members::write(&mut encoder, sources.members.as_ref())?;
        services::write(&mut encoder, &sources.queues)?;
        caches::write(&mut encoder, &sources.caches)?;
        envoy::write(&mut encoder, (sources.envoy.as_ref(), clock::monotonic()))?;
        fleet::write(&mut encoder, &sources.owners())?;
        interception::write(&mut encoder, sources.interception().as_ref())
    }
}

/// The type of [`Metrics::text`].
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
