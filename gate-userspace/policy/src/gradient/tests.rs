use super::*;
use crate::test_rng::TestRng;

const TICK: Nanos = Nanos::from_millis(100);

/// A store that works on so many requests at once, each for so long; what it gets beyond queues there. Clients ask
/// for as much as `demand` at once, and at once again.
struct Store {
    servers: u32,
    service_time: Nanos,
    demand: u32,
}

impl Store {
    /// The latency and the number of requests of a tick with so many permits.
    fn tick(&self, permits: u32) -> (Nanos, u32, u32) {
        let at_once = permits.min(self.demand);
        let waits = f64::from(at_once.max(self.servers)) / f64::from(self.servers);
        let latency = Nanos((self.service_time.0 as f64 * waits) as u64);
        let done = u64::from(at_once) * TICK.0 / latency.0.max(1);
        (latency, at_once, done.max(1) as u32)
    }
}

struct Run {
    gradient: Gradient,
    window: Window,
    rng: TestRng,
    now: Nanos,
}

impl Run {
    fn new(config: Config) -> Self {
        let gradient = Gradient::new(config, 4, Nanos::ZERO).unwrap();
        Self { gradient, window: Window::new(4), rng: TestRng::new(1), now: Nanos::ZERO }
    }

    /// Lets stores of classes 0, 1 ... be asked for so many ticks; the least and the greatest limit meanwhile.
    fn run(&mut self, ticks: u32, store: &Store) -> (u32, u32) {
        let mut limits = (u32::MAX, 0);
        for _ in 0..ticks {
            let limit = self.gradient.limit();
            limits = (limits.0.min(limit), limits.1.max(limit));
            let (latency, at_once, done) = store.tick(limit);
            self.window.record(0, latency, done);
            self.tick(at_once, store.demand > limit);
        }
        limits
    }

    fn tick(&mut self, peak: u32, is_reached: bool) {
        self.now = self.now.saturating_add(TICK);
        let tick = Tick { now: self.now, is_reached, peak: peak as usize, draw: self.rng.unit() };
        self.gradient.tick(&mut self.window, tick);
    }
}

fn micros(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

#[test]
fn a_class_that_is_not_known_counts_as_the_last() {
    let mut window = Window::new(3);
    for (class, count) in [(0, 1), (1, 10), (2, 100), (3, 1_000), (usize::MAX, 10_000)] {
        window.record(class, micros(5), count);
    }
    let totals: Vec<_> = window.classes.iter().map(|class| class.total).collect();
    assert_eq!((totals, window.len()), (vec![1, 10, 11_100], 11_111));
}

#[test]
fn a_fast_store_gets_all_that_is_asked() {
    let store = Store { servers: 1, service_time: micros(1), demand: 1_000 };
    let mut run = Run::new(Config::default());
    run.run(20, &store);
    let (least, most) = run.run(600, &store);
    assert!(least >= 900, "{least} to {most}");
    assert!(run.gradient.measuring_since().is_none(), "it is not measured for nothing");
}

#[test]
fn a_slow_store_gets_few_more_than_it_works_on() {
    for servers in [1, 8, 64] {
        let store = Store { servers, service_time: Nanos::from_millis(10), demand: 10_000 };
        let mut run = Run::new(Config::default());
        // The latency at low concurrency, before the flood.
        run.run(5, &Store { demand: 1, ..store });
        run.run(300, &store);
        let (_, most) = run.run(100, &store);
        let bound = f64::from(servers) * 1.6 + 16.0;
        assert!(f64::from(most) <= bound, "{most} for {servers}");
        let (least, _) = run.run(100, &store);
        assert!(least >= servers.min(4), "{least} for {servers}");
    }
}

#[test]
fn a_busy_store_is_measured_at_low_concurrency() {
    let store = Store { servers: 4, service_time: Nanos::from_millis(4), demand: 5_000 };
    let mut run = Run::new(Config::default());
    run.run(5, &store);
    let before = run.gradient.minima[0];
    assert!(before > Nanos::from_millis(15), "what was seen first is no minimum: {before}");
    run.run(900, &store);
    let after = run.gradient.minima[0];
    assert!(after < Nanos::from_millis(5), "{after}");
}

#[test]
fn a_store_that_has_become_slower_is_measured_anew() {
    let fast = Store { servers: 16, service_time: Nanos::from_millis(2), demand: 1_000 };
    let mut run = Run::new(Config::default());
    run.run(5, &Store { demand: 1, ..fast });
    run.run(100, &fast);
    let slow = Store { service_time: Nanos::from_millis(20), ..fast };
    run.run(1_500, &slow);
    let (least, most) = run.run(100, &slow);
    assert!(most >= 12, "{least} to {most} for a store of 16");
}

#[test]
fn measurements_come_now_and_then_and_not_at_once() {
    let store = Store { servers: 4, service_time: Nanos::from_millis(5), demand: 5_000 };
    let mut run = Run::new(Config { jitter: 0.5, interval: Nanos::from_secs(10), ..Config::default() });
    // Demand is never low, and the queue at the store never short.
    run.window.record(0, store.service_time, 60);
    run.tick(1, false);
    let mut began = Vec::new();
    for _ in 0..3_000 {
        let was = run.gradient.measuring_since();
        let latency = if was.is_some() { store.service_time } else { Nanos::from_millis(50) };
        run.window.record(0, latency, 100);
        run.tick(5_000, true);
        began.extend(run.gradient.measuring_since().filter(|_| was.is_none()));
    }
    let gaps: Vec<_> = began.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).0 / 1_000_000).collect();
    assert!(gaps.len() > 10 && gaps.iter().all(|gap| (10_000..=15_500).contains(gap)), "{gaps:?}");
    assert!(gaps.iter().any(|gap| gap != &gaps[0]), "{gaps:?}");
}

