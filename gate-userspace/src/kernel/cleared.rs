//! The counters of tenants until they were cleared, for readers that sum up counters across that.
//!
//! A number that goes from one tenant to another is counted anew. **Invariant.** The last values are noted before they are
//! cleared: whoever reads counters and then finds nothing noted has read none that were being cleared.

use std::sync::{Mutex, PoisonError};

use super::layer::ByLayer;

/// The last values of counters that were cleared.
#[derive(Debug, Default)]
pub struct Cleared(Mutex<Option<Vec<LastValues>>>);

/// The last values of one tenant's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastValues {
    /// The tenant's number, which another has now.
    pub tenant: u32,
    /// Their values.
    pub counters: ByLayer,
}

impl Cleared {
    /// Keeps them from now on, until they are taken.
    pub fn keep(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    }

    /// Those since the last call, in the order in which they were cleared.
    #[must_use]
    pub fn take(&self) -> Vec<LastValues> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes what a tenant has, if that is kept.
    pub(super) fn note(&self, tenant: u32, counters: impl FnOnce() -> ByLayer) {
        if let Some(kept) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            kept.push(LastValues { tenant, counters: counters() });
        }
    }
}
