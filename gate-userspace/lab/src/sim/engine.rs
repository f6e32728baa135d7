//! The event loop: Poisson arrivals, an admission policy, one queue, some servers.
//!
//! Built for speed, since a study takes 10^8 requests: arrivals are drawn on the fly, so the only
//! pending events are completions, one per busy server, in a binary heap; a request that has waited
//! takes the heap's top place from the one that made room for it. Nothing is allocated per request.
//!
//! Arrivals, processing times and the policy's draws are three streams of the same seed: all
//! policies meet the same arrivals.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::collections::binary_heap::{BinaryHeap, PeekMut};

use gate_common::units::{NANOS_PER_SEC, Nanos};
use hdrhistogram::Histogram;

use super::distribution::Distribution;
use super::parallel::Progress;
use super::rng::Rng;
use gate_policy::Tier;
use gate_policy::admission::{Admission, QueryType, Request};

/// The arrivals and the servers.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many requests the store works on at once. At least 1.
    pub servers: usize,
    /// Arrivals a second, of all types together. Above 0.
    pub per_sec: f64,
    /// Of each query type, its share of the arrivals (they add up to 1) and its processing times.
    pub types: Vec<(f64, Distribution)>,
}

impl Workload {
    /// The type of the next request.
    pub(super) fn pick_type(&self, rng: &mut Rng) -> u16 {
        let mut rest = rng.unit();
        let last = self.types.len() - 1;
        let picked = self.types[..last].iter().position(|&(share, _)| {
            rest -= share;
            rest < 0.0
        });
        picked.unwrap_or(last) as u16
    }
}

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Requests before the first one that counts.
    pub warm_up: u64,
    /// Requests that count. At least 1.
    pub queries: u64,
}

/// The result of a run, warm-up excluded.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of each query type.
    pub types: Vec<TypeOutcome>,
    /// The servers' busy time over all their time.
    pub utilization: f64,
}

/// The result of a run for one query type.
#[derive(Clone, Debug)]
pub struct TypeOutcome {
    /// Requests that arrived.
    pub received: u64,
    /// Requests that were refused.
    pub rejected: u64,
    /// Response times (queueing plus processing) in microseconds.
    pub response_us: Histogram<u32>,
}

/// Simulates one run of `length` under `policy`.
pub fn run(
    workload: &Workload,
    policy: &dyn Admission,
    seed: u64,
    length: Length,
    progress: &Progress,
) -> Outcome {
    let mut engine = Engine::new(workload, policy, seed);
    engine.offer(length.warm_up, progress);
    engine.begin_measuring();
    engine.offer(length.queries, progress);
    let utilization = engine.utilization();
    // Those that are still queued have been admitted: they count.
    engine.advance(Nanos::MAX);
    Outcome { types: engine.measured, utilization }
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
pub struct Phase<'a> {
    /// The arrivals; the servers are the first phase's, and the types' number is the same in all.
    pub workload: &'a Workload,
    /// Is measured in slices so long. Above 0.
    pub slice: Nanos,
    /// How many there are.
    pub slices: u32,
}

/// Simulates one run of `phases` under `policy`, from when nothing is known; one outcome to each slice. A request
/// that begins to be processed after the slice in which it arrived has no response time.
pub fn run_phases(phases: &[Phase<'_>], policy: &dyn Admission, seed: u64) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let Some(first) = phases.first() else { return outcomes };
    let mut engine = Engine::new(first.workload, policy, seed);
    let mut ends = Nanos::ZERO;
    for phase in phases {
        engine.workload = phase.workload;
        for _ in 0..phase.slices {
            engine.begin_measuring();
            ends = ends.saturating_add(phase.slice);
            while engine.now < ends {
                engine.offer(1, &Progress::default());
            }
            outcomes.push(Outcome { utilization: engine.utilization(), types: engine.measured.clone() });
        }
    }
    outcomes
}

struct Engine<'a> {
    workload: &'a Workload,
    policy: &'a dyn Admission,
    arrivals: Rng,
    processing: Rng,
    draws: Rng,
    /// When the last request arrived.
    now: Nanos,
    next_tick: Nanos,
    queue: VecDeque<Queued>,
    busy: BinaryHeap<Reverse<InService>>,
    measured: Vec<TypeOutcome>,
    /// When the last query of the warm-up arrived.
    measured_from: Nanos,
    /// Of what was begun since then, up to its end.
    busy_time: Nanos,
}

struct Queued {
    arrived: Nanos,
    query_type: u16,
}

/// Ordered by its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct InService {
    ends: Nanos,
    took: Nanos,
    query_type: u16,
}

impl<'a> Engine<'a> {
    fn new(workload: &'a Workload, policy: &'a dyn Admission, seed: u64) -> Self {
        let [arrivals, processing, draws] = [0, 1, 2].map(|stream| Rng::new(seed, stream));
        let mut engine = Self {
            workload,
            policy,
            arrivals,
            processing,
            draws,
            now: Nanos::ZERO,
            next_tick: TICK,
            queue: VecDeque::new(),
            busy: BinaryHeap::with_capacity(workload.servers),
            measured: Vec::new(),
            measured_from: Nanos::ZERO,
            busy_time: Nanos::ZERO,
        };
        engine.begin_measuring();
        engine
    }

