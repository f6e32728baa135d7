//! A client that says who it is: user, database, protocol version.
//!
//! The store decides. It is asked on a connection kept for this ([`crate::dispatcher::stores::dedicated`]), which is who
//! the client was before; what it answers is what the client reads. Only then does the client move to the pool of its
//! new identity, and only then is it charged to its user's tenant. It has all its earlier replies by then, and of
//! what it has sent behind, nothing has been looked at.

use std::rc::Rc;

use super::service::{Service, Session};
use crate::dispatcher::clients::conversation::ConnectionMode;
use crate::dispatcher::identity::{Identity, LoginRequest, Secret};
use crate::dispatcher::metrics::Event;
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::wire::{SessionState, Wire};
use crate::protocol::resp::error_code;
use crate::protocol::{Refusal, Step};

impl<W: Wire> Session<W> {
    /// Takes the request that the client's input begins with to the store. Returns where the client goes then.
    pub(crate) async fn change(&self, service: &Rc<Service<W>>) -> ConnectionMode {
        let Some((request, login_request)) = self.take_login() else { return ConnectionMode::Dedicated };
        match self.answer(&request, &login_request, service).await {
            Ok(answer) => {
                self.respond(&answer);
                if error_code(&answer).is_none() {
                    return self.apply_login(&login_request, service);
                }
                if login_request.login.is_some() {
                    service.metrics.count(Event::LoginFailed);
                    // Who is charged to nobody gets one guess for each connection.
                    self.conversation.borrow_mut().closing = self.is_unauthenticated();
                }
            }
            Err(refusal) => {
                let replies = &mut self.conversation.borrow_mut().replies;
                let seq = replies.open();
                replies.refuse(seq, refusal);
                service.admission.count_refusal(self.tenant.get(), refusal.reason);
            }
        }
        ConnectionMode::Shared
    }

    /// The request, and what it asks; `None`, and it stays where it is, if that cannot be told.
    fn take_login(&self) -> Option<(Secret, LoginRequest)> {
        let conversation = &mut *self.conversation.borrow_mut();
        let input = conversation.input.bytes();
        let Step::Request { len, request } = W::decode(&mut conversation.decoder, input) else { return None };
        let bytes = W::bytes(&conversation.decoder, &request, &input[..len]);
        let taken = (Secret::new(bytes), W::Session::login(&request, bytes)?);
        conversation.input.consume(len);
        Some(taken)
    }

    /// The reply: the store's, or gate's own if it can tell.
    async fn answer(
        &self,
        request: &Secret,
        login_request: &LoginRequest,
        service: &Service<W>,
    ) -> Result<Vec<u8>, Refusal> {
        let identity = self.identity.borrow().clone();
        let verified =
            login_request.login.as_ref().and_then(|login| service.tenants.borrow().verifies(login));
        match verified {
            Some(false) => return Ok(WRONG_PASSWORD.to_vec()),
            Some(true)
                if login_request.is_login_only()
                    && service.pools.has_verified(&identity.after(login_request)) =>
            {
                return Ok(OK.to_vec());
            }
            _ => {}
        }
        let asking = async {
            let mut line = service.lines.take(&service.settings, &identity).await?;
            let answer = service.lines.admit(line.ask(&service.settings, request.bytes())).await?;
            service.lines.keep(line);
            Ok(answer)
        };
        asking.await.or_else(|error| match error {
            StoreError::Refused(why) => Ok(why),
            error => Err(error.refusal()),
        })
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
        if login_request.login.is_none() && !login_request.reset {
            return;
        }
        self.user.borrow_mut().clone_from(&login_request.login);
        let ledger = service.ledger.borrow();
        let tenant =
            login_request.login.as_ref().and_then(|login| service.tenants.borrow().of_user(login, &ledger));
        drop(ledger);
        self.set_tenant(tenant.unwrap_or_else(|| service.tenant_of_client(self.source).0), service);
    }

    /// Takes note of a login on a connection of the client's own, if the store accepts it here too.
    pub(crate) async fn verify_login(&self, login_request: &LoginRequest, service: &Service<W>) {
        if let Some(login) = &login_request.login {
            let claimed = Identity { login: Some(Rc::clone(login)), ..Identity::default() };
            let Ok(line) = service.lines.take(&service.settings, &claimed).await else {
                service.metrics.count(Event::LoginFailed);
                return;
            };
            service.lines.keep(line);
        }
        self.set_tenant_of_user(login_request, service);
    }
}

/// As Redis has them.
const OK: &[u8] = b"+OK\r\n";
const WRONG_PASSWORD: &[u8] = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
