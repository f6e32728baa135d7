//! Requests that gate answers before a cluster, as the one node that it shows.

use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::request::{Decoded, ReplySlot};
use crate::dispatcher::wire::{ClusterView, Wire};
use crate::protocol::Refusal;

impl<W: Wire> Service<W> {
    /// True if gate answers a request on a shared connection as the one node of a cluster.
    #[inline]
    pub(super) fn presents(&self, decoded: Decoded<'_, W, Session<W>>) -> bool {
        self.settings.cluster.is_some()
            && (W::presents(decoded.request, decoded.bytes) || W::ends_nothing(decoded.request))
    }

    /// Charges such a request, like any other.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted.
    pub(super) fn admit_presented(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        let mut charged = self.charge(decoded, ledger, now)?;
        self.admission.count_passed(ledger, &mut charged);
        Ok(())
    }

    /// Answers such a request in its place.
    pub(super) fn reply_presented(&self, decoded: Decoded<'_, W, Session<W>>, replies: &mut Replies) {
        let Decoded { client, slot: ReplySlot { seq, .. }, request, bytes, .. } = decoded;
        let mut answer = Vec::new();
        self.present(client, request, bytes, &mut answer);
        self.reply(client, replies, seq, &answer);
    }

    /// Appends gate's answer to a request, as the one node of a cluster.
    pub(super) fn present(&self, client: &Session<W>, request: &W::Request, bytes: &[u8], out: &mut Vec<u8>) {
        if self.settings.cluster.is_none() {
            return;
        }
        let Some(address) = client.reached_at().or(self.settings.listen.first().copied()) else { return };
        let is_resp3 = client.identity.borrow().is_resp3();
        let (served, _) = self.slot_map.borrow().size();
        let view = ClusterView { service: &self.settings.name, address, is_resp3, served };
        W::present(request, bytes, &view, out);
    }
}
