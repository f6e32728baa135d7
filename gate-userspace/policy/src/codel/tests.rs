//! Waits that are given, and a queue that makes its own.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const TARGET: Nanos = Nanos::from_millis(5);
const INTERVAL: Nanos = Nanos::from_millis(100);

fn codel(law: Law) -> Codel {
    Codel::new(law, TARGET, INTERVAL).unwrap()
}

/// When `codel` drops, asked every millisecond of `millis` about a request that waited `waited`.
fn drops(codel: &mut Codel, millis: std::ops::Range<u64>, waited: Nanos) -> Vec<u64> {
    millis.filter(|&at| codel.dequeue(Nanos::from_millis(at), waited, 9) == Verdict::Drop).collect()
}

#[test]
fn a_standing_queue_is_dropped_from_sooner_and_sooner() {
    let mut codel = codel(Law::Rfc8289);
    let at = drops(&mut codel, 0..600, Nanos::from_millis(20));
    // 100 ms above target, then 100/√1, 100/√2, 100/√3 ... later: 100, 200, 270.7, 328.4, 378.4 ...
    assert_eq!(at[..6], [100, 200, 271, 329, 379, 424]);
    assert!(codel.is_dropping());
    // One wait at the target ends it, and it takes a whole interval to begin again.
    assert_eq!(drops(&mut codel, 600..601, TARGET), [0; 0]);
    assert!(!codel.is_dropping());
    let again = drops(&mut codel, 601..900, Nanos::from_millis(20));
    assert_eq!(again[0], 701);
    // At the rate that it had reached: after nine more drops, 100/√9 ms.
    assert_eq!((at.len(), again[1] - again[0]), (10, 34));
}

#[test]
fn an_overload_drops_long_waits_until_an_interval_has_a_short() {
    let mut codel = codel(Law::Overload);
    assert_eq!(drops(&mut codel, 0..100, Nanos::from_millis(20)), [0; 0]);
    // From now on, everything but what waited less than 10 ms.
    assert_eq!(drops(&mut codel, 100..150, Nanos::from_millis(20)).len(), 50);
    assert_eq!(drops(&mut codel, 150..160, Nanos::from_millis(10)), [0; 0]);
    assert_eq!(drops(&mut codel, 160..200, Nanos::from_millis(11)).len(), 40);
    // One short wait in the interval from 200 ms: from 300 ms on, nothing.
    assert_eq!(drops(&mut codel, 200..201, Nanos::from_millis(1)), [0; 0]);
    assert_eq!(drops(&mut codel, 201..299, Nanos::from_millis(20)).len(), 98);
    assert_eq!(drops(&mut codel, 300..400, Nanos::from_millis(20)), [0; 0]);
}

#[test]
fn one_wait_of_an_interval_shows_a_standing_queue() {
    let mut codel = codel(Law::Overload);
    for (waited, verdict) in [(105, Verdict::Serve), (106, Verdict::Drop), (5, Verdict::Serve)] {
        assert_eq!(codel.dequeue(Nanos::from_secs(9), Nanos::from_millis(waited), 0), verdict);
    }
}

#[test]
fn only_an_overload_gives_up_what_waited_longer_than_both() {
    let longest = INTERVAL.saturating_add(TARGET);
    for (law, waited, given_up) in [
        (Law::Overload, longest, false),
        (Law::Overload, Nanos(longest.0 + 1), true),
        (Law::Overload, Nanos::ZERO, false),
        (Law::Rfc8289, Nanos(longest.0 + 1), false),
    ] {
        assert_eq!(codel(law).has_given_up(waited), given_up, "{law:?} after {waited}");
    }
    let targets = [20, 10, 5, 2].map(Nanos::from_millis);
    let codels = TierCodels::new(Law::Overload, targets, INTERVAL).unwrap();
    for (tier, target) in Tier::ALL.into_iter().zip(targets) {
        let longest = INTERVAL.saturating_add(target);
        assert!(!codels.has_given_up(tier, longest), "{tier:?}");
        assert!(codels.has_given_up(tier, Nanos(longest.0 + 1)), "{tier:?}");
    }
}

/// The verdicts at `at` nanoseconds on requests that waited so long, each with its time.
fn verdicts(codel: &mut Codel, asked: &[(u64, u64)]) -> Vec<bool> {
    asked.iter().map(|&(at, waited)| codel.dequeue(Nanos(at), Nanos(waited), 1) == Verdict::Drop).collect()
}

