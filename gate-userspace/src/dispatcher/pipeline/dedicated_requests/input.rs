//! The input of a client with a dedicated connection, and its end.

use std::io::ErrorKind;
use std::time::Duration;

use super::super::exchange::CHUNK;
use super::super::streamed_request::BodyProgress;
use super::{DedicatedRequests, Input};
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::wire::Wire;

impl<W: Wire> DedicatedRequests<'_, W> {
    /// Reads more of what the client sends, unless it may return to the shared connections first.
    pub(super) async fn read_or_return(&mut self, from_client: &ClientReader) -> Result<Input, CloseCause> {
        if self.is_clean() {
            tokio::select! {
                biased;
                () = self.replies_until(0) => {}
                read = self.read(from_client, None) => return read,
            }
            self.may_return = self.exchange.state_is_known.get();
            return Ok(if self.may_return { Input::Returns } else { Input::More });
        }
        let mut body = self.body.take();
        let read = self.read(from_client, body.as_mut().map(|body| &mut body.progress)).await;
        self.body = body;
        read
    }

    /// The client has ended its side, and may still read. It gets the replies that Redis would give it: all to what does not wait for
    /// other clients, and of the rest what the store says at once when it is told that nothing more comes.
    pub(super) async fn give_last_replies(&self, to_store: &StoreSocket) -> CloseCause {
        let is_cut_off = self.body.as_ref().is_some_and(|body| !body.is_skipped);
        let (waiting, ends) = {
            let outstanding = self.exchange.outstanding.borrow();
            let first = outstanding.iter().position(|sent| sent.blocks);
            let waiting = outstanding.len().saturating_sub(first.unwrap_or(usize::MAX));
            (waiting, first.is_some() || outstanding.has_lost_count())
        };
        self.replies_until(waiting.max(usize::from(is_cut_off))).await;
        if ends && !is_cut_off {
            to_store.end_output();
            // The reader of the store's replies notices its end.
            tokio::time::sleep(LAST_WORDS).await;
        }
        self.exchange.flush_to_client().await;
        CloseCause::ClientLeft
    }

    /// Reads more of what the client sends. A body must go on in time.
    async fn read(
        &self,
        from_client: &ClientReader,
        mut body: Option<&mut BodyProgress>,
    ) -> Result<Input, CloseCause> {
        let client = self.client;
        let patience = self.service.limits.get().client_timeout;
        client.conversation.borrow_mut().awaits_output = false;
        let len = loop {
            match &mut body {
                None => from_client.readable().await.map_err(|_| CloseCause::ClientLeft)?,
                Some(progress) => progress.readable(from_client, patience).await?,
            }
            let read =
                client.conversation.borrow_mut().input.fill(CHUNK, |bytes| from_client.try_read_buf(bytes));
            match read {
                Ok(len) => break len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(CloseCause::ClientLeft),
            }
        };
        if let Some(progress) = body {
            progress.received(len);
        }
        client.conversation.borrow_mut().awaits_output = true;
        client.has_progress.set(true);
        self.update_memory();
        Ok(if len > 0 { Input::More } else { Input::Ended })
    }
}

/// How long a store may take to say what is left once it is told that nothing more comes.
const LAST_WORDS: Duration = Duration::from_millis(500);
