//! The machine between runs of tests: several use it together, or one has it to itself for its exclusive cases.

use std::env;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// A use of the machine, up to its drop or the end of the process, however it ends.
#[derive(Debug)]
pub(super) struct Claim {
    _lock: File,
}

impl Claim {
    /// Waits until this use does not meet another run's, and says once on standard error that it waits.
    ///
    /// # Errors
    ///
    /// If the lock's file cannot be opened, or `go_on` says so.
    pub(super) fn wait(alone: bool, go_on: impl FnMut() -> Result<()>) -> Result<Self> {
        Self::wait_at(&env::temp_dir().join("gate-test.lock"), alone, go_on)
    }

    fn wait_at(path: &Path, alone: bool, mut go_on: impl FnMut() -> Result<()>) -> Result<Self> {
        // Another user's run may have made it, and a lock asks for no right to write.
        let opened = File::open(path).or_else(|_| File::create_new(path)).or_else(|_| File::open(path));
        let lock = opened.with_context(|| format!("cannot open {}", path.display()))?;
        let mut waits = false;
        loop {
            match if alone { lock.try_lock() } else { lock.try_lock_shared() } {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the machine"),
            }
            if !waits {
                eprintln!("waiting for the tests of another run on this machine");
                waits = true;
            }
            go_on()?;
            thread::sleep(LOOK_EVERY);
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use std::{env, fs, process};

    use anyhow::{bail, ensure};

    use super::Claim;

    #[test]
    fn several_share_the_machine_or_one_has_it() {
        let path = env::temp_dir().join(format!("gate-test-lock-{}", process::id()));
        let until = Instant::now() + Duration::from_secs(30);
        // A process that another test is about to start has the lock's file open until it runs its own program.
        let go_on = || {
            ensure!(Instant::now() < until, "taken");
            Ok(())
        };
        let claim = |alone| Claim::wait_at(&path, alone, go_on).unwrap();
        let is_taken = |alone| Claim::wait_at(&path, alone, || bail!("taken")).is_err();
        let together = [claim(false), claim(false)];
        assert!(is_taken(true));
        drop(together);
        let alone = claim(true);
        assert!(is_taken(false));
        drop(alone);
        drop(claim(false));
        fs::remove_file(path).unwrap();
    }
}
