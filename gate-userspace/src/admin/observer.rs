//! Readings of the dispatcher's counters at equal intervals, so that a report can show a window of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gate_common::units::Nanos;
use tokio::sync::watch;

use super::store::Store;
use crate::config::Config;
use crate::control::board::{Board, Report};
use crate::dispatcher::{
    Counts, LatencySnapshot, NodeReading, ReadPriceSums, RefusalSnapshot, ServiceMetrics,
};
use crate::policy::pricing::ByClass;

/// The counters of the dispatcher's threads, now and at the last two readings.
#[derive(Debug)]
pub struct Observer {
    pub(super) services: Vec<ServiceMetrics>,
    pub(super) board: Board,
    pub(super) config: watch::Receiver<Arc<Config>>,
    /// The last two readings, the older first.
    readings: Mutex<[Reading; 2]>,
}

/// One reading of all services.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) at: Nanos,
    /// By service.
    pub(super) services: Arc<Vec<ServiceReading>>,
}

/// One reading of a service's counters.
#[derive(Clone, Debug)]
pub(super) struct ServiceReading {
    /// By query type.
    pub(super) counts: Vec<Counts>,
    pub(super) refusals: RefusalSnapshot,
    pub(super) read_prices: ByClass<ReadPriceSums>,
    /// The times of each store, if they are several; between two readings only of stores that are in both.
    pub(super) nodes: Vec<NodeTimes>,
}

/// How long one of several stores took for what it answered.
#[derive(Clone, Debug)]
pub(super) struct NodeTimes {
    number: usize,
    address: String,
    pub(super) times: LatencySnapshot,
}

impl NodeTimes {
    /// True if they are of the store in this place with this address: another may have had the place, whose times are not its own.
    pub(super) fn is_of(&self, number: usize, address: &str) -> bool {
        self.number == number && self.address == address
    }

    fn all(service: &ServiceMetrics) -> Vec<Self> {
        let nodes = service.nodes().into_iter();
        let times = nodes.map(|NodeReading { number, place, .. }| Self {
            number,
            address: place.address,
            times: service.node_times(number),
        });
        times.collect()
    }

    /// The difference since this store's among `earlier` ones, if it was there.
    fn since(&self, earlier: &[Self]) -> Option<Self> {
        let before = earlier.iter().find(|other| other.is_of(self.number, &self.address))?;
        let times = self.times.since(&before.times);
        Some(Self { times, ..self.clone() })
    }
}

impl ServiceReading {
    fn of(service: &ServiceMetrics) -> Self {
        let read_prices = service.read_prices();
        let nodes = NodeTimes::all(service);
        Self { counts: service.counts(), refusals: service.refusals(), read_prices, nodes }
    }

    /// The difference since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        Self {
            counts: counts.map(|(now, then)| now.since(then)).collect(),
            refusals: self.refusals.since(&earlier.refusals),
            read_prices: std::array::from_fn(|class| {
                self.read_prices[class].since(&earlier.read_prices[class])
            }),
            nodes: self.nodes.iter().filter_map(|node| node.since(&earlier.nodes)).collect(),
        }
    }
}

impl Observer {
    /// An observer that begins at `now`, when nothing has been counted yet.
    #[must_use]
    pub fn new(
        services: Vec<ServiceMetrics>,
        board: Board,
        config: watch::Receiver<Arc<Config>>,
        now: Nanos,
    ) -> Self {
        let nothing = |service: &ServiceMetrics| ServiceReading {
            counts: vec![Counts::default(); service.types.len()],
            refusals: Default::default(),
            read_prices: Default::default(),
            nodes: NodeTimes::all(service),
        };
        let reading = Reading { at: now, services: Arc::new(services.iter().map(nothing).collect()) };
        Self { services, board, config, readings: Mutex::new([reading.clone(), reading]) }
    }

    /// Keeps a reading of `now`. To be called at equal intervals.
    pub fn observe(&self, now: Nanos) {
        let reading = self.read(now);
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.swap(0, 1);
        readings[1] = reading;
    }

    /// The store of each proxied service, by the service's name.
    #[must_use]
    pub fn stores(&self, now: Nanos) -> HashMap<&str, Store> {
        self.services.iter().map(|service| (service.name.as_str(), Store::of(service, now))).collect()
    }

    /// The report of the last tick.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        self.board.read()
    }

    /// The counters at `now`.
    pub(super) fn read(&self, now: Nanos) -> Reading {
        Reading { at: now, services: Arc::new(self.services.iter().map(ServiceReading::of).collect()) }
    }

    /// The older of the readings that are kept: one or two intervals before now.
    pub(super) fn before(&self) -> Reading {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)[0].clone()
    }
}
