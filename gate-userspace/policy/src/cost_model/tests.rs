//! Stores whose costs are known, and requests of any shape.

use proptest::prelude::*;

use super::*;

const START: Prices =
    Prices { base: MilliRu(500), row: MilliRu(500), kib: MilliRu(1_000), latency: MilliRu(0) };
const REFERENCE: Shape = Shape { rows: 1, bytes: 32, expected_milli: 2_000 };

/// A store in which a request takes `base + row·rows + kib·KiB + latency·expected` reference reads.
struct Store {
    truth: Vector,
    reference: Nanos,
}

impl Store {
    fn cost(&self, shape: Shape) -> f64 {
        features(&shape.into()).iter().zip(self.truth).map(|(feature, ru)| feature * ru).sum()
    }

    fn took(&self, shape: Shape) -> Nanos {
        Nanos((self.cost(shape) / self.cost(REFERENCE) * self.reference.0 as f64) as u64)
    }

    /// Ticks of a mix of single reads, multi-gets, writes and ranges.
    fn train(&self, model: &mut CostModel, ticks: u32, overloaded: bool) -> Prices {
        for tick in 0..ticks {
            let mut window = Window::default();
            for nth in 0..100 {
                let rows = [1, 1, 10, 100][nth % 4];
                let bytes = [32, 4_096, 320, 64][nth % 4] + tick % 7;
                let expected_milli = [2_000, 2_500, 4_000, 20_000][nth % 4];
                let shape = Shape { rows, bytes, expected_milli };
                window.observe(shape, self.took(shape));
                window.observe_reference(REFERENCE, self.took(REFERENCE));
            }
            model.tick(&window, overloaded);
        }
        model.prices()
    }
}

const STORE: Store = Store { truth: [0.55, 0.3, 0.8, 0.05], reference: Nanos::from_micros(200) };

fn model() -> CostModel {
    CostModel::new(START, Learning::default()).unwrap()
}

fn close(price: MilliRu, ru: f64) -> bool {
    (f64::from(price.0) / 1e3 - ru).abs() <= 0.03 * ru.max(0.3)
}

#[test]
fn a_price_adds_up_rounds_up_and_saturates() {
    let prices = Prices { latency: MilliRu(100), ..START };
    for (rows, bytes, expected_milli, price) in [
        (0, 0, 0, 500),
        (1, 0, 0, 1_000),
        (1, 1, 0, 1_001),
        (1, 1_024, 0, 2_000),
        (1, 0, 1, 1_001),
        (1, 0, 1_500, 1_150),
        (u32::MAX, u32::MAX, u32::MAX, u32::MAX),
    ] {
        assert_eq!(prices.price(Shape { rows, bytes, expected_milli }), MilliRu(price), "{rows} {bytes}");
    }
    assert_eq!(expected(Nanos(3), Nanos(2)), 1_500);
    assert_eq!((expected(Nanos(1), Nanos(0)), expected(Nanos::MAX, Nanos(1))), (0, u32::MAX));
}

#[test]
fn prices_come_to_what_requests_take() {
    let mut model = model();
    STORE.train(&mut model, 600, false);
    let reference_cost = STORE.cost(REFERENCE);
    for shape in [
        REFERENCE,
        Shape { rows: 10, bytes: 320, expected_milli: 4_000 },
        Shape { rows: 100, bytes: 64, expected_milli: 20_000 },
        Shape { rows: 1, bytes: 4_096, expected_milli: 2_500 },
    ] {
        let price = model.prices().price(shape);
        let ru = STORE.cost(shape) / reference_cost;
        assert!(close(price, ru), "{shape:?}: {price} for {ru}");
    }
    assert!(close(model.prices().price(REFERENCE), 1.0));
    assert_eq!(model.reference(), Some(STORE.reference));
}

