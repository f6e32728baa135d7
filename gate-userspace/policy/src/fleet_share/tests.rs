use proptest::prelude::*;

use super::*;

/// RU a second.
const LIMIT: u64 = 1_000;
const BURST: Nanos = Nanos::from_millis(100);
const TICK: Nanos = Nanos::from_millis(100);

fn at(millis: u64) -> Nanos {
    Nanos::from_millis(10_000 + millis)
}

fn shares() -> FleetShares {
    FleetShares::new(Rate::per_sec(LIMIT * 1_000), BURST, LONGEST_DEBT)
}

/// Gates that are held back since far too much was given out once; the bucket is full again.
fn held_back() -> FleetShares {
    let mut shares = shares();
    shares.report(9, at(0).saturating_sub(Nanos::from_secs(9)), used(500, 0));
    shares
}

/// A report of so many RU charged and refused within a tick.
fn used(charged: u64, refused: u64) -> Used {
    Used { within: TICK, charged: charged * 1_000, refused: refused * 1_000 }
}

/// A part in RU a second, and its burst in RU, to the nearest.
fn part(share: Share) -> (u64, u64) {
    match share {
        Share::Part { rate, burst, .. } => ((rate.nano() / 1_000_000 + 500) / 1_000, (burst + 500) / 1_000),
        Share::Whole => panic!("nobody is held back"),
    }
}

#[test]
fn while_the_bucket_is_half_full_nobody_is_held_back() {
    let mut shares = shares();
    for millis in (0..5_000).step_by(100) {
        // 95 RU in 100 ms, of two gates.
        for (gate, charged) in [(0, 30), (1, 65)] {
            shares.report(gate, at(millis), used(charged, 0));
            assert_eq!(shares.share(gate, at(millis)), Share::Whole);
        }
    }
    shares.report(0, at(5_000), used(160, 0));
    assert!(matches!(shares.share(0, at(5_000)), Share::Part { .. }));
    // Refusals renew it, and so does a bucket that is not half full.
    shares.report(0, at(14_000), used(0, 1));
    assert!(matches!(shares.share(0, at(23_999)), Share::Part { .. }));
    assert_eq!(shares.share(0, at(24_000)), Share::Whole);
}

#[test]
fn gates_that_another_owner_held_back_begin_with_parts() {
    let mut shares = shares();
    shares.hold_back(at(0));
    let parts = [0, 1].map(|gate| {
        shares.report(gate, at(0), used(5, 30));
        part(shares.share(gate, at(0)))
    });
    // A half more, since the bucket is full, and a little for refusals within one tick. The second has nothing until the first has less.
    assert!((1_400..=1_750).contains(&parts[0].0), "{parts:?}");
    assert_eq!(parts[1], (0, 1));
}

#[test]
fn parts_of_less_than_one_request_come_in_turn() {
    const GATES: u32 = 100;
    // 10 RU a second: a bucket of one.
    let mut shares = FleetShares::new(Rate::per_sec(10_000), BURST, LONGEST_DEBT);
    // All gave out one at once, which is paid after some 10 s.
    (0..GATES).for_each(|gate| shares.report(gate, at(0), used(1, 5)));
    let mut turns = [0_u64; GATES as usize];
    let mut most_in_second = 0;
    let mut lately = std::collections::VecDeque::new();
    for tick in 1..600 {
        let now = at(tick * 100);
        let mut at_once = 0;
        for gate in 0..GATES {
            let has_turn = matches!(shares.share(gate, now), Share::Part { rate, .. } if rate.amount_in(TICK.0) >= 1_000);
            turns[gate as usize] += u64::from(has_turn);
            at_once += u64::from(has_turn);
            // It gives that out at once.
            shares.report(gate, now, used(has_turn.into(), 1));
        }
        lately.push_back(at_once);
        if lately.len() > 10 {
            lately.pop_front();
        }
        most_in_second = most_in_second.max(lately.iter().sum());
    }
    assert!(most_in_second <= 20, "{most_in_second} in a second");
    let all: u64 = turns.iter().sum();
    assert!((400..=600).contains(&all) && turns.iter().all(|turns| (3..=8).contains(turns)), "{turns:?}");
}

#[test]
fn parts_follow_demand_and_what_is_in_the_bucket() {
    // What is charged takes from the 100 RU of the bucket, but for 25 that have come in meanwhile.
    for (charged, sum) in [(100, 1_125), (125, 1_000), (225, 500), (305, 100)] {
        let mut shares = held_back();
        shares.report(0, at(0), used(charged, 400 - charged));
        shares.report(1, at(0), used(0, 20));
        let parts = [0, 1].map(|gate| part(shares.share(gate, at(0))));
        assert_eq!(parts, [(sum * 4 / 5, 80), (sum / 5, 20)], "{charged}");
        // Who was asked for nothing may give out one request.
        shares.report(2, at(0), used(0, 0));
        assert_eq!(part(shares.share(2, at(0))), (0, 1), "{charged}");
    }
}

