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
        features(shape).iter().zip(self.truth).map(|(feature, ru)| feature * ru).sum()
    }

    fn took(&self, shape: Shape) -> Nanos {
        Nanos((self.cost(shape) / self.cost(REFERENCE) * self.reference.0 as f64) as u64)
    }

    /// Ticks of a mix of single reads, multi-gets, writes and ranges.
    fn teach(&self, model: &mut CostModel, ticks: u32, overloaded: bool) -> Prices {
        for tick in 0..ticks {
            for nth in 0..100 {
                let rows = [1, 1, 10, 100][nth % 4];
                let bytes = [32, 4_096, 320, 64][nth % 4] + tick % 7;
                let expected_milli = [2_000, 2_500, 4_000, 20_000][nth % 4];
                let shape = Shape { rows, bytes, expected_milli };
                model.observe(shape, self.took(shape));
                model.observe_reference(REFERENCE, self.took(REFERENCE));
            }
            model.tick(overloaded);
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
    STORE.teach(&mut model, 600, false);
    let reference_cost = STORE.cost(REFERENCE);
    for shape in [
        REFERENCE,
        Shape { rows: 10, bytes: 320, expected_milli: 4_000 },
        Shape { rows: 100, bytes: 64, expected_milli: 20_000 },
        Shape { rows: 1, bytes: 4_096, expected_milli: 2_500 },
    ] {
        let (price, ru) = (model.prices().price(shape), STORE.cost(shape) / reference_cost);
        assert!(close(price, ru), "{shape:?}: {price} for {ru}");
    }
    assert!(close(model.prices().price(REFERENCE), 1.0));
    assert_eq!(model.reference(), Some(STORE.reference));
}

#[test]
fn a_store_that_is_slower_as_a_whole_changes_no_price() {
    let mut model = model();
    let before = STORE.teach(&mut model, 600, false);
    let slow = Store { reference: Nanos::from_millis(20), ..STORE };
    let after = slow.teach(&mut model, 600, false);
    for (before, after) in [(before.base, after.base), (before.row, after.row), (before.kib, after.kib)] {
        assert!(before.0.abs_diff(after.0) <= 5, "{before} became {after}");
    }
}

#[test]
fn an_overload_teaches_nothing_and_leaves_nothing_behind() {
    let mut model = model();
    let before = STORE.teach(&mut model, 50, false);
    let overloaded = Store { truth: [5.0, 50.0, 0.0, 0.0], reference: Nanos::from_millis(1) };
    assert_eq!(overloaded.teach(&mut model, 50, true), before);
    assert_eq!(model.reference(), Some(STORE.reference));
    assert_eq!(model.tick(false), before);
}

#[test]
fn a_window_without_the_reference_read_teaches_nothing() {
    let mut model = model();
    for _ in 0..100 {
        model.observe(Shape { rows: 1_000, ..REFERENCE }, Nanos::from_secs(1));
        model.observe_reference(REFERENCE, Nanos::from_micros(1));
        assert_eq!(model.tick(false), START);
    }
}

#[test]
fn what_cannot_be_told_apart_stays_in_proportion() {
    let mut model = model();
    for _ in 0..600 {
        for _ in 0..20 {
            model.observe_reference(REFERENCE, Nanos::from_micros(100));
        }
        model.tick(false);
    }
    let prices = model.prices();
    assert!(close(prices.price(REFERENCE), 1.0), "{prices:?}");
    assert!(prices.base.0.abs_diff(500) < 50 && prices.row.0.abs_diff(500) < 50, "{prices:?}");
}

#[test]
fn a_debt_is_the_difference_and_never_a_refund() {
    let reference = Some(Nanos::from_micros(100));
    for (settle, charged, took_us, reference, due) in [
        (Settle::Next, 1_000, 500, reference, 0),
        (Settle::Debt, 1_000, 500, reference, 4_000),
        (Settle::Debt, 1_000, 100, reference, 0),
        (Settle::Debt, 9_000, 100, reference, 0),
        (Settle::Debt, 1_000, 500, None, 0),
    ] {
        assert_eq!(settle.due(MilliRu(charged), Nanos::from_micros(took_us), reference), MilliRu(due));
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
        (Prices { base: MilliRu(9), ..START }, good, "prices.base"),
        (Prices { kib: MilliRu(1_000_000_001), ..START }, good, "prices.kib"),
    ] {
        assert_eq!(CostModel::new(prices, learning).unwrap_err().field, field);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn coefficients_stay_in_range_and_move_slowly_whatever_is_observed(
        max_change in 0.001..=1.0_f64,
        half_life_ticks in 1..1_000_u32,
        windows in prop::collection::vec(
            (prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<bool>()), 0..8), any::<bool>()),
            1..40,
        ),
    ) {
        let learning = Learning { half_life_ticks, max_change, min_reference: 1 };
        let mut model = CostModel::new(START, learning).unwrap();
        for (requests, overloaded) in windows {
            for (rows, bytes, expected_milli, took, is_reference) in requests {
                let shape = Shape { rows, bytes, expected_milli };
                if is_reference {
                    model.observe_reference(shape, Nanos(took));
                } else {
                    model.observe(shape, Nanos(took));
                }
            }
            let before = model.coefficients;
            model.tick(overloaded);
            for (j, (before, after)) in before.into_iter().zip(model.coefficients).enumerate() {
                let lowest = if j == 0 { LOWEST_BASE } else { 0.0 };
                prop_assert!((lowest..=HIGHEST).contains(&after), "{after}");
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
