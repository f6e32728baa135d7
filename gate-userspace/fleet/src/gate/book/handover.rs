//! The change from one process of a gate to the next, of which owners are told.

use super::Book;

impl Book {
    /// Another process of this gate may report as well: this one takes over from it.
    pub const fn take_over(&mut self) {
        self.handover.takes_over = true;
    }

    /// From now on this process drains its clients, and its successor may report as well: owners are told so on a new stream.
    pub const fn drain(&mut self) {
        self.handover.drains = true;
    }

    /// True if an owner was told of all that it has to know of a stream from its beginning.
    #[must_use]
    pub fn has_announced(&self, owner: usize) -> bool {
        self.links.get(&owner).is_none_or(|link| link.has_announced(self.handover))
    }
}
