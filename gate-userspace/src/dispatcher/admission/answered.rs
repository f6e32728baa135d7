//! Answered requests that are alike, observed as one.

use gate_common::units::Nanos;

use crate::dispatcher::request::RequestClass;

/// Requests of one class that were charged together, sent together, and answered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) class: RequestClass,
    /// When they were charged.
    pub(crate) charged: Nanos,
    pub(crate) sent: Nanos,
    pub(crate) count: u32,
}

impl Answered {
    /// Adds them to those before, if they are alike. Otherwise takes their place, and returns those before.
    #[inline]
    pub(crate) fn merge(self, before: &mut Option<Self>) -> Option<Self> {
        match before {
            Some(before) if Self { count: before.count, ..self } == *before => {
                before.count += self.count;
                None
            }
            before => before.replace(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Tier;
    use crate::policy::admission::QueryType;

    #[test]
    fn only_equal_requests_are_observed_in_one_batch() {
        let one = |tier, query_type, charged, sent| Answered {
            class: RequestClass { tier, query_type: QueryType(query_type) },
            charged: Nanos(charged),
            sent: Nanos(sent),
            count: 1,
        };
        let first = one(Tier::Standard, 0, 1, 2);
        let others = [
            one(Tier::Batch, 0, 1, 2),
            one(Tier::Standard, 1, 1, 2),
            one(Tier::Standard, 0, 0, 2),
            one(Tier::Standard, 0, 1, 3),
        ];
        for other in others {
            let mut last = None;
            let mut observed: Vec<_> =
                [first, first, other, first].into_iter().filter_map(|next| next.merge(&mut last)).collect();
            observed.extend(last);
            assert_eq!(observed, [Answered { count: 2, ..first }, other, first]);
        }
    }
}
