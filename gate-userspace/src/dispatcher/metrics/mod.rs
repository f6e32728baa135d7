//! The metrics of one service, counted by one thread and read by any.
//!
//! [`event`]: the events. [`by_type`]: counts by query type. [`latency`]: histograms. [`cost_samples`]: measured costs
//! of requests, from which prices are learned.
//! [`verdicts`]: sampled verdicts.
//! [`store_state`]: whether the store can be reached, by all threads together; [`nodes`]: each of several stores by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gate_common::units::Nanos;

use self::by_type::{Counts, Timing, TypeMetrics};
use self::cost_samples::CostSamples;
pub use self::event::Event;
use self::latency::{LatencyHistogram, LatencySnapshot};
pub(crate) use self::nodes::NodePlaces;
pub use self::nodes::{NodePlace, NodeReading};
use self::read_prices::{ReadPriceMetrics, ReadPriceSums};
use self::refusal_latency::{RefusalMetrics, RefusalSnapshot};
pub use self::store_state::Reached;
use self::store_state::StoreState;
use crate::dispatcher::node_id::NodeId;
use crate::dispatcher::queue::delay::QueueState;
use crate::dispatcher::queue::permits::{Permits, UNLIMITED};
use crate::dispatcher::queue::policy::Policy;
use crate::dispatcher::queue::shares::Shares;
use crate::dispatcher::store_silence::{OldestWork, StorePause};
use crate::policy::Tier;
use crate::policy::admission::QueryType;
use crate::policy::cost_model::{Measure, Window};
use crate::policy::latency_ratio;
use crate::policy::pricing::ByClass;
use crate::protocol::Class;
use crate::protocol::query_types::QueryTypes;
use crate::protocol::resp::Command;

pub(super) mod by_type;
pub(super) mod cost_samples;
mod event;
pub(super) mod latency;
mod nodes;
pub(super) mod read_prices;
pub(super) mod refusal_latency;
pub(super) mod store_state;
pub(super) mod verdicts;

/// One thread's counters of one service. All only grow.
#[derive(Debug)]
pub struct WorkerMetrics {
    counts: [AtomicU64; Event::ALL.len()],
    /// By query type.
    types: Box<[TypeMetrics]>,
    /// By tier, as of the last tick.
    queues: [QueueMetrics; Tier::ALL.len()],
    /// How long each store took, if they are several.
    nodes: Box<[LatencyHistogram]>,
    pub(crate) refusals: RefusalMetrics,
    /// Measured costs of requests, from which prices are learned.
    pub(crate) cost_samples: CostSamples,
    /// Prices that were learned from the rows and bytes of earlier requests.
    pub(crate) read_prices: ReadPriceMetrics,
}

#[derive(Debug, Default)]
struct QueueMetrics {
    waiting: AtomicU64,
    delay_ns: AtomicU64,
    stands: AtomicBool,
}

