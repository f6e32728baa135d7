//! When an owner is killed, and when it is started again. Pure.

use std::time::Duration;

/// The schedule of a run. Times count from its beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// When the first owner is killed.
    pub(super) first: Duration,
    /// How long an owner is gone.
    pub(super) gone: Duration,
    /// The end; `None` if there is none.
    end: Option<Duration>,
}

impl Schedule {
    /// The schedule of a run of this length, at least [`SHORTEST`].
    pub(super) fn new(duration: Option<Duration>) -> Self {
        let third = duration.map_or(MOST_GONE, |duration| duration / 3);
        Self { first: third.min(FIRST), gone: third.min(MOST_GONE), end: duration }
    }

    /// When the next owner is killed, after one came back; `None` if the run ends before that one would be back for long.
    pub(super) fn next(&self, back: Duration) -> Option<Duration> {
        let next = back + BETWEEN;
        self.end.is_none_or(|end| next + self.gone + BETWEEN <= end).then_some(next)
    }
}

/// The least that a run takes: a third of it is longer than a takeover.
pub(super) const SHORTEST: Duration = Duration::from_secs(15);
/// An owner's limit is seen at work before it is killed.
const FIRST: Duration = Duration::from_secs(10);
const MOST_GONE: Duration = Duration::from_secs(12);
/// From the return of one owner to the next one's end.
const BETWEEN: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_killed_and_comes_back_within_every_run() {
        for (seconds, first, gone, again) in [
            (Some(15), 5, 5, None),
            (Some(20), 6, 6, None),
            (Some(90), 10, 12, Some(37)),
            (None, 10, 12, Some(37)),
        ] {
            let schedule = Schedule::new(seconds.map(Duration::from_secs));
            assert_eq!((schedule.first.as_secs(), schedule.gone.as_secs()), (first, gone), "{seconds:?}");
            let back = schedule.first + schedule.gone;
            assert!(seconds.is_none_or(|seconds| back < Duration::from_secs(seconds)));
            assert_eq!(schedule.next(back), again.map(Duration::from_secs), "{seconds:?}");
        }
    }
}
