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
    FleetShares::new(LIMIT * 1_000, BURST)
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
        Share::Part { per_sec, burst, .. } => ((per_sec + 500) / 1_000, (burst + 500) / 1_000),
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
fn parts_follow_demand_and_what_is_in_the_bucket() {
    // What is charged takes from the 100 RU of the bucket, but for 25 that have come in meanwhile.
    for (charged, sum) in [(100, 1_125), (125, 1_000), (225, 500), (305, 100)] {
        let mut shares = held_back();
        shares.report(0, at(0), used(charged, 400 - charged));
        shares.report(1, at(0), used(0, 1_200));
        let parts = [0, 1].map(|gate| part(shares.share(gate, at(0))));
        assert_eq!(parts, [((sum + 2) / 4, 25), ((sum * 3 + 2) / 4, 75)], "{charged}");
        // Who was asked for nothing may give out one request.
        shares.report(2, at(0), used(0, 0));
        assert_eq!(part(shares.share(2, at(0))), (0, 1), "{charged}");
    }
}

#[test]
fn gates_are_never_granted_more_than_all() {
    let mut shares = held_back();
    for gate in 0..2 {
        shares.report(gate, at(0), used(63, 337));
    }
    assert_eq!([0, 1].map(|gate| part(shares.share(gate, at(0))).1), [50, 50]);
    // One is asked for three times as much, but the other has half.
    shares.report(0, at(0), used(0, 1_200));
    assert_eq!(part(shares.share(0, at(0))).1, 50);
    assert_eq!(part(shares.share(1, at(0))).1, 25);
    assert_eq!(part(shares.share(0, at(0))).1, 75);
}

#[test]
fn deep_debt_is_waited_for_and_paid() {
    let mut shares = held_back();
    shares.report(0, at(0), used(1_125, 0));
    let Share::Part { reject_until, per_sec, .. } = shares.share(0, at(0)) else { panic!("not held back") };
    // 1,000 RU are owed, of which smaller shares correct those of 200 ms.
    assert_eq!((reject_until, per_sec), (at(800), 1));
    assert_eq!(part(shares.share(0, at(801))).0, 5);
    let Share::Part { reject_until, .. } = shares.share(0, at(801)) else { panic!("not held back") };
    assert!(reject_until < at(801));
}

#[test]
fn a_debt_of_more_than_an_hour_is_forgiven() {
    let mut shares = held_back();
    for _ in 0..2 {
        shares.report(0, at(0), Used { within: Nanos(u64::MAX), charged: u64::MAX, refused: u64::MAX });
        assert_eq!(shares.full_in(at(0)), LONGEST_DEBT);
    }
    shares.add_debt(at(1_000), Nanos(u64::MAX));
    assert_eq!(shares.full_in(at(1_000)), LONGEST_DEBT);
    shares.change(at(1_000), 1, Nanos::from_secs(1));
    assert_eq!(shares.full_in(at(2_000)), Nanos::from_secs(3_599));
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
    let mut rate = |millis, charged, refused| {
        shares.report(0, at(millis), used(charged, refused));
        part(shares.share(0, at(millis))).0
    };
    // The bucket is full again, which alone makes it 1,500.
    assert_eq!(rate(500, 0, 1), 3_000);
    assert_eq!(rate(1_000, 0, 1), 6_000);
    assert_eq!(rate(10_000, 0, 1), 1_500 * 32);
    assert_eq!(rate(10_500, 0, 0), 1_500 * 16);
    // What is too much ends it at once.
    assert_eq!(rate(11_000, 125, 0), 1_000);
}

proptest! {
    #[test]
    fn any_report_is_safe(
        per_sec: u64, burst: u64, reports in prop::collection::vec(any::<(u8, u64, u64, u64, u64)>(), 1..30),
    ) {
        let mut shares = FleetShares::new(per_sec, Nanos(burst));
        for (gate, now, within, charged, refused) in reports {
            shares.report(gate.into(), Nanos(now), Used { within: Nanos(within), charged, refused });
            if let Share::Part { per_sec, burst, .. } = shares.share(gate.into(), Nanos(now)) {
                prop_assert!(per_sec > 0 && burst > 0);
            }
            prop_assert!(shares.granted < 1.000_001, "{}", shares.granted);
        }
    }
}
