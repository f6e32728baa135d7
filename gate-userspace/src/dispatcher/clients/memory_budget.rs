//! The memory budget of a thread's clients of one service: replies that they have not read, and requests that are not
//! decoded yet.
//!
//! **Problem.** What one client may hold is bounded, but ten thousand such bounds are no bound. **Rule.** Above half
//! of the budget, reads are paused from a client with replies to read. Beyond all of it, empty buffers are freed; then
//! clients are closed until an eighth of the budget is free, those first that have been idle for longest, and of them
//! those that hold most (`pipeline/housekeeping.rs`). Clients that read are served all the while.
//!
//! The sum is kept by differences, once for each delivery and not for each byte: the capacity of buffers, not their length.

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