#[test]
fn gates_are_listed_with_what_they_are_asked_for_and_granted() {
    let mut shares = held_back();
    shares.report(3, at(0), used(30, 0));
    shares.report(1, at(0), used(50, 10));
    let (rate, _) = part(shares.share(3, at(0)));
    // Hardly anything is left of what the other one was asked for.
    let gates: Vec<_> = shares.gates(at(0)).filter(|(_, demand, _)| *demand > 1_000).collect();
    let [(1, 600_000, none), (3, 300_000, granted)] = gates[..] else { panic!("{gates:?}") };
    assert_eq!(none, 0.0);
    // By its demand, a third is its.
    assert!((granted - 1.0 / 3.0).abs() < 0.01, "{granted}, {rate} RU/s");
}

#[test]
fn gates_are_never_granted_more_than_all() {
    let mut shares = held_back();
    for gate in 0..2 {
        shares.report(gate, at(0), used(63, 337));
    }
    assert_eq!([0, 1].map(|gate| part(shares.share(gate, at(0))).1), [50, 50]);
    // A third one is asked for as much, but the others have all of it, until they report.
    shares.report(2, at(0), used(0, 400));
    assert_eq!([2, 0, 2, 1, 2].map(|gate| part(shares.share(gate, at(0))).1), [1, 33, 17, 33, 33]);
}

#[test]
fn a_gate_that_exaggerates_has_an_equal_part_at_most() {
    let mut shares = held_back();
    let honest = |shares: &mut FleetShares, millis| {
        for (gate, refused) in [(0, 300), (1, 200), (2, 100)] {
            shares.report(gate, at(millis), used(0, refused));
        }
        [0, 1, 2].map(|gate| part(shares.share(gate, at(millis))).1)
    };
    assert_eq!(honest(&mut shares, 0), [33; 3]);
    for (millis, within, refused) in [(100, TICK, u64::MAX), (200, Nanos::ZERO, 1), (300, TICK, 1 << 63)] {
        shares.report(3, at(millis), Used { within, charged: 0, refused });
        assert_eq!(honest(&mut shares, millis), [25; 3]);
        assert_eq!(part(shares.share(3, at(millis))).1, 25);
    }
    shares.release(3);
    assert_eq!(honest(&mut shares, 400), [33; 3]);
}

#[test]
fn no_debt_is_deeper_than_max_debt_beyond_the_burst() {
    for (max_debt, deepest) in [(0, 200), (100, 200), (500, 500), (86_400_000, 3_600_000)] {
        let mut shares = FleetShares::new(
            Rate::per_sec(LIMIT * 1_000),
            Nanos::from_secs(7_200),
            Nanos::from_millis(max_debt),
        );
        shares.report(0, at(0), Used { within: TICK, charged: 1 << 63, refused: 0 });
        assert_eq!(shares.left(at(0)), -deepest * LIMIT as i64, "{max_debt}");
        shares.reset();
        assert_eq!(shares.left(at(0)), 7_200 * LIMIT as i64 * 1_000);
        assert!(!shares.is_held_back(at(0)));
    }
}

#[test]
fn what_is_given_back_can_be_taken_again() {
    let mut shares = shares();
    shares.report(0, at(0), used(90, 0));
    let left = shares.left(at(0));
    shares.give_back(at(0), 60_000);
    assert_eq!(shares.left(at(0)), left + 60_000);
    shares.give_back(at(0), u64::MAX);
    assert_eq!(shares.left(at(0)), 100_000, "never more than the burst");
}

#[test]
fn deep_debt_is_waited_for_and_paid() {
    let mut shares = held_back();
    shares.report(0, at(0), used(1_125, 0));
    let Share::Part { reject_until, rate, .. } = shares.share(0, at(0)) else { panic!("not held back") };
    // 1,000 RU are owed, of which smaller shares correct those of 200 ms.
    assert_eq!((reject_until, rate), (at(800), Rate::per_sec(1)));
    assert_eq!(part(shares.share(0, at(801))).0, 5);
    let Share::Part { reject_until, .. } = shares.share(0, at(801)) else { panic!("not held back") };
    assert!(reject_until < at(801));
}

