//! A client's question for the size of what its next request reads.
//!
//! Its request is left in the input, and decoded again once the store has answered: nothing of the client overtakes it. The
//! answer is for that request alone.

use std::cell::Cell;

use gate_common::units::Nanos;

/// The state of a client's question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SizeQuestion {
    /// Nothing is asked.
    #[default]
    None,
    /// So many answers are missing; those that came said so many elements, or one said nothing.
    Pending { missing: u16, elements: Option<u64> },
    /// The keys hold so many elements; `None` if that could not be found out.
    Answered(Option<u64>),
}

impl SizeQuestion {
    /// True while the store has not answered.
    #[inline]
    pub(crate) const fn is_pending(self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    /// The elements that the store has told.
    #[inline]
    pub(crate) const fn elements(self) -> Option<u64> {
        match self {
            Self::Answered(elements) => elements,
            Self::None | Self::Pending { .. } => None,
        }
    }

    /// The state after one more answer.
    pub(crate) fn answered(self, told: Option<u64>) -> Self {
        let Self::Pending { missing, elements } = self else { return self };
        let elements = elements.zip(told).map(|(sum, more)| sum.saturating_add(more));
        match missing.saturating_sub(1) {
            // Pending => Answered: it was the last one.
            0 => Self::Answered(elements),
            missing => Self::Pending { missing, elements },
        }
    }
}

/// The kinds of questions that the store has lately said it does not know, by number. They are not asked for a while: whatever a client
/// asks about, it cannot bring that about.
#[derive(Debug, Default)]
pub(crate) struct RefusedQuestions([Cell<Nanos>; crate::policy::key_reads::KINDS]);

impl RefusedQuestions {
    /// True if a kind of question may be asked.
    pub(crate) fn may_ask(&self, kind: u8, now: Nanos) -> bool {
        self.0.get(usize::from(kind)).is_some_and(|until| until.get() <= now)
    }

    /// The store does not know a kind of question.
    pub(crate) fn refused(&self, kind: u8, now: Nanos) {
        self.0.get(usize::from(kind)).into_iter().for_each(|until| until.set(now.saturating_add(PAUSE)));
    }
}

/// A store whose `HLEN` has another name is asked as seldom as this.
const PAUSE: Nanos = Nanos::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_the_sum_of_all_answers_or_unknown() {
        let pending = |missing| SizeQuestion::Pending { missing, elements: Some(0) };
        for (told, answered) in [
            (&[Some(7)][..], Some(7)),
            (&[Some(7), Some(0), Some(5)], Some(12)),
            (&[Some(u64::MAX), Some(5)], Some(u64::MAX)),
            (&[Some(7), None, Some(5)], None),
            (&[None], None),
        ] {
            let mut question = pending(told.len() as u16);
            for &told in told {
                assert!(question.is_pending());
                question = question.answered(told);
            }
            assert_eq!(question, SizeQuestion::Answered(answered));
            // An answer that comes after the end of its question.
            assert_eq!(question.answered(Some(1)), question);
        }
        assert_eq!(SizeQuestion::None.answered(Some(1)), SizeQuestion::None);
    }

    #[test]
    fn a_kind_that_was_refused_is_not_asked_for_a_while() {
        let refused = RefusedQuestions::default();
        let now = Nanos::from_secs(5);
        refused.refused(3, now);
        assert!(!refused.may_ask(3, now) && refused.may_ask(4, now));
        assert!(refused.may_ask(3, now.saturating_add(PAUSE)) && !refused.may_ask(200, now));
    }
}
