//! The turn of a gate that starts: at the same admin socket one starts at a time.
//!
//! A gate looks for the one before it, listens, serves, and tells that one to hand over. Two that start at once would both find
//! the same one and tell it, and nobody would tell either of them: both would serve, each with the whole of every quota.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gate_common::units::Nanos;
use nix::libc::O_NOFOLLOW;

use super::error::Error;
use crate::clock;

/// The right to start, until it is dropped or the process has ended: the lock of a file beside the admin socket.
#[derive(Debug)]
pub(super) struct Turn {
    path: PathBuf,
    _locked: File,
}

impl Turn {
    /// Waits for the turn of a gate that is to listen at this socket; `None` where this process can have no file, and so no socket either.
    ///
    /// # Errors
    ///
    /// [`Error::Turn`] if another gate keeps it for longer than a start takes.
    pub(super) fn take(socket: &Path) -> Result<Option<Self>, Error> {
        let path = socket.with_added_extension("start");
        match Self::of(&path, PATIENCE) {
            Ok(turn) => Ok(Some(turn)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Error::Turn { path }),
            Err(_) => Ok(None),
        }
    }

    fn of(path: &Path, patience: Nanos) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let until = clock::monotonic().saturating_add(patience);
        let mut waits = false;
        loop {
            if let Some(locked) = try_lock(path)? {
                return Ok(Self { path: path.to_owned(), _locked: locked });
            }
            if clock::monotonic() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !std::mem::replace(&mut waits, true) {
                tracing::info!("waiting for another gate that is starting");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Who waits for this file finds that another one is in its place, or none.
        let _ = fs::remove_file(&self.path);
    }
}

/// The file at this path, locked; `None` while another process has it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(O_NOFOLLOW).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // The one before may have removed it in between.
    let opened = file.metadata().map(|file| (file.dev(), file.ino()))?;
    let is_there = fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == opened);
    Ok(is_there.then_some(file))
}

/// Longer than a start takes, also where the gate before does not answer.
const PATIENCE: Nanos = Nanos::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn directory(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("gate-turn-{}-{name}", std::process::id()))
    }

    #[test]
    fn one_has_it_until_it_is_dropped() {
        let directory = directory("one");
        let path = directory.join("below").join("gate.sock.start");
        let first = Turn::of(&path, PATIENCE).unwrap();
        let refused = Turn::of(&path, Nanos::ZERO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        drop(first);
        assert!(!path.exists());
        Turn::of(&path, Nanos::ZERO).unwrap();
        // One that a dead process has left is free.
        File::create(&path).unwrap();
        Turn::of(&path, Nanos::ZERO).unwrap();
        // Where nothing can be made no socket can be, either.
        let file = directory.join("file");
        File::create(&file).unwrap();
        assert!(Turn::take(&file.join("gate.sock")).unwrap().is_none());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn of_many_one_has_it_at_a_time() {
        let directory = directory("many");
        let path = directory.join("gate.sock.start");
        let is_taken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let turn = Turn::of(&path, PATIENCE).unwrap();
                        assert!(!is_taken.swap(true, Ordering::SeqCst));
                        std::thread::yield_now();
                        assert!(is_taken.swap(false, Ordering::SeqCst));
                        drop(turn);
                    }
                });
            }
        });
        fs::remove_dir_all(&directory).unwrap();
    }
}