impl WorkerMetrics {
    /// Nothing so far, of so many query types and stores.
    fn new(types: usize, stores: usize) -> Self {
        let types = (0..types).map(|_| TypeMetrics::default()).collect();
        let several = if stores > 1 { stores } else { 0 };
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            types,
            queues: Default::default(),
            nodes: (0..several).map(|_| LatencyHistogram::default()).collect(),
            refusals: RefusalMetrics::default(),
            cost_samples: CostSamples::default(),
            read_prices: ReadPriceMetrics::default(),
        }
    }

    /// Counts one more. Only the thread whose counters these are may call this.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.count_many(event, 1);
    }

    #[inline]
    fn count_many(&self, event: Event, times: u32) {
        let count = &self.counts[event as usize];
        count.store(count.load(Ordering::Relaxed).wrapping_add(times.into()), Ordering::Relaxed);
    }

    /// Counts requests that were answered: they had waited for so long, and the store took so long. As
    /// [`WorkerMetrics::count`].
    #[inline]
    pub(crate) fn answered(&self, query_type: QueryType, waited: Nanos, took: Nanos, count: u32) {
        self.count_many(Event::Answered, count);
        self.of_type(query_type).answered(waited, took, count);
    }

    /// Counts an answer of one of several stores, which took so long; of the only one nothing. As [`WorkerMetrics::count`].
    #[inline]
    pub(crate) fn node_answered(&self, node: NodeId, took: Nanos) {
        if let Some(times) = self.nodes.get(node.index()) {
            times.record(took, 1);
        }
    }

    /// The counts of a query type. As [`WorkerMetrics::count`].
    #[inline]
    pub(crate) fn of_type(&self, query_type: QueryType) -> &TypeMetrics {
        self.types.get(usize::from(query_type.0)).unwrap_or(&self.types[Class::Unknown.index()])
    }

    /// Notes the state of a tier's queue. As [`WorkerMetrics::count`].
    pub(crate) fn set_queue(&self, tier: Tier, state: QueueState) {
        let queue = &self.queues[tier.index()];
        queue.waiting.store(state.waiting, Ordering::Relaxed);
        queue.delay_ns.store(state.delay.0, Ordering::Relaxed);
        queue.stands.store(state.stands, Ordering::Relaxed);
    }

    /// The state of a tier's queue in this thread.
    #[must_use]
    pub fn queue(&self, tier: Tier) -> QueueState {
        let queue = &self.queues[tier.index()];
        QueueState {
            waiting: queue.waiting.load(Ordering::Relaxed),
            delay: Nanos(queue.delay_ns.load(Ordering::Relaxed)),
            stands: queue.stands.load(Ordering::Relaxed),
        }
    }

    /// The number of times that it has happened.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    /// Clients that are connected.
    #[must_use]
    pub fn connected(&self) -> u64 {
        let gone = [Event::Left, Event::SlowReader, Event::SlowWriter, Event::Cut, Event::Idle]
            .map(|event| self.get(event));
        self.get(Event::Accepted).saturating_sub(gone.iter().sum())
    }
}

/// The metrics of one service, of all threads.
#[derive(Clone, Debug)]
pub struct ServiceMetrics {
    /// Its name.
    pub name: String,
    /// Each thread's counts.
    pub threads: Arc<[Arc<WorkerMetrics>]>,
    /// Its query types.
    pub types: Arc<QueryTypes>,
    /// The times from admission to answer, by query type, since the last tick.
    pub responses: Arc<latency_ratio::Latencies>,
    /// The state of each store that shares its keys.
    pub(crate) stores: Arc<[Arc<StoreState>]>,
    /// The known causes of silence of each.
    pauses: Vec<Arc<StorePause>>,
    places: NodePlaces,
    policy: Policy,
    permits: Arc<Permits>,
    shares: Arc<Shares>,
}

impl ServiceMetrics {
    pub(crate) fn new(
        name: String,
        (threads, stores): (usize, usize),
        types: QueryTypes,
        policy: Policy,
        (permits, shares): (Arc<Permits>, Arc<Shares>),
    ) -> Self {
        let responses = Arc::new(latency_ratio::Latencies::new(types.len()));
        let threads = (0..threads).map(|_| Arc::new(WorkerMetrics::new(types.len(), stores))).collect();
        let stores = (0..stores).map(|_| Arc::default()).collect();
        let places = NodePlaces::default();
        let types = Arc::new(types);
        let pauses = Vec::new();
        Self { name, threads, types, responses, stores, pauses, places, policy, permits, shares }
    }

    /// With several stores, whose places these are.
    pub(crate) fn with_places(self, places: NodePlaces) -> Self {
        Self { places, ..self }
    }

    /// With the known causes of silence of each of its stores.
    pub(crate) fn with_pauses(self, pauses: Vec<Arc<StorePause>>) -> Self {
        Self { pauses, ..self }
    }

    /// Records the time of requests of a query type, their wait included. Any thread may call this.
    #[inline]
    pub(crate) fn responded(&self, query_type: QueryType, took: Nanos, count: u32) {
        self.responses.record_many(usize::from(query_type.0), took, count);
    }

    /// The number of requests that may be with the store at once; `None` for any number.
    #[must_use]
    pub fn parallelism(&self) -> Option<usize> {
        Some(self.permits.limit()).filter(|&limit| limit != UNLIMITED)
    }

