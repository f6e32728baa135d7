//! The cache of a service: memory before disk, and what is under way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gate_common::units::Nanos;
use hyper::body::Bytes;
use quick_cache::sync::Cache as Recent;
use tokio::sync::Semaphore;

use super::blobs::Read;
use super::counters::{CacheEvent, Counters};
use super::digest::Digest;
use super::directory::NotLocked;
use super::disk::Disk;
use super::flights::Flights;
use super::gathered::{Gathered, GatheredBytes, Holder};
use super::index::{Change, Usage};
use super::key::Key;
use super::memory::Memory;
use super::pieces::Pieces;
use super::processed::Processed;
use super::record::Record;
use super::response::{Fields, StoredResponse};
use crate::config;
use crate::processing::target::Target;

mod confirmed;
mod originals;
mod sharing;

/// The cache of a service. All its threads share it.
#[derive(Debug)]
pub struct Cache {
    /// Its part of the configuration.
    pub settings: config::Cache,
    /// The processing of originals that it keeps; `None` if there is none.
    process: Option<config::Process>,
    memory: Memory,
    disk: Disk,
    flights: Arc<Flights<StoredResponse>>,
    /// Processings that are under way.
    processings: Arc<Flights<Processed>>,
    /// Findings about the answers of fetches, by the digests of their keys.
    sharing: Recent<Digest, Sharing>,
    gathered: Arc<GatheredBytes>,
    /// Reads of files at a time.
    reads: Semaphore,
    /// Bodies that are being put together, at a time.
    joins: Semaphore,
    counters: Arc<Counters>,
}

/// Why a cache cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another gate has the directory.
    #[error(
        "another gate has the cache in {}: give this one a `dir` of its own, or --takeover to take its place",
        dir.display()
    )]
    Taken {
        /// The directory.
        dir: PathBuf,
    },
    /// The system refuses.
    #[error("the cache cannot be kept in {}: {source}", dir.display())]
    System {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The last finding about a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Its answer may be given to all who ask for the same.
    Shared,
    /// Its answer depends on the client. The finding holds until then.
    OneClients { until: Nanos },
}

/// The part of an answer that is to be written to disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToWrite {
    /// The disk has one that is as good.
    Nothing,
    /// Its body is on disk.
    Record,
    /// The record and this body.
    All(Bytes),
}

/// The findings of a look at all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bodies that are what their name says.
    pub sound: u64,
    /// Those that are not; they are removed.
    pub damaged: u64,
    /// Those that a record names and that are not there.
    pub missing: u64,
}

