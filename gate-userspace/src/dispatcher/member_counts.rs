//! The counts of tenants' members, and those that have spent most, for who shows them.

use std::sync::Arc;

use gate_common::units::Nanos;
use tokio::sync::watch;

use super::tenants::Tenants;
pub use super::tenants::members::MemberTotals;

/// The counts of all tenants' members, as of now.
#[derive(Clone, Debug)]
pub struct MemberCounts(watch::Receiver<Arc<Tenants>>);

impl MemberCounts {
    pub(super) fn new(tenants: watch::Receiver<Arc<Tenants>>) -> Self {
        Self(tenants)
    }

    /// Each tenant that has members, by name, and their counts.
    #[must_use]
    pub fn all(&self) -> Vec<(String, MemberTotals)> {
        self.0.borrow().member_totals()
    }

    /// The number of a tenant and those of its members whose buckets will be full last, by name, the last first, each with the time
    /// on gate's clock when it will be; `None` if it has no members. Looks at all of them.
    #[must_use]
    pub fn emptiest(&self, tenant: &str, most: usize) -> Option<(u32, Vec<(Nanos, String)>)> {
        let tenants = Arc::clone(&self.0.borrow());
        tenants.emptiest_members(tenant, most).map(|(id, found)| (id.0, found))
    }
}
