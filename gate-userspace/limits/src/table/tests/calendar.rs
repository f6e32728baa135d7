//! Limits that count in windows of the calendar.

use super::super::super::{Calendar, Pattern, Period, Rule, WallClock};
use super::*;

const HOUR: i64 = 3_600;

/// A rule of so many a day or an hour of the calendar, in a zone.
fn of_calendar(pattern: &str, count: u64, period: Period, zone: &str) -> Rule {
    let limits = Limits::in_window(count * 1_000, period);
    let calendar = Arc::new(Calendar::new(period, Calendar::zone(zone).unwrap()));
    Rule { calendar: Some(calendar), ..Rule::new(Pattern::parse(pattern).unwrap(), limits) }
}

fn table_of(rule: Rule, memory: usize) -> Table {
    let mut rules = Rules::default();
    rules.add(rule).unwrap();
    Table::new(Arc::new(rules), memory, true)
}

/// 2026-03-28, 22:00 in Berlin, two hours before the day in which clocks are set forward; the monotonic clock says 100 s.
const SATURDAY: i64 = 1_774_731_600;
const START: Nanos = Nanos::from_secs(100);
const WALL: WallClock = WallClock { ahead_ns: (SATURDAY - 100) * 1_000_000_000 };

#[test]
fn a_day_of_the_calendar_ends_at_midnight_and_not_before() {
    let table = table_of(of_calendar("shop/user=*", 5, Period::Day, "Europe/Berlin"), MEMORY);
    table.set_clock(WALL);
    let after = |secs: i64| START.saturating_add(Nanos::from_secs(secs.unsigned_abs()));
    let passes = |secs| {
        (0..9).filter(|_| matches!(one(&table, "shop/user=a", 1, after(secs)), Charged::Within(_))).count()
    };
    assert_eq!(passes(0), 5);
    // Nothing comes in with time.
    assert_eq!(passes(2 * HOUR - 1), 0);
    let refused = one(&table, "shop/user=a", 1, after(HOUR));
    let wait = Nanos::from_secs(HOUR.unsigned_abs());
    assert!(
        matches!(refused, Charged::Refused(Standing { remaining: 0, reset, .. }, Refusal::Until(until)) if (reset, until) == (wait, wait)),
        "{refused:?}"
    );
    assert_eq!(passes(2 * HOUR), 5);
    // That day has 23 hours.
    assert_eq!(passes(25 * HOUR - 1), 0);
    assert_eq!(passes(25 * HOUR), 5);
    assert!(matches!(
        one(&table, "shop/user=a", 6, after(25 * HOUR)),
        Charged::Refused(_, Refusal::TooLarge)
    ));
}

#[test]
fn a_clock_that_is_set_back_gives_no_window_twice() {
    let table = table_of(of_calendar("a", 5, Period::Hour, "UTC"), MEMORY);
    let passes = || (0..9).filter(|_| matches!(one(&table, "a", 1, START), Charged::Within(_))).count();
    let set =
        |hours: i64| table.set_clock(WallClock { ahead_ns: WALL.ahead_ns + hours * HOUR * 1_000_000_000 });
    set(0);
    assert_eq!(passes(), 5);
    for hours in [-1, -3, -30] {
        set(hours);
        assert_eq!(passes(), 0, "{hours}");
    }
    // The next hour begins all the same, by whichever clock.
    set(-29);
    assert_eq!(passes(), 5);
}

#[test]
fn a_window_whose_beginning_comes_twice_is_given_once() {
    let table = table_of(of_calendar("a", 5, Period::Hour, "UTC"), MEMORY);
    table.set_clock(WALL);
    // Threads that looked at the clock before they had the bucket, and a clock that was set back a little.
    for (secs, expected) in
        [(-9, 5), (0, 5), (-1, 0), (0, 0), (-30, 0), (-59, 0), (1, 0), (HOUR, 5), (HOUR - 1, 0), (HOUR, 0)]
    {
        let now = Nanos(START.0.saturating_add_signed(secs * 1_000_000_000));
        let passes = (0..9).filter(|_| matches!(one(&table, "a", 1, now), Charged::Within(_))).count();
        assert_eq!(passes, expected, "{secs}");
    }
}

