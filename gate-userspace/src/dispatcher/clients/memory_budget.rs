//! What a thread's clients of one service hold together: replies that they have not read, and requests that are not
//! looked at yet.
//!
//! **Problem.** What one client may hold is bounded, but ten thousand such bounds are no bound. **Rule.** Above half
//! of what all may hold, a client that has replies to read is not listened to; beyond all of it, memory that nothing
//! is in is given back, and then those are closed that have done nothing for longest, of them those that hold most,
//! until an eighth is free ([`Service::close_clients_over_budget`]). Whoever reads is served all the while.
//!
//! It is counted by differences, once for each delivery and not for each byte: what buffers take, not what is in
//! them.

use std::cell::Cell;
use std::rc::Rc;

/// What all hold.
#[derive(Debug, Default)]
pub(crate) struct ClientMemory(Cell<usize>);

/// What one client holds; nothing once it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory: Rc<ClientMemory>,
    bytes: Cell<usize>,
}

impl ClientMemory {
    /// In bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.0.get()
    }

    /// Whether so little is left of `limit` that nobody's replies should gather.
    #[inline]
    pub(crate) fn is_tight(&self, limit: usize) -> bool {
        self.bytes() > limit / 2
    }
}

impl MemoryShare {
    /// That of one more client, which holds nothing.
    pub(crate) fn new(memory: &Rc<ClientMemory>) -> Self {
        Self { memory: Rc::clone(memory), bytes: Cell::new(0) }
    }

    /// In bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// It holds so many bytes now.
    #[inline]
    pub(crate) fn note(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        self.memory.0.set(self.memory.0.get() - before + bytes);
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.note(0);
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
