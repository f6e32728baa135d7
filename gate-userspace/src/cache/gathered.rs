//! The bytes of bodies that are being fetched, and of originals that are being processed.
//!
//! **Problem.** A body is held in memory until it is whole, and origins may be slow. **Rule.** All of them together have a bound.
//! Where there are several tenants, one of them holds half of that at most, or one body as long as may be kept: what one
//! tenant asks for never keeps the others from fetching.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes that are held in all, and by each tenant.
#[derive(Debug)]
pub(super) struct GatheredBytes {
    /// The bound, unless one body is longer.
    memory: u64,
    /// The longest body.
    longest: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    all: u64,
    /// Of each tenant that holds any.
    by_tenant: HashMap<u32, u64>,
}

/// On whose behalf bytes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) tenant: u32,
    /// True if there is no other tenant.
    pub(crate) is_only: bool,
}

/// Why there is no room for more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// All tenants together hold as much as may be.
    All,
    /// The tenant holds as much as one may.
    Tenant,
}

/// Bytes of a body. They count until they are released.
#[derive(Debug)]
pub(crate) struct Gathered {
    held: Arc<GatheredBytes>,
    holder: Holder,
    bytes: u64,
}

impl GatheredBytes {
    /// None, of at most `memory`; a body is `longest` bytes long at most.
    pub(super) fn new(memory: u64, longest: u64) -> Self {
        Self { memory, longest, state: Mutex::default() }
    }

    /// The bytes that may be held in all, and by one tenant.
    fn bounds(&self, is_only: bool) -> (u64, u64) {
        if is_only {
            let all = self.memory.max(self.longest);
            return (all, all);
        }
        let all = self.memory.max(self.longest.saturating_mul(2));
        (all, (all / 2).max(self.longest))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathered {
    pub(super) fn new(held: &Arc<GatheredBytes>, holder: Holder) -> Self {
        Self { held: Arc::clone(held), holder, bytes: 0 }
    }

    /// Counts so many more, whether or not there is room for them.
    ///
    /// # Errors
    ///
    /// [`NoRoom`]. The bytes count all the same, until they are gone.
    pub(crate) fn add(&mut self, bytes: u64) -> Result<(), NoRoom> {
        let (most, share) = self.held.bounds(self.holder.is_only);
        self.bytes += bytes;
        let state = &mut *self.held.lock();
        state.all += bytes;
        let of_tenant = state.by_tenant.entry(self.holder.tenant).or_default();
        *of_tenant += bytes;
        if *of_tenant > share {
            return Err(NoRoom::Tenant);
        }
        if state.all > most { Err(NoRoom::All) } else { Ok(()) }
    }

    /// So many of them are gone.
    pub(crate) fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let state = &mut *self.held.lock();
        state.all -= bytes;
        if let Some(of_tenant) = state.by_tenant.get_mut(&self.holder.tenant) {
            *of_tenant -= bytes;
            if *of_tenant == 0 {
                state.by_tenant.remove(&self.holder.tenant);
            }
        }
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(held: &Arc<GatheredBytes>, tenant: u32, is_only: bool) -> Gathered {
        Gathered::new(held, Holder { tenant, is_only })
    }

    #[test]
    fn all_bodies_together_have_a_bound() {
        let held = Arc::new(GatheredBytes::new(1_000, 100));
        let mut first = by(&held, 1, true);
        let mut second = by(&held, 1, true);
        assert_eq!(first.add(500).and(second.add(500)), Ok(()));
        assert!(second.add(1).is_err(), "as much again as may be kept in memory");
        first.release(1);
        assert_eq!(second.add(0), Ok(()));
        drop(first);
        assert_eq!(second.add(400), Ok(()));
        drop(second);
        assert_eq!(by(&held, 1, true).add(1_000), Ok(()));
        assert!(held.lock().by_tenant.is_empty() && held.lock().all == 0);
    }

    #[test]
    fn one_of_several_tenants_holds_half_of_the_memory() {
        let held = Arc::new(GatheredBytes::new(1_000, 100));
        let mut greedy = by(&held, 1, false);
        assert_eq!(greedy.add(500), Ok(()));
        assert_eq!(by(&held, 1, false).add(1), Err(NoRoom::Tenant));
        let mut other = by(&held, 2, false);
        assert_eq!(other.add(500), Ok(()));
        assert_eq!(by(&held, 3, false).add(1), Err(NoRoom::All));
        drop(greedy);
        assert_eq!(by(&held, 3, false).add(500), Ok(()));
    }

    #[test]
    fn one_body_of_each_of_two_tenants_always_fits() {
        let held = Arc::new(GatheredBytes::new(10, 100));
        let mut first = by(&held, 1, false);
        let mut second = by(&held, 2, false);
        assert_eq!(first.add(100).and(second.add(100)), Ok(()));
        assert_eq!(first.add(1), Err(NoRoom::Tenant));
    }
}
