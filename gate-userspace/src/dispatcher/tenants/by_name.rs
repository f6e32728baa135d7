//! Tenants that are charged by their names, for requests that pass elsewhere.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::Arc;

use gate_common::abi::{Name, Reason, Tenant};
use gate_common::token_bucket::{Limits, Take};
use gate_common::units::{MilliRu, Nanos};

use super::ledger::{Charge, Ledger, TenantId};
use crate::kernel::Maps;
use crate::protocol::Refusal;

/// A ledger that knows tenants by name. It counts in the row in which others count as well.
#[derive(Debug)]
pub(crate) struct NamedTenants {
    ledger: Ledger,
    maps: Arc<Maps>,
    ids: HashMap<Name, TenantId>,
    /// When all names were last read.
    read_at: Option<Nanos>,
}

/// The fullness of the bucket that holds the least, of all that a tenant is charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Its limits.
    pub(crate) limits: Limits,
    /// The time until it is full.
    pub(crate) reset: Nanos,
}

impl NamedTenants {
    pub(crate) fn new(maps: Arc<Maps>, seed: u64) -> Self {
        let mut ledger = Ledger::new(Arc::clone(&maps), 0, seed, []);
        ledger.count_in_shared_row();
        Self { ledger, maps, ids: HashMap::new(), read_at: None }
    }

    /// The tenant that has a name now. One that is new may take [`READ_EVERY`] to be known.
    pub(crate) fn find(&mut self, name: &str, now: Nanos) -> Option<TenantId> {
        self.ledger.refresh();
        let name = Name::new(name)?;
        let known = self.ids.get(&name).copied();
        if let Some(id) = known.filter(|&id| self.ledger.has_name(id, &name)) {
            return Some(id);
        }
        if self.read_at.is_some_and(|at| now.saturating_sub(at) < READ_EVERY) {
            return None;
        }
        self.read_at = Some(now);
        self.ids.clear();
        for id in 1..self.maps.tenants.len() {
            let found: Name = self.maps.tenants.load_at(id, offset_of!(Tenant, name));
            if found != Name::EMPTY {
                self.ids.insert(found, TenantId(id as u32));
            }
        }
        self.ids.get(&name).copied()
    }

    /// Charges a tenant so much, times its multiplier, and those charged with it, all or none. A refusal is counted.
    /// Returns the charge: nothing if the refusal is only counted.
    pub(crate) fn charge(&mut self, tenant: TenantId, cost: MilliRu, now: Nanos) -> Result<MilliRu, Refusal> {
        let price = self.ledger.apply_multiplier(tenant, cost, 0);
        let is_shadowed = self.ledger.is_all_shadowed();
        match self.ledger.charge((tenant, None), (cost, price), 0, now, is_shadowed) {
            Charge::Passed(charged) => Ok(charged),
            Charge::Refused { refusal, .. } => Err(refusal),
        }
    }

    /// The answer to a charge that is not made.
    pub(crate) fn ask(&mut self, tenant: TenantId, cost: MilliRu, now: Nanos) -> Result<(), Refusal> {
        let price = self.ledger.apply_multiplier(tenant, cost, 0);
        let draws = self.ledger.draws();
        let pushed = self.ledger.peek_pushed(tenant, 0, now);
        self.ledger.restore_draws(draws);
        let too_dear = self.ledger.too_dear(tenant, cost);
        let refusal = pushed.or_else(|| {
            self.ledger.quota_levels((tenant, None), price, now).find_map(|level| match level.take {
                Take::Admit { .. } => None,
                Take::Refuse { wait_ns } => Some(Refusal::after(Reason::Quota, Nanos(wait_ns))),
                Take::TooLarge => Some(too_dear),
            })
        });
        refusal.filter(|_| !self.ledger.is_all_shadowed()).map_or(Ok(()), Err)
    }

    /// True in shadow mode.
    pub(crate) fn is_shadowed(&mut self) -> bool {
        self.ledger.refresh();
        self.ledger.is_all_shadowed()
    }

    /// Counts a request that passes, and its charge.
    pub(crate) fn count_passed(&mut self, tenant: TenantId, charged: MilliRu) {
        self.ledger.count_passed(tenant, charged);
    }

    /// Gives back a charge.
    pub(crate) fn refund(&mut self, tenant: TenantId, charged: MilliRu) {
        self.ledger.refund((tenant, None), charged);
    }

    /// Gives back so much, times the tenant's multiplier.
    pub(crate) fn give_back(&mut self, tenant: TenantId, cost: MilliRu) {
        let price = self.ledger.apply_multiplier(tenant, cost, 0);
        self.ledger.refund((tenant, None), price);
    }

    /// The level that is the lowest in request units; `None` without a quota.
    pub(crate) fn level(&mut self, tenant: TenantId, now: Nanos) -> Option<Level> {
        let levels = self.ledger.quota_levels((tenant, None), MilliRu::ZERO, now);
        let levels = levels.map(|level| Level { limits: level.limits, reset: level.debt });
        levels.min_by_key(|level| {
            let held = level.limits.burst_ns.saturating_sub(level.reset.0);
            level.limits.rate.units_per_sec().map_or(u128::MAX, |rate| u128::from(rate) * u128::from(held))
        })
    }
}

/// How often all names are read, at most, for one that is not known.
const READ_EVERY: Nanos = Nanos::from_secs(1);
