//! The end of an overload, in virtual time: everything that was refused for the store's sake is served again.
//!
//! A store with four places, a tenant of each tier, and what gate decides with: charge, ladder, shares, admission policy, permits,
//! queue and its delay, once a tick as in the daemon.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{MilliRu, Nanos};

use super::concurrency::{SharedLimits, ThreadLatencies};
use super::delay::Delay;
use super::policy::Policy;
use super::shares::{Seen, Shares, Standing, ThreadShares};
use super::tier_queue::{Queue, QueueKey, Queued};
use crate::config::{self, Config};
use crate::policy::Tier;
use crate::policy::admission::{QueryType, Request};
use crate::policy::fair_share::Sharer;
use crate::policy::latency_ratio::LatencyRatio;
use crate::policy::rank::Rank;
use crate::policy::shedding::{Shedding, Treatment};

/// A service with such a `backend` section.
fn service(said: &str) -> config::Service {
    let text = format!(
        "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n{said}\n\
         [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\""
    );
    let config = Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
    config.services[0].clone()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The store has answered a request of a tier that arrived and was sent at these times.
    Answered(Tier, Nanos, Nanos),
    Arrives(Tier),
    Tick,
}

/// The load, and how slow the store is.
#[derive(Clone, Copy)]
struct Load {
    /// Requests a second, by tier.
    per_sec: [u64; 4],
    /// How long the store takes for one.
    takes: Nanos,
}

struct World {
    policy: Policy,
    delay: Delay,
    queue: Queue<()>,
    latencies: Option<ThreadLatencies>,
    ratio: LatencyRatio,
    shedding: Option<Shedding>,
    shared: Arc<Shares>,
    shares: ThreadShares,
    /// Since the last tick.
    answers: u64,
    /// By tier: its tenant's bucket.
    tats: [u64; 4],
    limits: [Limits; 4],
    query_type: QueryType,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    /// The place of the store that is free first, and so on.
    places: BinaryHeap<Reverse<Nanos>>,
    takes: Nanos,
    draw: u64,
    /// By tier: what has arrived since then, and what of that was refused.
    counts: [(u64, u64); 4],
    counted_from: Nanos,
}

impl World {
    fn new(said: &str, per_sec: [u64; 4]) -> Self {
        let service = service(said);
        let backend = service.backend.unwrap();
        let query_type = QueryType(backend.query_types.place("get").unwrap() as u16);
        let types = usize::from(query_type.0) + 1;
        let admission = backend.admission.as_ref();
        let parallelism = admission.map(|admission| admission.parallelism);
        let limits = SharedLimits::new(parallelism, 1, types, Nanos::ZERO).unwrap();
        let queue_limit = admission.map_or(usize::MAX, |admission| admission.queue_limit);
        let shedding = service.shedding.enabled.then(|| Shedding::new(service.shedding.ladder).unwrap());
        let mut events = BinaryHeap::from([Reverse((TICK, Event::Tick))]);
        events.extend(Tier::ALL.map(|tier| Reverse((Nanos(tier.index() as u64), Event::Arrives(tier)))));
        Self {
            policy: Policy::new(admission, Nanos::ZERO).unwrap(),
            delay: Delay::new(admission.and_then(|admission| admission.codel)).unwrap(),
            queue: Queue::new(limits.permits.of_thread(0), limits.queued, queue_limit, usize::MAX >> 24),
            latencies: limits.adaptive.map(|adaptive| adaptive.of_thread()),
            ratio: LatencyRatio::new(types, service.shedding.ratio, Nanos::ZERO).unwrap(),
            shedding,
            shares: limits.shares.of_thread(),
            shared: limits.shares,
            answers: 0,
            tats: [0; 4],
            limits: per_sec.map(|per_sec| Limits::new(per_sec * 1_000, 1_000_000_000)),
            query_type,
            events,
            places: [Reverse(Nanos::ZERO); PLACES].into(),
            takes: Nanos::ZERO,
            draw: 1,
            counts: Default::default(),
            counted_from: Nanos::ZERO,
        }
    }

    fn class(&self, tier: Tier) -> Request {
        Request { tier, query_type: self.query_type }
    }