#[test]
fn a_store_that_is_slower_as_a_whole_changes_no_price() {
    let mut model = model();
    let before = STORE.train(&mut model, 600, false);
    let slow = Store { reference: Nanos::from_millis(20), ..STORE };
    let after = slow.train(&mut model, 600, false);
    for (before, after) in [(before.base, after.base), (before.row, after.row), (before.kib, after.kib)] {
        assert!(before.0.abs_diff(after.0) <= 5, "{before} became {after}");
    }
}

#[test]
fn an_overload_teaches_nothing_and_leaves_nothing_behind() {
    let mut model = model();
    let before = STORE.train(&mut model, 50, false);
    let overloaded = Store { truth: [5.0, 50.0, 0.0, 0.0], reference: Nanos::from_millis(1) };
    assert_eq!(overloaded.train(&mut model, 50, true), before);
    assert_eq!(model.reference(), Some(STORE.reference));
    assert!(!model.tick(&Window::default(), false));
    assert_eq!(model.prices(), before);
}

#[test]
fn a_window_without_the_reference_read_teaches_nothing() {
    let mut model = model();
    for _ in 0..100 {
        let mut window = Window::default();
        window.observe(Shape { rows: 1_000, ..REFERENCE }, Nanos::from_secs(1));
        window.observe_reference(REFERENCE, Nanos::from_micros(1));
        assert!(!model.tick(&window, false));
        assert_eq!((model.prices(), model.reference()), (START, None));
    }
}

#[test]
fn indistinguishable_costs_stay_in_proportion() {
    let mut model = model();
    for _ in 0..600 {
        let mut window = Window::default();
        for _ in 0..20 {
            window.observe_reference(REFERENCE, Nanos::from_micros(100));
        }
        model.tick(&window, false);
    }
    let prices = model.prices();
    assert!(close(prices.price(REFERENCE), 1.0), "{prices:?}");
    assert!(prices.base.0.abs_diff(500) < 50 && prices.row.0.abs_diff(500) < 50, "{prices:?}");
}

#[test]
fn a_batch_is_as_good_a_sample_as_its_requests_one_by_one() {
    let mut single = Window::default();
    let mut batched = Window::default();
    for rows in 1..=16 {
        let shape = Shape { rows, bytes: 100 * rows, expected_milli: 1_000 };
        let took = Nanos(STORE.took(shape).0 * 16);
        (0..16).for_each(|_| single.observe(shape, Nanos(took.0 / 16)));
        let Batch { count, rows, bytes, expected_milli } = shape.into();
        let all = [count.into(), rows, bytes, expected_milli].map(|sum: u64| 16 * sum);
        let [count, rows, bytes, expected_milli] = all;
        batched.observe(Batch { count: count as u32, rows, bytes, expected_milli }, took);
    }
    let sums = |window: &Window| [window.sums.products.concat(), window.sums.targets.to_vec()].concat();
    for (single, batched) in sums(&single).into_iter().zip(sums(&batched)) {
        assert!((single - batched).abs() <= single * 1e-9, "{single} {batched}");
    }
    // Mixed, what each took is found all the same.
    let mut model = model();
    for tick in 0..600_u64 {
        let mut window = Window::default();
        window.observe_reference(
            Batch { count: 16, rows: 16, bytes: 512, expected_milli: 32_000 },
            Nanos(16 * 200_000),
        );
        for nth in 0..50 {
            let few =
                Shape { rows: 1 + (tick + nth) as u32 % 10, bytes: 40 * nth as u32, expected_milli: 2_000 };
            let more = Shape { rows: 100, bytes: 500, expected_milli: 20_000 };
            let mut both = Batch { count: 7, ..Batch::default() };
            let mut took = 0;
            for shape in [few; 6].into_iter().chain([more]) {
                both.rows += u64::from(shape.rows);
                both.bytes += u64::from(shape.bytes);
                both.expected_milli += u64::from(shape.expected_milli);
                took += STORE.took(shape).0;
            }
            window.observe(both, Nanos(took));
        }
        model.tick(&window, false);
    }
    for shape in [REFERENCE, Shape { rows: 100, bytes: 64, expected_milli: 20_000 }] {
        let price = model.prices().price(shape);
        let ru = STORE.cost(shape) / STORE.cost(REFERENCE);
        assert!(close(price, ru), "{shape:?}: {price} for {ru}");
    }
}

