//! What the next tick enforces.
//!
//! **Problem.** XDP must refuse without asking anyone, so what it refuses is decided ahead, from what it
//! counted. **Source.** The batch reporting of Databricks' rate limiter: no request waits for a decision
//! from elsewhere; it passes unless the gate already knows that it must not.
//!
//! **Decisions.** A tenant whose bucket is in debt (a request dearer than its burst, a settlement, a
//! lowered burst) is told to stay away until the debt is paid: XDP then refuses it before it prices
//! anything. Under the rejection-rate algorithm, the share of the last ticks' requests that was over the
//! quota is refused by a draw; the bucket stays on beneath.
//!
//! **Invariants.** Pure: the same snapshot gives the same plan. `reject_until` never refuses what the
//! bucket would admit.

use gate_common::abi::TenantState;
use gate_common::token_bucket::debt_ns;
use gate_common::units::{Fraction, Nanos};

/// What one tick found of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantSnapshot {
    /// Its bucket's word.
    pub quota_tat: u64,
    /// What it was charged, and what it was refused, since the last tick, in thousandths of a request unit.
    pub offered_mru: u64,
}

/// What one tick found.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// On gate's clock.
    pub now: Nanos,
    /// Since the last snapshot.
    pub interval: Nanos,
    /// In the order of the layout.
    pub tenants: &'a [TenantSnapshot],
}

/// The rules that a decision follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Refuse a share of what is offered over the quota, rather than leave it to the bucket.
    pub rejection_rate: bool,
}

/// Decides every tenant's state: `states` holds it before any decision, in the order of the snapshot.
pub fn decide(rules: &Rules, snapshot: &Snapshot<'_>, states: &mut [TenantState]) {
    for (state, tenant) in states.iter_mut().zip(snapshot.tenants) {
        let debt = debt_ns(tenant.quota_tat, snapshot.now.0, state.quota.burst_ns);
        state.reject_until_ns = if debt > 0 { snapshot.now.0.saturating_add(debt) } else { 0 };
        state.rejection_rate = if rules.rejection_rate {
            rejection_rate(tenant.offered_mru, state, snapshot.interval).steps()
        } else {
            0
        };
    }
}

/// `(estimated - limit) / estimated`, where the estimate is what the last interval offered.
fn rejection_rate(offered_mru: u64, state: &TenantState, interval: Nanos) -> Fraction {
    let Some(per_sec) = state.quota.rate.units_per_sec() else { return Fraction::ZERO };
    let limit = u128::from(per_sec) * u128::from(interval.0) / 1_000_000_000;
    let over = offered_mru.saturating_sub(u64::try_from(limit).unwrap_or(u64::MAX));
    Fraction::of(over, offered_mru)
}

#[cfg(test)]
mod tests {
    use gate_common::token_bucket::{Limits, Take, take};

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1_000);
    const BURST: u64 = 100_000_000;
    const RULES: Rules = Rules { rejection_rate: false };

    fn decided(rules: &Rules, tenant: TenantSnapshot) -> TenantState {
        let quota = Limits::new(1_000_000, BURST);
        let mut states = [TenantState { quota, ..TenantState::default() }];
        decide(
            rules,
            &Snapshot { now: NOW, interval: Nanos::from_millis(100), tenants: &[tenant] },
            &mut states,
        );
        states[0]
    }

    #[test]
    fn a_tenant_in_debt_stays_away_until_it_is_paid() {
        for (owed, until) in [(0, 0), (BURST, 0), (BURST + 1, NOW.0 + 1), (3 * BURST, NOW.0 + 2 * BURST)] {
            let tenant = TenantSnapshot { quota_tat: NOW.0 + owed, ..TenantSnapshot::default() };
            assert_eq!(decided(&RULES, tenant).reject_until_ns, until, "owing {owed} ns");
        }
    }

    #[test]
    fn staying_away_never_refuses_what_the_bucket_admits() {
        for owed in [BURST + 1, BURST + 777, 2 * BURST, 3 * BURST] {
            let tat = NOW.0 + owed;
            let state = decided(&RULES, TenantSnapshot { quota_tat: tat, ..TenantSnapshot::default() });
            let last_refused = state.reject_until_ns - 1;
            assert!(
                !matches!(take(tat, last_refused, 1, &state.quota), Take::Admit { .. }),
                "owing {owed} ns"
            );
        }
    }

    #[test]
    fn the_rejection_rate_is_the_share_over_the_limit() {
        let rules = Rules { rejection_rate: true };
        // 1,000 RU/s in 100 ms: 100 RU.
        for (offered_mru, steps) in [(0, 0), (100_000, 0), (200_000, 32_768), (400_000, 49_152)] {
            let tenant = TenantSnapshot { offered_mru, ..TenantSnapshot::default() };
            assert_eq!(decided(&rules, tenant).rejection_rate, steps, "{offered_mru}");
            assert_eq!(decided(&RULES, tenant).rejection_rate, 0);
        }
    }
}
