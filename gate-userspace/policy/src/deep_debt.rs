//! Deep debt: who goes on asking for far more than its quota, however often it is refused.
//!
//! **Problem.** A refusal by the proxy costs a connection, a parsed request and an answer. A tenant that never
//! backs off takes that from everyone, and the bucket cannot show it: its debt is at most its `max_debt`,
//! and anyone who forges a tenant's datagrams can put it there.
//!
//! **How.** An account of its own: all that the tenant asked for over established connections, refused or not, which
//! its quota pays off. It is deep when paying it off takes the burst and `depth` more, and no longer when half of
//! that is paid.
//!
//! **Invariants.** Who asks for no more than the bucket allows is never deep. The account's debt is twice as much at most,
//! so whoever stops is out of it within one and a half times burst and depth.

use gate_common::units::Nanos;

/// One tenant's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeepDebt {
    /// How long its quota takes to pay this off.
    debt: Nanos,
    is_deep: bool,
}

impl DeepDebt {
    /// Takes in what was asked for in the time that has `passed`, as the time that the quota takes to pay it, and
    /// says whether the tenant is deep in debt; `depth` is the burst and what debt is allowed beyond.
    pub fn tick(&mut self, demand: Nanos, passed: Nanos, depth: Nanos) -> bool {
        let most = Nanos(depth.0.saturating_mul(2));
        self.debt = self.debt.saturating_sub(passed).saturating_add(demand).min(most);
        self.is_deep = if self.is_deep { self.debt.0 > depth.0 / 2 } else { self.debt > depth };
        self.is_deep
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TICK: Nanos = Nanos::from_millis(100);
    const DEPTH: Nanos = Nanos::from_secs(10);

    /// The first of so many ticks, with so many times the quota asked for in each, after which it `is_deep`.
    fn first(account: &mut DeepDebt, times: u64, ticks: u64, is_deep: bool) -> Option<u64> {
        (1..=ticks).find(|_| account.tick(Nanos(times * TICK.0), TICK, DEPTH) == is_deep)
    }

    #[test]
    fn demand_without_backoff_gets_deep_the_sooner_the_larger() {
        for (times, ticks) in [(2, 100), (11, 10), (1_000, 1)] {
            assert_eq!(first(&mut DeepDebt::default(), times, 1_000, true), Some(ticks), "{times} times");
        }
    }

    #[test]
    fn a_tenant_that_stops_leaves_deep_debt_and_no_other_does() {
        let mut account = DeepDebt::default();
        assert!(first(&mut account, 1_000, 1, true).is_some());
        assert_eq!(
            first(&mut account, 1, 10_000, false),
            None,
            "the quota pays for what is asked, not for the debt"
        );
        assert_eq!(first(&mut account, 0, 151, false), Some(150));
        assert_eq!(first(&mut account, 1, 10_000, true), None);
    }

    proptest! {
        #[test]
        fn demand_within_burst_and_quota_is_never_deep(
            burst in 0_u64..10_000_000_000, demand in prop::collection::vec(0_u64..1_000_000_000, 1..200),
        ) {
            let mut account = DeepDebt::default();
            let mut left = burst;
            for demand in demand {
                left = (left + TICK.0).min(burst);
                let demand = demand.min(left);
                left -= demand;
                prop_assert!(!account.tick(Nanos(demand), TICK, Nanos(burst)));
            }
        }

        #[test]
        fn any_time_is_safe(ticks in prop::collection::vec(any::<[u64; 3]>(), 1..20)) {
            let mut account = DeepDebt::default();
            for [demand, passed, depth] in ticks {
                account.tick(Nanos(demand), Nanos(passed), Nanos(depth));
            }
        }
    }
}