#[test]
fn windows_of_many_are_as_good_as_one() {
    let mut parts = [Window::default(); 4];
    let mut whole = Window::default();
    for nth in 0..100_u32 {
        let shape = Shape { rows: 1 + nth % 9, bytes: 64 * nth, expected_milli: 100 * nth };
        for window in [&mut parts[nth as usize % 4], &mut whole] {
            window.observe(shape, STORE.took(shape));
            window.observe_reference(REFERENCE, STORE.took(REFERENCE));
        }
    }
    let mut merged = Window::default();
    parts.iter().for_each(|part| merged.merge(part));
    let mut one = model();
    let mut other = model();
    assert!(one.tick(&merged, false) && other.tick(&whole, false));
    assert_eq!((one.prices(), one.reference()), (other.prices(), other.reference()));
}

#[test]
fn prices_stay_within_their_range_whatever_requests_take() {
    let learning = Learning { range: 2.0, max_change: 1.0, ..Learning::default() };
    // Hardly anything but rows costs; hardly anything but bytes, for which the base then stands in.
    for (truth, base, row, kib) in
        [([0.0, 1.0, 0.0, 0.0], 250, 200, 50), ([0.1, 0.1, 9.0, 0.0], 1_000, 50, 200)]
    {
        let start = Prices { row: MilliRu(100), kib: MilliRu(100), ..START };
        let mut model = CostModel::new(start, learning).unwrap();
        let Prices { base: found, row: of_row, kib: of_kib, .. } =
            Store { truth, ..STORE }.train(&mut model, 200, false);
        assert_eq!([found.0, of_row.0, of_kib.0], [base, row, kib], "{truth:?}");
    }
    let mut free = CostModel::new(Prices { kib: MilliRu::ZERO, ..START }, learning).unwrap();
    assert_eq!(STORE.train(&mut free, 100, false).kib, MilliRu::ZERO);
}

#[test]
fn a_cost_is_the_number_of_reference_reads_that_would_fit() {
    let dearest = Prices { base: MilliRu(20_000), row: MilliRu(5_000), kib: MilliRu(1_024), ..START };
    let measure = Measure { reference: Nanos::from_micros(100), dearest };
    let ten = Batch { count: 10, rows: 0, bytes: 0, expected_milli: 0 };
    for (requests, took_us, cost) in [
        (Shape { rows: 1, bytes: 0, expected_milli: 0 }.into(), 0, 0),
        (Shape { rows: 1, bytes: 0, expected_milli: 9_000 }.into(), 2_500, 25_000),
        // No more than prices may come to.
        (Shape { rows: 1, bytes: 0, expected_milli: 9_000 }.into(), 2_501, 25_000),
        (Shape { rows: 2, bytes: 7, expected_milli: 0 }.into(), 9_000, 30_007),
        (ten, 15_000, 150_000),
        (ten, 60_000, 200_000),
        (Batch { count: 10, rows: u64::MAX, ..ten }, u64::MAX / 1_000, u32::MAX),
    ] {
        assert_eq!(
            measure.cost(&requests, Nanos::from_micros(took_us)),
            MilliRu(cost),
            "{requests:?} {took_us}"
        );
    }
}

