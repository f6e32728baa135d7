//! The refusals of tenants' limits by what is asked, for who shows them.

use std::sync::Arc;

use tokio::sync::watch;

use super::tenants::Tenants;
use super::tenants::ledger::TenantId;

/// The refusals of all tenants' limits, as of now.
#[derive(Clone, Debug)]
pub struct LimitRefusals(watch::Receiver<Arc<Tenants>>);

impl LimitRefusals {
    pub(super) fn new(tenants: watch::Receiver<Arc<Tenants>>) -> Self {
        Self(tenants)
    }

    /// Those of the tenant with this number and name: each limit's name, and the requests that it has refused since gate
    /// has started, or since it was configured. None without limits.
    #[must_use]
    pub fn of(&self, tenant: u32, name: &str) -> Vec<(&'static str, u64)> {
        self.0.borrow().refused_by_limits(TenantId(tenant), name)
    }
}
