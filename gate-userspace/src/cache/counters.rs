//! The counters of a cache.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An event of a cache. Each has a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CacheEvent {
    /// A request was answered from memory.
    MemoryHit,
    /// A request was answered from disk.
    DiskHit,
    /// A request found nothing that it could be answered with.
    Miss,
    /// A request found an answer that had to be asked about first.
    Stale,
    /// A request was answered with a stale answer: the origin is asked meanwhile, or fails.
    StaleGiven,
    /// A request waited for another's fetch, and was answered by it.
    Followed,
    /// A request passed by the cache: it is of a kind that is not kept.
    Passed,
    /// The origin was asked, for all who want the same.
    Fetched,
    /// The origin said that an answer still holds.
    Revalidated,
    /// The origin gave the bytes that were there already.
    Unchanged,
    /// An answer was kept.
    Stored,
    /// An answer was not to be kept.
    NotStored,
    /// An answer was longer than may be kept.
    TooLong,
    /// An answer was not gathered: bodies that are being fetched take as much memory as they may, in all or of its tenant.
    NoRoom,
    /// An answer broke off.
    BrokenOff,
    /// A key was removed, by a request that changes or on demand.
    Invalidated,
    /// A body was written to disk.
    BlobWritten,
    /// A record was removed from disk to make room.
    Evicted,
    /// A body on disk was not what its name says.
    DamagedBlob,
    /// The database was damaged, and is started anew.
    DamagedIndex,
    /// Something could not be written to disk.
    WriteFailed,
    /// Something was not written to disk, since too much was to be written.
    WriteSkipped,
    /// An original could not be downloaded: its origin does not answer in time, shows another's certificate, or says nothing usable.
    DownloadFailed,
    /// An original was processed, for all who want the same.
    Processed,
    /// The processor said that a content cannot be processed.
    ContentRefused,
    /// The processor failed, or did not answer in time.
    ProcessFailed,
    /// A request for processing was refused: as many wait as may, or it would have waited for too long.
    ProcessRefused,
    /// An origin was not asked: it is not configured, or its name stands for an address that is not.
    OriginRefused,
    /// Somebody asked for an original by a name that there is not.
    UnknownBlob,
}

impl CacheEvent {
    /// Every event, in the order of its number.
    pub const ALL: [Self; 29] = [
        Self::MemoryHit,
        Self::DiskHit,
        Self::Miss,
        Self::Stale,
        Self::StaleGiven,
        Self::Followed,
        Self::Passed,
        Self::Fetched,
        Self::Revalidated,
        Self::Unchanged,
        Self::Stored,
        Self::NotStored,
        Self::TooLong,
        Self::NoRoom,
        Self::BrokenOff,
        Self::Invalidated,
        Self::BlobWritten,
        Self::Evicted,
        Self::DamagedBlob,
        Self::DamagedIndex,
        Self::WriteFailed,
        Self::WriteSkipped,
        Self::DownloadFailed,
        Self::Processed,
        Self::ContentRefused,
        Self::ProcessFailed,
        Self::ProcessRefused,
        Self::OriginRefused,
        Self::UnknownBlob,
    ];

    /// Its name in output and documentation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryHit => "memory-hits",
            Self::DiskHit => "disk-hits",
            Self::Miss => "misses",
            Self::Stale => "stale",
            Self::StaleGiven => "stale-given",
            Self::Followed => "followed",
            Self::Passed => "passed",
            Self::Fetched => "fetched",
            Self::Revalidated => "revalidated",
            Self::Unchanged => "unchanged",
            Self::Stored => "stored",
            Self::NotStored => "not-stored",
            Self::TooLong => "too-long",
            Self::NoRoom => "no-room",
            Self::BrokenOff => "broken-off",
            Self::Invalidated => "invalidated",
            Self::BlobWritten => "blobs-written",
            Self::Evicted => "evicted",
            Self::DamagedBlob => "damaged-blobs",
            Self::DamagedIndex => "damaged-index",
            Self::WriteFailed => "write-failed",
            Self::WriteSkipped => "write-skipped",
            Self::DownloadFailed => "download-failed",
            Self::Processed => "processed",
            Self::ContentRefused => "content-refused",
            Self::ProcessFailed => "process-failed",
            Self::ProcessRefused => "process-refused",
            Self::OriginRefused => "origin-refused",
            Self::UnknownBlob => "unknown-blobs",
        }
    }
}

/// The counters of a cache.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; CacheEvent::ALL.len()]);

impl Counters {
    /// Counts an event.
    pub(crate) fn count(&self, event: CacheEvent) {
        self.add(event, 1);
    }

    pub(super) fn add(&self, event: CacheEvent, by: u64) {
        self.0[event as usize].fetch_add(by, Relaxed);
    }

    /// How often it has happened.
    #[must_use]
    pub fn get(&self, event: CacheEvent) -> u64 {
        self.0[event as usize].load(Relaxed)
    }
}
