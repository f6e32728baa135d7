//! The clients of datagrams: each is used again when its reply has been sent.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::dispatcher::clients::slots::{DatagramSlot, DatagramSlots};

/// The clients of datagrams: those whose answers are not complete, and those that can be used again.
#[derive(Debug)]
pub(crate) struct Senders<C> {
    /// The ones at the front have been used for the longest.
    clients: VecDeque<Rc<C>>,
    slots: Rc<DatagramSlots>,
}

impl<C> Senders<C> {
    /// None yet, and room for as many as there are slots.
    pub(crate) fn new(slots: DatagramSlots) -> Self {
        Self { clients: VecDeque::new(), slots: Rc::new(slots) }
    }

    /// A client for a datagram, and its slot: one that is used `again`, or a `new` one. `None` if all slots are taken.
    pub(crate) fn next(
        &mut self,
        again: impl FnOnce(&mut C),
        new: impl FnOnce() -> C,
    ) -> Option<(Rc<C>, DatagramSlot)> {
        let slot = self.slots.take()?;
        Some((self.client(again, new)?, slot))
    }

    fn client(&mut self, again: impl FnOnce(&mut C), new: impl FnOnce() -> C) -> Option<Rc<C>> {
        let limit = self.slots.limit();
        let looks = if self.clients.len() < limit { MIN_CAPACITY } else { self.clients.len() };
        for _ in 0..looks.min(self.clients.len()) {
            self.clients.rotate_left(1);
            let last = self.clients.back_mut()?;
            // Nothing that waits for an answer refers to it.
            if let Some(client) = Rc::get_mut(last) {
                again(client);
                return Some(Rc::clone(last));
            }
        }
        // One that has given up its slot may still wait for the store.
        if self.clients.len() >= limit {
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