#[test]
fn a_wait_at_a_threshold_of_the_overload_is_no_overload() {
    let twice = 2 * TARGET.0;
    for (shortest, overloaded) in [(TARGET.0, false), (TARGET.0 + 1, true)] {
        let mut codel = codel(Law::Overload);
        let asked =
            [(0, shortest), (INTERVAL.0 - 1, twice + 1), (INTERVAL.0, twice), (INTERVAL.0, twice + 1)];
        assert_eq!(verdicts(&mut codel, &asked), [false, false, false, overloaded], "{shortest}");
        assert_eq!(codel.is_dropping(), overloaded);
    }
    // An interval says nothing about what comes a whole one after its end.
    for (later, overloaded) in [(2 * INTERVAL.0 - 1, true), (2 * INTERVAL.0, false)] {
        let mut codel = codel(Law::Overload);
        assert_eq!(verdicts(&mut codel, &[(0, twice), (later, twice + 1)]), [false, overloaded], "{later}");
    }
}

#[test]
fn a_wait_at_a_threshold_of_the_rfc_is_no_standing_queue() {
    for (waited, drops) in [(TARGET.0, false), (TARGET.0 + 1, true)] {
        let mut codel = codel(Law::Rfc8289);
        let asked = [(0, waited), (INTERVAL.0 - 1, waited), (INTERVAL.0, waited)];
        assert_eq!(verdicts(&mut codel, &asked), [false, false, drops], "{waited}");
    }
}

#[test]
fn dropping_resumes_where_it_was_for_sixteen_intervals() {
    // Drops at 100, 200, 271, 329 ms; the next is due at 379 ms, and 16 intervals later the rate is forgotten.
    let drop_next = 378_445_705;
    for (later, spacing_ms) in [(16 * INTERVAL.0 - 1, 57), (16 * INTERVAL.0, 100)] {
        let mut codel = codel(Law::Rfc8289);
        assert_eq!(drops(&mut codel, 0..330, Nanos::from_millis(20)), [100, 200, 271, 329]);
        assert_eq!(codel.dequeue(Nanos::from_millis(330), TARGET, 9), Verdict::Serve);
        let again = codel.drop_next().unwrap().0 + later;
        assert!(codel.drop_next().unwrap().0.abs_diff(drop_next) < 1_000_000);
        codel.dequeue(Nanos(again - INTERVAL.0), Nanos::from_millis(20), 9);
        assert_eq!(codel.dequeue(Nanos(again), Nanos::from_millis(20), 9), Verdict::Drop);
        let spacing = codel.drop_next().unwrap().0 - again;
        assert_eq!(spacing / 1_000_000, spacing_ms, "{later}");
    }
}

impl Codel {
    fn drop_next(&self) -> Option<Nanos> {
        match &self.state {
            State::Rfc8289(state) => Some(state.drop_next),
            State::Overload(_) => None,
        }
    }
}

#[test]
fn a_wait_before_a_lull_says_nothing_about_what_comes_after() {
    for law in Law::ALL {
        let mut codel = codel(law);
        assert_eq!(drops(&mut codel, 0..1, Nanos::from_millis(50)), [0; 0]);
        codel.dequeue(Nanos::from_secs(9), Nanos::ZERO, 0);
        assert_eq!(drops(&mut codel, 10_000..10_100, Nanos::from_millis(50)), [0; 0], "{law:?}");
    }
}

#[test]
fn the_last_request_of_a_queue_is_served() {
    let mut codel = codel(Law::Rfc8289);
    for at in 0..1_000 {
        assert_eq!(codel.dequeue(Nanos::from_millis(at), Nanos::from_secs(1), 0), Verdict::Serve);
    }
}

#[test]
fn lower_tiers_fail_first() {
    let targets = [20, 10, 5, 2].map(Nanos::from_millis);
    let mut codels = TierCodels::new(Law::Overload, targets, INTERVAL).unwrap();
    let mut dropped = [0; 4];
    for at in 0..1_000 {
        for tier in Tier::ALL {
            let verdict = codels.dequeue(tier, Nanos::from_millis(at), Nanos::from_millis(15), 1);
            dropped[tier.index()] += u32::from(verdict == Verdict::Drop);
        }
    }
    assert_eq!(dropped, [0, 0, 900, 900]);
    assert!(codels.is_dropping(Tier::Batch) && !codels.is_dropping(Tier::Critical));
}