    fn begin_measuring(&mut self) {
        let nothing = || TypeOutcome { received: 0, rejected: 0, response_us: response_histogram() };
        self.measured = self.workload.types.iter().map(|_| nothing()).collect();
        self.measured_from = self.now;
        self.busy_time = self.still_to_work();
    }

    /// The processing time left of the requests in service.
    fn still_to_work(&self) -> Nanos {
        Nanos(self.busy.iter().map(|Reverse(job)| job.ends.saturating_sub(self.now).0).sum())
    }

    fn utilization(&self) -> f64 {
        let worked = self.busy_time.saturating_sub(self.still_to_work());
        let time = self.now.saturating_sub(self.measured_from).max(Nanos(1));
        worked.0 as f64 / (time.0 as f64 * self.workload.servers as f64)
    }

    /// Lets `count` requests arrive.
    fn offer(&mut self, count: u64, progress: &Progress) {
        for arrived in 1..=count {
            self.now = self.now.saturating_add(self.arrivals.poisson_gap(self.workload.per_sec));
            self.advance(self.now);
            self.arrive();
            if arrived % PROGRESS_STEP == 0 {
                progress.add(PROGRESS_STEP);
            }
        }
        progress.add(count % PROGRESS_STEP);
    }

    fn arrive(&mut self) {
        let query_type = self.workload.pick_type(&mut self.arrivals);
        let request = request(query_type);
        let measured = &mut self.measured[usize::from(query_type)];
        measured.received += 1;
        if !self.policy.decide(request, self.now, self.draws.unit()).admits() {
            measured.rejected += 1;
        } else if self.busy.len() < self.workload.servers {
            let job = self.begin(self.now, Queued { arrived: self.now, query_type });
            self.busy.push(Reverse(job));
        } else {
            self.policy.enqueued(request);
            self.queue.push_back(Queued { arrived: self.now, query_type });
        }
    }

    /// Takes a request into service, which never waits again.
    fn begin(&mut self, now: Nanos, Queued { arrived, query_type }: Queued) -> InService {
        let (_, distribution) = &self.workload.types[usize::from(query_type)];
        let took = distribution.sample(&mut self.processing);
        let ends = now.saturating_add(took);
        self.busy_time = self.busy_time.saturating_add(took);
        if arrived > self.measured_from {
            let response = ends.saturating_sub(arrived);
            self.measured[usize::from(query_type)].response_us.saturating_record(response.0 / 1_000);
        }
        InService { ends, took, query_type }
    }

    /// Lets everything happen that is due up to `until`.
    fn advance(&mut self, until: Nanos) {
        while let Some(&Reverse(job)) = self.busy.peek()
            && job.ends <= until
        {
            self.tick(job.ends);
            self.policy.completed(request(job.query_type), job.took, job.ends);
            match self.queue.pop_front() {
                Some(queued) => {
                    self.policy.dequeued(request(queued.query_type));
                    let next = self.begin(job.ends, queued);
                    if let Some(mut top) = self.busy.peek_mut() {
                        *top = Reverse(next);
                    }
                }
                None => drop(self.busy.peek_mut().map(PeekMut::pop)),
            }
        }
        self.tick(until);
    }

    /// Lets the policy learn at the last tick up to `until`: since the last event, there was nothing
    /// new to learn at those before.
    fn tick(&mut self, until: Nanos) {
        if self.next_tick <= until {
            let tick = Nanos(until.0 - until.0 % TICK.0);
            self.policy.refresh(tick);
            self.next_tick = tick.saturating_add(TICK);
        }
    }
}

const fn request(query_type: u16) -> Request {
    Request { tier: Tier::Standard, query_type: QueryType(query_type) }
}

/// From a microsecond to a quarter of an hour, three significant digits.
fn response_histogram() -> Histogram<u32> {
    Histogram::new_with_bounds(1, 15 * 60 * 1_000_000, 3).expect("constant bounds are in range")
}