impl Cache {
    /// Opens a cache; `takes_over` if another gate may still have it, which leaves it soon.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(settings: &config::Cache, takes_over: bool) -> Result<Self, OpenError> {
        let counters = Arc::new(Counters::default());
        let opened = Disk::open(&settings.dir, settings.disk, Arc::clone(&counters), takes_over);
        let disk = opened.map_err(|error| match error {
            NotLocked::Taken => OpenError::Taken { dir: settings.dir.clone() },
            NotLocked::System(source) => OpenError::System { dir: settings.dir.clone(), source },
        })?;
        Ok(Self {
            memory: Memory::new(settings.memory, settings.max_object),
            disk,
            flights: Arc::default(),
            processings: Arc::default(),
            sharing: Recent::new(SHARING),
            gathered: Arc::new(GatheredBytes::new(settings.memory, settings.max_object)),
            reads: Semaphore::new(READS),
            joins: Semaphore::new(JOINS),
            counters,
            settings: settings.clone(),
            process: None,
        })
    }

    /// The same, which keeps originals and what is processed of them.
    #[must_use]
    pub fn with_process(mut self, process: Option<&config::Process>) -> Self {
        self.process = process.cloned();
        self
    }

    /// True if it may be used: the directory is this gate's.
    pub(crate) fn is_open(&self) -> bool {
        self.disk.is_owner()
    }

    /// Leaves the directory to another gate, once what is to be written is. From now on it is not used.
    pub fn leave(&self) {
        self.disk.leave();
    }

    /// The same, and waits for it.
    pub fn close(&self) {
        self.disk.close();
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Counts an event.
    pub(crate) fn count(&self, event: CacheEvent) {
        self.counters.count(event);
    }

    /// The records and bodies on disk; `None` while they cannot be read.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.disk.shared().opened().map(|opened| opened.index.usage())
    }

    /// The bytes in memory.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.memory.weight()
    }

    /// The record under a key, from memory.
    pub(crate) fn record_in_memory(&self, key: &Key) -> Option<Arc<Record>> {
        self.memory.record(key.bytes())
    }

    /// The record under a key, from memory or disk.
    pub(crate) async fn record(&self, key: &Key) -> Option<Arc<Record>> {
        if let Some(record) = self.memory.record(key.bytes()) {
            return Some(record);
        }
        let decode = |payload: &[u8], key: &Key| Record::decode(payload, key.path(), key.host());
        let record = self.read(key, decode).await?;
        self.memory.put_record(key.bytes().into(), Arc::clone(&record));
        Some(record)
    }

    /// The value on disk under a key, or on its way there, as `decode` reads it; `None` without one, or if it is removed meanwhile.
    async fn read<T: Send + 'static>(
        &self,
        key: &Key,
        decode: impl FnOnce(&[u8], &Key) -> Option<T> + Send + 'static,
    ) -> Option<Arc<T>> {
        let shared = Arc::clone(self.disk.shared());
        let generation = shared.removals.begin(key.bytes())?;
        if let Some(payload) = shared.unwritten.record(key.bytes()) {
            return decode(&payload, key).map(Arc::new);
        }
        let wanted = key.clone();
        let _permit = self.reads.acquire().await.ok()?;
        let read = tokio::task::spawn_blocking(move || {
            let payload = shared.opened()?.index.get(wanted.bytes());
            let payload = payload.inspect_err(|error| tracing::warn!(%error, "reading the cache")).ok()??;
            decode(&payload, &wanted)
        });
        let found = Arc::new(read.await.ok()??);
        self.disk.shared().removals.is_current(generation).then_some(found)
    }

    /// The body of an answer, from memory.
    pub(crate) fn body_in_memory(&self, digest: &Digest) -> Option<Bytes> {
        self.memory.body(digest)
    }

    /// The body of an answer, from memory or disk.
    pub(crate) async fn body(&self, response: &StoredResponse) -> Option<Bytes> {
        self.body_of(response.digest, response.len).await
    }

    /// A body with this digest and length, from memory or disk.
    pub(crate) async fn body_of(&self, digest: Digest, len: u64) -> Option<Bytes> {
        if let Some(body) = self.memory.body(&digest) {
            return Some(body);
        }
        let shared = Arc::clone(self.disk.shared());
        if let Some(body) = shared.unwritten.body(&digest) {
            return Some(body);
        }
        let _permit = self.reads.acquire().await.ok()?;
        let read = tokio::task::spawn_blocking(move || Some(shared.opened()?.blobs.read(&digest, len)));
        match read.await.ok()?? {
            Ok(Read::Whole(bytes)) => {
                let body = Bytes::from(bytes);
                self.memory.put_body(digest, body.clone());
                Some(body)
            }
            Ok(Read::Absent) => None,
            Ok(Read::Damaged) => {
                self.disk.discard(digest);
                None
            }
            Err(error) => {
                tracing::warn!(%error, %digest, "a file of the cache cannot be read");
                None
            }
        }
    }

    /// A body that is to be fetched on this one's behalf.
    pub(crate) fn gathered(&self, holder: Holder) -> Gathered {
        Gathered::new(&self.gathered, holder)
    }

    /// The whole of a body, with its digest; `None` if gate ends. A long one is put together by a thread that serves nobody.
    pub(crate) async fn join_pieces(&self, pieces: Pieces) -> Option<(Bytes, Digest)> {
        if pieces.is_short() {
            return Some(pieces.join());
        }
        let _permit = self.joins.acquire().await.ok()?;
        tokio::task::spawn_blocking(move || pieces.join()).await.ok()
    }

    /// Keeps an answer under a key.
    pub(crate) fn insert(
        &self,
        key: &Key,
        response: &Arc<StoredResponse>,
        to_write: ToWrite,
        now: SystemTime,
    ) {
        if !self.is_open() {
            return;
        }
        let before = self.memory.record(key.bytes()).unwrap_or_default();
        let record = Arc::new(before.with(Arc::clone(response)));
        self.memory.put_record(key.bytes().into(), Arc::clone(&record));
        self.count(CacheEvent::Stored);
        let bodies = match to_write {
            ToWrite::Nothing => return,
            ToWrite::Record => Vec::new(),
            ToWrite::All(body) => {
                self.memory.put_body(response.digest, body.clone());
                vec![(response.digest, body)]
            }
        };
        let at = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let payload = record.encode().into();
        let change = Change::Put { key: key.bytes().into(), at, bodies: record.bodies(), payload };
        self.disk.put(change, bodies);
    }

    /// Stops keeping the answer to requests with these fields: it does not hold any more.
    pub(crate) fn forget(&self, key: &Key, fields: &Fields) {
        let left = self.memory.record(key.bytes()).map(|record| record.without(fields));
        self.memory.remove(key.bytes());
        // Memory may have dropped what the disk has.
        self.disk.remove(key.bytes());
        if let Some(left) = left.filter(|left| !left.is_empty()) {
            self.memory.put_record(key.bytes().into(), Arc::new(left));
        }
    }

    /// Notes that an answer was given, for what is used least to go first.
    pub(crate) fn touch(&self, key: &Key, response: &StoredResponse, now: SystemTime) {
        if response.is_use_due(now, TOUCH_EVERY) {
            let at = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            self.disk.put(Change::Touch { key: key.bytes().into(), at }, Vec::new());
        }
    }

    /// Removes what is under a tenant's keys of a URL: it has been changed. What is being fetched is not kept.
    pub(crate) fn invalidate(&self, key: &Key) {
        for scheme in SCHEMES {
            let of_scheme = [key.of_tenant(), scheme.as_bytes()].concat();
            self.memory.remove(&of_scheme);
        }
        self.flights.outdate(key.of_tenant());
        self.disk.remove(key.of_tenant());
        self.count(CacheEvent::Invalidated);
    }

    /// Removes what is kept of a URL, for all tenants, and what was processed of it; of a URL that asks for processing, what
    /// was processed of its original. `path` is with its query.
    pub fn purge(&self, host: &str, path: &str) {
        let host = host.to_ascii_lowercase();
        self.remove_prefix(&Key::of_url(&host, path));
        for scheme in SCHEMES {
            self.purge_original(&format!("{scheme}://{host}"), path);
        }
        let target = self.process.as_ref().and_then(|process| Target::of(process, path));
        if let Some(Ok(target)) = target {
            self.purge_original(&target.url.origin(), &target.url.path);
        }
        self.count(CacheEvent::Invalidated);
    }

    /// Reads all files, and removes those that are not what their name says. Takes its time: not for a thread that serves.
    ///
    /// # Errors
    ///
    /// If the cache is not open, or cannot be read.
    pub fn verify(&self) -> Result<Verified, String> {
        let opened = self.disk.shared().opened().ok_or("the cache is not open")?;
        let mut verified = Verified::default();
        for (digest, len) in opened.index.blobs().map_err(|error| error.to_string())? {
            let is_there = opened.blobs.has(&digest, len);
            match opened.blobs.is_sound(&digest) {
                Ok(true) if is_there => verified.sound += 1,
                Ok(_) => {
                    verified.damaged += 1;
                    self.disk.discard(digest);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    // Unless it was removed meanwhile.
                    let is_named =
                        opened.index.blob_len(&digest).map_err(|error| error.to_string())?.is_some();
                    verified.missing += u64::from(is_named);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(verified)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.disk.close();
    }
}

/// The schemes that a client may have used.
pub(crate) const SCHEMES: [&str; 2] = ["http", "https"];
/// Fetches of which it is known if their answers can be shared.
const SHARING: usize = 65_536;
const READS: usize = 32;
const JOINS: usize = 8;
/// The precision of the time of the last use.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
pub(super) mod tests;
