//! The turns of handshakes.

use tokio::sync::{Semaphore, SemaphorePermit};

/// The turns of handshakes in one thread: a step of one is taken at a time, and between two steps everything else that is
/// ready has its turn. A step takes up to some milliseconds, and whoever may connect can ask for many.
#[derive(Debug)]
pub(crate) struct Turns(Semaphore);

impl Turns {
    /// Waits for a turn.
    pub(super) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.0.acquire().await.ok()
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}