    /// True while what the store cannot do is refused to tenants that ask for more than their share.
    #[must_use]
    pub fn shares_cut(&self) -> bool {
        self.shares.cut()
    }

    /// Notes whether the store's latency ratio is below what the ladder bears.
    pub(crate) fn set_slow(&self, is_slow: bool) {
        self.shares.set_slow(is_slow);
    }

    /// The number of times that it has happened, all threads together.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.threads.iter().map(|thread| thread.get(event)).sum()
    }

    /// The counts of each query type since the start.
    #[must_use]
    pub fn counts(&self) -> Vec<Counts> {
        let mut all = vec![Counts::default(); self.types.len()];
        for thread in &*self.threads {
            all.iter_mut().zip(&thread.types).for_each(|(counts, metrics)| counts.add(metrics));
        }
        all
    }

    /// The refusals since the start, and their times.
    #[must_use]
    pub fn refusals(&self) -> RefusalSnapshot {
        let mut refusals = RefusalSnapshot::default();
        self.threads.iter().for_each(|thread| refusals.add(&thread.refusals));
        refusals
    }

    /// Sets the expected times of the classes, in thousandths of a reference read, and the measure of answers; `None`
    /// if no price by latency is learned.
    pub(crate) fn expect(&self, expected: Option<(&ByClass<u32>, Option<Measure>)>) {
        self.threads.iter().for_each(|thread| thread.cost_samples.expect(expected));
    }

    /// The sum of the charges beyond prices since the start, in thousandths of a request unit.
    #[must_use]
    pub fn settled_mru(&self) -> u64 {
        self.threads.iter().map(|thread| thread.cost_samples.settled_mru()).sum()
    }

    /// The cost samples of all threads since the last call.
    pub(crate) fn take_window(&self) -> Window {
        self.threads.iter().fold(Window::default(), |mut sum, thread| {
            sum.merge(&thread.cost_samples.take_window());
            sum
        })
    }

    /// The store's times for requests of each class alone, while prices by latency are learned.
    pub(crate) fn service_times(&self) -> ByClass<LatencySnapshot> {
        std::array::from_fn(|class| {
            let mut times = LatencySnapshot::default();
            self.threads.iter().for_each(|thread| times.add(thread.cost_samples.times(class)));
            times
        })
    }

    /// The requests whose price was learned from the reads of earlier ones, by price class, since the start.
    #[must_use]
    pub fn read_prices(&self) -> ByClass<ReadPriceSums> {
        let mut sums = ByClass::default();
        self.threads.iter().for_each(|thread| thread.read_prices.add_to(&mut sums));
        sums
    }

    /// The time that one more request of a tier would wait, as far as the admission policy knows.
    #[must_use]
    pub fn expected_wait(&self, tier: Tier) -> Option<Nanos> {
        self.policy.expected_wait(tier)
    }

    /// The state of a tier's queue: all that wait, the longest delay, and whether it stands in any thread.
    #[must_use]
    pub fn queue(&self, tier: Tier) -> QueueState {
        self.threads.iter().map(|thread| thread.queue(tier)).fold(QueueState::default(), |sum, one| {
            QueueState {
                waiting: sum.waiting + one.waiting,
                delay: sum.delay.max(one.delay),
                stands: sum.stands || one.stands,
            }
        })
    }

    /// Connections to its stores that there are now.
    #[must_use]
    pub fn store_connections(&self) -> u64 {
        self.stores.iter().map(|store| store.connections()).sum()
    }

    /// True if all of its stores are known to be down at `now`.
    #[must_use]
    pub fn is_store_down(&self, now: Nanos) -> bool {
        // The places of a cluster's nodes that there are not have never been tried.
        let mut tried = self.stores.iter().filter(|store| store.reached().is_some()).peekable();
        tried.peek().is_some() && tried.all(|store| store.is_down(now))
    }

    /// Reachability of its stores, of which one that is down counts for all; `None` if that has not been tried.
    #[must_use]
    pub fn store_reached(&self) -> Option<Reached> {
        let reached = self.stores.iter().filter_map(|store| store.reached());
        // One that is down for the longest, or the last that came up.
        reached.min_by_key(|reached| {
            (reached.up, if reached.up { Nanos::MAX.saturating_sub(reached.since) } else { reached.since })
        })
    }

    /// The work that keeps a store silent at `now`, by all that is known: it has said nothing for 100 ms while a request that may
    /// occupy it was with it. Of several stores, the longest silence.
    #[must_use]
    pub fn store_busy(&self, now: Nanos) -> Option<BusyStore> {
        let busy = |(state, pause): (&Arc<StoreState>, &Arc<StorePause>)| {
            let OldestWork { since, command } = pause.oldest()?;
            let silent_for = now.saturating_sub(since.max(state.heard()));
            let is_busy = silent_for >= BUSY_FROM && !state.is_down(now);
            is_busy.then_some(BusyStore { silent_for, command })
        };
        self.stores.iter().zip(&self.pauses).filter_map(busy).max_by_key(|busy| busy.silent_for)
    }

    /// Each of its stores, if they are several.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeReading> {
        self.places.read(&self.stores)
    }

    /// How long the store in this place took for each answer, since the start: whichever store had the place.
    #[must_use]
    pub fn node_times(&self, number: usize) -> LatencySnapshot {
        let mut times = LatencySnapshot::default();
        self.threads.iter().filter_map(|thread| thread.nodes.get(number)).for_each(|of| times.add(of));
        times
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.threads.iter().map(|thread| thread.connected()).sum()
    }

    /// Requests that wait for the store, as of the last tick.
    #[must_use]
    pub fn queued(&self) -> u64 {
        Tier::ALL.iter().map(|&tier| self.queue(tier).waiting).sum()
    }

    /// Appends them in memcached's form of statistics.
    pub(crate) fn write_stats(&self, out: &mut Vec<u8>) {
        for event in Event::ALL {
            out.extend_from_slice(format!("STAT {} {}\r\n", event.name(), self.get(event)).as_bytes());
        }
        out.extend_from_slice(format!("STAT queued {}\r\n", self.queued()).as_bytes());
        let RefusalSnapshot { took, held_back } = self.refusals();
        let counts = format!("STAT refusals {}\r\nSTAT refusals_held_back {held_back}\r\n", took.len());
        out.extend_from_slice(counts.as_bytes());
        for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("max", 100.0)] {
            let Some(took) = took.percentile(percent) else { continue };
            let line = format!("STAT refusals_{name}_us {}\r\n", took.0.div_ceil(1_000));
            out.extend_from_slice(line.as_bytes());
        }
        for (name, counts) in self.types.names().zip(self.counts()) {
            for percent in [50.0, 90.0, 99.0] {
                let Some(took) = counts.timing(Timing::Processing).percentile(percent) else { continue };
                let line = format!("STAT {name}_p{percent}_us {}\r\n", took.0 / 1_000);
                out.extend_from_slice(line.as_bytes());
            }
        }
        out.extend_from_slice(b"END\r\n");
    }
}

/// A store that has been silent for some time, with what may be the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyStore {
    /// How long it has said nothing, since it has had the request.
    pub silent_for: Nanos,
    /// The command of the oldest request that may occupy it.
    pub command: Command,
}

/// A silence that operators are told of: as long as a tick.
const BUSY_FROM: Nanos = Nanos::from_millis(100);

/// The document that `stats gate` answers, which is made at most once in a while: percentiles of all types take long.
#[derive(Debug, Default)]
pub(crate) struct OwnStats {
    made: Option<Nanos>,
    document: Vec<u8>,
}

impl OwnStats {
    /// The document as of `now`, or of up to [`OWN_STATS_TTL`] before.
    pub(crate) fn document(&mut self, metrics: &ServiceMetrics, now: Nanos) -> &[u8] {
        if self.made.is_none_or(|made| now.saturating_sub(made) >= OWN_STATS_TTL) {
            self.made = Some(now);
            self.document.clear();
            metrics.write_stats(&mut self.document);
        }
        &self.document
    }
}

/// As long as a tick, unless configured otherwise.
const OWN_STATS_TTL: Nanos = Nanos::from_millis(100);
