//! The event loop: tenants, a gate, a store.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, NANOS_PER_SEC, Nanos};

use super::{ByTier, Change, Mechanisms, Report, Scenario, Setup, Store, TracePoint, seconds};
use crate::sim::parallel::Progress;
use crate::sim::rng::Rng;
use gate_policy::Tier;
use gate_policy::codel::{TierCodels, Verdict};
use gate_policy::latency_ratio::{self, LatencyRatio};
use gate_policy::shedding::{self, Shedding, Treatment};

/// Simulates a possible `setup` with some mechanisms.
pub(super) fn run(setup: &Setup, mechanisms: Mechanisms, progress: &Progress) -> Report {
    let mut engine = Engine::new(setup, mechanisms);
    let mut next_tick = TICK;
    let mut arrival = engine.next_arrival(Nanos::ZERO);
    while next_tick <= setup.length() {
        while arrival < next_tick {
            engine.complete_until(arrival);
            engine.arrive(arrival);
            arrival = engine.next_arrival(arrival);
        }
        engine.complete_until(next_tick);
        engine.tick(next_tick);
        if next_tick.0.is_multiple_of(NANOS_PER_SEC) {
            progress.add(1);
        }
        next_tick = next_tick.saturating_add(TICK);
    }
    engine.report()
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    arrived: Nanos,
    tier: Tier,
    /// 0 is fast, 1 is slow.
    query_type: usize,
}

struct Tenant {
    tier: Tier,
    tat: u64,
    limits: Limits,
}

struct Engine<'a> {
    setup: &'a Setup,
    mechanisms: Mechanisms,
    store: Store,
    arrivals: Rng,
    processing: Rng,
    per_sec: f64,
    tenants: Vec<Tenant>,
    /// Each query type's price.
    prices: [MilliRu; 2],

    queues: [VecDeque<Request>; 4],
    codels: TierCodels,
    ratio: LatencyRatio,
    shedding: Shedding,

    outstanding: usize,
    /// Sent to the store, not yet begun.
    waiting: VecDeque<Request>,
    /// In processing, by their end.
    busy: BinaryHeap<Reverse<(Nanos, Request)>>,

    phases: [Counts; 3],
    since_tick: Counts,
    changes: Vec<Change>,
    trace: Vec<TracePoint>,
}

/// By tier: requests offered, and answered in time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    offered: [u64; 4],
    good: [u64; 4],
}

impl Counts {
    fn goodput_percent(&self) -> ByTier {
        ByTier::of(|tier| match self.offered[tier.index()] {
            0 => 100.0,
            offered => self.good[tier.index()] as f64 / offered as f64 * 100.0,
        })
    }
}

impl<'a> Engine<'a> {
    fn new(setup: &'a Setup, mechanisms: Mechanisms) -> Self {
        let store = setup.store();
        let [fast, slow] = store.types;
        let mean_secs = fast.0 * fast.1.mean_secs() + slow.0 * slow.1.mean_secs();
        let per_sec = store.utilization * f64::from(setup.workers) / mean_secs;
        // A fast query is one request unit.
        let slow_price = MilliRu((slow.1.mean_secs() / fast.1.mean_secs() * 1e3).round() as u32);
        let prices = [MilliRu::ONE_RU, slow_price];
        // Quotas have room for the dearer mix.
        let slow_share = slow.0.max(store.slow_share);
        let mean_price = (1.0 - slow_share) * f64::from(prices[0].0) + slow_share * f64::from(prices[1].0);
        let possible = "constants in range";
        Self {
            setup,
            mechanisms,
            store,
            arrivals: Rng::new(setup.seed, 0),
            processing: Rng::new(setup.seed, 1),
            per_sec,
            tenants: tenants(setup, per_sec * mean_price),
            prices,
            queues: Default::default(),
            codels: TierCodels::new(setup.law, TARGETS, INTERVAL).expect(possible),
            ratio: LatencyRatio::new(2, latency_ratio::Settings::default(), Nanos::ZERO).expect(possible),
            shedding: Shedding::new(shedding::Settings::default()).expect(possible),
            outstanding: 0,
            waiting: VecDeque::new(),
            busy: BinaryHeap::new(),
            phases: Default::default(),
            since_tick: Counts::default(),
            changes: Vec::new(),
            trace: Vec::new(),
        }
    }

    fn next_arrival(&mut self, last: Nanos) -> Nanos {
        last.saturating_add(self.arrivals.poisson_gap(self.per_sec))
    }

