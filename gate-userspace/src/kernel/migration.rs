//! Pinned maps that give way to others: they are too small for a configuration.
//!
//! The new maps are pinned beside the old ones ([`PinDir::staging`]), and the daemon writes its plan into them while the old
//! program still judges by the old ones; then the link gets the new program, without a moment between the two. What
//! tenants own goes over by name: their ids, their buckets, their counters. Until the program is replaced, and for
//! proxied requests until the old gate has drained its clients, both pairs of buckets are spent from; whenever counts
//! are carried over, either side gets the larger debt.

#![allow(unsafe_code, reason = "a system call without a safe wrapper")]

use std::fs;
use std::mem::offset_of;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::{Clock, Control, Name, Tenant, TenantCounters, TopKey};

use super::error::{Error, Result};
use super::maps::Maps;
use super::owner::{self, ControlHead as _, Ownership, Previous};
use super::pins::PinDir;

/// The old maps, until nothing refers to them.
#[derive(Debug)]
pub struct Migration {
    old: Box<Maps>,
    pins: PinDir,
    /// By tenant: what has been brought over.
    counted: Mutex<Vec<TenantCounters>>,
}

impl Migration {
    /// Makes the `new` maps, which are pinned beside `pins`, know the tenants and the interfaces of the `old`.
    pub(super) fn new(old: Box<Maps>, new: &Maps, pins: &PinDir) -> Self {
        let word = |offset| old.head(offset).load(Ordering::Acquire);
        let clock = offset_of!(Control, clock);
        new.init(Clock {
            tick_ns: word(clock + offset_of!(Clock, tick_ns)),
            origin_jiffies: word(clock + offset_of!(Clock, origin_jiffies)),
            origin_ns: word(clock + offset_of!(Clock, origin_ns)),
        });
        let epoch = offset_of!(Control, epoch);
        new.control.word(0, epoch).store(word(epoch), Ordering::Release);
        new.copy_attached(&*old);
        for tenant in 1..old.tenants.len() {
            new.tenants.store_at(tenant, offset_of!(Tenant, name), &old.name_of(tenant));
        }
        for (rank, key) in old.hottest_keys().iter().enumerate().take(new.top_keys.len()) {
            new.top_keys.store(rank, key);
        }
        let counted = Mutex::new(vec![TenantCounters::default(); old.tenants.len()]);
        Self { old, pins: pins.clone(), counted }
    }

    /// Ends the old maps' owner, and takes both.
    pub(super) fn take(&self, new: &Maps) -> Result<(Ownership, Previous)> {
        let (_, previous) = owner::take(&*self.old)?;
        self.carry_over(new);
        let (ownership, _) = owner::take(new)?;
        Ok((ownership, previous))
    }

    /// Brings over what the old program did last, now that it is replaced, and puts the new pins in the place of
    /// the old.
    ///
    /// # Errors
    ///
    /// [`Error::PinDir`].
    pub fn complete(&self, new: &Maps) -> Result<()> {
        // Packets that were being judged by the old program when it was replaced.
        wait_for_readers();
        self.carry_over(new);
        let replacing = self.pins.replacing();
        fs::rename(self.pins.staging(), &replacing)
            .map_err(|source| Error::PinDir { directory: replacing, source })?;
        finish_replacing(&self.pins)
    }

    /// Brings over every counter, as of now, and gives either side the larger debt. To be called now and then while the
    /// old gate still charges for clients that it drains.
    pub fn carry_over(&self, new: &Maps) {
        let mut counted = self.counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (tenant, before) in counted.iter_mut().enumerate() {
            let name = self.old.name_of(tenant);
            if name != new.name_of(tenant) || (tenant > 0 && name == Name::EMPTY) {
                continue;
            }
            for bucket in Bucket::ALL {
                let old_word = self.old.bucket(tenant, bucket);
                let until = old_word.load(Ordering::SeqCst);
                let before = new.bucket(tenant, bucket).fetch_max(until, Ordering::SeqCst);
                old_word.fetch_max(before, Ordering::SeqCst);
            }
            let now = self.old.tenant_counters(tenant);
            new.count_shared(tenant, &now.since(before));
            *before = now;
        }
        // No CPU's: what was counted before.
        new.cpus.store(new.cpus.len() - 1, &self.old.cpu_counters());
    }
}

/// Completes what a gate began that was ended while it put the new pins in the place of the old.
///
/// # Errors
///
/// [`Error::PinDir`].
pub(super) fn recover(pins: &PinDir) -> Result<()> {
    if pins.replacing().exists() { finish_replacing(pins) } else { Ok(()) }
}

/// Moves every pin of `replacing` to its place.
fn finish_replacing(pins: &PinDir) -> Result<()> {
    let replacing = pins.replacing();
    let failed = |source| Error::PinDir { directory: replacing.clone(), source };
    for entry in fs::read_dir(&replacing).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        fs::rename(entry.path(), pins.path().join(entry.file_name())).map_err(failed)?;
    }
    fs::remove_dir(&replacing).map_err(failed)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bucket {
    /// The quota.
    Quota,
    /// The coarse second line of proxied TCP.
    Tcp,
    /// The budget for replies.
    Reply,
    /// The candidate quota.
    Candidate,
    /// Connection attempts.
    Syn,
}

impl Bucket {
    const ALL: [Self; 5] = [Self::Quota, Self::Tcp, Self::Reply, Self::Candidate, Self::Syn];
}

impl Maps {
    /// A tenant's name; empty if there is none of this id.
    fn name_of(&self, tenant: usize) -> Name {
        self.tenants.load_at(tenant, offset_of!(Tenant, name))
    }

    /// The word of one of a tenant's buckets.
    fn bucket(&self, tenant: usize, bucket: Bucket) -> &AtomicU64 {
        let offset = match bucket {
            Bucket::Quota => return self.quota_tat(tenant),
            Bucket::Tcp => offset_of!(Tenant, tcp_tat),
            Bucket::Reply => offset_of!(Tenant, reply_tat),
            Bucket::Candidate => offset_of!(Tenant, candidate_tat),
            Bucket::Syn => offset_of!(Tenant, syn_tat),
        };
        self.tenants.word(tenant, offset)
    }

    /// The hottest keys, by rank.
    fn hottest_keys(&self) -> Vec<TopKey> {
        (0..self.top_keys.len()).map(|rank| self.top_keys.load(rank)).collect()
    }
}
