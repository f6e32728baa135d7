//! The status of a descriptor, as Envoy makes header fields of it.

use gate_common::units::{NANOS_PER_SEC, Nanos};

use super::wire::rls::Duration;
use super::wire::rls::rate_limit_response::rate_limit::Unit;
use super::wire::rls::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::limits::{Limits, Period, Refusal, Standing};
use crate::policy::rate::Rate;

/// The verdict on one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// If it is refused, the time until it would pass; zero if it never would, or nobody knows.
    pub(super) refused: Option<Nanos>,
    /// The strictest of the buckets that it is charged to: of a refusal that for which it waits longest, otherwise the one that holds least.
    pub(super) standing: Option<Standing>,
    /// Which of the descriptor's names that bucket has.
    pub(super) place: usize,
}

impl Verdict {
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Takes over the standing of another bucket, that of this name, if it holds less.
    pub(super) fn narrow(&mut self, standing: Standing, place: usize) {
        if self.standing.is_none_or(|held| standing.remaining < held.remaining) {
            (self.standing, self.place) = (Some(standing), place);
        }
    }

    /// Takes over the refusal of a bucket, that of this name, if it is the first one or lasts longer.
    pub(super) fn refuse(&mut self, standing: Standing, refusal: Refusal, place: usize) {
        let wait = match refusal {
            Refusal::Until(wait) => wait,
            Refusal::TooLarge => Nanos::ZERO,
        };
        if self.refused.is_none_or(|before| wait > before) {
            (self.refused, self.standing, self.place) = (Some(wait), Some(standing), place);
        }
    }

    /// Takes over a later standing, if the bucket is the same.
    pub(super) fn replace(&mut self, later: Option<Standing>) {
        let is_same = |held: Standing| later.is_some_and(|later| later.limits == held.limits);
        if self.standing.is_none_or(is_same) {
            self.standing = later;
        }
    }
}

/// A status: the limit, what remains of it, and in whole seconds, rounded up, when it is all there again or, for a refusal, when
/// the same request would pass; and the limit's label. Without a limit it is a bare code.
pub(super) fn status(verdict: Verdict, label: Option<&str>) -> DescriptorStatus {
    let code = if verdict.is_refused() { Code::OverLimit } else { Code::Ok };
    let standing = verdict.standing.filter(|standing| standing.limits.rate != Rate::UNLIMITED);
    let reset = match (verdict.refused, standing) {
        (Some(wait), _) if wait != Nanos::ZERO => Some(wait),
        (_, standing) => standing.map(|standing| standing.reset),
    };
    DescriptorStatus {
        code: code as i32,
        current_limit: standing
            .and_then(|standing| limit(standing.limits))
            .map(|limit| RateLimit { name: label.unwrap_or_default().to_owned(), ..limit }),
        limit_remaining: standing.map_or(0, |standing| requests(standing.remaining)),
        duration_until_reset: reset.map(whole_seconds),
    }
}

/// The requests of a window; of a rate a whole number in the shortest unit that holds it to one part in a hundred, else in the longest.
fn limit(limits: Limits) -> Option<RateLimit> {
    let rate = limits.rate;
    if rate == Rate::UNLIMITED {
        return None;
    }
    if let Some(window) = limits.window {
        let requests_per_unit = requests(rate.amount_in(limits.burst_ns));
        return Some(RateLimit { requests_per_unit, unit: unit(window) as i32, ..RateLimit::default() });
    }
    // A rate is rounded down to a billionth of a request unit per second: within a month, to less than a thousandth.
    let per = |secs: u128| (u128::from(rate.nano()) * secs).div_ceil(1_000_000);
    let (unit, per_unit) = UNITS
        .into_iter()
        .map(|(unit, secs)| (unit, per(secs)))
        .find(|&(_, per_unit)| per_unit >= 100_000 || (per_unit >= 1_000 && per_unit % 1_000 == 0))
        .unwrap_or((Unit::Month, per(MONTH_SECS)));
    let requests_per_unit = u32::try_from(per_unit / 1_000).unwrap_or(u32::MAX);
    Some(RateLimit { requests_per_unit, unit: unit as i32, ..RateLimit::default() })
}

const fn unit(window: Period) -> Unit {
    match window {
        Period::Minute => Unit::Minute,
        Period::Hour => Unit::Hour,
        Period::Day => Unit::Day,
        Period::Week => Unit::Week,
        Period::Month => Unit::Month,
        Period::Year => Unit::Year,
    }
}

fn requests(milli_ru: u64) -> u32 {
    u32::try_from(milli_ru / 1_000).unwrap_or(u32::MAX)
}

fn whole_seconds(time: Nanos) -> Duration {
    let seconds = time.0.div_ceil(NANOS_PER_SEC);
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

const UNITS: [(Unit, u128); 6] = [
    (Unit::Second, 1),
    (Unit::Minute, 60),
    (Unit::Hour, 3_600),
    (Unit::Day, 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Month, MONTH_SECS),
];
const MONTH_SECS: u128 = 30 * 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_whole_number_in_the_shortest_unit_that_says_it() {
        let of = |rate| Limits { rate, ..Limits::new(1, 1) };
        for (milli, requests, unit) in [
            (5_000_000, 5_000, Unit::Second),
            (10_000, 10, Unit::Second),
            (1_500, 90, Unit::Minute),
            (100, 6, Unit::Minute),
            (333, 1_198, Unit::Hour),
            (1, 604, Unit::Week),
        ] {
            let limit = limit(of(Rate::per_sec(milli))).unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit), (requests, unit as i32), "{milli}");
        }
        for (count, secs, requests, unit) in [
            (5, 86_400, 5, Unit::Day),
            (100, 86_400, 100, Unit::Day),
            (10, 3_600, 10, Unit::Hour),
            (5, 7 * 86_400, 5, Unit::Week),
            (5, 30 * 86_400, 5, Unit::Month),
            (0, 1, 0, Unit::Month),
        ] {
            let limit = limit(of(Rate::within(count * 1_000, Nanos::from_secs(secs)))).unwrap();
            assert_eq!((limit.requests_per_unit, limit.unit), (requests, unit as i32), "{count} in {secs} s");
        }
        assert_eq!(limit(Limits::UNLIMITED), None);
        let window = limit(Limits::in_window(70_000, Period::Week)).unwrap();
        assert_eq!((window.requests_per_unit, window.unit), (70, Unit::Week as i32));
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (nanos, seconds) in
            [(0, 0), (1, 1), (NANOS_PER_SEC, 1), (NANOS_PER_SEC + 1, 2), (u64::MAX, 18_446_744_074)]
        {
            assert_eq!(whole_seconds(Nanos(nanos)).seconds, seconds);
        }
    }
}
