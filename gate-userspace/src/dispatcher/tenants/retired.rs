//! Numbers of tenants that a reload has removed: not to be given to others while anything refers to them.
//!
//! A thread that has not taken over the new tenants, and a client that has not been identified again, hold the removed
//! tenant's [`Usage`]. A request that is under way holds only the number, but not for longer than requests take.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gate_common::units::Nanos;

use super::Tenants;
use super::ledger::TenantId;
use super::usage::Usage;

/// The numbers, and what refers to each.
#[derive(Debug, Default)]
pub(crate) struct Retired(Mutex<Vec<Number>>);

#[derive(Debug)]
struct Number {
    tenant: TenantId,
    usage: Weak<Usage>,
    /// When requests that were under way are done; `None` until nobody holds the usage.
    until: Option<Nanos>,
}

impl Retired {
    /// The tenants are others now.
    pub(crate) fn follow(&self, before: &Tenants, now: &Tenants) {
        let gone = now.gone_since(before);
        let numbers =
            gone.map(|(tenant, usage)| Number { tenant, usage: Arc::downgrade(usage), until: None });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(numbers);
    }

    /// Those that may still be referred to at `now`, where no request takes longer than `longest`.
    pub(crate) fn in_use(&self, now: Nanos, longest: Nanos) -> HashSet<u32> {
        let numbers = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.retain_mut(|number| {
            if number.usage.strong_count() > 0 {
                return true;
            }
            let until = *number.until.get_or_insert(now.saturating_add(longest));
            now < until
        });
        numbers.iter().map(|number| number.tenant.0).collect()
    }
}
