//! Replies over a dedicated connection that are gate's own, and whether the client wants any.

use gate_common::abi::Reason;

use super::super::dedicated_input::{NextRequest, OwnAnswer};
use super::{DedicatedRequests, Ended};
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

impl<W: Wire> DedicatedRequests<'_, W> {
    /// Follows what a request says of the replies from now on. True if they are counted again from this request's on.
    pub(super) async fn follow_replies(
        &mut self,
        wants: Option<bool>,
        to_store: &StoreSocket,
    ) -> Result<bool, CloseCause> {
        match wants {
            None => Ok(false),
            Some(true) => Ok(self.exchange.outstanding.borrow_mut().resume()),
            Some(false) => {
                self.wait_for_replies(0, to_store).await?;
                self.exchange.outstanding.borrow_mut().silence();
                Ok(false)
            }
        }
    }

    /// Gives gate's own reply to a request, when the store has answered all before it.
    pub(super) async fn refuse(
        &mut self,
        next: NextRequest<W>,
        refusal: Refusal,
        to_store: &StoreSocket,
    ) -> Ended {
        self.client.note_refused(&next.request, refusal);
        self.answer(next, |out| W::refuse(refusal, out), to_store).await
    }

    /// Gives gate's answer to a request before a cluster.
    pub(super) async fn answer_as_cluster(
        &mut self,
        next: NextRequest<W>,
        own: OwnAnswer,
        to_store: &StoreSocket,
    ) -> Ended {
        let mut answer = Vec::new();
        match own {
            OwnAnswer::Refused(rule) => {
                let refusal = Refusal::by(Reason::Unsupported, rule);
                self.service.refuses(self.client, next.tenant, refusal.reason);
                return self.refuse(next, refusal, to_store).await;
            }
            OwnAnswer::Presented => {
                let conversation = self.client.conversation.borrow();
                let input = &conversation.input.bytes()[..next.len];
                let bytes = W::bytes(&self.decoder, &next.request, input);
                self.service.present(self.client, &next.request, bytes, &mut answer);
            }
        }
        self.answer(next, |out| out.extend_from_slice(&answer), to_store).await
    }

    /// Gives an answer that is not the store's to a request, when the store has answered all before it.
    pub(super) async fn answer(
        &mut self,
        next: NextRequest<W>,
        answer: impl FnOnce(&mut Vec<u8>),
        to_store: &StoreSocket,
    ) -> Ended {
        self.wait_for_replies(0, to_store).await?;
        self.begin_body(&next, true);
        {
            let conversation = &mut *self.client.conversation.borrow_mut();
            conversation.replies.output.append(answer);
            conversation.input.consume(next.len);
        }
        self.client.has_finished_a_request();
        if self.exchange.flush_to_client().await { Ok(()) } else { Err(CloseCause::ClientLeft) }
    }
}