#[test]
fn impossible_parameters_are_refused() {
    for law in Law::ALL {
        for (target, interval, field) in [
            (Nanos::ZERO, INTERVAL, "target"),
            (Nanos(101), Nanos(100), "target"),
            (Nanos(1), Nanos::ZERO, "interval"),
            (Nanos(1), Nanos::from_secs(3_601), "interval"),
        ] {
            assert_eq!(Codel::new(law, target, interval).unwrap_err().field, field);
        }
        for (targets, field) in [
            ([5, 6, 1, 1], "target.standard"),
            ([5, 5, 5, 6], "target.best-effort"),
            ([101, 5, 5, 5], "target.critical"),
            ([5, 5, 5, 0], "target.best-effort"),
        ] {
            let error = TierCodels::new(law, targets.map(Nanos::from_millis), INTERVAL).unwrap_err();
            assert_eq!(error.field, field);
        }
    }
}

/// Offers `load` times what one server can do, a request a millisecond, for ten seconds. The longest
/// wait of a served request in the last five, and how many were dropped in all.
fn overload(mut codel: Option<Codel>, load: u64) -> (Nanos, usize) {
    let mut queue: VecDeque<Nanos> = VecDeque::new();
    let mut longest = Nanos::ZERO;
    let mut dropped = 0;
    for millis in 1..=10_000 {
        let now = Nanos::from_millis(millis);
        queue.extend((0..load).map(|_| now));
        while let Some(arrived) = queue.pop_front() {
            let waited = now.saturating_sub(arrived);
            let verdict =
                codel.as_mut().map_or(Verdict::Serve, |codel| codel.dequeue(now, waited, queue.len()));
            if verdict == Verdict::Serve {
                longest = longest.max(if millis > 5_000 { waited } else { Nanos::ZERO });
                break;
            }
            dropped += 1;
        }
    }
    (longest, dropped)
}

#[test]
fn an_overloaded_queue_stays_short_and_no_other_drops() {
    assert_eq!(overload(None, 2).0, Nanos::from_secs(5));
    let (longest, dropped) = overload(Some(codel(Law::Overload)), 2);
    assert!(longest <= Nanos::from_millis(10), "{longest}");
    assert!((9_800..10_000).contains(&dropped), "{dropped}");
    for law in Law::ALL {
        assert_eq!(overload(Some(codel(law)), 1), (Nanos::ZERO, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dropped_requests_waited_above_target_for_an_interval(
        overload: bool, steps in prop::collection::vec((0..40_u64, 0..15_u64, 0..3_usize), 1..400),
    ) {
        let mut codel = codel(if overload { Law::Overload } else { Law::Rfc8289 });
        let mut now = 0;
        let mut last_short = 0;
        for (step, waited, behind) in steps {
            now += step;
            let now = Nanos::from_millis(now);
            let waited = Nanos::from_millis(waited);
            let drops = codel.dequeue(now, waited, behind) == Verdict::Drop;
            let above = now.saturating_sub(Nanos::from_millis(last_short));
            if overload {
                prop_assert!(!drops || waited > Nanos::from_millis(10));
                // A short wait may have come in the present interval, not in the one before.
                prop_assert!(!drops || now >= INTERVAL);
            } else {
                prop_assert!(!drops || waited > TARGET && behind > 0 && above >= INTERVAL);
            }
            if waited <= TARGET || behind == 0 {
                last_short = now.0 / 1_000_000;
            }
        }
    }

    #[test]
    fn any_time_and_wait_is_safe(
        overload: bool, target: u64, interval: u64, steps in prop::collection::vec(any::<(u64, u64, usize)>(), 1..50),
    ) {
        let law = if overload { Law::Overload } else { Law::Rfc8289 };
        if let Ok(mut codel) = Codel::new(law, Nanos(target), Nanos(interval)) {
            for (now, waited, behind) in steps {
                let verdict = codel.dequeue(Nanos(now), Nanos(waited), behind);
                prop_assert!(verdict == Verdict::Serve || waited > target);
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_stands_still(back in prop::collection::vec(0..1_000_u64, 1..100), overload: bool) {
        let law = if overload { Law::Overload } else { Law::Rfc8289 };
        let mut jumping = codel(law);
        let mut standing = codel(law);
        for (nth, back) in (0..).zip(back) {
            let now = Nanos::from_millis(nth * 10);
            let waited = Nanos::from_millis(20);
            prop_assert_eq!(jumping.dequeue(now, waited, 1), standing.dequeue(now, waited, 1));
            let earlier = now.saturating_sub(Nanos::from_millis(back));
            prop_assert_eq!(jumping.dequeue(earlier, waited, 1), standing.dequeue(now, waited, 1));
        }
    }
}