#[test]
fn a_debt_of_more_than_an_hour_is_forgiven() {
    let mut shares = held_back();
    for _ in 0..2 {
        shares.report(0, at(0), Used { within: Nanos(u64::MAX), charged: u64::MAX, refused: u64::MAX });
        assert_eq!(shares.full_in(at(0)), BURST.saturating_add(LONGEST_DEBT));
    }
    shares.add_debt(at(1_000), Nanos(u64::MAX));
    assert_eq!(shares.full_in(at(1_000)), BURST.saturating_add(LONGEST_DEBT));
    shares.change(at(1_000), Rate::per_sec(1), Nanos::from_secs(1), LONGEST_DEBT);
    assert_eq!(shares.full_in(at(2_000)), LONGEST_DEBT);
}

#[test]
fn demand_rises_at_once_and_halves_in_half_a_second() {
    let mut shares = held_back();
    shares.report(0, at(0), used(125, 275));
    shares.report(1, at(0), used(0, 400));
    assert_eq!([0, 1].map(|gate| part(shares.share(gate, at(0))).1), [50, 50]);
    // All of it moves to the second, which is granted what the first no longer has.
    for (millis, moved) in [(500, 50), (1_000, 67), (1_500, 80), (2_000, 89)] {
        for (gate, asked_for) in [(0, 0), (1, 400)] {
            shares.report(gate, at(millis), used(0, asked_for));
            let burst = part(shares.share(gate, at(millis))).1;
            assert!(gate == 0 || burst == moved, "{burst} after {millis} ms");
        }
    }
}

#[test]
fn what_is_refused_without_need_raises_all_parts() {
    let mut shares = held_back();
    shares.report(0, at(0), used(125, 100));
    assert_eq!(part(shares.share(0, at(0))).0, 1_000);
    let mut rate = |millis, within, used| {
        shares.report(0, at(millis), Used { within: Nanos::from_millis(within), ..used });
        part(shares.share(0, at(millis))).0
    };
    // The bucket is full again, which alone makes it 1,500.
    assert_eq!(rate(500, 500, used(0, 1)), 3_000);
    assert_eq!(rate(1_000, 500, used(0, 1)), 6_000);
    // While nobody asked nothing was refused.
    assert_eq!(rate(9_000, 500, used(0, 1)), 12_000);
    assert_eq!(rate(13_000, 4_000, used(0, 1)), 1_500 * 32);
    assert_eq!(rate(13_500, 500, used(0, 0)), 1_500 * 16);
    // What is too much ends it at once.
    assert_eq!(rate(14_000, 100, used(125, 0)), 1_000);
}

proptest! {
    #[test]
    fn the_limit_is_divided_max_min_fair(
        demands in prop::collection::vec(prop_oneof![0..2 * LIMIT, Just(1 << 53)], 1..60),
    ) {
        let mut shares = held_back();
        // The first round has everybody's demand known, and the second nobody with more than its part.
        for millis in [0, 1, 2] {
            for (gate, demand) in (0..).zip(&demands) {
                let refused = demand * 1_000;
                shares.report(gate, at(millis), Used { within: Nanos::from_secs(1), charged: 0, refused });
                let _ = shares.share(gate, at(millis));
            }
        }
        let granted: Vec<f64> =
            shares.gates(at(2)).filter(|(gate, ..)| *gate != 9 || demands.len() > 9).map(|(.., granted)| granted).collect();
        let asked: f64 = demands.iter().map(|demand| demand.min(&LIMIT)).sum::<u64>() as f64;
        let equal = 1.0 / granted.len() as f64;
        for (granted, demand) in granted.iter().zip(&demands) {
            let wanted = (*demand).min(LIMIT) as f64 / LIMIT as f64;
            prop_assert!(*granted >= wanted.min(equal) * 0.9 - 1e-6, "{granted} of {wanted}: {demands:?}");
            prop_assert!(asked < LIMIT as f64 || *granted <= wanted.max(equal) * 1.005, "{granted}: {demands:?}");
        }
    }

    #[test]
    fn any_report_is_safe(
        nano: u64, burst: u64, max_debt: u64,
        reports in prop::collection::vec(any::<(u8, u64, u64, u64, u64)>(), 1..30),
    ) {
        let mut shares = FleetShares::new(Rate::from_nano(nano), Nanos(burst), Nanos(max_debt));
        for (gate, now, within, charged, refused) in reports {
            shares.report(gate.into(), Nanos(now), Used { within: Nanos(within), charged, refused });
            if let Share::Part { rate, burst, .. } = shares.share(gate.into(), Nanos(now)) {
                prop_assert!(rate >= Rate::SLOWEST && burst > 0);
            }
            prop_assert!(shares.granted < 1.000_001, "{}", shares.granted);
        }
    }
}
