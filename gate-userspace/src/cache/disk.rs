//! The directory of a cache, and the thread that writes to it.
//!
//! The thread waits for the lock of the directory, opens what is there, and makes changes in the order in which they come, many
//! in one transaction. Files are written before the record that names them, and removed after it. Whoever reads does so in a
//! thread for that, and finds the state as of the last transaction.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Bytes;
use nix::fcntl::{Flock, FlockArg};

use super::blobs::Blobs;
use super::counters::{CacheEvent, Counters};
use super::digest::Digest;
use super::index::{self, Change, Index};
use super::removals::Removals;

/// The part of a cache that is on disk.
#[derive(Debug)]
pub(super) struct Disk {
    shared: Arc<Shared>,
    orders: Mutex<Sender<Order>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the writer and those who read share.
#[derive(Debug)]
pub(super) struct Shared {
    dir: PathBuf,
    /// The bytes that may be there.
    most: u64,
    pub(super) counters: Arc<Counters>,
    pub(super) removals: Removals,
    /// `None` while nothing can be read.
    opened: RwLock<Option<Arc<Opened>>>,
    /// True while the directory is this gate's.
    is_owner: AtomicBool,
    /// The bytes that are to be written.
    pending: AtomicU64,
}

/// The open database and files of a directory.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) index: Index,
    pub(super) blobs: Blobs,
}

/// An order to the writer.
#[derive(Debug)]
enum Order {
    Change(Change, Vec<(Digest, Bytes)>),
    /// A file is not what its name says.
    Discard(Digest),
    Close,
}

/// The lock of a directory.
type Lock = Flock<File>;