    /// True while the scenario's event lasts.
    fn event_lasts(&self, now: Nanos) -> bool {
        now >= self.setup.begins && (self.setup.scenario != Scenario::CapacityDrop || now < self.setup.ends())
    }

    /// A tenant sends a request.
    fn arrive(&mut self, now: Nanos) {
        let (tenant, query_type) = self.draw(now);
        let tenant = &mut self.tenants[tenant];
        let tier = tenant.tier;
        let request = Request { arrived: now, tier, query_type };
        count(&mut self.phases, self.setup, now, |counts| counts.offered[tier.index()] += 1);
        self.since_tick.offered[tier.index()] += 1;
        let treatment = self.shedding.treatment(tier);
        let price = self.prices[query_type].scaled(treatment.multiplier());
        if treatment == Treatment::Refused {
            return;
        }
        // The clock starts a second in, so that buckets are full.
        let Take::Admit { tat } = take(tenant.tat, now.0 + NANOS_PER_SEC, price.0, &tenant.limits) else {
            return;
        };
        tenant.tat = tat;
        let queue = if self.mechanisms.codel { tier.index() } else { 0 };
        if self.queues[queue].len() < LONGEST_QUEUE {
            self.queues[queue].push_back(request);
        }
        self.dispatch(now);
    }

    /// Draws a tenant and a query type. The same for all mechanisms.
    fn draw(&mut self, now: Nanos) -> (usize, usize) {
        let draw = self.arrivals.unit();
        let what = self.arrivals.unit();
        let tier = tier_by_share(self.setup.critical, draw);
        let tenant = tier.index() * TENANTS + (self.arrivals.bits() % TENANTS as u64) as usize;
        let slow_share = if self.event_lasts(now) { self.store.slow_share } else { self.store.types[1].0 };
        (tenant, usize::from(what < slow_share))
    }

    /// Sends on what may be outstanding, the most critical first.
    fn dispatch(&mut self, now: Nanos) {
        while self.outstanding < self.setup.workers as usize {
            let Some(queue) = self.queues.iter_mut().find(|queue| !queue.is_empty()) else { return };
            let Some(request) = queue.pop_front() else { return };
            let waited = now.saturating_sub(request.arrived);
            if self.mechanisms.codel
                && self.codels.dequeue(request.tier, now, waited, queue.len()) == Verdict::Drop
            {
                continue;
            }
            self.outstanding += 1;
            self.waiting.push_back(request);
            self.begin(now);
        }
    }

    /// Lets free workers begin.
    fn begin(&mut self, now: Nanos) {
        let workers = if self.event_lasts(now) { self.store.workers } else { self.setup.workers };
        while self.busy.len() < workers as usize
            && let Some(request) = self.waiting.pop_front()
        {
            let (_, processing) = &self.store.types[request.query_type];
            let slowness = if self.event_lasts(now) { self.store.slowness } else { 1.0 };
            let took = processing.sample(&mut self.processing).0 as f64 * slowness;
            self.busy.push(Reverse((now.saturating_add(Nanos(took as u64)), request)));
        }
    }

    /// Lets the store answer what is done up to `until`.
    fn complete_until(&mut self, until: Nanos) {
        while let Some(&Reverse((now, request))) = self.busy.peek()
            && now <= until
        {
            self.busy.pop();
            self.outstanding -= 1;
            let latency = now.saturating_sub(request.arrived);
            self.ratio.latencies().record(request.query_type, latency);
            if latency <= DEADLINE {
                // Counted where it was offered.
                let tier = request.tier.index();
                count(&mut self.phases, self.setup, request.arrived, |counts| counts.good[tier] += 1);
                self.since_tick.good[tier] += 1;
            }
            self.begin(now);
            self.dispatch(now);
        }
    }

    /// One tick of the gate.
    fn tick(&mut self, now: Nanos) {
        // Workers that are back start on the queue.
        self.begin(now);
        let ratio = self.ratio.tick(now, self.shedding.is_overloaded());
        if self.mechanisms.shedding
            && let Some(transition) = self.shedding.tick(now, ratio)
        {
            self.changes.push(Change::new(now, &transition));
        }
        self.trace.push(TracePoint {
            seconds: seconds(now),
            ratio,
            multipliers: ByTier::of(|tier| f64::from(self.shedding.treatment(tier).multiplier().0 >> 16)),
            goodput_percent: std::mem::take(&mut self.since_tick).goodput_percent(),
        });
    }

