//! The memory that a client with a dedicated connection holds.

use super::DedicatedRequests;
use crate::dispatcher::wire::Wire;

impl<W: Wire> DedicatedRequests<'_, W> {
    /// Gives back memory that nothing is in.
    pub(super) fn release(&mut self) {
        self.out.release();
        self.exchange.outstanding.borrow_mut().release();
        self.update_memory();
    }

    /// Updates the memory that the client holds.
    pub(super) fn update_memory(&self) {
        self.client.other_bytes.set(self.out.memory() + self.exchange.outstanding.borrow().memory());
        self.client.update_memory(&self.client.conversation.borrow());
        self.service.close_clients_over_budget();
    }
}
