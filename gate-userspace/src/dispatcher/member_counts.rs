//! The counts of tenants' members, for who shows them.

use std::sync::Arc;

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
}
