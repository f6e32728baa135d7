//! The part of a cache that is on disk: orders to the thread that writes ([`super::writer`]), and what it has open.
//!
//! Whoever reads does so in a thread for that, and finds the state as of the last transaction.

use std::path::Path;
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hyper::body::Bytes;

use super::counters::{CacheEvent, Counters};
use super::digest::Digest;
use super::directory::{NotLocked, Order, Shared, lock, make};
use super::index::Change;
use super::writer::Writer;

/// The part of a cache that is on disk.
#[derive(Debug)]
pub(super) struct Disk {
    shared: Arc<Shared>,
    orders: Mutex<Sender<Order>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    /// Takes over a directory, which is made if need be, and opens it in a thread. `waits` for the gate that has it.
    ///
    /// # Errors
    ///
    /// If another has it, and is not waited for; the system's.
    pub(super) fn open(
        dir: &Path,
        most: u64,
        counters: Arc<Counters>,
        waits: bool,
    ) -> Result<Self, NotLocked> {
        make(dir).map_err(NotLocked::System)?;
        let lock = match lock(dir) {
            Ok(lock) => Some(lock),
            Err(NotLocked::Taken) if waits => None,
            Err(error) => return Err(error),
        };
        let shared = Arc::new(Shared::new(dir, most, counters, lock.is_some()));
        let (sender, orders) = channel();
        let writer = Writer::new(Arc::clone(&shared), orders);
        let thread = std::thread::Builder::new().name("gate-cache".to_owned());
        let thread = thread.spawn(move || writer.run(lock)).map_err(NotLocked::System)?;
        Ok(Self { shared, orders: Mutex::new(sender), writer: Mutex::new(Some(thread)) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// True while the directory is this gate's.
    pub(super) fn is_owner(&self) -> bool {
        self.shared.is_owner()
    }

    /// Puts a record and bodies that it names and that are not on disk, unless too much is to be written already.
    pub(super) fn put(&self, change: Change, mut bodies: Vec<(Digest, Bytes)>) {
        if self.shared.may_wait(&mut bodies, PENDING) {
            if let Change::Put { key, payload, .. } = &change {
                self.shared.unwritten.add_record(key, payload);
            }
            return self.order(Order::Change(change, bodies));
        }
        self.shared.counters.count(CacheEvent::WriteSkipped);
        // What it would have replaced is not to be found either.
        if let Change::Put { key, .. } = change {
            self.remove(&key);
        }
    }

    /// Removes the records whose keys begin with this. They are not found from now on.
    pub(super) fn remove(&self, prefix: &[u8]) {
        self.shared.removals.add(prefix);
        self.shared.will_wait();
        self.order(Order::Change(Change::Remove { prefix: prefix.into() }, Vec::new()));
    }

    /// Removes a file that is not what its name says.
    pub(super) fn discard(&self, digest: Digest) {
        self.shared.counters.count(CacheEvent::DamagedBlob);
        self.order(Order::Discard(digest));
    }

    /// Leaves the directory to others, once what is to be written is.
    pub(super) fn leave(&self) {
        self.shared.set_owner(false);
        self.order(Order::Close);
    }

    /// The same, and waits for it.
    pub(super) fn close(&self) {
        self.leave();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread of a cache has panicked");
        }
    }

    fn order(&self, order: Order) {
        let sent = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        // A writer that has ended has closed: the directory is another's.
        if let Err(SendError(Order::Change(change, bodies))) = sent {
            self.shared.taken(&bodies);
            self.shared.done(&change);
        }
    }
}

/// The bytes that may wait to be written.
const PENDING: u64 = 64 << 20;
