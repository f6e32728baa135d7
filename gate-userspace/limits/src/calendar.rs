//! Windows of the calendar: minutes, hours, days, weeks, months and years in a time zone.
//!
//! **Rule.** A window begins on the minute or the hour of its zone's clock, at the beginning of the day, of Monday, of the first of the month or
//! of the first of January. A day in which clocks are changed has 23 or 25 hours; where they are changed within an hour, what is left of it
//! is a window of its own. Pure: the time is an argument, in Unix time.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use gate_common::units::{NANOS_PER_SEC, Nanos};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, ZonedDateTime};

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// From one minute to the next.
    Minute,
    /// From one hour to the next.
    Hour,
    /// From midnight, or when the day begins otherwise.
    Day,
    /// From Monday.
    Week,
    /// From the first.
    Month,
    /// From the first of January.
    Year,
}

impl Period {
    /// All of them, the shortest first.
    pub const ALL: [Self; 6] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// How long it usually is; a month has 30 days, a year 365.
    #[must_use]
    pub const fn length(self) -> Nanos {
        Nanos::from_secs(match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => DAY_SECS,
            Self::Week => 7 * DAY_SECS,
            Self::Month => 30 * DAY_SECS,
            Self::Year => 365 * DAY_SECS,
        })
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }
}

const DAY_SECS: u64 = 86_400;

/// A window, in seconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first second.
    pub begins: i64,
    /// The first second after it.
    pub ends: i64,
}

/// The windows of one length in one time zone.
pub struct Calendar {
    period: Period,
    zone: TimeZone,
    /// The window that was asked for last.
    last: Mutex<Window>,
}

impl Calendar {
    /// The windows of this length in this zone.
    #[must_use]
    pub const fn new(period: Period, zone: TimeZone) -> Self {
        Self { period, zone, last: Mutex::new(Window { begins: 0, ends: 0 }) }
    }

    /// The zone of this name in the system's database of time zones, or in gate's own.
    #[must_use]
    pub fn zone(name: &str) -> Option<TimeZone> {
        TimeZone::get(name).ok()
    }

    /// The window at a time. Takes a moment when it is another than the last time.
    #[must_use]
    pub fn window(&self, unix_secs: i64) -> Window {
        // Nothing panics while it is held.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !(last.begins..last.ends).contains(&unix_secs) {
            *last = self.find(unix_secs);
        }
        *last
    }

    fn find(&self, unix_secs: i64) -> Window {
        let found = Timestamp::from_second(unix_secs)
            .ok()
            .map(|time| time.to_zoned_datetime(self.zone.clone()))
            .and_then(|zoned| self.around(&zoned));
        // Far from any year that there will be.
        let Window { begins, ends } = found.unwrap_or(Window { begins: unix_secs, ends: unix_secs });
        Window { begins: begins.min(unix_secs), ends: ends.max(unix_secs.saturating_add(1)) }
    }

    fn around(&self, zoned: &ZonedDateTime) -> Option<Window> {
        let date = zoned.date();
        let (first, next) = match self.period {
            Period::Minute => return Some(of_clock(zoned, 60)),
            Period::Hour => return Some(of_clock(zoned, 3_600)),
            Period::Day => (date, date.tomorrow().ok()?),
            Period::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                let monday = date.checked_sub(since_monday.days()).ok()?;
                (monday, monday.checked_add(7.days()).ok()?)
            }
            Period::Month => {
                let first = date.first_of_month();
                (first, first.checked_add(1.month()).ok()?)
            }
            Period::Year => {
                let first = date.first_of_year();
                (first, first.checked_add(1.year()).ok()?)
            }
        };
        Some(Window { begins: self.beginning(first)?, ends: self.beginning(next)? })
    }

    /// The first second of a day.
    fn beginning(&self, date: Date) -> Option<i64> {
        let zoned = date.to_zoned_datetime(self.zone.clone()).ok()?.start_of_day().ok()?;
        Some(zoned.timestamp().as_second())
    }
}

/// The window of so many seconds by the clock on the wall.
fn of_clock(zoned: &ZonedDateTime, secs: i64) -> Window {
    let offset = i64::from(zoned.offset().seconds());
    let local = zoned.timestamp().as_second() + offset;
    let begins = local.div_euclid(secs) * secs - offset;
    Window { begins, ends: begins + secs }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.period == other.period && self.zone == other.zone
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calendar")
            .field("period", &self.period)
            .field("zone", &self.zone.iana_name())
            .finish()
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period.name();
        write!(f, "{period} of the calendar in {}", self.zone.iana_name().unwrap_or("UTC"))
    }
}

/// Unix time, in nanoseconds, of a moment on the monotonic clock: what is to be added to that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    /// Unix time less monotonic time, in nanoseconds.
    pub ahead_ns: i64,
}

