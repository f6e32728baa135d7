//! Pinned maps that are too small for a configuration, and larger ones that take their place.
//!
//! The larger maps are pinned beside ([`PinDir::beside`]) and ruled while the old program still judges by the old
//! ones; then the link gets the new program, without a moment between the two. What tenants own goes over by name:
//! their buckets, their counters, their ids. Until the program is replaced both pairs of buckets are spent from,
//! so for that long, a fraction of a second, a tenant may spend twice; the larger debt stays.

use std::fs;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{Control, Name, Tenant, maps};

use super::owner::{self, Ownership, Previous};
use super::{Error, Maps, PinDir, Result};

/// The old maps, until nothing refers to them.
#[derive(Debug)]
pub struct Outgrown {
    maps: Maps,
    pins: PinDir,
}

impl Outgrown {
    /// Makes `larger`, which are pinned beside `pins`, know the tenants and the interface of `maps`.
    pub(super) fn new(maps: Maps, larger: &Maps, pins: &PinDir) -> Self {
        larger.init(maps.clock());
        let control = maps.control.load(0);
        larger.control.store_at(0, offset_of!(Control, epoch), &control.epoch);
        if let Some((interface, mode)) = maps.attached() {
            larger.set_attached(interface, mode, maps.namespace());
        }
        for tenant in 1..maps.tenants.len() {
            larger.tenants.store(tenant, &maps.tenants.load(tenant));
        }
        for rank in 0..maps.top_keys.len().min(larger.top_keys.len()) {
            larger.top_keys.store(rank, &maps.top_keys.load(rank));
        }
        Self { maps, pins: pins.clone() }
    }

    /// Ends the old maps' owner, and takes both.
    pub(super) fn take(&self, larger: &Maps) -> Result<(Ownership, Previous)> {
        let (_, previous) = owner::take(&self.maps)?;
        self.hand_over(larger);
        let (ownership, _) = owner::take(larger)?;
        Ok((ownership, previous))
    }

    /// Brings over what the old program did last, now that it is replaced, and puts the new pins in the place of
    /// the old.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`].
    pub fn replaced(&self, larger: &Maps) -> Result<()> {
        // Packets that were being judged by the old program when it was replaced.
        wait_for_readers();
        self.hand_over(larger);
        let beside = self.pins.beside();
        let failed = |source| Error::PinDir { directory: beside.clone(), source };
        for name in maps::ALL {
            fs::rename(beside.join(name), self.pins.map(name)).map_err(failed)?;
        }
        fs::remove_dir(&beside).map_err(failed)
    }

    /// Brings over every counter, as of now, and each bucket's larger debt.
    fn hand_over(&self, larger: &Maps) {
        // No CPU's and no thread's: what was counted before.
        let row = larger.cpus.len() - 1;
        for tenant in 0..self.maps.tenants.len() {
            let name = |maps: &Maps| maps.tenants.load_at::<Name>(tenant, offset_of!(Tenant, name));
            if name(&self.maps) != name(larger) {
                continue;
            }
            for word in WORDS {
                let tat = self.maps.tenants.word(tenant, word).load(Ordering::SeqCst);
                larger.tenants.word(tenant, word).fetch_max(tat, Ordering::SeqCst);
            }
            let counted = self.maps.tenant_counters(tenant);
            larger.counters.store(row * larger.tenants.len() + tenant, &counted);
        }
        larger.cpus.store(row, &self.maps.cpu_counters());
    }
}

/// Waits until every program that was running has ended; where the kernel cannot, its last packets go uncounted.
fn wait_for_readers() {
    // SAFETY: three integers.
    let waited = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if waited != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "not waiting for the old program");
    }
}

/// A tenant's buckets.
const WORDS: [usize; 4] = [
    offset_of!(Tenant, quota_tat),
    offset_of!(Tenant, tcp_tat),
    offset_of!(Tenant, reply_tat),
    offset_of!(Tenant, candidate_tat),
];
