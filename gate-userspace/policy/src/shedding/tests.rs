//! Ratios that are given, tick by tick.

use proptest::prelude::*;

use super::*;

const TICK: Nanos = Nanos::from_millis(100);

/// Shedding, and a clock.
struct Ticker {
    shedding: Shedding,
    now: Nanos,
}

impl Ticker {
    fn new() -> Self {
        Self { shedding: Shedding::new(Settings::default()).unwrap(), now: Nanos::ZERO }
    }

    fn tick(&mut self, ratio: f64) -> Option<Transition> {
        self.now = self.now.saturating_add(TICK);
        let ratio = (!ratio.is_nan()).then_some(ratio);
        self.shedding.tick(self.now, ratio)
    }

    /// The transitions in `ticks` ticks, each with its tick.
    fn run(&mut self, ticks: u32, ratio: f64) -> Vec<(u32, Transition)> {
        (1..=ticks).filter_map(|tick| self.tick(ratio).map(|transition| (tick, transition))).collect()
    }

    /// In the order of [`Tier::ALL`].
    fn treatments(&self) -> [Treatment; 4] {
        Tier::ALL.map(|tier| self.shedding.treatment(tier))
    }
}

const NORMAL: Treatment = Treatment::Normal;
const REFUSED: Treatment = Treatment::Refused;

#[test]
fn prices_double_every_tick_up_to_64_then_the_tier_is_refused() {
    let mut ticker = Ticker::new();
    for multiplier in [2, 4, 8, 16, 32, 64] {
        ticker.tick(0.45);
        let treatment = ticker.shedding.treatment(Tier::BestEffort);
        assert_eq!(treatment.multiplier(), Multiplier::from_int(multiplier));
        assert_ne!(treatment, REFUSED);
    }
    ticker.tick(0.45);
    assert_eq!(ticker.treatments(), [NORMAL, NORMAL, NORMAL, REFUSED]);
    // 0.45 is not low enough for the next tier, however long it lasts.
    assert_eq!(ticker.run(1_000, 0.45), []);
}

#[test]
fn tier_follows_tier_while_the_ratio_keeps_falling() {
    let mut ticker = Ticker::new();
    let mut began = Vec::new();
    for tick in 1..=200 {
        let ratio = 0.45 * 0.95_f64.powi(tick);
        let began_tier = ticker.tick(ratio).filter(|change| change.from == NORMAL);
        began.extend(began_tier.map(|change| (tick, change.tier, change.cause)));
    }
    // Seven ticks a tier, a fall by three in ten between them, and five seconds before `critical`.
    assert_eq!(
        began,
        [
            (1, Tier::BestEffort, Cause::RatioLow),
            (14, Tier::Batch, Cause::RatioFalling),
            (27, Tier::Standard, Cause::RatioFalling),
            (83, Tier::Critical, Cause::RatioFalling),
        ]
    );
    assert_eq!(ticker.treatments(), [Treatment::Dearer(2), REFUSED, REFUSED, REFUSED]);
}

#[test]
fn a_slow_but_steady_store_costs_only_the_lowest_tier() {
    let mut ticker = Ticker::new();
    assert_eq!(ticker.run(1_000, 0.1).len(), 7);
    assert_eq!(ticker.treatments(), [NORMAL, NORMAL, NORMAL, REFUSED]);
}

#[test]
fn between_the_thresholds_everything_stays() {
    let mut ticker = Ticker::new();
    ticker.run(3, 0.45);
    assert_eq!(ticker.run(1_000, 0.65), []);
    assert_eq!(ticker.treatments()[3], Treatment::Dearer(3));
}

