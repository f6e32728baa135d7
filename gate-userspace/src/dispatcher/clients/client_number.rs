//! The numbers of clients, as `CLIENT ID` tells them.
//!
//! Clients share connections, so the store's numbers are not theirs: who named one (`CLIENT KILL`, `CLIENT UNBLOCK`, `CLIENT TRACKING`
//! with `REDIRECT`) would mean other clients. The store has no connection with a number of gate's, and says so.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of one client, once it has asked for it.
#[derive(Debug, Default)]
pub(crate) struct ClientNumber(Cell<Option<u64>>);

impl ClientNumber {
    /// The number, which no other client of this process has.
    pub(super) fn get(&self) -> u64 {
        let number = self.0.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        self.0.set(Some(number));
        number
    }
}

/// More than a store has connections in its life, and a whole number also for clients that take it for a double.
static NEXT: AtomicU64 = AtomicU64::new(1 << 52);
