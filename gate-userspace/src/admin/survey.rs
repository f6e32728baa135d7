//! The activity of all tenants, in short.

use super::tenants;
use crate::kernel::{Activity, ByLayer, Maps};

/// The activity of all tenants.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// All together.
    pub(super) sums: ByLayer,
    /// By number, in their order.
    pub(super) tenants: Vec<(u32, Activity)>,
}

impl Survey {
    /// Reads all counters once.
    pub(super) fn of(maps: &Maps) -> Self {
        let mut sums = ByLayer::default();
        let tenants = tenants::ids(maps).map(|id| (id, maps.sum_counters(id as usize, &mut sums))).collect();
        Self { sums, tenants }
    }
}