#[test]
fn a_failed_probe_takes_one_rung_and_delays_the_next() {
    let mut ticker = Ticker::new();
    ticker.run(3, 0.45);
    let mut waited = Vec::new();
    for _ in 0..4 {
        let ticks = (1..).find(|_| ticker.tick(1.0).is_some()).unwrap();
        waited.push(ticks);
        assert_eq!(
            (ticker.shedding.phase(), ticker.treatments()[3]),
            (Phase::Restoring, Treatment::Dearer(2))
        );
        assert_eq!(ticker.tick(0.45).unwrap().cause, Cause::Relapse);
        // Only when that has had time to show, another one.
        assert_eq!(ticker.run(4, 0.45), []);
    }
    assert_eq!(waited, [11, 21, 41, 41]);
    assert_eq!(ticker.tick(0.45).unwrap().cause, Cause::RatioStuck);
    assert_eq!(ticker.treatments()[3], Treatment::Dearer(4));
}

#[test]
fn what_gives_back_much_is_watched_for_longer() {
    let mut ticker = Ticker::new();
    ticker.run(11, 0.39);
    ticker.run(7, 0.19);
    assert_eq!(ticker.treatments(), [NORMAL, NORMAL, REFUSED, REFUSED]);
    let at: Vec<_> = ticker
        .run(100, 1.0)
        .into_iter()
        .map(|(tick, change)| (tick, change.to.multiplier().0 >> 16))
        .collect();
    // From refused to 64 times after a second, 32, 16, 8, then 4, twice and once.
    assert_eq!(at[..8], [(11, 64), (12, 32), (13, 16), (14, 8), (15, 4), (17, 2), (20, 1), (25, 64)]);
    assert_eq!(at[13], (34, 1));
}

#[test]
fn a_probe_that_holds_brings_everything_back_in_order() {
    let mut ticker = Ticker::new();
    [0.1, 0.04, 0.015, 0.005].into_iter().for_each(|ratio| drop(ticker.run(60, ratio)));
    let names: Vec<_> =
        ticker.run(100, 1.0).iter().map(|(_, change)| (change.tier, change.name(), change.cause)).collect();
    assert_eq!(names.len(), usize::from(RUNGS));
    assert_eq!(names[0], (Tier::Critical, "lower", Cause::Probe));
    assert_eq!(names[1], (Tier::Critical, "restore", Cause::Calm));
    assert_eq!(names[2], (Tier::Standard, "readmit", Cause::Calm));
    assert_eq!(names[8], (Tier::Standard, "restore", Cause::Calm));
    assert_eq!(names[9], (Tier::Batch, "readmit", Cause::Calm));
    assert_eq!((ticker.treatments(), ticker.shedding.phase()), ([NORMAL; 4], Phase::Steady));
    assert!(!ticker.shedding.is_overloaded());
}

#[test]
fn no_signal_is_calm() {
    let mut ticker = Ticker::new();
    assert_eq!(ticker.run(100, f64::NAN), []);
    ticker.run(30, 0.1);
    ticker.run(100, f64::NAN);
    assert_eq!(ticker.treatments(), [NORMAL; 4]);
}

#[test]
fn impossible_parameters_are_refused() {
    let good = Settings::default();
    for (settings, field) in [
        (Settings { shed_below: [0.0, 0.1, 0.2, 0.3], ..good }, "shed_below.critical"),
        (Settings { shed_below: [0.2, 0.1, 0.2, 0.3], ..good }, "shed_below.standard"),
        (Settings { shed_below: [0.2, 0.3, f64::NAN, 0.3], ..good }, "shed_below.batch"),
        (Settings { restore_above: 0.5, ..good }, "restore_above"),
        (Settings { restore_above: 1.0, ..good }, "restore_above"),
        (Settings { restore_above: f64::NAN, ..good }, "restore_above"),
        (Settings { wait: Nanos::ZERO, ..good }, "wait"),
        (Settings { longest_wait: Nanos(1), ..good }, "longest_wait"),
    ] {
        assert_eq!(Shedding::new(settings).unwrap_err().field, field);
    }
}

