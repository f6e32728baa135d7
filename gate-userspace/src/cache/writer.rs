//! The thread that writes to the directory of a cache.
//!
//! The thread waits for the lock of the directory, opens what is there, and makes changes in the order in which they come, many in one
//! transaction. Files are written before the record that names them, and removed after it.
//!
//! **A disk that takes nothing**, or another fault of the system, loses what is to be kept, and no removal: an answer that has
//! been replaced or removed must not be found again. A removal that cannot be written is tried again
//! every [`AGAIN`]; until then nothing is looked for under its key. When there are more than [`MOST_UNWRITTEN`] of them the directory
//! is cleared, which takes no room.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use gate_common::units::Nanos;
use hyper::body::Bytes;

use super::counters::CacheEvent;
use super::digest::Digest;
use super::directory::{Lock, NotLocked, Opened, Order, Shared, lock, open};
use super::index::Change;
use crate::clock;

/// The thread that writes.
pub(super) struct Writer {
    shared: Arc<Shared>,
    orders: Receiver<Order>,
    /// Removals that have not been written.
    unwritten: Vec<Change>,
    /// When the database is written to again that has failed.
    rests_until: Nanos,
}

/// The outcome of waiting for orders.
enum Next {
    Batch(Vec<Order>),
    /// Nothing has come, and something is to be tried again.
    Again,
    End,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, orders: Receiver<Order>) -> Self {
        Self { shared, orders, unwritten: Vec::new(), rests_until: Nanos(0) }
    }

    /// Writes until it is told to close; `locked` unless another gate may have the directory.
    pub(super) fn run(mut self, locked: Option<Lock>) {
        let Some(_lock) = locked.or_else(|| self.wait_for_lock()) else { return };
        self.open();
        self.write(Vec::new());
        loop {
            match self.next() {
                Next::Batch(batch) => {
                    let closes = batch.iter().any(|order| matches!(order, Order::Close));
                    self.write(batch);
                    if closes {
                        break;
                    }
                }
                Next::Again => self.write(Vec::new()),
                Next::End => break,
            }
        }
        self.shared.set_owner(false);
        if self.unwritten.is_empty() {
            self.shared.set_opened(None);
        } else {
            self.clear();
        }
    }

    fn next(&self) -> Next {
        let is_behind = !self.unwritten.is_empty() || self.shared.opened().is_none();
        let first = match is_behind {
            true => self.orders.recv_timeout(AGAIN),
            false => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match first {
            Ok(first) => {
                Next::Batch(std::iter::once(first).chain(self.orders.try_iter().take(BATCH)).collect())
            }
            Err(RecvTimeoutError::Timeout) => Next::Again,
            Err(RecvTimeoutError::Disconnected) => Next::End,
        }
    }

    /// Waits until the gate before this one leaves the directory; `None` if this one ends before that. What is removed meanwhile
    /// is written then.
    fn wait_for_lock(&mut self) -> Option<Lock> {
        loop {
            match lock(self.shared.dir()) {
                Ok(lock) => {
                    self.shared.set_owner(true);
                    tracing::info!(dir = %self.shared.dir().display(), "took over the cache");
                    return Some(lock);
                }
                Err(NotLocked::Taken) => {}
                Err(NotLocked::System(error)) => {
                    tracing::error!(dir = %self.shared.dir().display(), %error, "the cache cannot be locked");
                    return None;
                }
            }
            match self.orders.recv_timeout(LOCK_EVERY) {
                Ok(Order::Close) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(Order::Change(change, bodies)) => {
                    self.shared.taken(&bodies);
                    if is_removal(&change) {
                        self.unwritten.push(change);
                    } else {
                        self.shared.done(&change);
                    }
                }
                Ok(Order::Discard(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Opens the directory. A damaged database is set aside. Without one, nothing is kept on disk.
    fn open(&self) {
        let opened = open(&self.shared);
        match opened {
            Ok(opened) => self.shared.set_opened(Some(Arc::new(opened))),
            Err(error) => drop(self.note(Err(format!("it cannot be opened: {error}")))),
        }
    }

    fn write(&mut self, batch: Vec<Order>) {
        let now = clock::monotonic();
        if self.shared.opened().is_none() && now >= self.rests_until {
            self.open();
            self.rests_until = now.saturating_add(PAUSE);
        }
        let opened = self.shared.opened();
        let mut changes = std::mem::take(&mut self.unwritten);
        for order in batch {
            match order {
                Order::Close => {}
                Order::Discard(digest) => {
                    let removed = opened.as_ref().map(|opened| opened.blobs.remove(&digest));
                    self.note(removed.transpose().map_err(|error| error.to_string()).map(drop));
                }
                Order::Change(change, bodies) => {
                    let written = opened.as_ref().is_some_and(|opened| {
                        self.write_bodies(opened, &bodies)
                            && (!bodies.is_empty() || has_bodies(opened, &change))
                    });
                    self.shared.taken(&bodies);
                    changes.extend(if written {
                        Some(change)
                    } else {
                        self.instead(opened.as_deref(), change)
                    });
                }
            }
        }
        let is_tried = opened.is_some() && now >= self.rests_until;
        if is_tried && opened.as_ref().is_some_and(|opened| self.apply(opened, &changes)) {
            changes.iter().for_each(|change| self.shared.done(change));
            return;
        }
        drop(opened);
        if is_tried {
            self.reopen();
        }
        let opened = self.shared.opened();
        for change in changes {
            let change = self.instead(opened.as_deref(), change);
            self.unwritten.extend(change);
        }
        drop(opened);
        if is_tried {
            self.write_removals();
        }
        if self.unwritten.len() > MOST_UNWRITTEN {
            self.clear();
        }
    }

    /// The change that has to be made in the place of one that cannot be: a removal, of what it would have replaced.
    fn instead(&self, opened: Option<&Opened>, change: Change) -> Option<Change> {
        match change {
            Change::Remove { .. } => Some(change),
            Change::Touch { .. } => None,
            Change::Put { key, .. } => {
                self.shared.unwritten.end_record(&key);
                // Without a look at it, there may be one.
                let is_there = opened.is_none_or(|opened| !matches!(opened.index.get(&key), Ok(None)));
                is_there.then(|| {
                    self.shared.removals.add(&key);
                    Change::Remove { prefix: key }
                })
            }
        }
    }

    /// True if all of them are there.
    fn write_bodies(&self, opened: &Opened, bodies: &[(Digest, Bytes)]) -> bool {
        bodies.iter().all(|(digest, body)| {
            if opened.blobs.has(digest, body.len() as u64) {
                return true;
            }
            let written = opened.blobs.write(digest, body);
            if written.is_ok() {
                self.shared.counters.count(CacheEvent::BlobWritten);
            }
            self.note(written.map_err(|error| error.to_string()))
        })
    }

    /// False if the database has failed.
    fn apply(&self, opened: &Opened, changes: &[Change]) -> bool {
        if changes.is_empty() {
            return true;
        }
        match opened.index.apply(changes, self.shared.most()) {
            Ok(applied) => {
                self.shared.counters.add(CacheEvent::Evicted, applied.evicted);
                for digest in applied.unnamed {
                    self.note(opened.blobs.remove(&digest).map_err(|error| error.to_string()));
                }
                true
            }
            Err(error) => self.note(Err(error.to_string())),
        }
    }

    /// Opens a database anew that has failed: after an error of the disk it can be neither written nor read. It rests then.
    fn reopen(&mut self) {
        self.shared.set_opened(None);
        self.open();
        self.rests_until = clock::monotonic().saturating_add(PAUSE);
    }

    /// Writes what has not been written, and nothing else: removals may fit where other changes do not.
    fn write_removals(&mut self) {
        let Some(opened) = self.shared.opened().filter(|_| !self.unwritten.is_empty()) else { return };
        if self.apply(&opened, &self.unwritten) {
            self.unwritten.drain(..).for_each(|change| self.shared.done(&change));
        } else {
            drop(opened);
            self.reopen();
        }
    }

    /// Removes everything: what could not be removed would be found otherwise.
    fn clear(&mut self) {
        self.shared.set_opened(None);
        let dir = self.shared.dir();
        let removed = [fs::remove_file(dir.join("index.redb")), fs::remove_dir_all(dir.join("blobs"))];
        for result in removed {
            let failed = result.err().filter(|error| error.kind() != io::ErrorKind::NotFound);
            if let Some(error) = failed {
                // It stays closed, and they are tried again.
                self.note(Err(error.to_string()));
                return;
            }
        }
        tracing::warn!(dir = %dir.display(), "what was removed from the cache could not be written; it is cleared");
        self.unwritten.drain(..).for_each(|change| self.shared.done(&change));
        if self.shared.is_owner() {
            self.open();
        }
    }

    fn note(&self, result: Result<(), String>) -> bool {
        if let Err(error) = &result {
            let counters = &self.shared.counters;
            counters.count(CacheEvent::WriteFailed);
            // One line for the first and then for each power of two: a full disk fails each write.
            if counters.get(CacheEvent::WriteFailed).is_power_of_two() {
                tracing::warn!(dir = %self.shared.dir().display(), error, "the cache cannot be written to");
            }
        }
        result.is_ok()
    }
}

/// True if what a record names is there: it was when the record was ordered, and may have been removed since.
fn has_bodies(opened: &Opened, change: &Change) -> bool {
    let Change::Put { bodies, .. } = change else { return true };
    bodies.iter().all(|(digest, len)| opened.blobs.has(digest, *len))
}

const fn is_removal(change: &Change) -> bool {
    matches!(change, Change::Remove { .. })
}

/// Changes that are made at once, beside the first.
const BATCH: usize = 255;
/// How often it is tried to lock a directory that another gate leaves.
const LOCK_EVERY: Duration = Duration::from_millis(20);
/// How often removals are tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a database that has failed is not written to. To open it takes a look at each page.
const PAUSE: Nanos = Nanos::from_secs(2);
/// Removals that may be to be tried again.
const MOST_UNWRITTEN: usize = 4_000;