/// How often a policy may learn: the daemon's tick.
const TICK: Nanos = Nanos(NANOS_PER_SEC / 10);
/// How many requests pass between two signs of progress.
const PROGRESS_STEP: u64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use gate_policy::admission::Decision;
    use gate_policy::baselines::MaxQueueLength;

    const LENGTH: Length = Length { warm_up: 20_000, queries: 200_000 };

    fn workload(servers: usize, load: f64, types: Vec<(f64, Distribution)>) -> Workload {
        let mean_secs: f64 = types.iter().map(|(share, of)| share * of.mean_secs()).sum();
        Workload { servers, per_sec: load * servers as f64 / mean_secs, types }
    }

    fn admit_all(workload: &Workload, seed: u64) -> Outcome {
        run(workload, &MaxQueueLength::new(u64::MAX).unwrap(), seed, LENGTH, &Progress::default())
    }

    fn exponential_ms(ms: u64) -> Distribution {
        Distribution::exponential(Nanos::from_millis(ms)).unwrap()
    }

    #[test]
    fn one_memoryless_server_responds_as_theory_says() {
        // M/M/1: the response time is exponential with mean 1 / (mu - lambda).
        for load in [0.3, 0.5, 0.8] {
            let outcome = admit_all(&workload(1, load, vec![(1.0, exponential_ms(10))]), 1);
            let responses = &outcome.types[0].response_us;
            let mean = 10_000.0 / (1.0 - load);
            let close = |got: f64, expected: f64| {
                assert!((got / expected - 1.0).abs() < 0.08, "{got} us, not {expected}, at load {load}");
            };
            close(responses.mean(), mean);
            close(responses.value_at_quantile(0.5) as f64, mean * std::f64::consts::LN_2);
            close(responses.value_at_quantile(0.9) as f64, mean * 10f64.ln());
            assert!((outcome.utilization - load).abs() < 0.02, "{} at {load}", outcome.utilization);
        }
    }

    #[test]
    fn many_memoryless_servers_wait_as_erlang_says() {
        // M/M/c: the mean wait is C(c, a) / (c mu - lambda), with Erlang's C from his B.
        let servers = 20;
        let load = 0.9;
        let offered = f64::from(servers) * load;
        let blocked = (1..=servers).fold(1.0, |b, n| offered * b / (f64::from(n) + offered * b));
        let waits = blocked / (1.0 - load * (1.0 - blocked));
        let mean_us = 10_000.0 + waits * 10_000.0 / (f64::from(servers) * (1.0 - load));
        let outcome = admit_all(&workload(servers as usize, load, vec![(1.0, exponential_ms(10))]), 2);
        let got = outcome.types[0].response_us.mean();
        assert!((got / mean_us - 1.0).abs() < 0.03, "{got} us, not {mean_us}");
    }

    #[test]
    fn types_arrive_in_their_shares_and_each_query_counts_once() {
        let types = vec![(0.5, exponential_ms(1)), (0.3, exponential_ms(2)), (0.2, exponential_ms(4))];
        let shares: Vec<f64> = types.iter().map(|&(share, _)| share).collect();
        let policy = MaxQueueLength::new(10).unwrap();
        let outcome = run(&workload(4, 1.5, types), &policy, 3, LENGTH, &Progress::default());
        let received: u64 = outcome.types.iter().map(|of| of.received).sum();
        assert_eq!(received, LENGTH.queries);
        for (of, share) in outcome.types.iter().zip(shares) {
            assert!((of.received as f64 / received as f64 - share).abs() < 0.01);
            assert_eq!(of.rejected + of.response_us.len(), of.received);
        }
        assert!(outcome.utilization > 0.95 && outcome.utilization <= 1.0);
    }

    #[test]
    fn a_run_repeats_with_its_seed_and_progress_counts_every_query() {
        let workload = workload(4, 0.9, vec![(1.0, exponential_ms(1))]);
        let means = [1, 1, 2].map(|seed| admit_all(&workload, seed).types[0].response_us.mean());
        assert_eq!(means[0], means[1]);
        assert_ne!(means[0], means[2]);
        let progress = Progress::default();
        run(&workload, &MaxQueueLength::new(1).unwrap(), 1, LENGTH, &progress);
        assert_eq!(progress.done(), LENGTH.warm_up + LENGTH.queries);
    }

    /// Admits all, records the calls and checks that they are possible.
    #[derive(Default)]
    struct Recorder(std::sync::Mutex<(u64, u64, u64)>);

    impl Admission for Recorder {
        fn decide(&self, _: Request, now: Nanos, draw: f64) -> Decision {
            let mut seen = self.0.lock().unwrap();
            assert!(now.0 >= seen.2 && (0.0..1.0).contains(&draw));
            seen.2 = now.0;
            Decision::Admit
        }
        fn peek(&self, _: Request, _: Nanos, _: f64) -> Decision {
            Decision::Admit
        }
        fn enqueued(&self, _: Request) {
            self.0.lock().unwrap().0 += 1;
        }
        fn dequeued(&self, _: Request) {
            let mut seen = self.0.lock().unwrap();
            seen.0 = seen.0.checked_sub(1).expect("dequeued without being enqueued");
        }
        fn completed(&self, _: Request, processing: Nanos, now: Nanos) {
            assert!(processing <= now);
            self.0.lock().unwrap().1 += 1;
        }
        fn refresh(&self, now: Nanos) {
            assert_eq!(now.0 % TICK.0, 0);
        }
    }

    #[test]
    fn a_policy_is_called_for_every_step_of_every_request() {
        let recorder = Recorder::default();
        let workload = workload(3, 1.1, vec![(1.0, exponential_ms(1))]);
        run(&workload, &recorder, 1, Length { warm_up: 0, queries: 5_000 }, &Progress::default());
        let (queued, completed, _) = *recorder.0.lock().unwrap();
        assert_eq!((queued, completed), (0, 5_000));
    }
}
