//! The directory of a cache: its lock, what is open of it, and the state that the writer and those who read share.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use hyper::body::Bytes;
use nix::fcntl::{Flock, FlockArg};

use super::blobs::Blobs;
use super::counters::{CacheEvent, Counters};
use super::digest::Digest;
use super::index::{self, Change, Index};
use super::removals::Removals;
use super::unwritten::Unwritten;

/// The state that the writer and those who read share.
#[derive(Debug)]
pub(super) struct Shared {
    dir: PathBuf,
    /// The bytes that may be there.
    most: u64,
    pub(super) counters: Arc<Counters>,
    pub(super) removals: Removals,
    pub(super) unwritten: Unwritten,
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
pub(super) enum Order {
    Change(Change, Vec<(Digest, Bytes)>),
    /// A file is not what its name says.
    Discard(Digest),
    Close,
}

/// The lock of a directory.
pub(super) type Lock = Flock<File>;

/// Why a directory cannot be locked.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Another has it.
    Taken,
    System(io::Error),
}

impl Shared {
    /// The state of a directory in which at most so many bytes may be.
    pub(super) fn new(dir: &Path, most: u64, counters: Arc<Counters>, is_owner: bool) -> Self {
        Self {
            dir: dir.to_owned(),
            most,
            counters,
            removals: Removals::default(),
            unwritten: Unwritten::default(),
            opened: RwLock::default(),
            is_owner: AtomicBool::new(is_owner),
            pending: AtomicU64::new(0),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) const fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn is_owner(&self) -> bool {
        self.is_owner.load(Relaxed)
    }

    pub(super) fn set_owner(&self, is_owner: bool) {
        self.is_owner.store(is_owner, Relaxed);
    }

    /// A change with these bodies is to wait for the writer; false if too much waits already. A body counts once, however
    /// many changes want it to be written.
    pub(super) fn may_wait(&self, bodies: &mut [(Digest, Bytes)], most: u64) -> bool {
        let size = ORDER + self.unwritten.add_bodies(bodies);
        let before = self.pending.fetch_add(size, Relaxed);
        let may = before == 0 || before + size <= most;
        if !may {
            self.taken(bodies);
        }
        may
    }

    /// A removal waits for the writer.
    pub(super) fn will_wait(&self) {
        self.pending.fetch_add(ORDER, Relaxed);
    }

    /// The writer has taken a change with these bodies, or never will.
    pub(super) fn taken(&self, bodies: &[(Digest, Bytes)]) {
        self.pending.fetch_sub(ORDER + self.unwritten.end_bodies(bodies), Relaxed);
    }

    #[cfg(test)]
    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// A change has been made, or never will be.
    pub(super) fn done(&self, change: &Change) {
        match change {
            Change::Remove { prefix } => self.removals.done(prefix),
            Change::Put { key, .. } => self.unwritten.end_record(key),
            Change::Touch { .. } => {}
        }
    }

    /// The open directory; `None` while there is none.
    pub(super) fn opened(&self) -> Option<Arc<Opened>> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_opened(&self, opened: Option<Arc<Opened>>) {
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = opened;
    }
}

/// Opens what is in a directory, and removes files that no record names.
pub(super) fn open(shared: &Shared) -> Result<Opened, String> {
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
pub(super) fn make(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

pub(super) fn lock(dir: &Path) -> Result<Lock, NotLocked> {
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"));
    let file = open.map_err(NotLocked::System)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => NotLocked::Taken,
        error => NotLocked::System(error.into()),
    })
}

/// The bytes that a change counts for beside its bodies.
pub(super) const ORDER: u64 = 4 << 10;
