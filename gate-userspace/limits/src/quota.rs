//! The limits of a name's bucket: as those of a tenant's, at rates down to a few requests a year.

use gate_common::token_bucket;
use gate_common::units::Nanos;

use super::calendar::Period;
use gate_policy::rate::Rate;

/// The limits of a bucket. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How fast it refills.
    pub rate: Rate,
    /// How much a full bucket holds, as the time that it takes to refill.
    pub burst_ns: u64,
    /// The largest debt that a request or a settlement may leave beyond the burst.
    pub max_debt_ns: u64,
    /// Of windows of the calendar their length: nothing comes in with time, and the bucket is full when a window begins. Then the rate is how
    /// amounts become times, and no more.
    pub window: Option<Period>,
}

impl Limits {
    /// Admits everything.
    pub const UNLIMITED: Self =
        Self { rate: Rate::UNLIMITED, burst_ns: u64::MAX, max_debt_ns: u64::MAX, window: None };
    /// Admits nothing.
    pub const BANNED: Self = Self { rate: Rate::NONE, burst_ns: 0, max_debt_ns: 0, window: None };

    /// A bucket of `per_sec` thousandths of a request unit a second and a burst in time, with the default largest debt of twice the burst.
    #[must_use]
    pub const fn new(per_sec: u64, burst_ns: u64) -> Self {
        Self { rate: Rate::per_sec(per_sec), burst_ns, max_debt_ns: burst_ns.saturating_mul(2), window: None }
    }

    /// So many requests of one request unit in a time, and as many at once; a dearer one is refused for good. None at all ban.
    #[must_use]
    pub const fn requests_in(count: u64, time: Nanos) -> Self {
        let rate = Rate::within(count.saturating_mul(1_000), time);
        if count == 0 || rate.nano() == 0 {
            return Self::BANNED;
        }
        Self { rate, burst_ns: rate.time_for(count.saturating_mul(1_000)), max_debt_ns: 0, window: None }
    }

    /// So many thousandths of a request unit in each window of the calendar, at most [`Limits::MOST_IN_WINDOW`]. One request unit is a second, so
    /// that all amounts are exact.
    #[must_use]
    pub const fn in_window(milli: u64, window: Period) -> Self {
        let rate = Rate::per_sec(1_000);
        Self { rate, burst_ns: rate.time_for(milli), max_debt_ns: 0, window: Some(window) }
    }

    /// The most of a window, in thousandths of a request unit.
    pub const MOST_IN_WINDOW: u64 = 10_000_000_000_000;

    /// Those of a bucket that fills evenly, of as much in the same time.
    #[must_use]
    pub const fn evenly(self) -> Self {
        let Some(window) = self.window else { return self };
        let milli = self.rate.amount_in(self.burst_ns);
        let rate = Rate::within(milli, window.length());
        Self { rate, burst_ns: rate.time_for(milli), max_debt_ns: self.max_debt_ns, window: None }
    }

    /// The rate, in thousandths of a request unit per second, rounded down.
    #[must_use]
    pub const fn milli_per_sec(&self) -> u64 {
        self.rate.nano() / 1_000_000
    }

    /// The dearest request that a full bucket admits, in thousandths of a request unit.
    #[must_use]
    pub const fn dearest(&self) -> u64 {
        self.rate.amount_in(self.burst_ns.saturating_add(self.max_debt_ns))
    }

    /// As the kernel's buckets count, whose slowest rate is a thousandth of a request unit a second: faster than this if this is slower.
    #[must_use]
    pub fn to_kernel(self) -> token_bucket::Limits {
        let Self { rate, burst_ns, max_debt_ns, window: _ } = self;
        let Some(per_sec) = rate.units_per_sec() else { return token_bucket::Limits::UNLIMITED };
        let per_sec = per_sec.max(token_bucket::Rate::MIN_PER_SEC);
        let kernel = token_bucket::Rate::per_sec(per_sec);
        let exact = Rate::per_sec(per_sec);
        if exact == rate {
            return token_bucket::Limits { rate: kernel, burst_ns, max_debt_ns };
        }
        // The same amounts at the kernel's rate.
        let time = |nanos| exact.time_for(rate.amount_in(nanos));
        token_bucket::Limits { rate: kernel, burst_ns: time(burst_ns), max_debt_ns: time(max_debt_ns) }
    }
}

impl From<token_bucket::Limits> for Limits {
    fn from(limits: token_bucket::Limits) -> Self {
        let token_bucket::Limits { rate, burst_ns, max_debt_ns } = limits;
        let rate = rate.units_per_sec().map_or(Rate::UNLIMITED, Rate::per_sec);
        Self { rate, burst_ns, max_debt_ns, window: None }
    }
}
