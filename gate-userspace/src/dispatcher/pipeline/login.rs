//! A client that says who it is: user, database, protocol version.
//!
//! The store decides. Credentials are asked on a connection without a greeting, so that its answer is about them alone; the database
//! and the protocol version that the client had, it has again on the connections of its new identity. What changes nothing but these
//! is asked on a connection that is set up as the client was. What the store answers is what the client reads. Only then does the
//! client move to the pool of its new identity, and only then is it charged to its user's tenant. It has all its earlier replies by
//! then, and of what it has sent behind, nothing has been looked at.
//!
//! Such a request is never refused for what its tenant has spent: the price is debt. If the store cannot take it, what the client has
//! sent behind it is refused as well ([`crate::dispatcher::clients::refused_behind`]).

use std::rc::Rc;

use super::service::{Service, Session};
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::clients::conversation::ConnectionMode;
use crate::dispatcher::identity::{Identity, LoginRequest, Secret};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::RequestClass;
use crate::dispatcher::stores::dedicated::{HASH, STATUS};
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::tenants::ledger::TenantId;
use crate::dispatcher::wire::{SessionState, Wire};
use crate::protocol::Step;
use crate::protocol::resp::error_code;

/// A session command that has been taken out of its client's input.
struct SessionCommand {
    bytes: Secret,
    asks: LoginRequest,
    class: RequestClass,
    demand: Demand,
}

impl<W: Wire> Service<W> {
    /// The store's answer on a connection that is kept for such questions, set up as a client of this identity or not at all.
    async fn ask_once(
        &self,
        set_up_as: Option<&Identity>,
        request: &Secret,
        kinds: &[u8],
    ) -> Result<Vec<u8>, StoreError> {
        // The same one to the end.
        let lines = self.lines();
        let mut line = lines.take(&self.settings, set_up_as).await?;
        let answer = lines.admit(line.ask(&self.settings, request.bytes(), kinds)).await?;
        lines.keep(line);
        Ok(answer)
    }
}

impl<W: Wire> Session<W> {
    /// Takes the request that the client's input begins with to the store. Returns where the client goes then.
    pub(crate) async fn change(&self, service: &Rc<Service<W>>) -> ConnectionMode {
        let Some(command) = self.take_session_command(service) else { return ConnectionMode::Dedicated };
        // One without a tenant has been looked at, and is charged to nobody.
        if !self.is_unauthenticated() {
            service
                .admission
                .charge_debt(|| self.payer(self.tenant.get()), command.demand, command.class)
                .await;
        }
        match self.ask_store(&command, service).await {
            Ok(answer) => {
                self.respond(&answer);
                if error_code(&answer).is_none() {
                    return self.apply_login(&command.asks, service);
                }
                if command.asks.login.is_some() {
                    service.metrics.count(Event::LoginFailed);
                    // Who is charged to nobody gets one guess for each connection.
                    self.conversation.borrow_mut().closing = self.is_unauthenticated();
                }
            }
            Err(error) => self.refuse_change(&error, service),
        }
        ConnectionMode::Shared
    }

    /// The request, and what it asks; `None`, and it stays where it is, if that cannot be told.
    fn take_session_command(&self, service: &Service<W>) -> Option<SessionCommand> {
        let conversation = &mut *self.conversation.borrow_mut();
        let input = conversation.input.bytes();
        let Step::Request { len, request } = W::decode(&mut conversation.decoder, input) else { return None };
        let bytes = W::bytes(&conversation.decoder, &request, &input[..len]);
        let asks = W::Session::login(&request, bytes)?;
        let class = service.types.borrow().classify::<W>(&request, bytes);
        let demand = service.demand(self, (self.tenant.get(), class), &request, bytes);
        let command = SessionCommand { bytes: Secret::new(bytes), asks, class, demand };
        conversation.input.consume(len);
        Some(command)
    }

    /// The reply: the store's, or gate's own if it can tell.
    async fn ask_store(
        &self,
        SessionCommand { bytes, asks, .. }: &SessionCommand,
        service: &Service<W>,
    ) -> Result<Vec<u8>, StoreError> {
        let identity = self.identity.borrow().clone();
        let verified = asks.login.as_ref().and_then(|login| service.tenants.borrow().verifies(login));
        match verified {
            Some(false) => return Ok(W::Session::WRONG_PASSWORD.to_vec()),
            Some(true) if asks.is_login_only() && service.pools.has_verified(&identity.after(asks)) => {
                return Ok(OK.to_vec());
            }
            _ => {}
        }
        let set_up_as = Some(&identity).filter(|_| asks.login.is_none());
        let kinds = if asks.is_hello() { HASH } else { STATUS };
        match service.ask_once(set_up_as, bytes, kinds).await {
            // A connection that is lost takes what was asked on it along.
            Err(StoreError::Closed) => service.ask_once(set_up_as, bytes, kinds).await,
            answer => answer,
        }
    }

    /// The store cannot take the change now, or no longer lets the client in as who it is: so it reads, and all that it has sent
    /// behind is refused.
    fn refuse_change(&self, error: &StoreError, service: &Service<W>) {
        let refusal = error.refusal();
        match error.words() {
            Some(words) => self.respond(words),
            None => {
                let replies = &mut self.conversation.borrow_mut().replies;
                let seq = replies.open();
                replies.refuse(seq, refusal);
            }
        }
        service.admission.count_refusal(self.tenant.get(), refusal.reason);
        self.refuse_session(refusal);
    }

    /// The store has accepted the login. Moves the client to the pool of its identity, if there is one.
    fn apply_login(&self, login_request: &LoginRequest, service: &Rc<Service<W>>) -> ConnectionMode {
        let identity = self.identity.borrow().after(login_request);
        self.set_tenant_of_user(login_request, service);
        let pool = service.pools.open(&identity, service);
        if let Some(login) = &login_request.login {
            service.pools.accepted(login);
        }
        *self.identity.borrow_mut() = identity;
        let Some(pool) = pool else { return ConnectionMode::Dedicated };
        self.use_pool(pool);
        ConnectionMode::Shared
    }

    /// From now on it is charged to the tenant of the user as whom it has logged in, if it has one.
    pub(crate) fn set_tenant_of_user(&self, login_request: &LoginRequest, service: &Service<W>) {
        if !login_request.names_user() {
            return;
        }
        self.user.borrow_mut().clone_from(&login_request.login);
        self.set_tenant(self.tenant_after(login_request, service), service);
    }

    /// The tenant that it is charged to once the store has accepted a login or a reset.
    pub(crate) fn tenant_after(&self, login_request: &LoginRequest, service: &Service<W>) -> TenantId {
        let ledger = service.ledger.borrow();
        let login = login_request.login.as_ref();
        let of_user = login.and_then(|login| service.tenants.borrow().of_user(login, &ledger));
        drop(ledger);
        of_user.unwrap_or_else(|| service.tenant_of_client(self.source).0)
    }

    /// True if the store accepts a login, by a connection that is kept for such questions.
    pub(crate) async fn verifies(&self, login_request: &LoginRequest, service: &Service<W>) -> bool {
        let Some(login) = &login_request.login else { return true };
        let claimed = Identity { login: Some(Rc::clone(login)), ..Identity::default() };
        let lines = service.lines();
        let line = lines.take(&service.settings, Some(&claimed)).await;
        line.is_ok_and(|line| {
            lines.keep(line);
            true
        })
    }
}

/// As Redis has it.
const OK: &[u8] = b"+OK\r\n";
