//! What a thread's clients of one service hold together: replies that they have not read, and requests that are not
//! looked at yet.
//!
//! **Problem.** What one client may hold is bounded, but ten thousand such bounds are no bound. **Rule.** Above half
//! of what all may hold, a client that has replies to read is not listened to; beyond all of it, memory that nothing
//! is in is given back, and then those are closed that have done nothing for longest, of them those that hold most,
//! until an eighth is free ([`Service::relieve`]). Whoever reads is served all the while.
//!
//! It is counted by differences, once for each delivery and not for each byte: what buffers take, not what is in
//! them.

use std::cell::Cell;
use std::cmp::Reverse;
use std::rc::{Rc, Weak};

use crate::dispatcher::service::Service;
use crate::dispatcher::wire::Wire;

/// What all hold.
#[derive(Debug, Default)]
pub(in crate::dispatcher) struct ClientMemory(Cell<usize>);

/// What one client holds; nothing once it is dropped.
#[derive(Debug)]
pub(in crate::dispatcher) struct MemoryShare {
    memory: Rc<ClientMemory>,
    bytes: Cell<usize>,
}

impl ClientMemory {
    /// In bytes.
    #[inline]
    pub(in crate::dispatcher) fn bytes(&self) -> usize {
        self.0.get()
    }

    /// Whether so little is left of `limit` that nobody's replies should gather.
    #[inline]
    pub(in crate::dispatcher) fn is_tight(&self, limit: usize) -> bool {
        self.bytes() > limit / 2
    }
}

impl MemoryShare {
    /// That of one more client, which holds nothing.
    pub(in crate::dispatcher) fn new(memory: &Rc<ClientMemory>) -> Self {
        Self { memory: Rc::clone(memory), bytes: Cell::new(0) }
    }

    /// In bytes.
    #[inline]
    pub(in crate::dispatcher) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// It holds so many bytes now.
    #[inline]
    pub(in crate::dispatcher) fn note(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        self.memory.0.set(self.memory.0.get() - before + bytes);
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.note(0);
    }
}

impl<W: Wire> Service<W> {
    /// Closes clients if all hold more than they may.
    pub(in crate::dispatcher) fn relieve(&self) {
        let limit = self.limits.get().memory;
        if self.memory.bytes() <= limit {
            return;
        }
        let mut clients: Vec<_> = self.clients.borrow().iter().filter_map(Weak::upgrade).collect();
        clients.iter().for_each(|client| client.release());
        // What those hold that are closed already is as good as free.
        let closing: usize =
            clients.iter().filter(|client| client.is_gone()).map(|client| client.memory_share.bytes()).sum();
        let mut left = self.memory.bytes() - closing;
        clients.retain(|client| !client.is_gone() && client.memory_share.bytes() > 0);
        clients.sort_unstable_by_key(|client| Reverse((client.stuck_for(), client.memory_share.bytes())));
        let (enough, mut closed) = (limit - limit / 8, 0_usize);
        for client in clients {
            if left <= enough {
                break;
            }
            left -= client.memory_share.bytes();
            client.close_stuck();
            closed += 1;
        }
        if closed > 0 {
            let service = &self.settings.name;
            tracing::warn!(service, closed, "clients held more than client_memory, and some are closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_hold_is_the_sum_of_what_each_does_until_it_is_dropped() {
        let memory = Rc::new(ClientMemory::default());
        let (one, other) = (MemoryShare::new(&memory), MemoryShare::new(&memory));
        for (first, second) in [(10, 0), (5, 7), (0, 7), (100, 1)] {
            one.note(first);
            other.note(second);
            assert_eq!(memory.bytes(), first + second);
        }
        assert!(memory.is_tight(201) && !memory.is_tight(202));
        drop(one);
        assert_eq!(memory.bytes(), 1);
        drop(other);
        assert_eq!(memory.bytes(), 0);
    }
}
