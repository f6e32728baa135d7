//! Originals and what was processed of them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;

use super::{Cache, TOUCH_EVERY};
use crate::cache::digest::Digest;
use crate::cache::flights::Joined;
use crate::cache::index::Change;
use crate::cache::key::Key;
use crate::cache::processed::Processed;
use crate::cache::record::Record;
use crate::policy::rank::Rank;

impl Cache {
    /// The result under a key, if it still holds, from memory.
    pub(crate) fn processed_in_memory(&self, key: &Key, now: SystemTime) -> Option<Arc<Processed>> {
        self.memory.processed(key.bytes()).filter(|processed| processed.holds(now))
    }

    /// The result under a key, if it still holds, from memory or disk.
    pub(crate) async fn processed(&self, key: &Key, now: SystemTime) -> Option<Arc<Processed>> {
        if let Some(processed) = self.memory.processed(key.bytes()) {
            return Some(processed).filter(|processed| processed.holds(now));
        }
        let processed = self.read(key, move |payload, _| Processed::decode(payload, now)).await?;
        self.memory.put_processed(key.bytes().into(), Arc::clone(&processed));
        Some(processed).filter(|processed| processed.holds(now))
    }

    /// Keeps what was processed under a key.
    pub(crate) fn insert_processed(
        &self,
        key: &Key,
        processed: &Arc<Processed>,
        body: &Bytes,
        now: SystemTime,
    ) {
        if !self.is_open() {
            return;
        }
        self.memory.put_body(processed.digest, body.clone());
        self.memory.put_processed(key.bytes().into(), Arc::clone(processed));
        let put = Change::Put {
            key: key.bytes().into(),
            at: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            bodies: vec![(processed.digest, processed.len)],
            payload: processed.encode().into(),
        };
        self.disk.put(put, vec![(processed.digest, body.clone())]);
    }

    /// Forgets what was processed under a key: its body is gone, or it is to be made anew.
    pub(crate) fn forget_processed(&self, key: &Key) {
        self.memory.remove(key.bytes());
        self.disk.remove(key.bytes());
    }

    /// Notes that what was processed has been used.
    pub(crate) fn touch_processed(&self, key: &Key, processed: &Processed, now: SystemTime) {
        if processed.is_use_due(now, TOUCH_EVERY) {
            let at = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            self.disk.put(Change::Touch { key: key.bytes().into(), at }, Vec::new());
        }
    }

    /// Joins the processing for a key, unless that goes after this rank, or begins it.
    pub(crate) fn join_processing(&self, key: &Key, rank: Rank) -> Joined<Processed> {
        self.processings.join(key.bytes(), rank)
    }

    /// Removes an original of a URL, for all tenants, and what was processed of it. `origin` is with its scheme, `path` with its
    /// query. Reads the database: not for a thread that serves.
    pub(super) fn purge_original(&self, origin: &str, path: &str) {
        let prefix = Key::of_url(origin, path);
        let mut digests: Vec<Digest> = Vec::new();
        let key = Key::of_original(origin, path, "");
        digests.extend(
            self.memory.record(key.bytes()).iter().flat_map(|record| record.bodies()).map(|body| body.0),
        );
        if let Some(opened) = self.disk.shared().opened() {
            let payloads = opened.index.all(&prefix);
            let payloads = payloads.inspect_err(|error| tracing::warn!(%error, "reading the cache"));
            let records = payloads.unwrap_or_default().into_iter();
            let records = records.filter_map(|payload| Record::decode(&payload, path, origin));
            digests.extend(records.flat_map(|record| record.bodies()).map(|body| body.0));
        }
        self.remove_prefix(&prefix);
        for digest in digests {
            self.remove_prefix(&Key::all_processed(&digest));
        }
    }

    /// Removes all keys that begin with this; what is being fetched or processed for them is not kept.
    pub(super) fn remove_prefix(&self, prefix: &[u8]) {
        self.flights.outdate(prefix);
        self.processings.outdate(prefix);
        self.disk.remove(prefix);
        self.memory.remove_all(prefix);
    }
}
