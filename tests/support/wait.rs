//! Waiting for something to come true that nobody announces: it is looked at often, and not for ever.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use xtask::lab::process::ChildProcess;

/// How long anything may take to come up, to answer or to happen: no machine is that busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something to come true, and says how long that took.
///
/// # Errors
///
/// If it does not within `patience`, or cannot be seen.
pub fn within(what: &str, patience: Duration, mut holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let started = Instant::now();
    let mut looked = started;
    while !holds()? {
        ensure!(started.elapsed() < patience, "{what}: not within {patience:?}");
        // What is waited for needs the processor as well.
        std::thread::park_timeout(looked.elapsed().clamp(LOOK_EVERY, LONGEST_PAUSE));
        looked = Instant::now();
    }
    Ok(started.elapsed())
}

/// [`within`] [`PATIENCE`].
///
/// # Errors
///
/// As there.
pub fn wait_until(what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
    within(what, PATIENCE, holds).map(|_| ())
}

/// [`within`], where there is nobody to tell of a failure.
///
/// # Panics
///
/// If it does not come true.
pub fn until(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    within(what, patience, || Ok(holds())).unwrap_or_else(|error| panic!("{error}"))
}

/// Waits for a server to be up.
///
/// # Errors
///
/// If it ends, or does not come up in [`PATIENCE`].
pub fn until_up(server: &mut ChildProcess, name: &str, is_up: impl FnMut() -> Result<bool>) -> Result<()> {
    server.wait_until(&format!("{name} accepts connections"), PATIENCE, is_up)
}

const LOOK_EVERY: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