#[test]
fn latency_from_outside_the_stores_queue_costs_little() {
    let mut run = Run::new(Config::default());
    run.run(20, &Store { servers: 1, service_time: micros(1), demand: 1_000 });
    // The machine is busy: everything takes 4 ms, however few requests are at the store.
    let busy = Store { servers: 100_000, service_time: Nanos::from_millis(4), demand: 1_000 };
    let limits = (0..600).map(|_| f64::from(run.run(1, &busy).0.min(1_000)));
    let mean = limits.sum::<f64>() / 600.0;
    assert!(mean > 850.0, "{mean} of 1,000 at once");
}

#[test]
fn a_change_of_mix_is_no_overload() {
    let mut run = Run::new(Config::default());
    for tick in 0..200 {
        // Reads at 100 us first, then ranges at 20 ms as well, each as fast as ever.
        let (reads, ranges) = if tick < 100 { (1_000, 0) } else { (100, 900) };
        run.window.record(0, micros(100), reads);
        if ranges > 0 {
            run.window.record(1, Nanos::from_millis(20), ranges);
        }
        run.tick(200, true);
    }
    assert!(run.gradient.limit() >= 5_000, "{}", run.gradient.limit());
}

#[test]
fn a_limit_that_is_not_used_is_given_up_but_for_twice_the_use() {
    let mut run = Run::new(Config::default());
    run.run(50, &Store { servers: 1, service_time: micros(1), demand: 20_000 });
    let high = run.gradient.limit();
    assert!(high > 900, "{high}");
    for _ in 0..200 {
        run.window.record(0, micros(100), 1_000);
        run.tick(150, false);
    }
    assert_eq!(run.gradient.limit(), 300);
    for _ in 0..200 {
        run.tick(0, false);
    }
    assert_eq!(run.gradient.limit(), 20);
}

#[test]
fn a_store_that_says_nothing_leaves_the_limit() {
    let mut run = Run::new(Config::default());
    run.run(50, &Store { servers: 1, service_time: micros(1), demand: 500 });
    let before = run.gradient.limit();
    (0..100).for_each(|_| run.tick(before, true));
    assert_eq!(run.gradient.limit(), before);
}

#[test]
fn one_hiccup_at_low_concurrency_is_not_the_normal_state() {
    let mut run = Run::new(Config::default());
    let idle = Store { servers: 1, service_time: micros(100), demand: 1 };
    run.run(10, &idle);
    let before = run.gradient.minima[0];
    run.window.record(0, Nanos::from_secs(1), 100);
    run.tick(1, false);
    assert_eq!(run.gradient.minima[0], Nanos(before.0 * 2));
    run.run(1, &idle);
    assert_eq!(run.gradient.minima[0], before);
}

#[test]
fn a_bucket_is_an_eighth_wide_and_its_middle_is_in_it() {
    for nanos in (10..41).flat_map(|bit| (0..8).map(move |eighth| (1_u64 << bit) + (eighth << (bit - 3)))) {
        let middle = middle(bucket(Nanos(nanos)));
        assert!(nanos <= middle.0 && middle.0 <= nanos + nanos / 16 + 1, "{nanos}: {middle}");
    }
    assert_eq!((bucket(Nanos::ZERO), bucket(Nanos::MAX)), (0, BUCKETS - 1));
}

#[test]
fn parameters_outside_of_their_ranges_are_named() {
    let config = Config::default();
    let field = |config| Gradient::new(config, 1, Nanos::ZERO).unwrap_err().field;
    assert_eq!(field(Config { min: 0, ..config }), "min");
    assert_eq!(field(Config { min: 21, ..config }), "min");
    assert_eq!(field(Config { initial: 10_001, ..config }), "initial");
    assert_eq!(field(Config { max: 1_000_001, ..config }), "max");
    assert_eq!(field(Config { buffer: f64::NAN, ..config }), "buffer");
    assert_eq!(field(Config { floor: Nanos::from_secs(11), ..config }), "floor");
    assert_eq!(field(Config { interval: Nanos::ZERO, ..config }), "interval");
    assert_eq!(field(Config { jitter: 1.1, ..config }), "jitter");
}

proptest::proptest! {
    #[test]
    fn the_limit_stays_within_its_bounds(
        ticks in proptest::collection::vec((0_u64..2_000_000_000, 0_u32..2_000, 0_usize..20_000, proptest::bool::ANY, 0.0..1.0), 1..200),
        min in 1_u32..20,
    ) {
        let config = Config { min, ..Config::default() };
        let mut run = Run::new(config);
        for (took, count, peak, is_reached, draw) in ticks {
            run.window.record((took % 4) as usize, Nanos(took), count);
            run.now = run.now.saturating_add(TICK);
            run.gradient.tick(&mut run.window, Tick { now: run.now, is_reached, peak, draw });
            proptest::prop_assert!((config.min..=config.max).contains(&run.gradient.limit()));
            proptest::prop_assert!(run.window.is_empty());
        }
    }
}