    fn draw(&mut self) -> f64 {
        self.draw = gate_common::abi::draw::next(self.draw);
        (self.draw >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Offers `load` until `end`; returns by tier the share that was refused of what has arrived since `begin`.
    fn run(&mut self, load: Load, begin: Nanos, end: Nanos) -> [f64; 4] {
        self.takes = load.takes;
        self.counts = Default::default();
        self.counted_from = begin;
        while let Some(&Reverse((now, event))) = self.events.peek()
            && now < end
        {
            self.events.pop();
            match event {
                Event::Arrives(tier) => {
                    let gap = (1.5 - self.draw()) * 1e9 / load.per_sec[tier.index()].max(1) as f64;
                    let next = now.saturating_add(Nanos(gap as u64));
                    self.events.push(Reverse((next, event)));
                    self.arrive(tier, now);
                }
                Event::Answered(tier, arrived, sent) => self.answered(tier, arrived, sent, now),
                Event::Tick => {
                    self.tick(now);
                    self.events.push(Reverse((now.saturating_add(TICK), Event::Tick)));
                }
            }
        }
        self.counts.map(|(arrived, refused)| refused as f64 / arrived.max(1) as f64)
    }

    /// The place of a tier's tenant among those who share the store.
    fn standing(&self, tier: Tier) -> Option<Standing> {
        self.shares.standing(Sharer { tier, tenant: tier.index() as u32 })
    }

    /// A request has waited for so long, or not at all. True if it is to be refused for that.
    fn note_wait(&mut self, tier: Tier, waited: Nanos, behind: usize, now: Nanos) -> bool {
        match self.standing(tier) {
            Some(Standing { is_above: false, .. }) => {
                self.delay.waited(tier, waited);
                false
            }
            Some(_) => {
                self.delay.left(tier, now, waited, behind)
                    || self.shares.longest_wait().is_some_and(|longest| waited > longest)
            }
            None => self.delay.left(tier, now, waited, behind),
        }
    }

    fn treatment(&self, tier: Tier) -> Treatment {
        self.shedding.as_ref().map_or(Treatment::Normal, |shedding| shedding.treatment(tier))
    }

    fn refuse(&mut self, tier: Tier, arrived: Nanos) {
        self.counts[tier.index()].1 += u64::from(arrived >= self.counted_from);
    }

    fn arrive(&mut self, tier: Tier, now: Nanos) {
        let index = tier.index();
        self.counts[index].0 += u64::from(now >= self.counted_from);
        let standing = self.standing(tier);
        let is_spared = self.shares.is_spared(Sharer { tier, tenant: index as u32 });
        let treatment = if is_spared { Treatment::Normal } else { self.treatment(tier) };
        if treatment == Treatment::Refused {
            return self.refuse(tier, now);
        }
        let price = MilliRu::ONE_RU.scaled(treatment.multiplier());
        // The clock starts a second in, so that buckets are full.
        let taken = take(self.tats[index], now.0 + 1_000_000_000, price.0, &self.limits[index]);
        let Take::Admit { tat } = taken else { return self.refuse(tier, now) };
        self.tats[index] = tat;
        let class = self.class(tier);
        let draw = self.draw();
        if !self.shares.offer(Sharer { tier, tenant: index as u32 }, MilliRu::ONE_RU, || draw) {
            return self.refuse(tier, now);
        }
        let draw = self.draw();
        if self.policy.refuses(class, now, || draw).is_some() {
            return self.refuse(tier, now);
        }
        if self.queue.pass(false) {
            self.note_wait(tier, Nanos::ZERO, 0, now);
            self.send(tier, now, now);
        } else if self.queue.has_room(index as u32, 0, false) {
            self.policy.enqueued(class);
            self.shares.count_from_now();
            let waits_behind = standing.is_some_and(|standing| standing.waits_behind);
            let key = QueueKey { rank: Rank { tier, waits_behind }, tenant: index as u32, is_slow: false };
            self.queue.push(key, 1_000, (), b"", now);
        } else {
            self.refuse(tier, now);
        }
    }

    fn send(&mut self, tier: Tier, arrived: Nanos, now: Nanos) {
        let Reverse(free) = self.places.pop().unwrap();
        let done = free.max(now).saturating_add(self.takes);
        self.places.push(Reverse(done));
        self.events.push(Reverse((done, Event::Answered(tier, arrived, now))));
    }

    fn answered(&mut self, tier: Tier, arrived: Nanos, sent: Nanos, now: Nanos) {
        let took = now.saturating_sub(sent);
        let place = usize::from(self.query_type.0);
        if let Some(latencies) = &mut self.latencies {
            latencies.record(place, sent, took, 1);
        }
        self.policy.completed(self.class(tier), took, now);
        self.ratio.latencies().record(place, now.saturating_sub(arrived));
        self.answers += 1;
        self.queue.leave();
        self.send_queued(now);
    }

    fn send_queued(&mut self, now: Nanos) {
        while let Some((tier, queued, behind)) = self.queue.pop(|_| true) {
            let waited = now.saturating_sub(queued.since);
            self.policy.dequeued(self.class(tier));
            if self.note_wait(tier, waited, behind, now) || waited > PATIENCE {
                self.refuse(tier, queued.since);
                self.queue.leave();
            } else {
                self.send(tier, queued.since, now);
            }
        }
    }

    fn tick(&mut self, now: Nanos) {
        let Self { delay, shares, queue, .. } = self;
        let expired = |tier: Tier, queued: &Queued<_>| {
            let waited = now.saturating_sub(queued.since);
            let standing = shares.standing(Sharer { tier, tenant: tier.index() as u32 });
            let is_beyond = shares.longest_wait().is_some_and(|longest| waited > longest);
            standing.is_none_or(|standing| standing.is_above)
                && (delay.has_expired(tier, waited) || standing.is_some() && is_beyond)
        };
        let expired: Vec<_> = std::iter::from_fn(|| queue.pop_expired(expired)).collect();
        for (tier, queued) in expired {
            self.policy.dequeued(self.class(tier));
            self.note_wait(tier, now.saturating_sub(queued.since), 0, now);
            self.refuse(tier, queued.since);
        }
        let mut stands = false;
        let mut longest = Nanos::ZERO;
        for tier in Tier::ALL {
            let (waiting, since) = self.queue.waiting(tier);
            let first = now.saturating_sub(since.unwrap_or(now));
            let state = self.delay.read(tier, waiting, first);
            stands |= state.stands;
            longest = longest.max(state.delay);
        }
        if let Some(latencies) = &mut self.latencies {
            let peak = self.queue.permits().take_peak();
            let parallelism = latencies.submit(peak).tick(now, 0.5);
            self.policy.set_parallelism(parallelism);
            self.send_queued(now);
        }
        self.policy.refresh(now);
        let seen = Seen {
            answers: std::mem::take(&mut self.answers),
            waiting: self.queue.len() as u64,
            stood: self.queue.take_stood(),
            is_refused: stands,
            delay: longest,
        };
        self.shares.tick(seen, true, now, |_| Some(1));
        let shares = &self.shares;
        let waits_behind = |tenant, tier| {
            shares.standing(Sharer { tier, tenant }).is_some_and(|standing| standing.waits_behind)
        };
        self.queue.follow_shares(waits_behind, |(), _, _| ());
        let shares_refuse = self.shared.cut();
        let is_overloaded = self.shedding.as_ref().is_some_and(Shedding::is_overloaded);
        let ratio = self.ratio.tick(now, is_overloaded || shares_refuse);
        if let Some(shedding) = &mut self.shedding {
            let lowest = shedding.settings().shed_below[Tier::BestEffort.index()];
            self.shared.set_slow(ratio.is_some_and(|ratio| ratio < lowest));
            let ratio = shedding.settings().signal(ratio, stands).filter(|_| !shares_refuse);
            shedding.tick(now, ratio);
        }
    }
}

const TICK: Nanos = Nanos::from_millis(100);
/// How long the load is as usual before an overload.
const USUAL: Nanos = Nanos::from_secs(15);
/// A client that has waited so long has left.
const PATIENCE: Nanos = Nanos::from_secs(2);
/// Of the store; at 5 ms each it does 800 requests a second.
const PLACES: usize = 4;
const CALM: Load = Load { per_sec: [100, 30, 20, 20], takes: Nanos::from_millis(5) };

/// Checks that after overloads of so many seconds everything is served again within ten, whoever asked for too much, and where
/// the store was slow.
fn check(said: &str, lengths: &[u64]) {
    let secs = Nanos::from_secs;
    let takes = CALM.takes;
    let mut failed = Vec::new();
    for &length in lengths {
        for (overload, name) in [
            (Load { per_sec: [1_500, 30, 20, 100], takes }, "critical"),
            (Load { per_sec: [100, 600, 600, 600], takes }, "all others"),
            (Load { per_sec: [100, 30, 20, 2_000], takes }, "best-effort"),
            (Load { takes: Nanos::from_millis(100), ..CALM }, "slow"),
        ] {
            let mut world = World::new(said, overload.per_sec.map(|per_sec| per_sec.max(100)));
            world.run(CALM, Nanos::ZERO, USUAL);
            let end = USUAL.saturating_add(secs(length));
            world.run(overload, USUAL, end);
            let calm = end.saturating_add(secs(10));
            world.run(CALM, end, calm);
            let refused = world.run(CALM, calm, calm.saturating_add(secs(10)));
            if refused.iter().any(|&refused| refused > 0.05) {
                let treatments = Tier::ALL.map(|tier| world.treatment(tier));
                failed.push(format!("{said:?}, {length} s of {name}: {refused:.2?}, {treatments:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "refused by tier, of what comes 10 to 20 s after:\n{}", failed.join("\n"));
}

#[test]
fn after_an_overload_all_is_served_at_any_parallelism() {
    for parallelism in ["4", "40", "auto", "off"] {
        check(&format!("parallelism = \"{parallelism}\""), &[2, 20]);
    }
}

#[test]
fn after_a_long_overload_all_is_served() {
    check("parallelism = \"4\"", &[300]);
}

#[test]
fn after_an_overload_all_is_served_under_each_policy() {
    for policy in [
        "admission = \"off\"",
        "admission = \"off\"\ncodel.law = \"rfc8289\"",
        "admission = \"max-queue-length\"",
        "admission = \"max-queue-wait\"",
        "admission = \"accept-fraction\"",
        "admission = [\"bouncer\", \"accept-fraction\"]",
        "fairness = \"none\"",
        "fairness = \"none\"\nhistogram = \"sliding\"",
        "fairness = \"helping-the-underserved\"",
        "objectives = { default = { p50 = \"8ms\" } }",
        "objectives = { default = { p50 = \"8ms\" } }\nfairness = \"none\"",
        "shedding.enabled = \"off\"\nfairness = \"none\"",
    ] {
        check(&format!("parallelism = \"4\"\n{policy}"), &[10]);
    }
}