/// Why a directory cannot be locked.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Another has it.
    Taken,
    System(io::Error),
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
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            most,
            counters,
            removals: Removals::default(),
            opened: RwLock::default(),
            is_owner: AtomicBool::new(lock.is_some()),
            pending: AtomicU64::new(0),
        });
        let (sender, orders) = channel();
        let writer = Writer { shared: Arc::clone(&shared), orders };
        let thread = std::thread::Builder::new().name("gate-cache".to_owned());
        let thread = thread.spawn(move || writer.run(lock)).map_err(NotLocked::System)?;
        Ok(Self { shared, orders: Mutex::new(sender), writer: Mutex::new(Some(thread)) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// True while the directory is this gate's.
    pub(super) fn is_owner(&self) -> bool {
        self.shared.is_owner.load(Relaxed)
    }

    /// Puts a record and the bodies that it names, unless too much is to be written already.
    pub(super) fn put(&self, change: Change, bodies: Vec<(Digest, Bytes)>) {
        let len: u64 = bodies.iter().map(|(_, body)| body.len() as u64).sum();
        let pending = self.shared.pending.fetch_add(len + ORDER, Relaxed);
        if pending > 0 && pending + len > PENDING {
            self.shared.pending.fetch_sub(len + ORDER, Relaxed);
            return self.shared.counters.count(CacheEvent::WriteSkipped);
        }
        self.order(Order::Change(change, bodies));
    }

    /// Removes the records whose keys begin with this. They are not found from now on.
    pub(super) fn remove(&self, prefix: &[u8]) {
        self.shared.removals.add(prefix);
        self.shared.pending.fetch_add(ORDER, Relaxed);
        self.order(Order::Change(Change::Remove { prefix: prefix.into() }, Vec::new()));
    }

    /// Removes a file that is not what its name says.
    pub(super) fn discard(&self, digest: Digest) {
        self.shared.counters.count(CacheEvent::DamagedBlob);
        self.order(Order::Discard(digest));
    }

    /// Leaves the directory to others, once what is to be written is.
    pub(super) fn leave(&self) {
        self.shared.is_owner.store(false, Relaxed);
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
        // A writer that has ended has closed.
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
    }
}

impl Shared {
    /// The open directory; `None` while there is none.
    pub(super) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_opened(&self, opened: Option<Arc<Opened>>) {
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = opened;
    }
}

/// The thread that writes.
struct Writer {
    shared: Arc<Shared>,
    orders: Receiver<Order>,
}

impl Writer {
    fn run(self, locked: Option<Lock>) {
        let Some(_lock) = locked.or_else(|| self.wait_for_lock()) else { return };
        self.open();
        while let Ok(first) = self.orders.recv() {
            let batch: Vec<_> = std::iter::once(first).chain(self.orders.try_iter().take(BATCH)).collect();
            let closes = batch.iter().any(|order| matches!(order, Order::Close));
            self.write(batch);
            if closes {
                break;
            }
        }
        self.shared.is_owner.store(false, Relaxed);
        self.shared.set_opened(None);
    }

    /// Waits until the gate before this one leaves the directory; `None` if this one ends before that.
    fn wait_for_lock(&self) -> Option<Lock> {
        loop {
            match lock(&self.shared.dir) {
                Ok(lock) => {
                    self.shared.is_owner.store(true, Relaxed);
                    tracing::info!(dir = %self.shared.dir.display(), "took over the cache");
                    return Some(lock);
                }
                Err(NotLocked::Taken) => {}
                Err(NotLocked::System(error)) => {
                    tracing::error!(dir = %self.shared.dir.display(), %error, "the cache cannot be locked");
                    return None;
                }
            }
            match self.orders.recv_timeout(LOCK_EVERY) {
                Ok(Order::Close) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(Order::Change(change, bodies)) => self.shared.written(&change, &bodies),
                Ok(Order::Discard(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Opens the directory. A damaged database is set aside. Without one, nothing is kept on disk.
    fn open(&self) {
        let opened = open(&self.shared);
        match opened {
            Ok(opened) => self.shared.set_opened(Some(Arc::new(opened))),
            Err(error) => {
                self.shared.counters.count(CacheEvent::WriteFailed);
                let dir = self.shared.dir.display();
                tracing::error!(%dir, %error, "nothing is kept on disk: the cache cannot be opened");
            }
        }
    }

    fn write(&self, batch: Vec<Order>) {
        let opened = self.shared.opened();
        let mut changes = Vec::with_capacity(batch.len());
        let mut done = Vec::with_capacity(batch.len());
        for order in batch {
            match order {
                Order::Close => {}
                Order::Discard(digest) => {
                    let removed = opened.as_ref().map(|opened| opened.blobs.remove(&digest));
                    self.note(removed.transpose().map_err(|error| error.to_string()).map(drop));
                }
                Order::Change(change, bodies) => {
                    let written = opened.as_ref().is_none_or(|opened| self.write_bodies(opened, &bodies));
                    done.push((change.clone(), bodies));
                    changes.extend(written.then_some(change));
                }
            }
        }
        let failed = opened.as_ref().is_some_and(|opened| !self.apply(opened, &changes));
        done.iter().for_each(|(change, bodies)| self.shared.written(change, bodies));
        if failed {
            drop(opened);
            self.reopen();
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
        match opened.index.apply(changes, self.shared.most) {
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

    /// Opens a database anew that has failed: after an error of the disk it takes nothing more.
    fn reopen(&self) {
        self.shared.set_opened(None);
        self.open();
    }

    fn note(&self, result: Result<(), String>) -> bool {
        if let Err(error) = &result {
            let counters = &self.shared.counters;
            counters.count(CacheEvent::WriteFailed);
            // One line for the first and then for each power of two: a full disk fails each write.
            if counters.get(CacheEvent::WriteFailed).is_power_of_two() {
                tracing::warn!(dir = %self.shared.dir.display(), error, "the cache cannot be written to");
            }
        }
        result.is_ok()
    }
}

impl Shared {
    /// A change has been made, or never will be.
    fn written(&self, change: &Change, bodies: &[(Digest, Bytes)]) {
        let len: u64 = bodies.iter().map(|(_, body)| body.len() as u64).sum();
        self.pending.fetch_sub(len + ORDER, Relaxed);
        if let Change::Remove { prefix } = change {
            self.removals.done(prefix);
        }
    }
}

/// Opens what is in a directory, and removes files that no record names.
fn open(shared: &Shared) -> Result<Opened, String> {
    let blobs = Blobs::open(&shared.dir).map_err(|error| error.to_string())?;
    let path = shared.dir.join("index.redb");
    let index = match Index::open(&path) {
        Err(error) if index::is_damage(&error) => {
            let aside = shared.dir.join("index.damaged");
            shared.counters.count(CacheEvent::DamagedIndex);
            let set_aside = aside.display();
            tracing::error!(%error, %set_aside, "the database of the cache is damaged; starting anew");
            fs::rename(&path, &aside).map_err(|error| error.to_string())?;
            Index::open(&path)
        }
        index => index,
    };
    let opened = Opened { index: index.map_err(|error| error.to_string())?, blobs };
    remove_unnamed(&opened).map_err(|error| error.to_string())?;
    Ok(opened)
}

/// Removes files that no record names: what a killed writer, or a damaged database, has left.
fn remove_unnamed(opened: &Opened) -> io::Result<()> {
    opened.blobs.for_each(|file| {
        let digest = match file {
            Ok(digest) => digest,
            Err(path) if path.is_file() => return fs::remove_file(path),
            Err(_) => return Ok(()),
        };
        let known = opened.index.blob_len(&digest).map_err(io::Error::other)?;
        if known.is_none() { opened.blobs.remove(&digest) } else { Ok(()) }
    })
}

/// Makes a directory that is its owner's alone.
fn make(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn lock(dir: &Path) -> Result<Lock, NotLocked> {
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"));
    let file = open.map_err(NotLocked::System)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => NotLocked::Taken,
        error => NotLocked::System(error.into()),
    })
}

/// The bytes that may wait to be written.
const PENDING: u64 = 64 << 20;
/// The bytes that a change counts for beside its bodies.
const ORDER: u64 = 4 << 10;
/// Changes that are made at once, beside the first.
const BATCH: usize = 255;
/// How often it is tried to lock a directory that another gate leaves.
const LOCK_EVERY: Duration = Duration::from_millis(20);
