//! Logins over a dedicated connection: the client is charged to its user's tenant once the store has accepted it.

use super::super::dedicated_input::NextRequest;
use super::super::pending_logins::LoginOutcome;
use super::{DedicatedRequests, Ended};
use crate::dispatcher::clients::client::CloseCause;
use crate::dispatcher::identity::LoginRequest;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::stores::socket::StoreSocket;
use crate::dispatcher::wire::{Effect, SessionState as _, Wire};

impl<W: Wire> DedicatedRequests<'_, W> {
    /// Asks the store about the login that a request is, on a connection that is kept for this: its answer on the client's own could
    /// not be told. If it is refused there, the client's connection gets a command that the store does not know in its place.
    ///
    /// # Errors
    ///
    /// If the client's transaction contains logins whose answers cannot be told any more.
    pub(super) async fn verify(&self, next: &mut NextRequest<W>) -> Result<Option<LoginRequest>, CloseCause> {
        if next.effect == Effect::Commit && self.exchange.logins.borrow().are_queued() {
            return Err(CloseCause::ClientLeft);
        }
        let Some(login) = next.login.take() else { return Ok(None) };
        if self.client.verifies(&login, self.service).await {
            return Ok(Some(login));
        }
        self.service.metrics.count(Event::LoginFailed);
        next.instead = Some(W::Session::unknown_command(None));
        Ok(None)
    }

    /// Waits for the answers to logins that may come now, and follows the last that was accepted.
    pub(super) async fn take_logins(&mut self, to_store: &StoreSocket) -> Ended {
        self.write(to_store).await?;
        self.wait_for_replies(0, to_store).await?;
        if self.exchange.outstanding.borrow().has_lost_count() {
            // Nobody can tell who the client is.
            return Err(CloseCause::StoreFailed);
        }
        let LoginOutcome { accepted, refused } = self.exchange.logins.borrow_mut().take_outcome();
        (0..refused).for_each(|_| self.service.metrics.count(Event::LoginFailed));
        accepted.map_or(Ok(()), |login| self.apply_login(&login))
    }

    /// The store has accepted a login: the client is its user's tenant's.
    pub(super) fn apply_login(&self, login: &LoginRequest) -> Ended {
        let client = self.client;
        let before = client.tenant.get();
        client.set_tenant_of_user(login, self.service);
        let is_limited = client.tenant.get() != before
            && self.service.reserve_dedicated(client, self.exchange.node).is_err();
        if is_limited {
            client.respond(&self.service.refuse_connection(client));
        }
        if is_limited || client.conversation.borrow().closing {
            // Its new tenant has too many: so it reads, if it reads at all.
            client.flush(&mut client.conversation.borrow_mut().replies.output);
            return Err(CloseCause::ClientLeft);
        }
        Ok(())
    }
}
