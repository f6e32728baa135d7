//! Pinned maps that give way to others: they are too small for a configuration, or of an older ABI version.
//!
//! The new maps are pinned beside the old ones ([`PinDir::staging`]), and the daemon writes its plan into them while the old
//! program still judges by the old ones; then the link gets the new program, without a moment between the two. What
//! tenants own goes over by name: their ids, their buckets, their counters. Until the program is replaced, and for
//! proxied requests until the old gate has drained its clients, both pairs of buckets are spent from; whenever counts
//! are carried over, either side gets the larger debt.

#![allow(unsafe_code, reason = "a system call without a safe wrapper")]

use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use gate_common::abi::{ABI_VERSION, Clock, Control, Name, Tenant, TenantCounters, maps};

use super::abi_v4;
use super::abi_v5;
use super::carry_over::{Bucket, CarryOver};
use super::error::{Error, Result};
use super::maps::Maps;
use super::owner::{self, Ownership, Previous};
use super::pins::PinDir;

/// The maps of an older ABI version that are pinned in `directory`.
///
/// # Errors
///
/// [`Error::AbiVersion`] if this gate cannot read that version; [`Error::NotWhole`], [`Error::Shape`].
pub(super) fn older(directory: &Path, version: u32) -> Result<Box<dyn CarryOver>> {
    match version {
        abi_v4::VERSION => Ok(Box::new(abi_v4::Maps::pinned(directory)?)),
        abi_v5::VERSION => Ok(Box::new(abi_v5::Maps::pinned(directory)?)),
        found => Err(Error::AbiVersion { directory: directory.to_owned(), found, expected: ABI_VERSION }),
    }
}

/// The old maps, until nothing refers to them.
#[derive(Debug)]
pub struct Migration {
    old: Box<dyn CarryOver>,
    pins: PinDir,
    /// By tenant: what has been brought over.
    counted: Mutex<Vec<TenantCounters>>,
}

impl Migration {
    /// Makes the `new` maps, which are pinned beside `pins`, know the tenants and the interfaces of the `old`.
    pub(super) fn new(old: Box<dyn CarryOver>, new: &Maps, pins: &PinDir) -> Self {
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
        for tenant in 1..old.tenants() {
            new.tenants.store_at(tenant, offset_of!(Tenant, name), &old.name(tenant));
        }
        for (rank, key) in old.top_keys().iter().enumerate().take(new.top_keys.len()) {
            new.top_keys.store(rank, key);
        }
        let counted = Mutex::new(vec![TenantCounters::default(); old.tenants()]);
        Self { old, pins: pins.clone(), counted }
    }

    /// The ABI version of the old maps.
    #[must_use]
    pub fn from_version(&self) -> u32 {
        self.old.head(offset_of!(Control, abi_version)).load(Ordering::Acquire) as u32
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
        finish_replacing(&self.pins, self.old.pins())
    }

    /// Brings over every counter, as of now, and gives either side the larger debt. To be called now and then while the
    /// old gate still charges for clients that it drains.
    pub fn carry_over(&self, new: &Maps) {
        let mut counted = self.counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (tenant, before) in counted.iter_mut().enumerate() {
            let name = self.old.name(tenant);
            if name != CarryOver::name(new, tenant) || (tenant > 0 && name == Name::EMPTY) {
                continue;
            }
            let buckets = Bucket::ALL
                .map(|bucket| (self.old.bucket(tenant, bucket), CarryOver::bucket(new, tenant, bucket)));
            let syn = self.old.syn_bucket(tenant).zip(new.syn_bucket(tenant));
            for (old, new) in buckets.into_iter().chain(syn) {
                let tat = old.load(Ordering::SeqCst);
                let before = new.fetch_max(tat, Ordering::SeqCst);
                old.fetch_max(before, Ordering::SeqCst);
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
    // Version 5 has no pin that version 4 and this one lack.
    if pins.replacing().exists() { finish_replacing(pins, &abi_v4::PINS) } else { Ok(()) }
}

/// Moves every pin of `replacing` to its place, and removes those that only the old maps had.
fn finish_replacing(pins: &PinDir, old: &[&str]) -> Result<()> {
    let replacing = pins.replacing();
    let failed = |source| Error::PinDir { directory: replacing.clone(), source };
    for entry in fs::read_dir(&replacing).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        fs::rename(entry.path(), pins.path().join(entry.file_name())).map_err(failed)?;
    }
    for name in old.iter().filter(|name| !maps::ALL.contains(name)) {
        match fs::remove_file(pins.map(name)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(failed(source)),
            _ => {}
        }
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
