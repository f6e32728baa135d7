//! Prices of a store whose costs are known, in virtual time.

use proptest::prelude::*;

use super::super::cost_model::Shape;
use super::*;

const START: Prices =
    Prices { base: MilliRu(500), row: MilliRu(500), kib: MilliRu(1_000), latency: MilliRu(0) };
const TICK: Nanos = Nanos::from_millis(100);
const DELETE: usize = QueryClass::Delete as usize;
const OTHER: usize = QueryClass::Other as usize;
/// The time of the store's reads, and of its deletions, which look just like them.
const READ: Nanos = Nanos::from_micros(200);
const DEAR: Nanos = Nanos::from_millis(2);

fn settings(range: f64) -> Settings {
    Settings { prices: START, learning: Learning { range, ..Learning::default() } }
}

/// A service, and its time.
struct Service {
    pricing: Pricing,
    now: Nanos,
}

impl Service {
    fn new(range: f64) -> Self {
        Self { pricing: Pricing::new(settings(range)).unwrap(), now: Nanos::from_secs(1_000) }
    }

    /// A tick with fifty reads of one key that took so long, and ten deletions.
    fn tick(&mut self, read: Nanos, deletion: Nanos, overloaded: bool) {
        let mut cost_samples = CostSamples::default();
        let shape =
            |class: usize| Shape { rows: 1, bytes: 32, expected_milli: self.pricing.expected()[class] };
        (0..50).for_each(|_| cost_samples.window.observe_reference(shape(GET), read));
        (0..10).for_each(|_| cost_samples.window.observe(shape(DELETE), deletion));
        (cost_samples.p95[GET], cost_samples.p95[DELETE]) = (Some(read), Some(deletion));
        self.now = self.now.saturating_add(TICK);
        self.pricing.tick(self.now, &cost_samples, overloaded);
    }

    fn run(&mut self, ticks: usize) {
        (0..ticks).for_each(|_| self.tick(READ, DEAR, false));
    }

    /// The price of a request of 32 bytes for one row, in thousandths of a request unit.
    fn price(&self, class: usize) -> u32 {
        let state = self.pricing.put_into(ServiceState::default());
        state.price(1, 1, 32) + state.latency_mru[class]
    }
}

#[test]
fn requests_that_look_alike_cost_what_their_class_takes() {
    let mut service = Service::new(10.0);
    assert_eq!(service.price(GET), service.price(DELETE));
    service.run(600);
    let get = service.price(GET);
    let delete = service.price(DELETE);
    // All of it is latency, and still base and row are a tenth of what they were.
    assert!((950..=1_100).contains(&get) && (9_500..=10_500).contains(&delete), "{get} {delete}");
    assert_eq!(service.pricing.reference(), Some(READ));
}

#[test]
fn unreadable_requests_cost_the_most_and_unseen_ones_a_read() {
    let mut service = Service::new(10.0);
    for _ in 0..300 {
        service.run(1);
        let latency = service.pricing.put_into(ServiceState::default()).latency_mru;
        assert!(latency.iter().all(|&class| class <= latency[UNREAD]), "{latency:?}");
        assert_eq!(latency[OTHER], latency[GET]);
    }
    assert!(service.price(UNREAD) >= service.price(DELETE));
}

#[test]
fn an_overload_and_its_aftermath_change_nothing() {
    let mut service = Service::new(10.0);
    service.run(100);
    let before = service.pricing.put_into(ServiceState::default());
    for _ in 0..50 {
        service.tick(READ, Nanos::from_secs(1), true);
    }
    // Its last answers come in when it is over.
    let ended = service.now;
    while service.now.saturating_add(TICK).saturating_sub(ended) < AFTERMATH {
        service.tick(Nanos::from_millis(20), Nanos::from_secs(1), false);
        assert_eq!(service.pricing.put_into(ServiceState::default()), before);
    }
    service.run(1);
    assert_ne!(service.pricing.put_into(ServiceState::default()), before);
}

#[test]
fn without_enough_reads_to_compare_with_nothing_changes() {
    let mut service = Service::new(10.0);
    service.run(100);
    let before = service.pricing.put_into(ServiceState::default());
    let mut cost_samples = CostSamples { p95: [Some(DEAR); QueryClass::COUNT], ..CostSamples::default() };
    let shape = Shape { rows: 1, bytes: 32, expected_milli: 1_000 };
    (0..9).for_each(|_| cost_samples.window.observe_reference(shape, READ));
    service.pricing.tick(service.now, &cost_samples, false);
    assert_eq!(service.pricing.put_into(ServiceState::default()), before);
}

#[test]
fn requests_are_measured_by_a_recent_read_outside_overloads() {
    let mut service = Service::new(10.0);
    assert_eq!(service.pricing.measure(), None);
    service.run(1);
    let measure = service.pricing.measure().unwrap();
    assert_eq!(measure.reference, READ);
    // Ten times what is configured, with ten times a read's worth for latency.
    let dearest =
        Prices { base: MilliRu(15_000), row: MilliRu(5_000), kib: MilliRu(10_000), latency: MilliRu(0) };
    assert_eq!(measure.dearest, dearest);

    service.tick(READ, DEAR, true);
    assert_eq!(service.pricing.measure(), None);
    let ended = service.now;
    while service.now.saturating_add(TICK).saturating_sub(ended) < AFTERMATH {
        service.run(1);
        assert_eq!(service.pricing.measure(), None);
    }
    service.run(1);
    assert_eq!(service.pricing.measure(), Some(measure));

    let last = service.now;
    while service.now.saturating_add(TICK).saturating_sub(last) < RECENT {
        service.now = service.now.saturating_add(TICK);
        service.pricing.tick(service.now, &CostSamples::default(), false);
        assert_eq!(service.pricing.measure(), Some(measure));
    }
    service.now = service.now.saturating_add(TICK);
    service.pricing.tick(service.now, &CostSamples::default(), false);
    assert_eq!(service.pricing.measure(), None);
}

#[test]
fn what_latency_adds_has_an_end() {
    let mut service = Service::new(2.0);
    for _ in 0..1_000 {
        service.tick(READ, Nanos::from_secs(1), false);
    }
    let state = service.pricing.put_into(ServiceState::default());
    // Twice what base and row are configured to be together.
    assert_eq!((state.latency_mru[DELETE], state.latency_mru[UNREAD]), (2_000, 2_000));
    assert!(state.base_mru <= 1_000 && state.row_mru <= 1_000, "{state:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_term_of_a_price_jumps_or_leaves_its_range(
        range in 1.0..1_000.0_f64,
        ticks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 1..60),
    ) {
        let mut service = Service::new(range);
        let most = (1_000.0 * range) as u32;
        for (read, deletion, overloaded) in ticks {
            let before = service.pricing.put_into(ServiceState::default());
            service.tick(Nanos(read >> (read % 64)), Nanos(deletion >> (deletion % 64)), overloaded);
            let after = service.pricing.put_into(ServiceState::default());
            let parts = |state: &ServiceState| {
                [&[state.base_mru, state.row_mru, state.kib_mru][..], &state.latency_mru].concat()
            };
            for (before, after) in parts(&before).into_iter().zip(parts(&after)) {
                // Rounded to the nearest on both sides.
                let step = (f64::from(before) * 0.05).max(5.0) + 1.1;
                prop_assert!(f64::from(before.abs_diff(after)) <= step, "{before} became {after}");
                prop_assert!(after <= most, "{after}");
            }
            prop_assert!(after.price(1, 0, 0) > 0, "a request is free");
        }
    }
}
