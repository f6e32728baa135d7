//! The bucket against exact arithmetic: what it may admit at most, and what it must admit at least.

extern crate std;

use proptest::prelude::*;
use std::vec::Vec;

use super::*;

/// Bits after the point of an [`Exact`] time.
const POINT: u32 = 48;

/// A leaky bucket in nanoseconds with 48 bits after the point, the yardstick.
///
/// `level` is the largest sum, over every interval that ends with the last admission, of the time
/// that was admitted in it less the length of the interval. So one comparison after each admission
/// proves the bound for all intervals.
#[derive(Default)]
struct Exact {
    level: i128,
    admitted_ns: u64,
}

impl Exact {
    /// The level after `cost` is admitted at `now_ns`, before or after the last admission.
    fn with(&self, now_ns: u64, cost: i128) -> i128 {
        let passed = i128::from(now_ns) - i128::from(self.admitted_ns);
        (self.level - (passed << POINT)).max(0) + cost
    }

    fn admit(&mut self, now_ns: u64, cost: i128) {
        self.level = self.with(now_ns, cost);
        self.admitted_ns = now_ns;
    }
}

/// The exact time of `cost` units, rounded down in the 48th bit.
fn exact_time(cost: u32, units_per_sec: u64) -> i128 {
    ((i128::from(cost) * i128::from(NANOS_PER_SEC)) << POINT) / i128::from(units_per_sec)
}

/// The most that the bucket may take that for: one part in 2^30 for the rate and 1 ns for the cost.
fn dearest_rounding(cost: u32, units_per_sec: u64) -> i128 {
    let exact = exact_time(cost, units_per_sec) + 1;
    exact + (exact >> 30) + 1 + (1 << POINT)
}

fn is_admitted(answer: Take) -> bool {
    matches!(answer, Take::Admit { .. })
}

/// A small generator, for streams too long to be a proptest strategy.
struct Draw(u64);

