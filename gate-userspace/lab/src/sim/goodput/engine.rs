//! The event loop: Poisson arrivals with patience, one queue, some processes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gate_common::units::Nanos;
use hdrhistogram::Histogram;

use super::disciplines::{Guard, Seen, guard};
use super::{Discipline, Report, Setup};
use crate::sim::engine::Workload;
use crate::sim::rng::Rng;
use gate_policy::range::OutOfRange;

/// Simulates a lull, an overload and a lull under one discipline.
pub(super) fn run(setup: &Setup, discipline: Discipline, load: f64) -> Result<Report, OutOfRange> {
    let mut run = Run::new(setup, guard(discipline, setup)?);
    let overload_from = setup.part;
    let lull_from = overload_from.saturating_add(setup.part);
    run.offer(Setup::LULL, overload_from);
    run.offer(load, overload_from.saturating_add(Setup::SETTLING));
    run.counts = Counts::new();
    run.offer(load, lull_from);
    let measured = std::mem::replace(&mut run.counts, Counts::new());
    (run.seconds, run.seconds_from) = (Vec::new(), lull_from);
    run.offer(Setup::LULL, lull_from.saturating_add(setup.part));
    let time = setup.part.saturating_sub(Setup::SETTLING);
    Ok(measured.report(setup, (discipline, load), time, recovered(&run.seconds)))
}

/// The seconds after which 99 of 100 requests are answered in time, for good.
fn recovered(seconds: &[(u64, u64)]) -> Option<u64> {
    // What arrived last may not have been answered.
    let seconds = &seconds[..seconds.len().saturating_sub(2)];
    let last_bad = seconds.iter().rposition(|&(arrived, good)| good * 100 < arrived * 99);
    let after = last_bad.map_or(0, |last| last + 1);
    (after < seconds.len()).then_some(after as u64)
}

struct Run<'s> {
    setup: &'s Setup,
    guard: Box<dyn Guard>,
    /// The requests of this part.
    workload: Workload,
    /// Arrivals, processing times, and the draws of the discipline.
    arrivals: Rng,
    processing: Rng,
    draws: Rng,
    now: Nanos,
    next_tick: Nanos,
    queue: VecDeque<Queued>,
    busy: BinaryHeap<Reverse<InService>>,
    seen: Seen,
    counts: Counts,
    /// By the second of arrival since they were cleared: requests, and those that were answered in time.
    seconds: Vec<(u64, u64)>,
    seconds_from: Nanos,
}

#[derive(Clone, Copy)]
struct Queued {
    arrived: Nanos,
    query_type: u16,
}

/// Ordered by its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct InService {
    ends: Nanos,
    took: Nanos,
    arrived: Nanos,
    query_type: u16,
}

struct Counts {
    arrived: u64,
    refused: u64,
    good: Nanos,
    wasted: Nanos,
    response_us: Histogram<u64>,
}

impl Counts {
    fn new() -> Self {
        let response_us = Histogram::new(3).expect("three digits are fine");
        Self { arrived: 0, refused: 0, good: Nanos::ZERO, wasted: Nanos::ZERO, response_us }
    }

    fn report(
        &self,
        setup: &Setup,
        (discipline, load): (Discipline, f64),
        time: Nanos,
        recovered_after_s: Option<u64>,
    ) -> Report {
        let capacity = time.0 as f64 * f64::from(setup.scenario.processes);
        let percentile = |share| self.response_us.value_at_quantile(share) as f64 / 1e3;
        Report {
            discipline: discipline.name(),
            load,
            goodput_percent: 100.0 * self.good.0 as f64 / capacity,
            wasted_percent: 100.0 * self.wasted.0 as f64 / capacity,
            refused_percent: 100.0 * self.refused as f64 / self.arrived.max(1) as f64,
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            recovered_after_s,
        }
    }
}

impl<'s> Run<'s> {
    fn new(setup: &'s Setup, guard: Box<dyn Guard>) -> Self {
        let [arrivals, processing, draws] = [0, 1, 2].map(|stream| Rng::new(setup.seed, stream));
        Self {
            setup,
            guard,
            workload: setup.scenario.workload(Setup::LULL),
            arrivals,
            processing,
            draws,
            now: Nanos::ZERO,
            next_tick: TICK,
            queue: VecDeque::new(),
            busy: BinaryHeap::new(),
            seen: Seen::default(),
            counts: Counts::new(),
            seconds: Vec::new(),
            seconds_from: Nanos::ZERO,
        }
    }

