//! The debt of a limit, as its owner last said: the time until its bucket is full.

use gate_common::units::Nanos;
use gate_limits::Name;

use crate::wire::Introduction;

/// The debt of a bucket. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Debt {
    /// Paid by then.
    Until(Nanos),
    /// Of a window of the calendar: so much until the window ends, and then nothing.
    InWindow { owed: Nanos, ends: Nanos },
}

impl Debt {
    pub(super) const NONE: Self = Self::Until(Nanos::ZERO);

    /// That of a bucket which is full in so long; `window` is the time until its window ends, zero for a bucket that fills evenly.
    pub(super) fn of(now: Nanos, full_in: Nanos, window: Nanos) -> Self {
        if window == Nanos::ZERO {
            return Self::Until(now.saturating_add(full_in));
        }
        Self::InWindow { owed: full_in, ends: now.saturating_add(window) }
    }

    /// The time until the bucket is full; of a window, as if it filled evenly.
    pub(super) fn full_in(self, now: Nanos) -> Nanos {
        match self {
            Self::Until(full_at) => full_at.saturating_sub(now),
            Self::InWindow { owed, ends } if now < ends => owed,
            Self::InWindow { .. } => Nanos::ZERO,
        }
    }

    /// The introduction of a name of which this is owed, to an owner that may not know it.
    pub(super) fn introduction(self, name: &Name, now: Nanos) -> Introduction {
        let window_left = match self {
            Self::Until(_) => Nanos::ZERO,
            Self::InWindow { ends, .. } => ends.saturating_sub(now),
        };
        Introduction {
            name: name.as_str().to_owned(),
            full_in_us: self.full_in(now).0 / 1_000,
            window_left_us: window_left.0.div_ceil(1_000),
            held_back: false,
        }
    }

    /// True if the window has ended that it was of: nobody has said anything of the present one.
    pub(super) fn is_of_window_before(self, now: Nanos) -> bool {
        matches!(self, Self::InWindow { ends, .. } if now >= ends)
    }

    /// The larger one of two.
    pub(super) fn or_larger(self, other: Self, now: Nanos) -> Self {
        if other.full_in(now) > self.full_in(now) { other } else { self }
    }

    /// With so much more, taken at some moment.
    pub(super) fn with(self, more: Nanos, since: Nanos) -> Self {
        match self {
            Self::Until(full_at) => Self::Until(full_at.max(since).saturating_add(more)),
            Self::InWindow { owed, ends } if since < ends => {
                Self::InWindow { owed: owed.saturating_add(more), ends }
            }
            // Nobody has said when the window ends that this debt is of.
            Self::InWindow { .. } => Self::Until(since.saturating_add(more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_windows_debt_stays_until_the_window_ends() {
        let [now, hour] = [100, 3_600].map(Nanos::from_secs);
        let debt = Debt::of(now, Nanos::from_secs(50), hour);
        let later = now.saturating_add(hour);
        assert_eq!(debt.full_in(Nanos(later.0 - 1)), Nanos::from_secs(50));
        assert_eq!(debt.full_in(later), Nanos::ZERO);
        assert!(debt.is_of_window_before(later) && !debt.is_of_window_before(now));
        let said = |debt: Debt, now| {
            let Introduction { full_in_us, window_left_us, .. } =
                debt.introduction(&Name::parse("acme").unwrap(), now);
            (full_in_us / 1_000_000, window_left_us / 1_000_000)
        };
        assert_eq!((said(debt, now), said(debt, later)), ((50, 3_600), (0, 0)));
        let more = debt.with(Nanos::from_secs(9), now);
        assert_eq!(more.full_in(now), Nanos::from_secs(59));
        assert_eq!(debt.or_larger(more, now), more);
        assert_eq!(more.or_larger(debt, now), more);
        let evenly = Debt::of(now, Nanos::from_secs(50), Nanos::ZERO);
        assert_eq!(evenly.full_in(Nanos::from_secs(149)), Nanos::from_secs(1));
        assert_eq!(said(evenly, now), (50, 0));
        assert_eq!(evenly.with(Nanos::from_secs(9), later).full_in(later), Nanos::from_secs(9));
    }
}