#[test]
fn windows_of_another_calendar_refill_no_bucket() {
    let rules = |period, zone| {
        let mut rules = Rules::default();
        rules.add(of_calendar("a", 5, period, zone)).unwrap();
        Arc::new(rules)
    };
    let table = table_of(of_calendar("a", 5, Period::Day, "UTC"), MEMORY);
    table.set_clock(WALL);
    let passes = |now| (0..9).filter(|_| matches!(one(&table, "a", 1, now), Charged::Within(_))).count();
    assert_eq!(passes(START), 5);
    for (period, zone) in
        [(Period::Hour, "UTC"), (Period::Day, "Asia/Tokyo"), (Period::Hour, "Asia/Kathmandu")]
    {
        table.set_rules(rules(period, zone), START);
        assert_eq!(passes(START), 0, "{zone}");
    }
    // One that has begun by the calendar before counts, although nobody has looked since.
    let next = START.saturating_add(Nanos::from_secs(HOUR.unsigned_abs()));
    table.set_rules(rules(Period::Month, "UTC"), next);
    assert_eq!(passes(next), 5);
}

#[test]
fn a_bucket_of_a_window_that_is_over_makes_room() {
    let rule = of_calendar("shop/user=*", 5, Period::Hour, "UTC");
    let table = table_of(rule, 32 << 10);
    table.set_clock(WALL);
    let fill = |from: u32, now| {
        (from..from + 1_000)
            .filter(|user| one(&table, &format!("shop/user={user}"), 5, now) == Charged::Untracked)
            .count()
    };
    let untracked = fill(0, START);
    assert!(untracked > 500, "{untracked}");
    table.take_changes(START, |_| ());
    assert_eq!(fill(1_000, START), 1_000, "those of this hour stay");
    let next = START.saturating_add(Nanos::from_secs(HOUR.unsigned_abs()));
    let of_next_hour = fill(2_000, next);
    assert!(of_next_hour < 1_000, "{of_next_hour}");
}

proptest! {
    /// Against counts by window, in any zone, over any history: the same answers.
    #[test]
    fn a_calendar_limit_is_a_count_in_each_window(
        count in 1..20_u64, zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"]),
        period in prop::sample::select(vec![Period::Minute, Period::Hour, Period::Day, Period::Month]),
        steps in prop::collection::vec((0..3_i64, 0..5_u32, 0..2_000_u64, 1..8_u32), 1..200),
    ) {
        let rule = of_calendar("shop/user=*", count, period, zone);
        let calendar = Arc::clone(rule.calendar.as_ref().unwrap());
        let table = table_of(rule, MEMORY);
        table.set_clock(WALL);
        let mut used: HashMap<(u32, i64), u64> = HashMap::new();
        let mut now = START;
        for (lengths, user, thousandths, cost) in steps {
            let wait = lengths.unsigned_abs() * period.length().0 / 1_000 * thousandths;
            now = now.saturating_add(Nanos(wait));
            let window = calendar.window(WALL.unix(now).0);
            prop_assert!((window.begins..window.ends).contains(&WALL.unix(now).0));
            let used = used.entry((user, window.begins)).or_default();
            let passes = *used + u64::from(cost) <= count;
            match one(&table, &format!("shop/user={user}"), cost, now) {
                Charged::Within(standing) => {
                    prop_assert!(passes);
                    *used += u64::from(cost);
                    prop_assert_eq!(standing.remaining, (count - *used) * 1_000);
                }
                Charged::Refused(standing, _) => {
                    prop_assert!(!passes);
                    prop_assert_eq!(standing.remaining, (count - *used) * 1_000);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
