use proptest::prelude::*;

use super::*;

/// A hundred requests a second, and twenty at once.
const LIMITS: Limits = Limits::new(100_000, NANOS_PER_SEC / 5);
const ONE: StreamId = StreamId(1);
const TWO: StreamId = StreamId(2);

fn usage(per_sec: u64) -> Usage {
    Usage { allowed: per_sec, denied: 0, elapsed: Nanos::from_secs(1) }
}

fn rates(actions: &[(StreamId, Action)]) -> Vec<(u64, u32)> {
    let rate = |&(stream, action): &(StreamId, Action)| match action {
        Action::Assign { tokens, .. } => Some((stream.0, tokens.per_fill / tokens.fill_secs)),
        _ => None,
    };
    actions.iter().filter_map(rate).collect()
}

#[test]
fn two_envoys_divide_a_limit_by_demand_within_two_reports() {
    let mut shares = Shares::default();
    let mut now = Nanos::from_secs(100);
    let mut report = |shares: &mut Shares, stream, per_sec| {
        now = now.saturating_add(Nanos::from_millis(500));
        rates(&shares.report(stream, usage(per_sec), Whole::Limited(LIMITS), now))
    };
    assert_eq!(report(&mut shares, ONE, 100), [(1, 100)]);
    assert_eq!(report(&mut shares, ONE, 100), []);
    assert_eq!(report(&mut shares, TWO, 100), [(1, 50), (2, 50)]);
    assert_eq!(report(&mut shares, ONE, 100), []);
    // The second is asked for less: the first has the rest with its second report.
    assert_eq!(report(&mut shares, TWO, 10), [(2, 10)]);
    assert_eq!(report(&mut shares, ONE, 100), [(1, 90)]);
    assert_eq!(report(&mut shares, TWO, 100), [(1, 50), (2, 50)]);
}

#[test]
fn whoever_leaves_keeps_its_share_until_its_time_is_over() {
    let mut shares = Shares::default();
    let now = Nanos::from_secs(100);
    shares.report(ONE, usage(100), Whole::Limited(LIMITS), now);
    shares.report(TWO, usage(100), Whole::Limited(LIMITS), now);
    shares.leave(ONE);
    assert_eq!(rates(&shares.report(TWO, usage(100), Whole::Limited(LIMITS), now)), []);
    let later = now.saturating_add(Nanos::from_secs(4));
    assert_eq!(rates(&shares.report(TWO, usage(100), Whole::Limited(LIMITS), later)), [(2, 100)]);
    shares.leave(TWO);
    assert!(!shares.is_unused(later) && shares.is_unused(later.saturating_add(Nanos::from_secs(9))));
}

#[test]
fn idle_names_are_abandoned_and_unknown_ones_pass() {
    let mut shares = Shares::default();
    let now = Nanos::from_secs(100);
    let allow = shares.report(ONE, Usage::default(), Whole::Unlimited, now);
    assert!(matches!(allow[..], [(ONE, Action::AllowAll { .. })]), "{allow:?}");
    assert_eq!(shares.report(ONE, Usage::default(), Whole::Unlimited, now), []);
    let later = now.saturating_add(IDLE);
    assert_eq!(shares.report(ONE, Usage::default(), Whole::Unlimited, later), [(ONE, Action::Abandon)]);
    assert!(shares.is_unused(later));
}

#[test]
fn peers_that_come_and_go_take_bounded_memory() {
    let mut all = AllShares::default();
    let name = Name::of("shop", [("user", "x")]).unwrap();
    let now = Nanos::from_secs(100);
    for stream in (0..10_000).map(StreamId) {
        all.of(&name, now).unwrap().report(stream, usage(100), Whole::Limited(LIMITS), now);
        all.leave(stream, std::iter::once(&name), now);
    }
    assert_eq!(all.by_name[&name].list.len(), MAX_SUBSCRIPTIONS);
    let other = |i: usize| Name::of("shop", [("user", i.to_string().as_str())]).unwrap();
    let has_room = |i: &usize| {
        let shares = all.of(&other(*i), now);
        shares.map(|shares| shares.report(StreamId(1), usage(1), Whole::Unlimited, now)).is_some()
    };
    assert_eq!((0..MAX_NAMES + 10).filter(has_room).count(), MAX_NAMES - 1);
    // Those that nobody has any more make room.
    for i in 0..MAX_NAMES {
        all.leave(StreamId(1), std::iter::once(&other(i)), now);
    }
    let later = now.saturating_add(Nanos::from_secs(600));
    assert!(all.of(&other(MAX_NAMES + 1), later).is_some());
    assert_eq!(all.by_name.len(), 1);
}

#[test]
fn tokens_are_whole_and_no_faster_than_the_rate() {
    for (rate, per_fill, fill_secs) in [
        (100_000, 100, 1),
        (1_000, 1, 1),
        (1_500, 3, 2),
        (100, 1, 10),
        (333, 199, 600),
        (1, 3, 3_600),
        (0, 0, 3_600),
    ] {
        let tokens = tokens(rate, LIMITS);
        assert_eq!((tokens.per_fill, tokens.fill_secs), (per_fill, fill_secs), "{rate}");
    }
    assert_eq!(tokens(50_000, LIMITS).most, 10);
}

proptest! {
    #[test]
    fn shares_that_hold_never_add_up_to_more_than_the_limit(
        steps in proptest::collection::vec((0..5_u64, 0..300_u64, 0..3_000_u64, 0..20_u8), 1..300),
    ) {
        let mut shares = Shares::default();
        let mut now = Nanos::from_secs(100);
        let mut incarnations = [0_u64; 5];
        // By stream: the rate that it has, and until when.
        let mut held: HashMap<u64, (f64, Nanos)> = HashMap::new();
        for (envoy, per_sec, wait, event) in steps {
            now = now.saturating_add(Nanos::from_millis(wait));
            let stream = StreamId(envoy + 5 * incarnations[envoy as usize]);
            if event == 0 {
                shares.leave(stream);
                incarnations[envoy as usize] += 1;
                continue;
            }
            for (to, action) in shares.report(stream, usage(per_sec), Whole::Limited(LIMITS), now) {
                match action {
                    Action::Assign { tokens, ttl } => {
                        let rate = f64::from(tokens.per_fill) / f64::from(tokens.fill_secs);
                        held.insert(to.0, (rate, now.saturating_add(ttl)));
                    }
                    Action::Abandon => drop(held.remove(&to.0)),
                    Action::AllowAll { .. } => prop_assert!(false),
                }
            }
            let sum: f64 = held.values().filter(|(_, until)| now < *until).map(|(rate, _)| rate).sum();
            prop_assert!(sum <= 100.0, "{}", sum);
        }
    }
}
