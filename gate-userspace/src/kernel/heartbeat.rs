//! The heartbeat: a thread of its own, at raised priority, so that a busy daemon is not taken for a dead one.

#![allow(unsafe_code, reason = "a system call without a safe wrapper")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gate_common::units::Nanos;

use super::intercept_state::Lifeline;
use super::maps::Maps;
use super::owner::Ownership;
use crate::clock;

/// Beats until it is dropped, or until the maps belong to another daemon.
#[derive(Debug)]
pub struct Heartbeat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Beats once, then a few times within every `stale_after`; and for interception, where there is any.
    ///
    /// # Errors
    ///
    /// If no thread can be started.
    pub fn start(
        maps: Arc<Maps>,
        ownership: Ownership,
        stale_after: Nanos,
        lifeline: Option<Lifeline>,
    ) -> std::io::Result<Self> {
        maps.beat(maps.clock().at_monotonic(clock::monotonic()));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let every = Duration::from(Nanos(stale_after.0 / BEATS_BEFORE_STALE));
        let thread = thread::Builder::new().name("heartbeat".to_owned()).spawn(move || {
            raise_priority("heartbeat");
            while !stopped.load(Ordering::Acquire) && ownership.holds(&*maps) {
                maps.beat(maps.clock().at_monotonic(clock::monotonic()));
                lifeline.iter().for_each(Lifeline::beat);
                thread::park_timeout(every);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A beat cannot panic; there is nobody to tell if it did.
            let _ = thread.join();
        }
    }
}

/// Asks for the highest priority that an ordinary thread can have, for the calling one; goes on without it.
pub fn raise_priority(thread: &str) {
    // SAFETY: plain integers; zero means the calling thread.
    let raised = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST_PRIORITY) };
    if raised != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(thread, %error, "runs at ordinary priority");
    }
}

/// So that several may be late before the heartbeat is stale.
const BEATS_BEFORE_STALE: u64 = 20;
const HIGHEST_PRIORITY: libc::c_int = -20;