impl WallClock {
    /// Both clocks at one moment.
    #[must_use]
    pub fn at(monotonic: Nanos, unix_ms: u64) -> Self {
        let unix_ns = i64::try_from(unix_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        Self { ahead_ns: unix_ns.saturating_sub_unsigned(monotonic.0) }
    }

    /// Unix time in seconds, and the nanoseconds within the second.
    #[must_use]
    pub const fn unix(self, now: Nanos) -> (i64, i64) {
        let unix_ns = self.ahead_ns.saturating_add_unsigned(now.0);
        let second = NANOS_PER_SEC.cast_signed();
        (unix_ns.div_euclid(second), unix_ns.rem_euclid(second))
    }

    /// The window of a calendar at a moment: when it began, in Unix time, and the moment at which it ends.
    #[must_use]
    pub fn window(self, calendar: &Calendar, now: Nanos) -> (i64, Nanos) {
        let (secs, nanos) = self.unix(now);
        let window = calendar.window(secs);
        let left = window.ends.saturating_sub(secs).saturating_mul(NANOS_PER_SEC.cast_signed());
        (window.begins, now.saturating_add(Nanos(left.saturating_sub(nanos).max(0).cast_unsigned())))
    }

    /// [`WallClock::window`] for what has counted in the window that began at `before`; `None` if it counts on in that one, although it has not
    /// begun by this moment: a thread looked at the clock before another one, or the clock was set back by no more than `SET_BACK`.
    #[must_use]
    pub fn window_after(self, before: Option<i64>, calendar: &Calendar, now: Nanos) -> Option<(i64, Nanos)> {
        let (begins, ends) = self.window(calendar, now);
        let begins_soon =
            |before: i64| before > begins && before.saturating_sub(self.unix(now).0) <= SET_BACK;
        (!before.is_some_and(begins_soon)).then_some((begins, ends))
    }

    /// Keeps it where others read [`WallClock::ahead_ns`], unless what is there differs by no more than two looks at clocks may.
    pub fn keep_in(self, ahead_ns: &AtomicI64) {
        if ahead_ns.load(Ordering::Relaxed).abs_diff(self.ahead_ns) > INEXACT.0 {
            ahead_ns.store(self.ahead_ns, Ordering::Relaxed);
        }
    }
}

/// The most seconds by which a clock is set back and the window goes on that has begun.
const SET_BACK: i64 = 60;
/// Clocks are read one after the other, that on the wall in whole milliseconds.
const INEXACT: Nanos = Nanos::from_millis(10);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calendar(period: Period, zone: &str) -> Calendar {
        Calendar::new(period, Calendar::zone(zone).unwrap())
    }

    fn unix(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn windows_begin_by_the_clock_of_their_zone() {
        for (period, zone, time, begins, ends) in [
            (Period::Minute, "UTC", "2026-11-29T14:32:10Z", "2026-11-29T14:32:00Z", "2026-11-29T14:33:00Z"),
            (Period::Hour, "UTC", "2026-11-29T14:32:10Z", "2026-11-29T14:00:00Z", "2026-11-29T15:00:00Z"),
            (
                Period::Hour,
                "Asia/Kathmandu",
                "2026-11-29T14:32:10Z",
                "2026-11-29T14:15:00Z",
                "2026-11-29T15:15:00Z",
            ),
            (
                Period::Day,
                "America/New_York",
                "2026-11-29T03:00:00Z",
                "2026-11-28T05:00:00Z",
                "2026-11-29T05:00:00Z",
            ),
            // Sunday belongs to the week of the Monday before.
            (Period::Week, "UTC", "2026-11-29T23:59:59Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (
                Period::Month,
                "Europe/Berlin",
                "2026-02-10T00:00:00Z",
                "2026-01-31T23:00:00Z",
                "2026-02-28T23:00:00Z",
            ),
            (Period::Year, "UTC", "2024-02-29T12:00:00Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
            // Days of 23 and of 25 hours.
            (
                Period::Day,
                "Europe/Berlin",
                "2026-03-29T12:00:00Z",
                "2026-03-28T23:00:00Z",
                "2026-03-29T22:00:00Z",
            ),
            (
                Period::Day,
                "Europe/Berlin",
                "2026-10-25T12:00:00Z",
                "2026-10-24T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            // A day whose midnight is not, and one before a day that is not.
            (
                Period::Day,
                "America/Sao_Paulo",
                "2018-11-04T12:00:00Z",
                "2018-11-04T03:00:00Z",
                "2018-11-05T02:00:00Z",
            ),
            (
                Period::Day,
                "Pacific/Apia",
                "2011-12-30T09:00:00Z",
                "2011-12-29T10:00:00Z",
                "2011-12-30T10:00:00Z",
            ),
        ] {
            let window = Window { begins: unix(begins), ends: unix(ends) };
            assert_eq!(calendar(period, zone).window(unix(time)), window, "{period:?} {zone} {time}");
        }
        assert_eq!(Calendar::zone("Europe/Atlantis"), None);
    }

    proptest! {
        #[test]
        fn every_time_is_in_its_window_and_days_follow_each_other(
            secs in -10_000_000_000..20_000_000_000_i64,
            period in prop::sample::select(vec![Period::Minute, Period::Hour, Period::Day, Period::Week, Period::Month, Period::Year]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"]),
        ) {
            let calendar = calendar(period, zone);
            let window = calendar.window(secs);
            prop_assert!((window.begins..window.ends).contains(&secs));
            if !matches!(period, Period::Minute | Period::Hour) {
                prop_assert_eq!(calendar.window(window.ends).begins, window.ends);
                prop_assert_eq!(calendar.window(window.ends - 1), window);
                prop_assert_eq!(calendar.window(window.begins), window);
            }
        }

        #[test]
        fn any_clock_is_safe(ahead_ns: i64, now: u64) {
            let calendar = calendar(Period::Month, "Europe/Berlin");
            let (_, ends) = WallClock { ahead_ns }.window(&calendar, Nanos(now));
            prop_assert!(ends >= Nanos(now));
        }
    }
}