impl Draw {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform over orders of magnitude, `1..=most`.
    fn magnitude(&mut self, most: u64) -> u64 {
        let bits = most.ilog2() + 1;
        (self.next() >> (64 - 1 - self.next() % u64::from(bits))).clamp(1, most)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    /// A cost of a thousandth of the burst up to five times the burst, where a `u32` can say so.
    fn cost(&mut self, units_per_sec: u64, burst_ns: u64) -> u32 {
        let burst = u128::from(burst_ns) * u128::from(units_per_sec) / u128::from(NANOS_PER_SEC);
        let cost = burst * u128::from(self.magnitude(5_000)) / 1_000;
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    /// Mostly small steps and none at all; sometimes backwards; seldom anywhere.
    fn step(&mut self, now_ns: u64, burst_ns: u64) -> u64 {
        match self.next() % 1_000 {
            0 => self.next() >> (self.next() % 64),
            1..=20 => now_ns.saturating_sub(self.magnitude(burst_ns)),
            21..=300 => now_ns,
            _ => now_ns.saturating_add(self.magnitude(burst_ns)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// 100 streams of 10,000 requests, with time going anywhere and the limits changing: never more
    /// than the bound, and never a refusal that the documented rounding does not explain.
    #[test]
    fn any_interval_admits_all_within_the_bound_and_no_more(seed: u64) {
        let mut draw = Draw(seed);
        let mut tat = 0;
        let mut now_ns = 0;
        let mut least = Exact::default();
        let mut most = Exact::default();
        let mut units_per_sec = 1;
        let mut limits = Limits::default();
        let mut admitted = 0;
        for step in 0..10_000 {
            if step % 500 == 0 {
                // Time may have gone far back: a new word, or the rest would be one long refusal.
                (tat, now_ns) = (0, draw.next() >> (draw.next() % 64));
                (least, most) = (Exact::default(), Exact::default());
            }
            if step == 0 || draw.one_in(100) {
                units_per_sec = draw.magnitude(Rate::MAX_PER_SEC);
                limits = Limits::new(units_per_sec, draw.magnitude(100 * NANOS_PER_SEC));
            }
            let cost = draw.cost(units_per_sec, limits.burst_ns);
            now_ns = draw.step(now_ns, limits.burst_ns);
            let cheap = exact_time(cost, units_per_sec);
            let dear = dearest_rounding(cost, units_per_sec);
            let burst = i128::from(limits.burst_ns) << POINT;

            match take(tat, now_ns, cost, &limits) {
                Take::Admit { tat: next } => {
                    prop_assert!(next >= tat);
                    tat = next;
                    admitted += 1;
                    least.admit(now_ns, cheap);
                    most.admit(now_ns, dear);
                    let level_ns = least.level >> POINT;
                    prop_assert!(least.level <= burst.max(cheap), "at step {step}: {level_ns} ns");
                }
                Take::Refuse { wait_ns } => {
                    let clock_ends = u128::from(now_ns) + (dear.max(burst) >> POINT) as u128 >= u128::from(u64::MAX);
                    prop_assert!(wait_ns > 0 || clock_ends);
                    prop_assert!(most.with(now_ns, dear) > burst || clock_ends, "a needless refusal at step {step}");
                }
                Take::TooLarge => {
                    prop_assert!(dear > burst + (i128::from(limits.max_debt_ns) << POINT));
                }
            }
        }
        prop_assert!(admitted > 1_000, "the stream was too tame: {admitted} admitted");
    }

    /// The clock of the kernel side moves in steps of milliseconds: the bound grows by one step.
    #[test]
    fn a_coarse_clock_adds_one_tick_to_the_bound(seed: u64, tick_ns in 1_000_000_u64..=10_000_000) {
        let mut draw = Draw(seed);
        let units_per_sec = draw.magnitude(1_000_000_000);
        let limits = Limits::new(units_per_sec, 10_000_000 + draw.magnitude(100_000_000));
        let mut tat = 0;
        let mut true_ns = NANOS_PER_SEC;
        let mut exact = Exact::default();
        for _ in 0..1_000 {
            true_ns += draw.magnitude(tick_ns);
            let cost = draw.cost(units_per_sec, limits.burst_ns);
            if let Take::Admit { tat: next } = take(tat, true_ns - true_ns % tick_ns, cost, &limits) {
                tat = next;
                let cost = exact_time(cost, units_per_sec);
                exact.admit(true_ns, cost);
                let allowed = (i128::from(limits.burst_ns) << POINT).max(cost);
                prop_assert!(exact.level <= allowed + (i128::from(tick_ns) << POINT));
            }
        }
    }

    /// A refund counts against what was admitted, whenever it comes, but for its own rounding.
    #[test]
    fn with_refunds_the_bound_holds_for_what_was_kept(seed: u64) {
        let mut draw = Draw(seed);
        let units_per_sec = draw.magnitude(Rate::MAX_PER_SEC);
        let limits = Limits::new(units_per_sec, draw.magnitude(NANOS_PER_SEC));
        let mut tat = 0;
        let mut now_ns = draw.next() >> 8;
        let mut exact = Exact::default();
        let mut kept: Vec<u32> = Vec::new();
        let mut rounding: i128 = 0;
        for _ in 0..1_000 {
            now_ns = draw.step(now_ns, limits.burst_ns).min(1 << 62);
            if let (true, Some(cost)) = (draw.one_in(4), kept.pop()) {
                tat = refund(tat, limits.rate.time_for(cost));
                exact.level -= exact_time(cost, units_per_sec);
                rounding += dearest_rounding(cost, units_per_sec) - exact_time(cost, units_per_sec);
                continue;
            }
            let cost = draw.cost(units_per_sec, limits.burst_ns);
            if let Take::Admit { tat: next } = take(tat, now_ns, cost, &limits) {
                tat = next;
                kept.push(cost);
                let cost = exact_time(cost, units_per_sec);
                exact.admit(now_ns, cost);
                prop_assert!(exact.level <= (i128::from(limits.burst_ns) << POINT).max(cost) + rounding);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_input_panics_and_the_word_never_moves_back(
        tat: u64, now_ns: u64, cost: u32, mantissa: u32, shift: u32, burst_ns: u64, max_debt_ns: u64,
    ) {
        let limits = Limits { rate: Rate { mantissa, shift }, burst_ns, max_debt_ns };
        if let Take::Admit { tat: next } = take(tat, now_ns, cost, &limits) {
            prop_assert!(next >= tat && next >= now_ns && next < u64::MAX);
        }
        prop_assert!(settle(tat, now_ns, cost, &limits) >= tat);
        prop_assert!(refund(tat, limits.rate.time_for(cost)) <= tat);
        let _ = (debt_ns(tat, now_ns, burst_ns), limits.rate.units_per_sec());
    }

    #[test]
    fn later_emptier_and_cheaper_never_admit_less(
        tat in 0..=4_000_u64, now_ns in 0..=4_000_u64, cost_ns in 0..=2_000_u64,
        burst_ns in 0..=1_000_u64, max_debt_ns in 0..=1_000_u64,
        later in 0..=1_000_u64, emptier in 0..=1_000_u64, cheaper in 0..=1_000_u64,
    ) {
        let admits = |tat, now_ns, cost_ns| {
            is_admitted(take_time(tat, now_ns, cost_ns, burst_ns, max_debt_ns))
        };
        if admits(tat, now_ns, cost_ns) {
            prop_assert!(admits(tat, now_ns + later, cost_ns));
            prop_assert!(admits(tat.saturating_sub(emptier), now_ns, cost_ns));
            prop_assert!(admits(tat, now_ns, cost_ns.saturating_sub(cheaper)));
        }
    }

    #[test]
    fn a_refused_request_fits_after_its_wait_and_not_sooner(
        tat in 0..=1_u64 << 40, now_ns in 0..=1_u64 << 40, cost_ns in 0..=1_u64 << 34,
        burst_ns in 0..=1_u64 << 34, max_debt_ns in 0..=1_u64 << 34,
    ) {
        let ask = |now_ns| take_time(tat, now_ns, cost_ns, burst_ns, max_debt_ns);
        match ask(now_ns) {
            Take::Refuse { wait_ns } => {
                prop_assert!(is_admitted(ask(now_ns + wait_ns)));
                prop_assert_eq!(ask(now_ns + wait_ns - 1), Take::Refuse { wait_ns: 1 });
            }
            Take::TooLarge => prop_assert_eq!(ask(now_ns + (1 << 41)), Take::TooLarge),
            Take::Admit { .. } => {}
        }
    }

    #[test]
    fn a_debt_is_never_larger_than_allowed(
        tat in 0..=1_u64 << 34, now_ns in 0..=1_u64 << 34, units in 1..=Rate::MAX_PER_SEC, cost: u32,
        burst_ns in 0..=1_u64 << 34, max_debt_ns in 0..=1_u64 << 34,
    ) {
        let limits = Limits { rate: Rate::per_sec(units), burst_ns, max_debt_ns };
        let before = debt_ns(tat, now_ns, burst_ns);
        if let Take::Admit { tat } = take(tat, now_ns, cost, &limits) {
            prop_assert!(debt_ns(tat, now_ns, burst_ns) <= max_debt_ns);
        }
        let settled = debt_ns(settle(tat, now_ns, cost, &limits), now_ns, burst_ns);
        prop_assert!(settled <= max_debt_ns.max(before) && settled >= before);
    }

    #[test]
    fn settling_charges_as_a_dearer_request_would(
        now_ns in 0..=1_u64 << 40, paid in 0..=1_000_000_u32, more in 0..=1_000_000_u32,
    ) {
        let limits = Limits::new(1_000_000, 10 * NANOS_PER_SEC);
        let Take::Admit { tat } = take(0, now_ns, paid, &limits) else { unreachable!("it fits") };
        prop_assert_eq!(take(0, now_ns, paid + more, &limits), Take::Admit { tat: settle(tat, now_ns, more, &limits) });
    }

    #[test]
    fn a_rate_is_never_faster_and_within_one_part_in_two_to_30(
        units in (0..40_u32, 0..=u64::MAX).prop_map(|(shift, units)| (units >> (24 + shift)).clamp(1, Rate::MAX_PER_SEC)),
        cost: u32,
    ) {
        let rate = Rate::per_sec(units);
        let time = i128::from(rate.time_for(cost)) << POINT;
        prop_assert!(time >= exact_time(cost, units));
        prop_assert!(time <= dearest_rounding(cost, units));
        let back = rate.units_per_sec().unwrap();
        prop_assert!(back <= units && units - back <= 1 + (units >> 30));
    }
}

/// The result of a full bucket of 1,000 units a second with a burst of 100 ms and a debt of up to 200 ms
/// at second 10, and how long the next unit waits after that.
#[test]
fn a_full_bucket_admits_more_than_the_burst_as_debt() {
    let limits = Limits::new(1_000, 100_000_000);
    let now_ns = 10 * NANOS_PER_SEC;
    for (cost, debt_ms) in [(0, Some(0)), (100, Some(0)), (101, Some(1)), (300, Some(200)), (301, None)] {
        let answer = take(0, now_ns, cost, &limits);
        let Some(debt_ms) = debt_ms else {
            assert_eq!(answer, Take::TooLarge, "{cost}");
            continue;
        };
        let Take::Admit { tat } = answer else { panic!("{cost}: {answer:?}") };
        assert_eq!(tat, now_ns + u64::from(cost) * 1_000_000);
        assert_eq!(debt_ns(tat, now_ns, limits.burst_ns), debt_ms * 1_000_000, "{cost}");
    }
    // One unit taken: the bucket is not full, so the dear request waits for that unit.
    let Take::Admit { tat } = take(0, now_ns, 1, &limits) else { unreachable!("it fits") };
    assert_eq!(take(tat, now_ns, 101, &limits), Take::Refuse { wait_ns: 1_000_000 });
}

#[test]
fn a_change_of_rate_or_burst_keeps_the_debt() {
    let now_ns = NANOS_PER_SEC;
    let before = Limits::new(1_000, 1_000_000_000);
    let Take::Admit { tat } = take(0, now_ns, 1_000, &before) else { unreachable!("it fits") };
    // Whatever the limits become, the word still says "full in one second".
    for (per_sec, burst_ns, wait_ns) in [
        (10, 1_000_000_000, 100_000_000),
        (1_000_000, 1_000_000_000, 1_000),
        (1_000, 500_000_000, 501_000_000),
        (1_000, 2_000_000_000, 0),
    ] {
        let after = Limits::new(per_sec, burst_ns);
        let waited = match take(tat, now_ns, 1, &after) {
            Take::Refuse { wait_ns } => wait_ns,
            Take::Admit { .. } => 0,
            Take::TooLarge => panic!("one unit is never too large"),
        };
        assert_eq!(waited, wait_ns, "{per_sec}/s, {burst_ns} ns");
    }
}

#[test]
fn an_unlimited_bucket_admits_all_but_at_the_end_of_the_clock() {
    let mut tat = 7;
    for now_ns in [0, 1, u64::MAX / 2, u64::MAX - 1] {
        let Take::Admit { tat: next } = take(tat, now_ns, u32::MAX, &Limits::UNLIMITED) else {
            panic!("refused at {now_ns}")
        };
        tat = next;
    }
    assert!(matches!(take(0, u64::MAX, 0, &Limits::UNLIMITED), Take::Refuse { .. }));
    assert!(matches!(take(u64::MAX, 0, 0, &Limits::UNLIMITED), Take::Refuse { .. }));
    assert_eq!(Rate::UNLIMITED.units_per_sec(), None);
}

proptest! {
    #[test]
    fn a_full_bucket_admits_the_dearest_request_and_no_dearer(
        per_sec in prop_oneof![1..10_u64, 1..Rate::MAX_PER_SEC],
        burst_ns in 1..u64::MAX / 4,
        max_debt_ns in prop_oneof![Just(0), 1..u64::MAX / 4],
        small in any::<bool>(),
    ) {
        let scale = |time: u64| if small { time % 10_000_000_000 + 1 } else { time };
        let limits =
            Limits { rate: Rate::per_sec(per_sec), burst_ns: scale(burst_ns), max_debt_ns: scale(max_debt_ns) };
        let dearest = limits.dearest();
        let full = 0;
        let admits = matches!(take(full, 1_000, dearest, &limits), Take::Admit { .. });
        prop_assert!(admits);
        if dearest < u32::MAX {
            prop_assert_eq!(take(full, 1_000, dearest + 1, &limits), Take::TooLarge);
            prop_assert!(!limits.ever_admits(dearest + 1));
        }
    }
}

#[test]
fn an_unlimited_bucket_admits_whatever_there_is() {
    assert_eq!(Limits::UNLIMITED.dearest(), u32::MAX);
}

#[test]
fn at_another_rate_the_same_is_out() {
    let rate = Rate::per_sec;
    for (out_ns, from, to, expected) in [
        (0, 1_000, 10, 0),
        (100_000_000, 1_000, 1_000, 100_000_000),
        // 100 units of a fast bucket are long owed by a slow one, and the other way round.
        (100_000_000, 1_000, 10, 10_000_000_000),
        (10_000_000_000, 10, 1_000, 100_000_000),
    ] {
        let tat = at_another_rate(NANOS_PER_SEC + out_ns, NANOS_PER_SEC, rate(from), rate(to));
        assert_eq!(tat, NANOS_PER_SEC + expected, "{out_ns} {from} {to}");
    }
    // A bucket that has long been full is full, and an unlimited one owes nothing.
    assert_eq!(at_another_rate(5, NANOS_PER_SEC, rate(10), rate(1_000)), NANOS_PER_SEC);
    assert_eq!(at_another_rate(2 * NANOS_PER_SEC, NANOS_PER_SEC, Rate::UNLIMITED, rate(10)), NANOS_PER_SEC);
    assert_eq!(at_another_rate(u64::MAX, 0, rate(Rate::MAX_PER_SEC), rate(1)), u64::MAX);
}