    fn processes(&self) -> usize {
        self.setup.scenario.processes as usize
    }

    /// Lets requests arrive under this load until then.
    fn offer(&mut self, load: f64, until: Nanos) {
        self.workload = self.setup.scenario.workload(load);
        let per_sec = self.workload.per_sec;
        loop {
            let next = self.now.saturating_add(self.arrivals.poisson_gap(per_sec));
            if next >= until {
                // The next part draws its own gap, which changes nothing for a process without memory.
                self.advance(until);
                self.now = until;
                return;
            }
            self.advance(next);
            self.now = next;
            self.arrive();
        }
    }

    fn second(&mut self, arrived: Nanos) -> Option<&mut (u64, u64)> {
        let since = arrived.0.checked_sub(self.seconds_from.0)?;
        let second = (since / 1_000_000_000) as usize;
        if second >= self.seconds.len() {
            self.seconds.resize(second + 1, (0, 0));
        }
        self.seconds.get_mut(second)
    }

    fn arrive(&mut self) {
        let now = self.now;
        let query_type = self.workload.pick_type(&mut self.arrivals);
        self.counts.arrived += 1;
        if let Some((arrived, _)) = self.second(now) {
            *arrived += 1;
        }
        if !self.guard.admits(query_type, now, self.draws.unit()) {
            self.counts.refused += 1;
            return;
        }
        self.seen.admitted += 1;
        let queued = Queued { arrived: now, query_type };
        if self.busy.len() < self.processes() {
            self.guard.serves(now, Nanos::ZERO, 0);
            self.begin(now, queued);
        } else {
            self.guard.enqueued(query_type);
            self.queue.push_back(queued);
        }
    }

    fn begin(&mut self, now: Nanos, Queued { arrived, query_type }: Queued) {
        let took = self.workload.types[usize::from(query_type)].1.sample(&mut self.processing);
        self.seen.sent += 1;
        self.busy.push(Reverse(InService { ends: now.saturating_add(took), took, arrived, query_type }));
    }

    /// Lets everything happen that is due up to `until`.
    fn advance(&mut self, until: Nanos) {
        while let Some(&Reverse(job)) = self.busy.peek()
            && job.ends <= until
        {
            self.tick(job.ends);
            self.busy.pop();
            self.guard.completed(job.query_type, job.took, job.ends);
            self.answer(job);
            self.take(job.ends);
        }
        self.tick(until);
    }

    fn answer(&mut self, job: InService) {
        let response = job.ends.saturating_sub(job.arrived);
        if response > self.setup.patience {
            self.counts.wasted = self.counts.wasted.saturating_add(job.took);
            return;
        }
        self.counts.good = self.counts.good.saturating_add(job.took);
        // It grows with what is recorded.
        let _ = self.counts.response_us.record(response.0 / 1_000);
        if let Some((_, good)) = self.second(job.arrived) {
            *good += 1;
        }
    }

    /// Gives a process that is idle the next request that is to be served.
    fn take(&mut self, now: Nanos) {
        loop {
            while self
                .queue
                .front()
                .is_some_and(|first| now.saturating_sub(first.arrived) >= self.setup.patience)
            {
                let Some(left) = self.queue.pop_front() else { return };
                self.guard.dequeued(left.query_type);
                self.counts.refused += 1;
            }
            let next =
                if self.guard.is_newest_first() { self.queue.pop_back() } else { self.queue.pop_front() };
            let Some(next) = next else { return };
            self.guard.dequeued(next.query_type);
            if self.guard.serves(now, now.saturating_sub(next.arrived), self.queue.len()) {
                return self.begin(now, next);
            }
            self.counts.refused += 1;
        }
    }

    fn tick(&mut self, until: Nanos) {
        while self.next_tick <= until {
            let idle = self.processes() - self.busy.len();
            let seen = Seen { idle, queued: self.queue.len(), ..std::mem::take(&mut self.seen) };
            self.guard.tick(&seen, self.next_tick);
            self.next_tick = self.next_tick.saturating_add(TICK);
        }
    }
}

/// The daemon's tick.
pub(super) const TICK: Nanos = Nanos::from_millis(100);