    fn report(self) -> Report {
        let [before, during, after] = self.phases.map(|counts| counts.goodput_percent());
        let begins = seconds(self.setup.begins);
        let ends = seconds(self.setup.ends());
        let drops = self.setup.scenario == Scenario::CapacityDrop;
        let lasting = self.trace.iter().filter(|at| at.seconds > begins && at.seconds <= ends);
        let multipliers = |tier| self.trace.iter().map(move |at| at.multipliers.get(tier));
        let raised = |change: &&Change| {
            drops && change.seconds > ends + 1.0 && ["shed", "raise", "refuse"].contains(&change.name)
        };
        Report {
            mechanisms: self.mechanisms.name(),
            goodput_percent_before: before,
            goodput_percent_during: during,
            goodput_percent_after: after,
            lowest_ratio: lasting.filter_map(|at| at.ratio).reduce(f64::min),
            highest_multiplier: ByTier::of(|tier| multipliers(tier).fold(1.0, f64::max)),
            shed_seconds: ByTier::of(|tier| {
                multipliers(tier).filter(|&multiplier| multiplier > 1.0).count() as f64 * seconds(TICK)
            }),
            restored_after_seconds: self.restored(if drops { ends } else { begins }),
            raised_after_recovery: self.changes.iter().filter(raised).count() as u32,
            transitions: self.changes,
            trace: self.trace,
        }
    }

    /// How long after `since` all multipliers were back to 1 for good.
    fn restored(&self, since: f64) -> Option<f64> {
        let is_shed = |at: &TracePoint| Tier::ALL.into_iter().any(|tier| at.multipliers.get(tier) > 1.0);
        match self.trace.iter().rposition(is_shed) {
            None => Some(0.0),
            Some(last) => self.trace.get(last + 1).map(|at| (at.seconds - since).max(0.0)),
        }
    }
}

/// Counts a request in the phase in which it arrived.
fn count(phases: &mut [Counts; 3], setup: &Setup, arrived: Nanos, count: impl Fn(&mut Counts)) {
    let transition_time = Nanos::from_secs(10);
    let phase = if arrived < transition_time {
        return;
    } else if arrived < setup.begins {
        0
    } else if arrived < setup.ends() {
        1
    } else if arrived < setup.ends().saturating_add(transition_time) {
        return;
    } else {
        2
    };
    count(&mut phases[phase]);
}

/// Tenants of every tier, in its order. `per_sec` is what all offer, in thousandths of a request unit.
fn tenants(setup: &Setup, per_sec: f64) -> Vec<Tenant> {
    let shares = shares(setup.critical);
    let tenants = Tier::ALL.into_iter().flat_map(|tier| {
        // The critical ones use half of their quota, the others all of it.
        let headroom = if tier == Tier::Critical { 2.0 } else { 1.0 };
        let quota = per_sec * shares[tier.index()] / TENANTS as f64 * headroom;
        let limits = Limits::new(quota.round() as u64, BURST.0);
        (0..TENANTS).map(move |_| Tenant { tier, tat: 0, limits })
    });
    tenants.collect()
}

fn shares(critical: f64) -> [f64; 4] {
    let rest = 1.0 - critical;
    [critical, rest * 5.0 / 12.0, rest * 4.0 / 12.0, rest * 3.0 / 12.0]
}

fn tier_by_share(critical: f64, mut draw: f64) -> Tier {
    for (tier, share) in Tier::ALL.into_iter().zip(shares(critical)) {
        if draw < share {
            return tier;
        }
        draw -= share;
    }
    Tier::BestEffort
}

/// The daemon's tick.
const TICK: Nanos = Nanos::from_millis(100);
/// Tenants of each tier.
const TENANTS: usize = 4;
/// The burst of a bucket.
const BURST: Nanos = Nanos::from_millis(100);
/// Later than this, an answer is no good.
const DEADLINE: Nanos = Nanos::from_millis(500);
/// How long requests of each tier may wait, and the interval in which one must wait less.
const TARGETS: [Nanos; 4] =
    [Nanos::from_millis(50), Nanos::from_millis(20), Nanos::from_millis(10), Nanos::from_millis(5)];
const INTERVAL: Nanos = Nanos::from_millis(100);
/// Beyond this, a queue is full.
const LONGEST_QUEUE: usize = 100_000;