#[test]
fn impossible_parameters_are_refused() {
    let good = Learning::default();
    for (prices, learning, field) in [
        (START, Learning { half_life_ticks: 0, ..good }, "half_life_ticks"),
        (START, Learning { half_life_ticks: 1_000_001, ..good }, "half_life_ticks"),
        (START, Learning { max_change: 0.0, ..good }, "max_change"),
        (START, Learning { max_change: f64::NAN, ..good }, "max_change"),
        (START, Learning { max_change: 1.1, ..good }, "max_change"),
        (START, Learning { min_reference: 0, ..good }, "min_reference"),
        (START, Learning { range: 0.9, ..good }, "range"),
        (START, Learning { range: f64::NAN, ..good }, "range"),
        (Prices { base: MilliRu(9), ..START }, good, "prices.base"),
        (Prices { kib: MilliRu(1_000_000_001), ..START }, good, "prices.kib"),
    ] {
        assert_eq!(CostModel::new(prices, learning).unwrap_err().field, field);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cost_exceeds_neither_measurement_nor_the_highest_price(
        shapes in prop::collection::vec((0..100_u32, 0..100_000_u32), 1..20),
        base in 10..20_000_u32,
        row in 0..20_000_u32,
        kib in 0..20_000_u32,
        reference in 1..1_000_000_u64,
        took in 0..10_000_000_000_u64,
    ) {
        let dearest = Prices { base: MilliRu(base), row: MilliRu(row), kib: MilliRu(kib), latency: MilliRu(0) };
        let all: Vec<_> = shapes.iter().map(|&(rows, bytes)| Shape { rows, bytes, expected_milli: 0 }).collect();
        let batched = all.iter().fold(Batch::default(), |sum, &shape| {
            let Batch { count, rows, bytes, .. } = shape.into();
            Batch { count: sum.count + count, rows: sum.rows + rows, bytes: sum.bytes + bytes, expected_milli: 0 }
        });
        let cost = Measure { reference: Nanos(reference), dearest }.cost(&batched, Nanos(took)).0;
        prop_assert!(u128::from(cost) * u128::from(reference) <= u128::from(took) * 1_000);
        let priced = all.iter().fold(MilliRu::ZERO, |sum, &shape| sum.saturating_add(dearest.price(shape)));
        prop_assert!(cost <= priced.0, "{cost} beside {priced}");
    }

    #[test]
    fn coefficients_stay_in_range_and_move_slowly(
        max_change in 0.001..=1.0_f64,
        half_life_ticks in 1..1_000_u32,
        windows in prop::collection::vec(
            (prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>()), 0..8), any::<bool>()),
            1..40,
        ),
        range in 1.0..=100.0_f64,
    ) {
        let learning = Learning { half_life_ticks, max_change, min_reference: 1, range };
        let mut model = CostModel::new(START, learning).unwrap();
        let began = model.coefficients;
        for (requests, overloaded) in windows {
            let mut window = Window::default();
            for (rows, bytes, expected_milli, took, is_reference) in requests {
                let shape = Shape { rows, bytes, expected_milli };
                if is_reference {
                    window.observe_reference(shape, Nanos(took));
                } else {
                    window.observe(shape, Nanos(took));
                }
            }
            let before = model.coefficients;
            model.tick(&window, overloaded);
            for (j, (before, after)) in before.into_iter().zip(model.coefficients).enumerate() {
                let lowest = if j == BASE { LOWEST_BASE } else { 0.0 };
                prop_assert!((lowest..=HIGHEST).contains(&after), "{after}");
                let bound = if j == LATENCY { HIGHEST } else { began[j] * range };
                prop_assert!(after <= bound && (j == LATENCY || after >= began[j] / range), "{j} {after}");
                prop_assert!((after - before).abs() <= (before * max_change).max(SMALLEST_STEP) * 1.000_001);
            }
        }
    }

    #[test]
    fn a_larger_request_is_never_cheaper(
        rows: u32, bytes: u32, expected_milli: u32, more_rows: u32, more_bytes: u32, more_expected: u32,
        base: u32, row: u32, kib: u32, latency: u32,
    ) {
        let prices = Prices { base: MilliRu(base), row: MilliRu(row), kib: MilliRu(kib), latency: MilliRu(latency) };
        let larger = Shape {
            rows: rows.saturating_add(more_rows),
            bytes: bytes.saturating_add(more_bytes),
            expected_milli: expected_milli.saturating_add(more_expected),
        };
        let smaller = Shape { rows, bytes, expected_milli };
        prop_assert!(prices.price(smaller) <= prices.price(larger));
    }
}
