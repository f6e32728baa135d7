//! The clients of datagrams: each is used again when its reply has been sent.

use std::collections::VecDeque;
use std::rc::Rc;

/// The clients of datagrams: those whose answers are not complete, and those that can be used again.
#[derive(Debug)]
pub(crate) struct Senders<C> {
    /// The ones at the front have been used for the longest.
    clients: VecDeque<Rc<C>>,
    limit: usize,
}

impl<C> Senders<C> {
    /// Room for `limit` datagrams.
    pub(crate) fn new(limit: usize) -> Self {
        Self { clients: VecDeque::new(), limit }
    }

    /// A client for a datagram: one that is used `again`, or a `new` one; `None` if all are in use.
    pub(crate) fn next(&mut self, again: impl FnOnce(&mut C), new: impl FnOnce() -> C) -> Option<Rc<C>> {
        let looks = if self.clients.len() < self.limit { MIN_CAPACITY } else { self.clients.len() };
        for _ in 0..looks.min(self.clients.len()) {
            self.clients.rotate_left(1);
            let last = self.clients.back_mut()?;
            // Nothing that waits for an answer refers to it.
            if let Some(client) = Rc::get_mut(last) {
                again(client);
                return Some(Rc::clone(last));
            }
        }
        if self.clients.len() >= self.limit {
            return None;
        }
        let client = Rc::new(new());
        self.clients.push_back(Rc::clone(&client));
        Some(client)
    }

    /// Gives back the memory of those that are not in use.
    pub(crate) fn release(&mut self) {
        self.clients.retain(|client| Rc::strong_count(client) > 1);
    }
}

/// The number of clients that are searched for one that can be used again, while there may be more of them.
const MIN_CAPACITY: usize = 4;