/// Ratios that stay for a while, `NaN` for none.
fn ratios() -> impl Strategy<Value = Vec<(u32, f64)>> {
    let ratio = prop_oneof![8 => 0.0..=1.0_f64, 1 => Just(f64::NAN)];
    prop::collection::vec((1..60_u32, ratio), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tiers_give_way_in_order_and_critical_is_never_refused(ratios in ratios()) {
        let mut ticker = Ticker::new();
        for (ticks, ratio) in ratios {
            for _ in 0..ticks {
                let before = ticker.treatments();
                let level = ticker.shedding.level;
                let change = ticker.tick(ratio);
                let [critical, standard, batch, best_effort] = ticker.treatments();
                prop_assert!(ticker.shedding.level.abs_diff(level) <= 1);
                prop_assert!(batch == NORMAL || best_effort == REFUSED);
                prop_assert!(standard == NORMAL || batch == REFUSED);
                prop_assert!(critical == NORMAL || standard == REFUSED);
                prop_assert!(critical <= Treatment::Dearer(2));
                for tier in Tier::ALL {
                    let now = ticker.shedding.treatment(tier);
                    let reported = change.filter(|change| change.tier == tier);
                    prop_assert_eq!(reported.map(|change| (change.from, change.to)),
                        (before[tier.index()] != now).then_some((before[tier.index()], now)));
                }
                prop_assert_eq!(ticker.shedding.phase() == Phase::Steady, !ticker.shedding.is_overloaded());
            }
        }
    }

    #[test]
    fn all_tiers_are_back_within_ten_healthy_seconds_and_stay(ratios in ratios()) {
        let mut ticker = Ticker::new();
        for (ticks, ratio) in ratios {
            ticker.run(ticks, ratio);
        }
        let back = ticker.run(100, 0.95);
        prop_assert_eq!(ticker.treatments(), [NORMAL; 4]);
        prop_assert!(back.iter().all(|(_, change)| change.to < change.from));
        prop_assert_eq!(ticker.run(1_000, 0.95), []);
    }

    #[test]
    fn a_store_that_was_never_slow_sheds_nothing(ratios in prop::collection::vec(0.5..=1.0_f64, 1..300)) {
        let mut ticker = Ticker::new();
        for ratio in ratios {
            prop_assert_eq!(ticker.tick(ratio), None);
        }
    }

    #[test]
    fn any_time_and_ratio_is_safe(
        ticks in prop::collection::vec((any::<u64>(), any::<f64>()), 1..100), settle: u64, wait: u64, longest_wait: u64,
    ) {
        let settings = Settings {
            settle: Nanos(settle), wait: Nanos(wait), longest_wait: Nanos(longest_wait), ..Settings::default()
        };
        if let Ok(mut shedding) = Shedding::new(settings) {
            for (now, ratio) in ticks {
                shedding.tick(Nanos(now), Some(ratio));
                prop_assert!(shedding.treatment(Tier::Critical) != REFUSED);
            }
        }
    }
}

#[test]
fn a_queue_that_stands_is_just_low_enough_for_the_lowest_tier() {
    let settings = Settings::default();
    let low = settings.shed_below[Tier::BestEffort.index()].next_down();
    for (ratio, stands, signal) in [
        (Some(1.0), false, Some(1.0)),
        (None, false, None),
        (Some(1.0), true, Some(low)),
        (None, true, Some(low)),
        (Some(low / 2.0), true, Some(low / 2.0)),
    ] {
        assert_eq!(settings.signal(ratio, stands), signal, "{ratio:?} {stands}");
    }
}

#[test]
fn how_long_a_tier_is_dearer_or_refused_is_known() {
    let mut ticker = Ticker::new();
    let of =
        |ticker: &Ticker| Tier::ALL.map(|tier| ticker.shedding.treated_for(tier).map(|time| time.0 / TICK.0));
    assert_eq!(of(&ticker), [None; 4]);
    ticker.tick(0.45);
    ticker.run(3, 0.45);
    // Dearer since the first tick, by whatever factor.
    assert_eq!(of(&ticker), [None, None, None, Some(3)]);
    ticker.run(3, 0.45);
    assert_eq!(of(&ticker), [None, None, None, Some(0)], "refused from this tick on");
    ticker.run(600, 0.45);
    assert_eq!(of(&ticker), [None, None, None, Some(600)]);
    ticker.run(200, 1.0);
    assert_eq!(of(&ticker), [None; 4]);
}
